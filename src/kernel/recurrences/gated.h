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

#include "../decays/decayed_sum.h"
#include "../tiles/token_blocks.h"
#include "writes.h"

struct gated_scratch;

/* What mLSTM, with gated attention inside, does differently (mlstm.h). */
struct gated_parts {
    /* b and v of the tokens t, once they are loaded */
    void (*keys)(const struct gated_scratch *r, struct span t, ptrdiff_t keys,
                 struct block b, struct block v);
    /* their outputs, from O and, if they are normalized, z.q */
    void (*outputs)(const struct la_head *h, const struct gated_scratch *r,
                    struct span t);
};

struct gated_scratch {
    const struct gated_parts *parts; /* or NULL */
    ptrdiff_t rows;                  /* largest number of tokens per chunk */
    struct own own;                  /* rows: with one decay per token */
    struct block a, b, v, dots, o;
    struct pairs pairs;
    const T **held;
    struct decay decay;
    T *s, *lost;
    T *scale;               /* factors of outputs; of normalized ones z.q first */
    struct decayed_sum sum; /* of normalized outputs */
    T *bonus, *own_scores;  /* u, (d), or NULL; scores of own keys, (rows) */
    struct writes writes;
};

/* Decays of channels, and a bonus, need rows as floats. */
static struct own
gated_own(const struct la_head *h)
{
    return (struct own){
        .rows = !h->g.has_channels && !la_is_given(&h->bonus) && h->block == 0 &&
                are_own_rows(h),
        .values = are_operands(h, &h->v),
    };
}

static struct gated_scratch
gated_carve(const struct la_head *h, struct arena *arena)
{
    struct gated_scratch r = {.rows = head_rows(h), .own = gated_own(h)};
    r.a = take_rows_as(r.own.rows, h, arena, r.rows, h->d);
    r.b = take_rows_as(r.own.rows, h, arena, r.rows, h->d);
    r.v = take_rows_as(r.own.values, h, arena, r.rows, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.o = take_block(arena, r.rows, h->m);
    r.s = take_state(arena, h->d, h->m);
    r.lost = take_state(arena, h->d, h->m);
    r.scale = take(arena, 1, r.rows);
    if (h->normalize) {
        r.sum = take_decayed_sum(h, arena);
    }
    r.decay = take_decay(arena, h, r.rows);
    r.pairs = take_pairs(h, arena, r.rows, h->d, h->m);
    r.held = take_held(h, arena, h->m);
    if (la_is_given(&h->bonus)) {
        r.bonus = take_row(arena, h->d);
        r.own_scores = take_row(arena, r.rows);
    }
    r.writes = take_writes(h, arena, r.rows, 0);
    return r;
}

/* Sets up how a sweep takes the rows of a chunk. */
INLINE void
take_gated_rows(const struct gated_scratch *r, const struct decay *decay,
                struct sweep *c)
{
    c->own = r->own;
    c->strength = r->writes.strength;
    if (r->own.rows) {
        c->from_start = start_of(decay, 0);
        c->to_end = decay->end;
    }
}

/* X; then A, scaled for the product with the state, unless sweeps do that. */
static void
gated_queries(const struct la_head *h, const struct gated_scratch *r, struct block a,
              struct block b, struct la_fetch *ahead, ptrdiff_t tokens)
{
    const ptrdiff_t rows = round_up(tokens, MR);
    const struct sweep c = {.rows = rows,
                            .K = h->d,
                            .a = a,
                            .b = b,
                            .dots = r->dots,
                            .ahead = ahead,
                            .pairs = r->pairs,
                            .own = r->own};
    if (r->own.rows) {
        scores(&c);
        decay_triangle(&r->decay, r->dots, rows, 0);
        return;
    }
    if (la_is_given(&h->bonus)) {
        own_scores(r->own_scores, r->bonus, a, b, rows, h->d);
    }
    readers_meet(&r->decay, a, a, tokens, h->d, la_is_given(&h->bonus));
    writers_meet(&r->decay, b, b, tokens, h->d);
    scores(&c);
    decay_triangle(&r->decay, r->dots, rows, la_is_given(&h->bonus));
    if (la_is_given(&h->bonus)) {
        set_diagonal(r->dots, r->own_scores, rows);
    }
    from_start(&r->decay, a, a, tokens, h->d, la_is_given(&h->bonus));
}

/* X; then A and B, scaled for the products with the states, unless sweeps do that. */
static void
gated_triangle(const struct la_head *h, const struct gated_scratch *r, struct block a,
               struct block b, struct la_fetch *ahead, ptrdiff_t tokens)
{
    gated_queries(h, r, a, b, ahead, tokens);
    if (!r->own.rows) {
        to_end(&r->decay, b, b, tokens, h->d);
    }
}

/* Loads the keys and values of a chunk for a sweep: in blocks, or where they are. */
static void
load_gated_keys(const struct la_head *h, const struct gated_scratch *r, struct span t,
                struct sweep *c, struct block b, struct block v)
{
    load_keys_as(r->own, h, t, c, b, v);
    if (r->own.values) {
        load_strengths(h, &r->writes, t);
    }
    else {
        strengthen(h, &r->writes, t, v);
    }
    if (r->parts != NULL) {
        r->parts->keys(r, t, keys_left(h, t), b, v);
    }
}

static void
store_gated_outputs(const struct la_head *h, const struct gated_scratch *r,
                    struct span t)
{
    if (r->parts != NULL) {
        r->parts->outputs(h, r, t);
    }
    else {
        store_outputs(h, &r->writes, t, r->o, r->scale);
    }
}

/* z.q of a chunk's rows, whose keys are scaled to the end by now; z after them. */
static void
gated_sums(const struct la_head *h, const struct gated_scratch *r,
           const struct sweep *c)
{
    forget_sum(&r->decay, r->sum, h->d);
    score_sums(r->scale, c, r->sum.z);
    fade_sum(h, &r->decay, r->sum, r->sum);
    add_rows(r->sum.z, r->sum.lost, c->b, c->rows);
}

/* Loads the keys, values and decays of the chunk that begins with the tokens t, by a
 * function that returns how many its decays leave. */
INLINE struct span
load_gated_chunk(const struct la_head *h, const struct gated_scratch *r,
                 struct sweep *c, struct span t,
                 ptrdiff_t (*decays)(const struct la_head *, struct span,
                                     const struct decay *))
{
    const int exact = keeps_nothing(&r->decay); /* the chunk before */
    c->rows = t.rows = decays(h, t, &r->decay);
    c->fades = exact && keeps_nothing(&r->decay);
    t.next = t.first + t.rows;
    load_gated_keys(h, r, t, c, r->b, r->v);
    return t;
}

/* The tokens from i on.  Returns where the scan continues, or -1 to stop. */
static ptrdiff_t
gated_chunks(const struct la_head *h, const struct gated_scratch *r, struct sweep *c,
             ptrdiff_t i)
{
    for (; i < slice_end(h, h->n); i += c->rows) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        struct span t = span(i, up_to_cut(h, i, r->rows), i + r->rows, h->n, c->ahead);
        t = load_gated_chunk(h, r, c, t, load_decays);
        load_readers_as(r->own, h, &h->q, t, c, r->a);
        look_ahead(&h->o, t, h->m);
        gated_triangle(h, r, c->a, c->b, c->ahead, t.rows);
        if (h->normalize) {
            gated_sums(h, r, c);
        }
        sweep_decayed(&r->decay, c, LA_READ | LA_WRITE, la_is_given(&h->bonus));
        store_gated_outputs(h, r, t);
    }
    return i;
}

/* The same, of all tokens, which are in blocks (token_blocks.h). */
static ptrdiff_t
gated_blocks(const struct la_head *h, const struct gated_scratch *r, struct sweep *c)
{
    struct span t;
    for (ptrdiff_t i = 0; i < h->n; i += t.rows) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        t = span(i, r->rows, i + r->rows, token_block_end(h, i), c->ahead);
        t = load_gated_chunk(h, r, c, t, load_decay_ends);
        given_to_end(&r->decay, r->b, t.rows, h->d);
        forget_state(&r->decay, c);
        sweep(c, LA_WRITE);
        if (ends_token_block(h, t) &&
            read_token_block(h, *c, r->scale, token_block_begin(h, t), i + t.rows,
                             r->rows)) {
            return -1;
        }
    }
    return h->n;
}

/* What is the same for all chunks. */
static void
gated_numbers(const struct la_head *h, const struct gated_scratch *r)
{
    if (la_is_given(&h->bonus)) {
        load_vector(r->bonus, &h->bonus, h->d);
    }
    load_skip(h, &r->writes);
    if (!h->normalize) {
        factors(h, r->scale, r->rows, 0, NULL);
    }
}

/* Computes a head with scratch that has been taken. */
static int
gated_head(const struct la_head *h, const struct gated_scratch *r)
{
    struct la_fetch own = {0};
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->a,
        .b = r->b,
        .v = r->v,
        .dots = r->dots,
        .o = r->o,
        .s = r->s,
        .keep = r->decay.keep,
        .change = r->decay.change,
        .ahead = slice_fetch(h, &own),
        .pairs = r->pairs,
        .scored = r->own.rows,
        .held = r->held,
    };
    ptrdiff_t i = slice_begin(h);
    take_gated_rows(r, &r->decay, &c);
    compensate_state(&c, h, r->lost, rows_in_block(h, r->rows));
    if (i == 0) {
        begin_state(h, r->s, c.lost);
        r->decay.keep[0] = (T)carries_lost(h); /* 0: nothing has been lost yet */
        gated_numbers(h, r);
        if (h->normalize) {
            begin_vector(h, r->sum.z, r->sum.lost);
        }
    }
    forget_pairs(&c);
    i = h->block > 0 ? gated_blocks(h, r, &c) : gated_chunks(h, r, &c, i);
    if (i >= 0 && ends_last_pass(h, i, h->n)) {
        end_state(&h->s1, r->s, r->lost, h->d, h->m);
        if (h->normalize) {
            end_vector(&h->z1, r->sum.z, r->sum.lost, h->d);
        }
    }
    return i < 0;
}

static int
run_gated(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct gated_scratch r = gated_carve(h, &arena);
    return gated_head(h, &r);
}

#endif
