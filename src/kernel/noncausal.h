/* noncausal.h: non-causal and cross linear attention, one head, forward and backward.
 *
 *   S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)
 *   o_i = scale phi(q_i)^T S / (scale phi(q_i).z + eps)
 *                                            Katharopoulos et al. 2020, eq. 5-6
 * 2 (n + s) d m flops.  Scratch: the state, d m numbers, and a few blocks of rows. */
#ifndef LA_NONCAUSAL_H
#define LA_NONCAUSAL_H

#include "scan.h"

/* Rows of one block: `a` and `b` hold features, `v` and `g` values. */
struct noncausal_room {
    ptrdiff_t rows, ldd, ldm;
    T *a, *v, *da, *dv, *s, *t, *e, *z, *ze, *rz, *r, *w;
    size_t bytes;
};

static struct noncausal_room
noncausal_room(const struct la_head *h, void *scratch, int backward)
{
    struct noncausal_room r = {0};
    struct arena arena = {scratch, 0};
    /* No triangle limits it, and half as many sums to compensate. */
    r.rows = h->d <= 64 ? 32 : chunk_rows(h->d);
    r.ldd = row_step(h->d);
    r.ldm = row_step(h->m);
    r.a = take(&arena, r.rows, r.ldd);
    r.v = take(&arena, r.rows, r.ldm);
    r.s = take_state(&arena, h->d, h->m);
    r.e = take_state(&arena, h->d, h->m);
    r.z = take(&arena, 1, r.ldd);
    r.ze = take(&arena, 1, r.ldd);
    r.r = take(&arena, 1, r.rows);
    if (backward) {
        r.da = take(&arena, r.rows, r.ldd);
        r.dv = take(&arena, r.rows, r.ldm);
        r.t = take_state(&arena, h->m, h->d);
        r.rz = take(&arena, 1, r.ldd);
        r.w = take(&arena, 1, r.rows);
    }
    r.bytes = arena.used;
    return r;
}

static size_t
noncausal_scratch(const struct la_head *h)
{
    return noncausal_room(h, NULL, 0).bytes;
}

static size_t
noncausal_backward_scratch(const struct la_head *h)
{
    return noncausal_room(h, NULL, 1).bytes;
}

/* S and z over all keys. */
static int
sum_keys(const struct la_head *h, const struct noncausal_room *r)
{
    struct la_fetch ahead = {0};
    struct scan c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .b = r->a,
        .v = r->v,
        .ldb = r->ldd,
        .ldv = r->ldm,
        .s = r->s,
        .ahead = &ahead,
    };
    clear(r->s, state_size(h->d, h->m));
    compensate(&c, r->e, h->keys, r->rows);
    clear(r->z, r->ldd);
    clear(r->ze, r->ldd);
    for (ptrdiff_t j = 0; j < h->keys; j += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(j, r->rows, j + r->rows, h->keys, &ahead);
        c.rows = t.rows;
        load_keys(h, t, r->a, r->ldd, r->v, r->ldm);
        add_rows(r->z, r->ze, r->a, r->ldd, c.rows);
        sweep(&c, LA_WRITE);
    }
    return 0;
}

/* The state behind all keys, alone. */
static int
state(const struct la_head *h)
{
    const struct noncausal_room r = noncausal_room(h, h->scratch, 0);
    if (sum_keys(h, &r)) {
        return 1;
    }
    store_states(h, r.s, r.z, r.ldd);
    return 0;
}

static size_t
state_scratch(const struct la_head *h)
{
    return noncausal_scratch(h);
}

static int
noncausal(const struct la_head *h)
{
    const struct noncausal_room r = noncausal_room(h, h->scratch, 0);
    struct la_fetch ahead = {0};
    struct scan c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r.a,
        .lda = r.ldd,
        .o = r.v,
        .ldo = r.ldm,
        .s = r.s,
        .ahead = &ahead,
    };
    if (sum_keys(h, &r)) {
        return 1;
    }
    for (ptrdiff_t i = 0; i < h->n; i += r.rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r.rows, i + r.rows, h->n, &ahead);
        c.rows = t.rows;
        for (ptrdiff_t g = 0; g < h->group; g++) {
            const struct la_array q = shifted(&h->q, g * h->q_step);
            const struct la_array o = shifted(&h->o, g * h->o_step);
            load_mapped(r.a, r.ldd, &q, t, h->d, h->map);
            look_ahead(&o, t, h->m);
            if (h->normalize) {
                row_dots(r.r, r.a, r.ldd, r.z, 0, c.rows, r.ldd);
            }
            factors(h, r.r, c.rows, h->keys == 0);
            sweep(&c, LA_READ);
            store_rows(&o, t, h->m, r.v, r.ldm, r.r);
        }
    }
    return 0;
}

/* Backward, with g the cotangent, a = phi(q), b = phi(k), and S and z as above:
 *
 *   u_i = S g_i, and from it dq_i, r_i, w_i (scan.h)
 *   R = sum_i a_i (r_i g_i)^T,  dv_j = R^T b_j,  db_j = R v_j + sum_i w_i a_i
 *
 * 2 (3 n + 2 s) d m flops and more.  Scratch: two states and a few blocks of rows. */

/* dq, while R gathers in s and the sum of w_i a_i in rz; t holds S^T. */
static int
noncausal_dq(const struct la_head *h, const struct noncausal_room *r)
{
    struct la_fetch ahead = {0};
    struct scan u = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->v,
        .lda = r->ldm,
        .o = r->da,
        .ldo = r->ldd,
        .s = r->t,
        .ahead = &ahead,
    };
    struct scan sum = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .b = r->a,
        .v = r->v,
        .ldb = r->ldd,
        .ldv = r->ldm,
        .s = r->s,
        .ahead = &ahead,
    };
    clear(r->s, state_size(h->d, h->m));
    compensate(&sum, r->e, h->n, r->rows);
    clear(r->rz, r->ldd);
    clear(r->ze, r->ldd);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i + r->rows, h->n, &ahead);
        u.rows = sum.rows = t.rows;
        load_mapped(r->a, r->ldd, &h->q, t, h->d, h->map);
        load_plain(r->v, r->ldm, &h->g, t, h->m);
        look_ahead(&h->dq, t, h->d);
        sweep(&u, LA_READ);
        query_gradient(h, r->da, r->a, r->z, 0, r->ldd, t.rows, r->r, r->w,
                       h->keys == 0);
        chain(r->da, &h->q, t, h->d, r->a, r->ldd, h->map);
        store_rows(&h->dq, t, h->d, r->da, r->ldd, NULL);
        scale_rows(r->v, r->ldm, t.rows, r->r);
        sweep(&sum, LA_WRITE);
        if (h->normalize) {
            add_weighted(r->rz, r->ze, r->a, r->ldd, r->w, t.rows);
        }
    }
    return 0;
}

/* dk and dv, from R in s and R^T in t. */
static int
noncausal_dkv(const struct la_head *h, const struct noncausal_room *r)
{
    struct la_fetch ahead = {0};
    struct scan dv = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->a,
        .lda = r->ldd,
        .o = r->dv,
        .ldo = r->ldm,
        .s = r->s,
        .ahead = &ahead,
    };
    struct scan db = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->v,
        .lda = r->ldm,
        .o = r->da,
        .ldo = r->ldd,
        .s = r->t,
        .bias = r->rz,
        .ahead = &ahead,
    };
    for (ptrdiff_t j = 0; j < h->s; j += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(j, r->rows, j + r->rows, h->s, &ahead);
        dv.rows = db.rows = t.rows;
        load_keys(h, t, r->a, r->ldd, r->v, r->ldm);
        look_ahead(&h->dk, t, h->d);
        look_ahead(&h->dv, t, h->m);
        sweep(&dv, LA_READ);
        sweep(&db, LA_READ);
        chain(r->da, &h->k, t, h->d, r->a, r->ldd, h->map);
        clear_rows(r->da, r->ldd, keys_left(h, t), t.rows);
        clear_rows(r->dv, r->ldm, keys_left(h, t), t.rows);
        store_rows(&h->dk, t, h->d, r->da, r->ldd, NULL);
        store_rows(&h->dv, t, h->m, r->dv, r->ldm, NULL);
    }
    return 0;
}

static int
noncausal_backward(const struct la_head *h)
{
    const struct noncausal_room r = noncausal_room(h, h->scratch, 1);
    if (sum_keys(h, &r)) {
        return 1;
    }
    transpose_state(r.t, r.s, h->d, h->m);
    if (noncausal_dq(h, &r)) {
        return 1;
    }
    transpose_state(r.t, r.s, h->d, h->m);
    return noncausal_dkv(h, &r);
}

#endif
