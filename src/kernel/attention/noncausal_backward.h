/* noncausal_backward.h: the gradients of noncausal.h, one head.  With g the cotangent,
 * a = phi(q), b = phi(k), and S and z as there:
 *
 *    u_i = S g_i, which gives dq_i, r_i, w_i (recurrence.h)
 *    R = sum_i a_i (r_i g_i)^T,  dv_j = R^T b_j,  db_j = R v_j + sum_i w_i a_i
 *
 * 2 (3 n + 2 s) d m flops plus lower-order terms.  Scratch: up to four states and a few
 * blocks of rows. */
#ifndef LA_NONCAUSAL_BACKWARD_H
#define LA_NONCAUSAL_BACKWARD_H

#include "noncausal.h"

struct noncausal_backward_scratch {
    struct noncausal_scratch forward; /* its sum: S and z, then R and that of w_i a_i */
    struct block da, dv;
    T *t, *z, *w; /* S^T, then R^T; z, while the other is summed */
};

static struct noncausal_backward_scratch
noncausal_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct noncausal_backward_scratch r = {.forward = noncausal_carve(h, arena)};
    r.da = take_block(arena, r.forward.rows, h->d);
    r.dv = take_block(arena, r.forward.rows, h->m);
    r.t = take_state(arena, h->m, h->d);
    r.z = take_row(arena, h->d);
    r.w = take(arena, 1, r.forward.rows);
    return r;
}

/* dq of the queries [i, end), and what they add to R and its vector, from S^T in `t`
 * and z; returns where they end, or -1 to stop. */
static ptrdiff_t
noncausal_some_dq(const struct la_head *h, const struct noncausal_backward_scratch *x,
                  const struct token_sum *of, T *t, T *z, struct la_fetch *ahead,
                  ptrdiff_t i, ptrdiff_t end)
{
    const struct noncausal_scratch *r = &x->forward;
    struct sweep u = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->v,
        .o = x->da,
        .s = t,
        .ahead = ahead,
    };
    struct sweep sum = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .b = r->a,
        .v = r->v,
        .lost = lost_if_long(h, of->lost, h->n, r->rows),
        .ahead = ahead,
        .pairs = {.panels = r->panels},
    };
    for (; i < end; i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        const struct span some = span(i, r->rows, i + r->rows, h->n, ahead);
        u.rows = sum.rows = some.rows;
        load_mapped(r->a, &h->q, some, h->d, h->map);
        load_plain(r->v, &h->grad_out, some, h->m);
        look_ahead(&h->dq, some, h->d);
        sweep(&u, LA_READ);
        const int lifted = query_gradient(h, x->da, r->a, (struct block){z, 0},
                                          some.rows, r->r, x->w, h->keys == 0, r->lift);
        chain(x->da, &h->q, some, h->d, r->a, h->map);
        if (lifted) {
            lift_rows(x->da, some.rows, h->d, r->lift);
            lift_rows(r->a, some.rows, h->d, r->lift);
        }
        store_rows(&h->dq, some, h->d, x->da, NULL);
        scale_rows(r->v, some.rows, r->r);
        place_in_sum(&sum, of, i, h->n);
        sweep(&sum, LA_WRITE);
        for (ptrdiff_t l = 0; l < r->a.ld; l += VL) {
            add_in_run(of, &sum, l,
                       h->normalize ? weighted_sum(r->a, x->w, some.rows, l)
                                    : (vec){0});
        }
    }
    return i;
}

static int
noncausal_dq(const struct la_head *h, const struct noncausal_backward_scratch *x)
{
    const struct token_sum *sum = &x->forward.sum;
    struct la_fetch own = {0};
    ptrdiff_t i = slice_begin(h);
    if (i == 0) {
        transpose_state(x->t, sum->s, h->d, h->m);
        memcpy(x->z, sum->z, (size_t)row_step(h->d) * sizeof(T));
        clear_token_sum(h, sum, h->n);
    }
    i = noncausal_some_dq(h, x, sum, x->t, x->z, slice_fetch(h, &own), i,
                          slice_end(h, h->n));
    if (i < 0) {
        return 1;
    }
    ends_pass(h, i, h->n);
    return 0;
}

/* dk and dv of the keys [j, end), from R in `s`, R^T in `t` and its vector in `z`;
 * returns where they end, or -1 to stop. */
static ptrdiff_t
noncausal_some_dkv(const struct la_head *h, const struct noncausal_backward_scratch *x,
                   T *s, T *t, const T *z, struct la_fetch *ahead, ptrdiff_t j,
                   ptrdiff_t end)
{
    const struct noncausal_scratch *r = &x->forward;
    struct sweep dv = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->a,
        .o = x->dv,
        .s = s,
        .ahead = ahead,
    };
    struct sweep db = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->v,
        .o = x->da,
        .s = t,
        .bias = z,
        .ahead = ahead,
    };
    for (; j < end; j += r->rows) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        const struct span some = span(j, r->rows, j + r->rows, h->s, ahead);
        dv.rows = db.rows = some.rows;
        load_keys(h, some, r->a, r->v);
        look_ahead(&h->dk, some, h->d);
        look_ahead(&h->dv, some, h->m);
        sweep(&dv, LA_READ);
        sweep(&db, LA_READ);
        chain(x->da, &h->k, some, h->d, r->a, h->map);
        clear_rows(x->da, keys_left(h, some), some.rows);
        clear_rows(x->dv, keys_left(h, some), some.rows);
        store_rows(&h->dk, some, h->d, x->da, NULL);
        store_rows(&h->dv, some, h->m, x->dv, NULL);
    }
    return j;
}

static int
noncausal_dkv(const struct la_head *h, const struct noncausal_backward_scratch *x)
{
    const struct token_sum *sum = &x->forward.sum;
    struct la_fetch own = {0};
    ptrdiff_t j = slice_begin(h);
    if (j == 0) {
        transpose_state(x->t, sum->s, h->d, h->m);
    }
    j = noncausal_some_dkv(h, x, sum->s, x->t, sum->z, slice_fetch(h, &own), j,
                           slice_end(h, h->s));
    if (j < 0) {
        return 1;
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
