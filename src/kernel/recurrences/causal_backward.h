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
 * About 10 n d m flops.  Scratch: 2 d m + 3 n numbers, and a few chunks.
 *
 * Alternatively, three passes (enum la_pass) are split among threads
 * (backward_split.c): dq, with r and w; dv, which computes its own r; and dk, by
 * columns.  Each pass sums the same terms in the same order as the scans, so its bits
 * are the same.  R is summed twice: 12 n d m flops. */
#ifndef LA_CAUSAL_BACKWARD_H
#define LA_CAUSAL_BACKWARD_H

#include "../tiles/recurrence.h"

struct causal_backward_scratch {
    ptrdiff_t rows; /* tokens per chunk */
    struct block a, b, v, grad_out, dots, da, dv, zs;
    T *s, *t, *lost, *z, *z_lost;
    T *r, *w, *lift; /* one number for every token */
};

static struct causal_backward_scratch
causal_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct causal_backward_scratch r = {.rows = chunk_rows(h->all_d)};
    r.a = take_block(arena, r.rows, h->d);
    r.b = take_block(arena, r.rows, h->d);
    r.v = take_block(arena, r.rows, h->m);
    r.grad_out = take_block(arena, r.rows, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.da = take_block(arena, r.rows, h->d);
    r.dv = take_block(arena, r.rows, h->m);
    r.zs = take_block(arena, r.rows, h->d);
    r.s = take_state(arena, h->d, h->m);
    r.t = take_state(arena, h->m, h->d);
    r.lost = take_state(arena, h->d, h->m);
    r.z = take_row(arena, h->d);
    r.z_lost = take_row(arena, h->d);
    r.r = take(arena, 1, h->n + r.rows);
    r.w = take(arena, 1, h->n + r.rows);
    r.lift = take(arena, 1, h->n + r.rows);
    return r;
}

/* Computes r alone, for the pass of dv, which runs beside that of dq. */
static int
causal_rates(const struct la_head *h, const struct causal_backward_scratch *r)
{
    load_state(r->s, &h->s0, h->d, h->m);
    load_vector(r->z, &h->z0, h->d);
    clear(r->z_lost, r->a.ld);
    const int keyless = no_keys(h, r->z);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i + r->rows, h->n, NULL);
        if (h->normalize) {
            load_mapped(r->a, &h->q, t, h->d, h->map);
            load_features(h, t, r->b);
            running_sums(r->zs, r->z, r->z_lost, r->b, t.rows);
            row_dots(r->r + i, r->a, r->zs, t.rows, round_up(h->d, VL));
        }
        factors(h, r->r + i, t.rows, keyless, r->lift + i);
    }
    return 0;
}

/* The forward scan: dq, and r_i, w_i and lift_i of every token. */
static int
causal_dq(const struct la_head *h, const struct causal_backward_scratch *r)
{
    struct la_fetch ahead = {0};
    struct sweep c = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->grad_out,
        .b = r->v,
        .v = r->b,
        .dots = r->dots,
        .o = r->da,
        .s = r->t,
        .ahead = &ahead,
    };
    const struct la_array s0_transposed = transposed(h->s0);
    load_state(r->t, &s0_transposed, h->m, h->d);
    compensate(&c, r->lost, h->n, r->rows);
    load_vector(r->z, &h->z0, h->d);
    clear(r->z_lost, r->a.ld);
    const int keyless = no_keys(h, r->z);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i + r->rows, h->n, &ahead);
        c.rows = t.rows;
        load_mapped(r->a, &h->q, t, h->d, h->map);
        load_keys(h, t, r->b, r->v);
        load_plain(r->grad_out, &h->grad_out, t, h->m);
        look_ahead(&h->dq, t, h->d);
        scores(&c);
        sweep(&c, LA_READ | LA_WRITE);
        if (h->normalize) {
            running_sums(r->zs, r->z, r->z_lost, r->b, c.rows);
        }
        const int lifted = query_gradient(h, r->da, r->a, r->zs, c.rows, r->r + i,
                                          r->w + i, keyless, r->lift + i);
        chain(r->da, &h->q, t, h->d, r->a, h->map);
        if (lifted) {
            lift_rows(r->da, c.rows, h->d, r->lift + i);
        }
        store_rows(&h->dq, t, h->d, r->da, NULL);
    }
    return 0;
}

/* phi(q), phi(k), the cotangents and, if `keys`, the values of the tokens t. */
static void
load_causal_reverse(const struct la_head *h, const struct causal_backward_scratch *r,
                    struct span t, int keys)
{
    load_mapped(r->a, &h->q, t, h->d, h->map);
    if (h->normalize && any_lifted(t.rows, r->lift + t.first)) {
        lift_rows(r->a, t.rows, h->d, r->lift + t.first);
    }
    load_features(h, t, r->b);
    if (keys) {
        load_values(h, t, r->v);
    }
    load_plain(r->grad_out, &h->grad_out, t, h->m);
    scale_rows(r->grad_out, t.rows, r->r + t.first);
}

/* dv of the tokens t, and R. */
static void
causal_values(const struct la_head *h, const struct causal_backward_scratch *r,
              struct sweep *dv, struct span t)
{
    look_ahead(&h->dv, t, h->m);
    scores(dv);
    sweep(dv, LA_READ | LA_WRITE);
    clear_rows(r->dv, keys_left(h, t), t.rows);
    store_rows(&h->dv, t, h->m, r->dv, NULL);
}

/* dk of the tokens t, the gradient of z and, if `writes`, R^T. */
static void
causal_keys(const struct la_head *h, const struct causal_backward_scratch *r,
            struct sweep *db, struct span t, int writes)
{
    look_ahead(&h->dk, t, h->d);
    scores(db);
    if (h->normalize) {
        add_to_rows(r->dots, t.rows, r->w + t.first);
    }
    sweep(db, writes ? LA_READ | LA_WRITE : LA_READ);
    if (h->normalize) {
        add_weighted(r->z, r->z_lost, r->a, r->w + t.first, t.rows);
    }
    chain(r->da, &h->k, t, h->d, r->b, h->map);
    clear_rows(r->da, keys_left(h, t), t.rows);
    store_rows(&h->dk, t, h->d, r->da, NULL);
}

/* The reverse scan: dk and dv or, as a pass, one of them.  s holds R and t its
 * transpose. */
static int
causal_dkv(const struct la_head *h, const struct causal_backward_scratch *r)
{
    const int values = h->pass != LA_PASS_KEYS, keys = h->pass != LA_PASS_VALUES;
    struct la_fetch ahead = {0};
    struct sweep dv = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->b,
        .b = r->a,
        .v = r->grad_out,
        .dots = r->dots,
        .o = r->dv,
        .s = r->s,
        .upper = 1,
        .ahead = &ahead,
    };
    struct sweep db = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->v,
        .b = r->grad_out,
        .v = r->a,
        .dots = r->dots,
        .o = r->da,
        .s = r->t,
        .bias = r->z,
        .upper = 1,
        .ahead = &ahead,
    };
    load_state(r->s, &h->grad_s, h->d, h->m);
    transpose_state(r->t, r->s, h->d, h->m);
    compensate(values ? &dv : &db, r->lost, h->n, r->rows);
    load_vector(r->z, &h->grad_z, h->d);
    clear(r->z_lost, r->a.ld);
    for (ptrdiff_t i = (h->n - 1) / r->rows * r->rows; i >= 0 && h->n > 0;
         i -= r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i - r->rows, h->n, &ahead);
        dv.rows = db.rows = t.rows;
        load_causal_reverse(h, r, t, keys);
        if (values) {
            causal_values(h, r, &dv, t);
        }
        if (keys) {
            causal_keys(h, r, &db, t, !values);
        }
        if (values && keys) {
            transpose_state(r->t, r->s, h->d, h->m);
        }
    }
    if (values) {
        store_state(&h->ds0, r->s, h->d, h->m);
    }
    if (keys) {
        store_vector(&h->dz0, r->z, h->d);
    }
    return 0;
}

static int
run_causal_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct causal_backward_scratch r = causal_backward_carve(h, &arena);
    if (h->pass == LA_PASS_VALUES) {
        return causal_rates(h, &r) || causal_dkv(h, &r);
    }
    if (h->pass != LA_ALL_PASSES) {
        r.r = h->rates;
        r.w = r.r + round_up(h->n, LA_RATES_STEP);
        r.lift = r.w + round_up(h->n, LA_RATES_STEP);
    }
    return (h->pass != LA_PASS_KEYS && causal_dq(h, &r)) ||
           (h->pass != LA_PASS_QUERIES && causal_dkv(h, &r));
}

#endif
