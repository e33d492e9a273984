/* causal_backward.h: gradients of causal.h, in two scans (g is the cotangent, a =
 * phi(q), b = phi(k)):
 *
 *    forward    u_i = s_i g_i, which is causal attention of g to v and b;
 *               dq_i from u_i and z_i (recurrence.h), which also gives r_i, w_i and
 *               lift_i, three numbers per token, for the second scan
 *    reverse    R_j = sum_{i >= j} a_i (r_i g_i)^T
 *               dv_j = R_j^T b_j
 *               db_j = R_j v_j + sum_{i >= j} w_i a_i
 *
 * About 10 n d m flops.  Scratch: 3 d m + 3 n numbers, and a few chunks. */
#ifndef LA_CAUSAL_BACKWARD_H
#define LA_CAUSAL_BACKWARD_H

#include "causal.h"

/* One number for every token, and what the sums have lost to rounding. */
struct causal_rates {
    T *r, *w, *lift;
    T *lost, *z_lost;
};

static struct causal_rates
take_causal_rates(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = gradient_rows(h);
    struct causal_rates x;
    x.r = take(arena, 1, h->n + rows);
    x.w = take(arena, 1, h->n + rows);
    x.lift = take(arena, 1, h->n + rows);
    x.lost = take_state(arena, h->d, h->m);
    x.z_lost = take_row(arena, h->d);
    return x;
}

/* What a chunk needs. */
struct causal_gradient {
    ptrdiff_t rows; /* tokens per chunk */
    struct block a, b, v, grad_out, dots, da, dv, zs;
    T *t, *z, *z_lost;
    struct causal_rates own;  /* of a chunk, where tokens are in blocks: aligned */
    struct pairs pairs, of_t; /* of_t: with the pairs of t, where pairs holds others */
    const T **held;
};

static struct causal_gradient
take_causal_gradient(const struct la_head *h, struct arena *arena)
{
    struct causal_gradient r = {.rows = gradient_rows(h)};
    r.a = take_block(arena, r.rows, h->d);
    r.b = take_block(arena, r.rows, h->d);
    r.v = take_block(arena, r.rows, h->m);
    r.grad_out = take_block(arena, r.rows, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.da = take_block(arena, r.rows, h->d);
    r.dv = take_block(arena, r.rows, h->m);
    r.zs = take_block(arena, r.rows, h->d);
    r.t = take_state(arena, h->m, h->d);
    r.z = take_row(arena, h->d);
    r.z_lost = take_row(arena, h->d);
    r.own.r = take(arena, 1, r.rows);
    r.own.w = take(arena, 1, r.rows);
    r.own.lift = take(arena, 1, r.rows);
    r.pairs = take_pairs(h, arena, r.rows, wider_of(h->d, h->m), wider_of(h->d, h->m));
    r.of_t = take_state_pairs(r.pairs, arena, h->m, h->d);
    r.held = take_held(h, arena, wider_of(h->d, h->m));
    return r;
}

struct causal_backward_scratch {
    struct causal_gradient chunk;
    struct causal_rates rates;
    T *s;
};

static struct causal_backward_scratch
causal_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct causal_backward_scratch r;
    r.chunk = take_causal_gradient(h, arena);
    r.rates = take_causal_rates(h, arena);
    r.s = take_state(arena, h->d, h->m);
    return r;
}

/* The sweep of the forward scan: u, and S^T (m, d). */
static struct sweep
sweep_of_queries(const struct la_head *h, const struct causal_gradient *r,
                 struct la_fetch *ahead)
{
    return (struct sweep){
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->grad_out,
        .b = r->v,
        .v = r->b,
        .dots = r->dots,
        .o = r->da,
        .ahead = ahead,
        .pairs = r->pairs,
        .scored = 1,
    };
}

/* The sweeps of the reverse scan: dv, and R (d, m); db, from R^T. */
static struct sweep
sweep_of_values(const struct la_head *h, const struct causal_gradient *r,
                struct la_fetch *ahead)
{
    return (struct sweep){
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->b,
        .b = r->a,
        .v = r->grad_out,
        .dots = r->dots,
        .o = r->dv,
        .upper = 1,
        .ahead = ahead,
        .pairs = r->pairs,
        .scored = 1,
    };
}

static struct sweep
sweep_of_keys(const struct la_head *h, const struct causal_gradient *r,
              struct la_fetch *ahead)
{
    return (struct sweep){
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->v,
        .b = r->grad_out,
        .v = r->a,
        .dots = r->dots,
        .o = r->da,
        .s = r->t,
        .upper = 1,
        .ahead = ahead,
        .pairs = r->of_t,
        .scored = 1,
    };
}

/* dq of the tokens t, whose keys are loaded, and their rates, the first of which is at
 * `place`; z, and by `what` the state. */
static void
causal_queries(const struct la_head *h, const struct causal_gradient *r,
               const struct causal_rates *rates, ptrdiff_t place, struct sweep *c,
               struct span t, int what, int keyless)
{
    T *const lift = rates->lift + place;
    c->rows = t.rows;
    load_mapped(r->a, &h->q, t, h->d, h->map);
    load_plain(r->grad_out, &h->grad_out, t, h->m);
    look_ahead(&h->dq, t, h->d);
    if (c->dots.x != NULL) {
        scores(c);
    }
    sweep(c, what);
    if (h->normalize && c->dots.x != NULL) {
        running_sums(r->zs, r->z, r->z_lost, c->v, c->rows);
    }
    const int lifted = query_gradient(h, r->da, r->a, r->zs, c->rows, rates->r + place,
                                      rates->w + place, keyless, lift);
    chain(r->da, &h->q, t, h->d, r->a, h->map);
    if (lifted) {
        lift_rows(r->da, c->rows, h->d, lift);
    }
    store_rows(&h->dq, t, h->d, r->da, NULL);
}

/* The forward scan of tokens in blocks (token_blocks.h). */
static int
causal_dq_blocks(const struct la_head *h, const struct causal_backward_scratch *all,
                 struct sweep *c, int keyless)
{
    const struct causal_gradient *r = &all->chunk;
    struct causal_gradient readers = *r;
    struct span t;
    readers.zs = (struct block){r->z, 0}; /* the same for all rows */
    without_scores(c);
    struct sweep read = *c;
    for (ptrdiff_t i = 0; i < h->n; i += t.rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        t = span(i, r->rows, i + r->rows, token_block_end(h, i), c->ahead);
        c->rows = t.rows;
        load_keys(h, t, r->b, r->v);
        sweep(c, LA_WRITE);
        if (h->normalize) {
            add_rows(r->z, r->z_lost, r->b, t.rows);
        }
        ptrdiff_t j = ends_token_block(h, t) ? token_block_begin(h, t) : h->n;
        for (; j < i + t.rows; j += read.rows) {
            if (h->poll(h->poll_arg)) {
                return 1;
            }
            causal_queries(h, &readers, &r->own, 0, &read,
                           span(j, r->rows, j + r->rows, i + t.rows, c->ahead), LA_READ,
                           keyless);
            const size_t bytes = (size_t)read.rows * sizeof(T);
            memcpy(all->rates.r + j, r->own.r, bytes);
            memcpy(all->rates.w + j, r->own.w, bytes);
            memcpy(all->rates.lift + j, r->own.lift, bytes);
        }
    }
    return 0;
}

/* The forward scan. */
static int
causal_dq(const struct la_head *h, const struct causal_backward_scratch *all)
{
    const struct causal_gradient *r = &all->chunk;
    const struct la_array s0_transposed = transposed(h->s0);
    struct la_fetch own = {0};
    struct sweep c = sweep_of_queries(h, r, slice_fetch(h, &own));
    ptrdiff_t i = slice_begin(h);
    c.s = r->t;
    c.held = r->held;
    forget_pairs(&c);
    compensate_from(&c, h, all->rates.lost, h->n, rows_in_block(h, r->rows), i);
    if (i == 0) {
        load_state(c.s, &s0_transposed, h->m, h->d);
        load_vector(r->z, &h->z0, h->d);
        clear(r->z_lost, r->a.ld);
    }
    const int keyless = no_keys(h, r->z);
    if (h->block > 0) {
        return causal_dq_blocks(h, all, &c, keyless);
    }
    for (; i < slice_end(h, h->n); i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i + r->rows, h->n, c.ahead);
        load_keys(h, t, r->b, r->v);
        causal_queries(h, r, &all->rates, i, &c, t, LA_READ | LA_WRITE, keyless);
    }
    ends_pass(h, i, h->n);
    return 0;
}

/* a = lift phi(q) and r times the cotangents of the tokens t. */
static void
load_causal_readers(const struct la_head *h, const struct causal_rates *rates,
                    struct block a, struct block grad_out, struct span t)
{
    load_mapped(a, &h->q, t, h->d, h->map);
    if (h->normalize && any_lifted(t.rows, rates->lift + t.first)) {
        lift_rows(a, t.rows, h->d, rates->lift + t.first);
    }
    load_plain(grad_out, &h->grad_out, t, h->m);
    scale_rows(grad_out, t.rows, rates->r + t.first);
}

/* dv of the tokens t, and by `what` R. */
static void
causal_values(const struct la_head *h, const struct causal_gradient *r,
              struct sweep *dv, struct span t, int what)
{
    look_ahead(&h->dv, t, h->m);
    dv->rows = t.rows;
    if (dv->dots.x != NULL) {
        scores(dv);
    }
    sweep(dv, what);
    clear_rows(r->dv, keys_left(h, t), t.rows);
    store_rows(&h->dv, t, h->m, r->dv, NULL);
}

/* dk of the tokens t. */
static void
causal_keys(const struct la_head *h, const struct causal_gradient *r,
            const struct causal_rates *rates, struct sweep *db, struct span t)
{
    look_ahead(&h->dk, t, h->d);
    db->rows = t.rows;
    if (db->dots.x != NULL) {
        scores(db);
    }
    if (h->normalize && db->dots.x != NULL) {
        add_to_rows(r->dots, t.rows, rates->w + t.first);
    }
    sweep(db, LA_READ);
    chain(r->da, &h->k, t, h->d, r->b, h->map);
    clear_rows(r->da, keys_left(h, t), t.rows);
    store_rows(&h->dk, t, h->d, r->da, NULL);
}

/* What the tokens from i to `end`, which are a block, add to R and to the sum of w_i
 * a_i. */
static int
causal_block_readers(const struct la_head *h, const struct causal_backward_scratch *all,
                     struct sweep *dv, ptrdiff_t i, ptrdiff_t end)
{
    const struct causal_gradient *r = &all->chunk;
    for (; i < end; i += dv->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i + r->rows, end, dv->ahead);
        dv->rows = t.rows;
        load_causal_readers(h, &all->rates, r->a, r->grad_out, t);
        sweep(dv, LA_WRITE);
        if (h->normalize) {
            add_weighted(r->z, r->z_lost, r->a, all->rates.w + i, t.rows);
        }
    }
    transpose_state(r->t, all->s, h->d, h->m);
    return 0;
}

/* The reverse scan of tokens in blocks: their keys see all queries of the block. */
static int
causal_dkv_blocks(const struct la_head *h, const struct causal_backward_scratch *all,
                  struct sweep *dv, struct sweep *db)
{
    const struct causal_gradient *r = &all->chunk;
    without_scores(dv);
    without_scores(db);
    for (ptrdiff_t end = h->n, begin; end > 0; end = begin) {
        begin = (end - 1) / h->block * h->block;
        if (causal_block_readers(h, all, dv, begin, end)) {
            return 1;
        }
        for (ptrdiff_t i = begin; i < end; i += dv->rows) {
            if (h->poll(h->poll_arg)) {
                return 1;
            }
            const struct span t = span(i, r->rows, i + r->rows, end, dv->ahead);
            load_keys(h, t, r->b, r->v);
            causal_values(h, r, dv, t, LA_READ);
            causal_keys(h, r, &all->rates, db, t);
        }
    }
    return 0;
}

/* The reverse scan. */
static int
causal_dkv(const struct la_head *h, const struct causal_backward_scratch *all)
{
    const struct causal_gradient *r = &all->chunk;
    struct la_fetch own = {0}, *ahead = slice_fetch(h, &own);
    struct sweep dv = sweep_of_values(h, r, ahead), db = sweep_of_keys(h, r, ahead);
    const ptrdiff_t done = slice_begin(h);
    dv.s = all->s;
    dv.held = r->held;
    forget_pairs(&dv);
    db.bias = r->z;
    compensate_from(&dv, h, all->rates.lost, h->n, rows_in_block(h, r->rows), done);
    if (done == 0) {
        load_state(all->s, &h->grad_s, h->d, h->m);
        transpose_state(r->t, all->s, h->d, h->m);
        load_vector(r->z, &h->grad_z, h->d);
        clear(r->z_lost, r->a.ld);
    }
    if (h->block > 0 && causal_dkv_blocks(h, all, &dv, &db)) {
        return 1;
    }
    const ptrdiff_t last = h->n - slice_end(h, h->n);
    ptrdiff_t begin = h->block > 0 ? 0 : h->n - done;
    while (begin > last) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        begin = (begin - 1) / r->rows * r->rows;
        const struct span t = span(begin, r->rows, begin - r->rows, h->n, ahead);
        load_causal_readers(h, &all->rates, r->a, r->grad_out, t);
        load_keys(h, t, r->b, r->v);
        causal_values(h, r, &dv, t, LA_READ | LA_WRITE);
        causal_keys(h, r, &all->rates, &db, t);
        if (h->normalize) {
            add_weighted(r->z, r->z_lost, r->a, all->rates.w + begin, t.rows);
        }
        transpose_state(r->t, all->s, h->d, h->m);
    }
    if (ends_last_pass(h, h->n - begin, h->n)) {
        store_state(&h->ds0, all->s, h->d, h->m);
        store_vector(&h->dz0, r->z, h->d);
    }
    return 0;
}

static int
run_causal_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct causal_backward_scratch r = causal_backward_carve(h, &arena);
    return (in_pass(h, 0) && causal_dq(h, &r)) || (in_pass(h, 1) && causal_dkv(h, &r));
}

#endif
