/* gated_states.h: the states before each chunk of gated linear attention, as its
 * gradients need them (gated_backward.h): recomputed as in checkpoints.h.  With each
 * checkpoint goes what the sum has lost to rounding, so that the recomputed states have
 * the bits of the forward scan, wherever the checkpoints are. */
#ifndef LA_GATED_STATES_H
#define LA_GATED_STATES_H

#include "../decays/checkpoints.h"
#include "../decays/decay_backward.h"
#include "gated.h"

struct gated_backward_scratch;

/* What mLSTM, with gated attention inside, does differently (mlstm_backward.h). */
struct gated_backward_parts {
    /* b and v of the tokens t, and 0 where no key exists */
    void (*keys)(const struct la_head *h, const struct gated_backward_scratch *r,
                 struct span t);
    /* everything else, if not NULL: the cotangents c, from X, P and their product with
     * the state, of which P and the product follow; after dA and dB */
    void (*cotangents)(const struct la_head *h, const struct gated_backward_scratch *r,
                       struct span t, T *s);
    void (*finish)(const struct la_head *h, const struct gated_backward_scratch *r,
                   struct span t);
    /* from S^T after the last token, and its gradient R */
    void (*last)(const struct la_head *h, const struct gated_backward_scratch *r, T *s,
                 T *grad);
    /* in stages: notes what makes cotangents of normalized outputs, from what the
     * second function takes; and makes those of the tokens t from it */
    void (*note)(const struct la_head *h, const struct gated_backward_scratch *r,
                 struct span t, T *s);
    void (*noted)(const struct la_head *h, const struct gated_backward_scratch *r,
                  struct span t);
};

struct gated_backward_scratch {
    const struct gated_backward_parts *parts;
    struct checkpoints chunks;
    struct block a, b, v, c;
    /* A and B, scaled for products with each other and with the states. */
    struct block met_a, met_b, far_a, far_b;
    struct block x, p, transposed;
    struct block da, db, dv;
    struct decay decay;
    struct decay_pairs pairs;
    T *scale, *own, *own_p; /* (rows); scores of queries with their own keys; p_ii */
    T *bonus;               /* u, (d), or NULL */
    T *sum, *lost_of_sum;   /* du or dD, if given */
    struct writes writes;
    T *rt; /* R^T */
    /* Of a whole head: R; what R, S and, at each checkpoint, S had lost. */
    T *r, *r_lost, *s_lost, *lost;
    struct pairs factors;
};

static void
gated_keys(const struct la_head *h, const struct gated_backward_scratch *r,
           struct span t)
{
    load_writes(h, &r->writes, t, r->b, r->v);
}

static const struct gated_backward_parts gated_gradient_parts = {.keys = gated_keys};

/* Channels of the caller's values: with normalized outputs, z is one more. */
INLINE ptrdiff_t
value_channels(const struct la_head *h)
{
    return h->m - h->normalize;
}

/* Of the sum over all tokens: the gradient of a bonus (d), or of a skip (m). */
INLINE ptrdiff_t
width_of_sum(const struct la_head *h)
{
    return la_is_given(&h->bonus) ? round_up(h->d, VL)
           : la_is_given(&h->D)   ? round_up(h->m, VL)
                                  : 0;
}

/* What a chunk needs. */
static struct gated_backward_scratch
take_gated_gradient(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = gated_backward_rows(h->d);
    struct gated_backward_scratch r = {0};
    struct block *const keys[] = {&r.a,     &r.b,     &r.met_a, &r.met_b,
                                  &r.far_a, &r.far_b, &r.da,    &r.db};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        *keys[i] = take_block(arena, rows, h->d);
    }
    r.parts = &gated_gradient_parts;
    r.v = take_block(arena, rows, h->m);
    r.c = take_block(arena, rows, h->m);
    r.dv = take_block(arena, rows, h->m);
    r.x = take_block(arena, rows, rows);
    r.p = take_block(arena, rows, rows);
    r.transposed = take_block(arena, rows, rows);
    r.decay = take_decay(arena, h, rows);
    take_decay_gradient(arena, h, rows, &r.pairs);
    r.scale = take(arena, 1, rows);
    if (la_is_given(&h->bonus)) {
        r.own = take_row(arena, rows);
        r.own_p = take_row(arena, rows);
        r.bonus = take_row(arena, h->d);
    }
    r.sum = take(arena, 1, width_of_sum(h));
    r.lost_of_sum = take(arena, 1, width_of_sum(h));
    r.writes = take_writes(h, arena, rows, 1);
    r.rt = take_state(arena, h->d, h->m);
    r.factors = take_pairs(h, arena, rows, wider_of(h->d, h->m), wider_of(h->d, h->m));
    r.chunks.rows = rows;
    return r;
}

static struct gated_backward_scratch
gated_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct gated_backward_scratch r = take_gated_gradient(h, arena);
    r.r = take_state(arena, h->d, h->m);
    r.r_lost = take_state(arena, h->d, h->m);
    r.s_lost = take_state(arena, h->d, h->m);
    r.chunks = take_checkpoints(arena, h, r.chunks.rows);
    r.lost = take_states(arena, r.chunks.most, h->d, h->m);
    return r;
}

/* The sweep that sums S^T (m, d). */
static struct sweep
gated_state(const struct la_head *h, const struct gated_backward_scratch *r,
            struct la_fetch *ahead)
{
    return (struct sweep){
        .K = h->m,
        .W = round_up(h->d, VL),
        .b = r->v,
        .v = r->b,
        .keep = r->decay.keep,
        .change = r->decay.change,
        .transposed = 1,
        .ahead = ahead,
        .pairs = r->factors,
    };
}

/* S^T after the chunk that begins with the tokens t; returns the number of its
 * tokens. */
static ptrdiff_t
gated_forward(const struct la_head *h, const struct gated_backward_scratch *r,
              struct sweep *c, struct span t)
{
    c->rows = t.rows = load_decay_ends(h, t, &r->decay);
    t.next = t.first + t.rows;
    r->parts->keys(h, r, t);
    given_to_end(&r->decay, r->b, t.rows, h->d);
    forget_state(&r->decay, c);
    sweep(c, LA_WRITE);
    return t.rows;
}

/* dq of the block that ends with the tokens t, from S^T after it. */
static int
gated_block_dq(const struct la_head *h, const struct gated_backward_scratch *r, T *s,
               struct span t)
{
    const struct sweep c = {.K = h->m,
                            .W = round_up(h->d, VL),
                            .a = r->c,
                            .o = r->da,
                            .s = s,
                            .ahead = t.ahead,
                            .pairs = r->factors};
    return token_block_dq(h, c, r->a, r->scale, token_block_begin(h, t),
                          t.first + t.rows, r->chunks.rows);
}

/* The forward scan: S^T before every interval, and what it has lost.  Returns the
 * number of chunks, or -1 to stop. */
static ptrdiff_t
gated_checkpoints(const struct la_head *h, const struct gated_backward_scratch *r)
{
    const struct checkpoints *x = &r->chunks;
    const size_t bytes = (size_t)state_size(h->d, h->m) * sizeof(T);
    const struct la_array s0_transposed = transposed(h->s0);
    struct la_fetch ahead = {0};
    struct sweep c = gated_state(h, r, &ahead);
    ptrdiff_t chunks = 0;
    c.s = r->rt; /* unused until the reverse scan */
    load_state(c.s, &s0_transposed, h->m, h->d);
    compensate(&c, h, r->s_lost, rows_in_block(h, x->rows));
    memset(x->begins, 0, (size_t)h->n);
    for (ptrdiff_t i = 0; i < h->n; i += c.rows, chunks++) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        if (chunks % x->interval == 0) {
            memcpy(state_of(x->checkpoints, h, chunks / x->interval), c.s, bytes);
            if (c.lost != NULL) {
                memcpy(state_of(r->lost, h, chunks / x->interval), c.lost, bytes);
            }
        }
        x->begins[i] = 1;
        struct span t = span(i, x->rows, i + x->rows, token_block_end(h, i), &ahead);
        t.rows = gated_forward(h, r, &c, t);
        if (ends_token_block(h, t) && gated_block_dq(h, r, c.s, t)) {
            return -1;
        }
    }
    return chunks;
}

/* S^T before each of the `chunks` chunks of the interval that begins at token i. */
static int
gated_states(const struct la_head *h, const struct gated_backward_scratch *r,
             ptrdiff_t interval, ptrdiff_t chunks, ptrdiff_t i)
{
    const struct checkpoints *x = &r->chunks;
    const size_t bytes = (size_t)state_size(h->d, h->m) * sizeof(T);
    struct la_fetch ahead = {0};
    struct sweep c = gated_state(h, r, &ahead);
    c.s = x->states;
    compensate_state(&c, h, state_of(r->lost, h, interval), rows_in_block(h, x->rows));
    memcpy(c.s, state_of(x->checkpoints, h, interval), bytes);
    for (ptrdiff_t place = 1; place < chunks; place++, i += c.rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        c.from = state_of(x->states, h, place - 1);
        c.s = state_of(x->states, h, place);
        gated_forward(h, r, &c, chunk_from(h, x, i, &ahead));
    }
    return 0;
}

#endif
