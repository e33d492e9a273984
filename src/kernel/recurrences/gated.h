/* gated.h: causal linear attention whose state decays, one head, in chunks.
 *
 *    s_i = exp(g_i) s_{i-1} + b_i v_i^T      b = phi(k); one g_i, or one per row of s
 *    o_i = scale s_i^T phi(q_i)                              Dao and Gu 2024 (Mamba-2)
 *    o_i = scale (s_{i-1} + (u o b_i) v_i^T)^T phi(q_i)      with a bonus u (RWKV-6)
 *
 * Over the rows of a chunk, with S the state before it and decay.h's factors:
 *
 *    O = X V + (exp(G) o A) S,  X = tril((A B^T) o E)
 *    S <- exp(G_last) S + (exp(G_last - G) o B)^T V
 *
 * About 4 n d m flops plus the triangles, and one exponential per pair of rows of a
 * chunk, or one per decay of a key channel.  Scratch: the state, d m numbers, and a few
 * chunks. Rows j > i never affect row i. */
#ifndef LA_GATED_H
#define LA_GATED_H

#include "../decays/decay.h"

struct gated_scratch {
    ptrdiff_t rows; /* largest number of tokens per chunk */
    struct block a, b, v, dots, o;
    struct decay decay;
    T *s, *lost, *scale;
    T *bonus, *own; /* u, (d), or NULL; scores of own keys, (rows) */
};

static struct gated_scratch
gated_carve(const struct la_head *h, struct arena *arena)
{
    struct gated_scratch r = {.rows = chunk_rows(h->d)};
    r.a = take_block(arena, r.rows, h->d);
    r.b = take_block(arena, r.rows, h->d);
    r.v = take_block(arena, r.rows, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.o = take_block(arena, r.rows, h->m);
    r.s = take_state(arena, h->d, h->m);
    r.lost = take_state(arena, h->d, h->m);
    r.scale = take(arena, 1, r.rows);
    r.decay = take_decay(arena, h, r.rows);
    if (la_is_given(&h->bonus)) {
        r.bonus = take_row(arena, h->d);
        r.own = take_row(arena, r.rows);
    }
    return r;
}

/* X; then A and B, scaled for the products with the states. */
static void
gated_triangle(const struct la_head *h, const struct gated_scratch *r,
               struct la_fetch *ahead, ptrdiff_t tokens)
{
    const ptrdiff_t rows = round_up(tokens, MR);
    const struct sweep c = {
        .rows = rows, .K = h->d, .a = r->a, .b = r->b, .dots = r->dots, .ahead = ahead};
    if (la_is_given(&h->bonus)) {
        own_scores(r->own, r->bonus, r->a, r->b, rows, h->d);
    }
    readers_meet(&r->decay, r->a, r->a, tokens, h->d, la_is_given(&h->bonus));
    writers_meet(&r->decay, r->b, r->b, tokens, h->d);
    scores(&c);
    decay_triangle(&r->decay, r->dots, rows, la_is_given(&h->bonus));
    if (la_is_given(&h->bonus)) {
        set_diagonal(r->dots, r->own, rows);
    }
    from_start(&r->decay, r->a, r->a, tokens, h->d, la_is_given(&h->bonus));
    to_end(&r->decay, r->b, r->b, tokens, h->d);
}

static int
run_gated(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct gated_scratch r = gated_carve(h, &arena);
    struct la_fetch own = {0}, *ahead = interleave_fetch(h, &own);
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r.a,
        .b = r.b,
        .v = r.v,
        .dots = r.dots,
        .o = r.o,
        .s = r.s,
        .keep = r.decay.keep,
        .change = r.decay.change,
        .ahead = ahead,
    };
    ptrdiff_t i = interleave_begin(h);
    take_up_sum(&c, r.lost, h->n, r.rows);
    if (i == 0) {
        load_state(r.s, &h->s0, h->d, h->m);
        compensate(&c, r.lost, h->n, r.rows);
        r.decay.keep[0] = 0; /* nothing has been lost yet */
        if (la_is_given(&h->bonus)) {
            load_vector(r.bonus, &h->bonus, h->d);
        }
        factors(h, r.scale, r.rows, 0, NULL);
    }
    for (; i < interleave_end(h); i += c.rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        struct span t = span(i, r.rows, i + r.rows, h->n, interleave_look(h, &own));
        const int exact = keeps_nothing(&r.decay); /* the chunk before */
        c.rows = t.rows = load_decays(h, t, &r.decay);
        c.fades = exact && keeps_nothing(&r.decay);
        t.next = i + t.rows;
        load_keys(h, t, r.b, r.v);
        load_mapped(r.a, &h->q, t, h->d, h->map);
        look_ahead(&h->o, t, h->m);
        gated_triangle(h, &r, ahead, t.rows);
        sweep_decayed(&r.decay, &c, la_is_given(&h->bonus));
        store_rows(&h->o, t, h->m, r.o, r.scale);
    }
    if (interleave_finishes(h, i)) {
        store_state(&h->s1, r.s, h->d, h->m);
    }
    return 0;
}

#endif
