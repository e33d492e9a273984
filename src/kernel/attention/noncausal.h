/* noncausal.h: non-causal and cross linear attention, one head, forward and backward.
 *
 *    S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)
 *    o_i = scale phi(q_i)^T S / (scale phi(q_i).z + eps)
 *                                             Katharopoulos et al. 2020, eq. 5-6
 *
 * 2 (n + s) d m flops.  Scratch: the state, d m numbers, and a few blocks of rows. */
#ifndef LA_NONCAUSAL_H
#define LA_NONCAUSAL_H

#include "../tiles/recurrence.h"

struct noncausal_scratch {
    ptrdiff_t rows;    /* tokens per block */
    struct block a, v; /* features; values, then results */
    T *s, *lost, *z, *z_lost, *r, *lift;
    struct panels panels;
};

static struct noncausal_scratch
noncausal_carve(const struct la_head *h, struct arena *arena)
{
    struct noncausal_scratch r = {.rows = noncausal_rows(h->d)};
    r.a = take_block(arena, r.rows, h->d);
    r.v = take_block(arena, r.rows, h->m);
    r.s = take_state(arena, h->d, h->m);
    r.lost = take_state(arena, h->d, h->m);
    r.z = take_row(arena, h->d);
    r.z_lost = take_row(arena, h->d);
    r.r = take(arena, 1, r.rows);
    r.lift = take(arena, 1, r.rows);
    r.panels = take_panels(arena, r.rows, h->d, h->m);
    return r;
}

/* S and z, summed over all keys. */
static int
sum_keys(const struct la_head *h, const struct noncausal_scratch *r)
{
    struct la_fetch own = {0}, *ahead = slice_fetch(h, &own);
    ptrdiff_t j = slice_begin(h);
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .b = r->a,
        .v = r->v,
        .s = r->s,
        .ahead = ahead,
        .pairs = {.panels = r->panels},
    };
    compensate_from(&c, h, r->lost, h->keys, r->rows, j);
    if (j == 0) {
        clear(r->s, state_size(h->d, h->m));
        clear(r->z, r->a.ld);
        clear(r->z_lost, r->a.ld);
    }
    for (; j < slice_end(h, h->keys); j += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(j, r->rows, j + r->rows, h->keys, ahead);
        c.rows = t.rows;
        load_keys(h, t, r->a, r->v);
        add_rows(r->z, r->z_lost, r->a, c.rows);
        sweep(&c, LA_WRITE);
    }
    ends_pass(h, j, h->keys);
    return 0;
}

static struct noncausal_scratch
state_carve(const struct la_head *h, struct arena *arena)
{
    return noncausal_carve(h, arena);
}

/* Computes only the state after all keys. */
static int
run_state(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct noncausal_scratch r = state_carve(h, &arena);
    if (sum_keys(h, &r)) {
        return 1;
    }
    store_states(h, r.s, r.lost, r.z, r.z_lost);
    return 0;
}

/* o, from S and z. */
static int
noncausal_outputs(const struct la_head *h, const struct noncausal_scratch *r)
{
    struct la_fetch own = {0}, *ahead = slice_fetch(h, &own);
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->a,
        .o = r->v,
        .s = r->s,
        .ahead = ahead,
    };
    ptrdiff_t i = slice_begin(h);
    for (; i < slice_end(h, h->n); i += r->rows) {
        const struct span t = span(i, r->rows, i + r->rows, h->n, ahead);
        c.rows = t.rows;
        for (ptrdiff_t g = 0; g < h->group; g++) {
            if (h->poll(h->poll_arg)) {
                return 1;
            }
            const struct la_array q = shifted(&h->q, g * h->q.step);
            const struct la_array o = shifted(&h->o, g * h->o.step);
            load_mapped(r->a, &q, t, h->d, h->map);
            look_ahead(&o, t, h->m);
            if (h->normalize) {
                row_dots(r->r, r->a, (struct block){r->z, 0}, c.rows, r->a.ld);
            }
            sweep(&c, LA_READ);
            if (factors(h, r->r, c.rows, h->keys == 0, r->lift)) {
                lift_rows(r->v, c.rows, h->m, r->lift);
            }
            store_rows(&o, t, h->m, r->v, r->r);
        }
    }
    ends_last_pass(h, i, h->n);
    return 0;
}

static int
run_noncausal(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct noncausal_scratch r = noncausal_carve(h, &arena);
    return (in_pass(h, 0) && sum_keys(h, &r)) ||
           (in_pass(h, 1) && noncausal_outputs(h, &r));
}

/* Backward, with g the cotangent, a = phi(q), b = phi(k), and S and z as above:
 *
 *    u_i = S g_i, which gives dq_i, r_i, w_i (recurrence.h)
 *    R = sum_i a_i (r_i g_i)^T,  dv_j = R^T b_j,  db_j = R v_j + sum_i w_i a_i
 *
 * 2 (3 n + 2 s) d m flops plus lower-order terms.  Scratch: two states and a few blocks
 * of rows. */

struct noncausal_backward_scratch {
    struct noncausal_scratch forward; /* s, z, lost, z_lost: of S, z, then of R, rz */
    struct block da, dv;
    T *t, *rz, *w;
};

static struct noncausal_backward_scratch
noncausal_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct noncausal_backward_scratch r = {.forward = noncausal_carve(h, arena)};
    r.da = take_block(arena, r.forward.rows, h->d);
    r.dv = take_block(arena, r.forward.rows, h->m);
    r.t = take_state(arena, h->m, h->d);
    r.rz = take_row(arena, h->d);
    r.w = take(arena, 1, r.forward.rows);
    return r;
}

/* Computes dq, R (in s) and the sum of w_i a_i (in rz), from S in s; t holds S^T. */
static int
noncausal_dq(const struct la_head *h, const struct noncausal_backward_scratch *x)
{
    const struct noncausal_scratch *r = &x->forward;
    struct la_fetch own = {0}, *ahead = slice_fetch(h, &own);
    ptrdiff_t i = slice_begin(h);
    struct sweep u = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->v,
        .o = x->da,
        .s = x->t,
        .ahead = ahead,
    };
    struct sweep sum = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .b = r->a,
        .v = r->v,
        .s = r->s,
        .ahead = ahead,
        .pairs = {.panels = r->panels},
    };
    compensate_from(&sum, h, r->lost, h->n, r->rows, i);
    if (i == 0) {
        transpose_state(x->t, r->s, h->d, h->m);
        clear(r->s, state_size(h->d, h->m));
        clear(x->rz, r->a.ld);
        clear(r->z_lost, r->a.ld);
    }
    for (; i < slice_end(h, h->n); i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i + r->rows, h->n, ahead);
        u.rows = sum.rows = t.rows;
        load_mapped(r->a, &h->q, t, h->d, h->map);
        load_plain(r->v, &h->grad_out, t, h->m);
        look_ahead(&h->dq, t, h->d);
        sweep(&u, LA_READ);
        const int lifted = query_gradient(h, x->da, r->a, (struct block){r->z, 0},
                                          t.rows, r->r, x->w, h->keys == 0, r->lift);
        chain(x->da, &h->q, t, h->d, r->a, h->map);
        if (lifted) {
            lift_rows(x->da, t.rows, h->d, r->lift);
            lift_rows(r->a, t.rows, h->d, r->lift);
        }
        store_rows(&h->dq, t, h->d, x->da, NULL);
        scale_rows(r->v, t.rows, r->r);
        sweep(&sum, LA_WRITE);
        if (h->normalize) {
            add_weighted(x->rz, r->z_lost, r->a, x->w, t.rows);
        }
    }
    ends_pass(h, i, h->n);
    return 0;
}

/* dk and dv, from R in s; t holds R^T. */
static int
noncausal_dkv(const struct la_head *h, const struct noncausal_backward_scratch *x)
{
    const struct noncausal_scratch *r = &x->forward;
    struct la_fetch own = {0}, *ahead = slice_fetch(h, &own);
    ptrdiff_t j = slice_begin(h);
    struct sweep dv = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->a,
        .o = x->dv,
        .s = r->s,
        .ahead = ahead,
    };
    struct sweep db = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->v,
        .o = x->da,
        .s = x->t,
        .bias = x->rz,
        .ahead = ahead,
    };
    if (j == 0) {
        transpose_state(x->t, r->s, h->d, h->m);
    }
    for (; j < slice_end(h, h->s); j += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(j, r->rows, j + r->rows, h->s, ahead);
        dv.rows = db.rows = t.rows;
        load_keys(h, t, r->a, r->v);
        look_ahead(&h->dk, t, h->d);
        look_ahead(&h->dv, t, h->m);
        sweep(&dv, LA_READ);
        sweep(&db, LA_READ);
        chain(x->da, &h->k, t, h->d, r->a, h->map);
        clear_rows(x->da, keys_left(h, t), t.rows);
        clear_rows(x->dv, keys_left(h, t), t.rows);
        store_rows(&h->dk, t, h->d, x->da, NULL);
        store_rows(&h->dv, t, h->m, x->dv, NULL);
    }
    ends_last_pass(h, j, h->s);
    return 0;
}

static int
run_noncausal_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct noncausal_backward_scratch x = noncausal_backward_carve(h, &arena);
    return (in_pass(h, 0) && sum_keys(h, &x.forward)) ||
           (in_pass(h, 1) && noncausal_dq(h, &x)) ||
           (in_pass(h, 2) && noncausal_dkv(h, &x));
}

#endif
