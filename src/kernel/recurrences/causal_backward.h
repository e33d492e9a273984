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
    const ptrdiff_t rows = head_rows(h);
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
    struct pairs pairs;
};

static struct causal_gradient
take_causal_gradient(const struct la_head *h, struct arena *arena)
{
    struct causal_gradient r = {.rows = head_rows(h)};
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
    r.pairs = take_pairs(h, arena, r.rows, wider_of(h->d, h->m));
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
        .pairs = r->pairs,
        .scored = 1,
    };
}

/* dq and the rates of the tokens t, whose keys are loaded; z, and by `what` the state.
 */
static void
causal_queries(const struct la_head *h, const struct causal_gradient *r,
               const struct causal_rates *rates, struct sweep *c, struct span t,
               int what, int keyless)
{
    T *const lift = rates->lift + t.first;
    c->rows = t.rows;
    load_mapped(r->a, &h->q, t, h->d, h->map);
    load_plain(r->grad_out, &h->grad_out, t, h->m);
    look_ahead(&h->dq, t, h->d);
    scores(c);
    sweep(c, what);
    if (h->normalize) {
        running_sums(r->zs, r->z, r->z_lost, c->v, c->rows);
    }
    const int lifted =
        query_gradient(h, r->da, r->a, r->zs, c->rows, rates->r + t.first,
                       rates->w + t.first, keyless, lift);
    chain(r->da, &h->q, t, h->d, r->a, h->map);
    if (lifted) {
        lift_rows(r->da, c->rows, h->d, lift);
    }
    store_rows(&h->dq, t, h->d, r->da, NULL);
}

/* The forward scan. */
static int
causal_dq(const struct la_head *h, const struct causal_backward_scratch *all)
{
    const struct causal_gradient *r = &all->chunk;
    const struct la_array s0_transposed = transposed(h->s0);
    struct la_fetch ahead = {0};
    struct sweep c = sweep_of_queries(h, r, &ahead);
    c.s = r->t;
    load_state(c.s, &s0_transposed, h->m, h->d);
    compensate(&c, all->rates.lost, h->n, r->rows);
    load_vector(r->z, &h->z0, h->d);
    clear(r->z_lost, r->a.ld);
    const int keyless = no_keys(h, r->z);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i + r->rows, h->n, &ahead);
        load_keys(h, t, r->b, r->v);
        causal_queries(h, r, &all->rates, &c, t, LA_READ | LA_WRITE, keyless);
    }
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
    scores(dv);
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
    scores(db);
    if (h->normalize) {
        add_to_rows(r->dots, t.rows, rates->w + t.first);
    }
    sweep(db, LA_READ);
    chain(r->da, &h->k, t, h->d, r->b, h->map);
    clear_rows(r->da, keys_left(h, t), t.rows);
    store_rows(&h->dk, t, h->d, r->da, NULL);
}

/* The reverse scan. */
static int
causal_dkv(const struct la_head *h, const struct causal_backward_scratch *all)
{
    const struct causal_gradient *r = &all->chunk;
    struct la_fetch ahead = {0};
    struct sweep dv = sweep_of_values(h, r, &ahead), db = sweep_of_keys(h, r, &ahead);
    dv.s = all->s;
    db.bias = r->z;
    load_state(all->s, &h->grad_s, h->d, h->m);
    transpose_state(r->t, all->s, h->d, h->m);
    compensate(&dv, all->rates.lost, h->n, r->rows);
    load_vector(r->z, &h->grad_z, h->d);
    clear(r->z_lost, r->a.ld);
    for (ptrdiff_t i = (h->n - 1) / r->rows * r->rows; i >= 0 && h->n > 0;
         i -= r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i - r->rows, h->n, &ahead);
        load_causal_readers(h, &all->rates, r->a, r->grad_out, t);
        load_keys(h, t, r->b, r->v);
        causal_values(h, r, &dv, t, LA_READ | LA_WRITE);
        causal_keys(h, r, &all->rates, &db, t);
        if (h->normalize) {
            add_weighted(r->z, r->z_lost, r->a, all->rates.w + i, t.rows);
        }
        transpose_state(r->t, all->s, h->d, h->m);
    }
    store_state(&h->ds0, all->s, h->d, h->m);
    store_vector(&h->dz0, r->z, h->d);
    return 0;
}

static int
run_causal_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct causal_backward_scratch r = causal_backward_carve(h, &arena);
    return causal_dq(h, &r) || causal_dkv(h, &r);
}

#endif
