/* rescaled_causal.h: causal linear attention with positive random features
 * (rescaled_features.h).
 *
 *    s_i = P_i s_{i-1} + b_i v_i^T,  z_i = P_i z_{i-1} + b_i
 *    o_i = scale a_i^T s_i / (scale a_i.z_i + eps)
 *
 * with P_i the powers of two by which the scale changes at token i.
 *
 * q, k (n,d), v (n,m), omega (d,f), t, s0 (f,m), z0 (f), M (f) -> o (n,m) and the state
 * after the last token.  M = NaN: s0 and z0 are plain sums.  4 n f (d + m) flops and 2
 * n f exponentials.  Scratch: the state, omega, some chunks. */
#ifndef LA_RESCALED_CAUSAL_H
#define LA_RESCALED_CAUSAL_H

#include "../maps/rescaled_features.h"

/* The head as the recurrence sees it, with features in place of q and k. */
static struct la_head
head_of_features(const struct la_head *h)
{
    struct la_head inner = *h;
    inner.d = h->f;
    inner.normalize = 1;
    return inner;
}

/* Clears the MR rows after those of a chunk, which a tile of a piece may read. */
static void
clear_after(struct block x, ptrdiff_t rows)
{
    clear_rows(x, round_up(rows, MR), round_up(rows, MR) + MR);
}

struct rescaled_causal_scratch {
    ptrdiff_t rows; /* tokens per chunk */
    struct rescaled_features f;
    struct block a, b, v, dots, o;
    T *s, *lost, *z, *z_lost, *den;
};

static struct rescaled_causal_scratch
rescaled_causal_carve(const struct la_head *h, struct arena *arena)
{
    struct rescaled_causal_scratch r = {.rows = chunk_rows(h->f)};
    r.f = rescaled_features_carve(h, arena, r.rows);
    r.a = take_block(arena, r.rows, h->f);
    r.b = take_block(arena, r.rows, h->f);
    r.v = take_block(arena, r.rows + MR, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.o = take_block(arena, r.rows, h->m);
    r.s = take_state(arena, h->f, h->m);
    r.lost = take_state(arena, h->f, h->m);
    r.z = take_row(arena, h->f);
    r.z_lost = take_row(arena, h->f);
    r.den = take(arena, 1, r.rows);
    return r;
}

/* Computes rows [from, to) of the chunk t, which have the same scale. */
static void
rescaled_causal_piece(const struct la_head *inner,
                      const struct rescaled_causal_scratch *r, struct sweep *c,
                      struct span t, ptrdiff_t from, ptrdiff_t to, int keyless)
{
    const struct rescaled_features *f = &r->f;
    if (scale_change(f, running_max_after(f, from), running_max_after(f, from + 1))) {
        scale_sums(f, c, r->z, r->z_lost, 0);
    }
    rescaled_rows(f, r->a, r->b, from, to, keys_left(inner, t));
    c->rows = to - from;
    c->v = block_at(r->v, from, 0);
    scores(c);
    score_sums(r->den, c, r->z);
    factors(inner, r->den, c->rows, keyless, NULL); /* den >= 1: no row is lifted */
    sweep(c, LA_READ | LA_WRITE);
    add_rows(r->z, r->z_lost, r->b, c->rows);
    store_rows(&inner->o, rows_from(t.first + from, c->rows), inner->m, r->o, r->den);
}

static int
run_rescaled_causal(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct rescaled_causal_scratch r = rescaled_causal_carve(h, &arena);
    const struct la_head inner = head_of_features(h);
    struct la_fetch ahead = {0};
    struct sweep c = {
        .K = h->f,
        .W = round_up(h->m, VL),
        .a = r.a,
        .b = r.b,
        .dots = r.dots,
        .o = r.o,
        .s = r.s,
        .ahead = &ahead,
    };
    load_directions(h, &r.f);
    load_state(r.s, &h->s0, h->f, h->m);
    compensate(&c, h, r.lost, r.rows);
    load_vector(r.z, &h->z0, h->f);
    clear(r.z_lost, r.a.ld);
    if (load_running_max(h, &r.f, r.z) && scale_change(&r.f, NULL, r.f.running_max.x)) {
        scale_sums(&r.f, &c, r.z, r.z_lost, 0);
    }
    const int keyless = no_keys(&inner, r.z);
    for (ptrdiff_t i = 0; i < h->n; i += r.rows) {
        const struct span t = span(i, r.rows, i + r.rows, h->n, &ahead);
        rescaled_chunk(h, &r.f, t, keys_left(h, t));
        load_values(h, t, r.v);
        clear_after(r.v, t.rows);
        look_ahead(&h->o, t, h->m);
        for (ptrdiff_t from = 0, to; from < t.rows; from = to) {
            if (h->poll(h->poll_arg)) {
                return 1;
            }
            to = piece_end(&r.f, from, t.rows);
            rescaled_causal_piece(&inner, &r, &c, t, from, to, keyless);
        }
        memcpy(r.f.running_max.x, running_max_after(&r.f, t.rows),
               (size_t)r.f.running_max.ld * sizeof(T));
    }
    store_state(&h->s1, r.s, h->f, h->m);
    store_vector(&h->z1, r.z, h->f);
    store_vector(&h->running_max1, r.f.running_max.x, h->f);
    return 0;
}

#endif
