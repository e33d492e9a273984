/* momentum_delta_backward.h: gradients of momentum_delta.h, one head.
 *
 * With g the cotangent of o, R and N those of S_i and M_i, from the last token on:
 *
 *    dq_i = scale S_i g_i,  R += scale q_i g_i^T,  dbeta_i = -<R, M_i>
 *    N -= beta_i R,         dk_i = -eta_i N E_i,   deta_i = -k_i.(N E_i)
 *    dv_i = -eta_i N^T k_i, dp_i = -S_{i-1} dv_i
 *    dg_i = exp(g_i) <R, S_{i-1}>,  dmu_i = exp(mu_i) <N, M_{i-1}>
 *    R <- exp(g_i) R - p_i dv_i^T,  N <- exp(mu_i) N
 *
 * A first scan leaves a checkpoint of S and M every sqrt(n) tokens.  From the last of
 * these blocks on, the states of a block are computed again, one panel of columns at a
 * time, and swept in reverse: one pass over a panel for what precedes dv_i, one for
 * what follows from it.  Sums over columns of the values are added over the panels.
 *
 * About 44 n d m flops.  Scratch: sqrt(n) states, and as many panels of one. */
#ifndef LA_MOMENTUM_DELTA_BACKWARD_H
#define LA_MOMENTUM_DELTA_BACKWARD_H

#include "momentum_delta.h"
#include "../scans/scan.h"

struct momentum_backward_scratch {
    ptrdiff_t interval; /* tokens from one checkpoint to the next */
    struct momentum_rows rows;
    struct block g;          /* grad_out; then dv */
    struct block dq, dk, dp; /* dq, and sums over columns: N E, S (-dv) */
    T *dg, *dmu, *dbeta;     /* <R, S>, <N, M>, <R, M> of each token */
    T *deta, *scale;
    T *state, *grad; /* S and M; R and N */
    T *checkpoints;  /* before each block */
    T *states;       /* a panel before each token of a block, and after it */
};

static struct momentum_backward_scratch
momentum_delta_backward_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = scan_interval(h->n);
    struct momentum_backward_scratch r = {.interval = rows};
    r.rows = take_momentum_rows(h, arena, rows);
    r.g = take_block(arena, rows, h->m);
    r.dq = take_block(arena, rows, h->d);
    r.dk = take_block(arena, rows, h->d);
    r.dp = take_block(arena, rows, h->d);
    r.dg = take_row(arena, rows);
    r.dmu = take_row(arena, rows);
    r.dbeta = take_row(arena, rows);
    r.deta = take_row(arena, rows);
    r.scale = take_row(arena, rows);
    r.state = take_momentum(arena, h, 1);
    r.grad = take_momentum(arena, h, 1);
    r.checkpoints = take_momentum(arena, h, scan_checkpoints(h->n));
    r.states = take(arena, rows + 1, momentum_size(h, LA_MOMENTUM_NR));
    return r;
}

/* Numbers of S and M, and of a checkpoint. */
INLINE ptrdiff_t
momentum_whole(const struct la_head *h)
{
    return 2 * numbers_in_tiles(h->d, h->m);
}

/* The state of a panel after the tokens t.  Nonzero: stop. */
INLINE int
momentum_scan(const struct la_head *h, const struct momentum_backward_scratch *r,
              struct span t, ptrdiff_t col, const int nr, ptrdiff_t *until_poll)
{
    if (give_up(h, until_poll, 5 * t.rows * h->d * nr * VL)) {
        return 1;
    }
    momentum_tokens(h, &r->rows, keys_left(h, t), col, momentum_at(r->state, h, col), 0,
                    nr, 0, t.ahead);
    return 0;
}

/* The checkpoints.  The last block need not be scanned. */
static int
leave_momentum(const struct la_head *h, const struct momentum_backward_scratch *r,
               ptrdiff_t *until_poll)
{
    const ptrdiff_t size = momentum_whole(h);
    struct la_fetch look = {0};
    LA_BY_PANELS(
        h->m, load_momentum(momentum_at(r->state, h, col), h, &h->s0, &h->z0, col, nr));
    for (ptrdiff_t i = 0, index = 0; i < h->n; i += r->interval, index++) {
        const struct span t = span(i, r->interval, i + r->interval, h->n, &look);
        memcpy(r->checkpoints + index * size, r->state, (size_t)size * sizeof(T));
        if (t.next >= h->n) {
            break;
        }
        load_momentum_rows(h, &r->rows, t);
        int stop = 0;
        LA_BY_PANELS(h->m, stop = stop || momentum_scan(h, r, t, col, nr, until_poll));
        if (stop) {
            return 1;
        }
    }
    return 0;
}

/* --- one token of a panel --------------------------------------------------------- */

/* A token on its way back, with its factors and rows. */
struct momentum_back {
    struct momentum_token token;
    const T *p;             /* its own */
    ptrdiff_t momentum;     /* where M begins in a panel */
    const T *before, *here; /* the panel before it, and after it */
    vec g[LA_MOMENTUM_NR], e[LA_MOMENTUM_NR], dv[LA_MOMENTUM_NR];
    vec dg, dmu, dbeta; /* sums in every lane */
};

/* The sum of the vectors x y over a row of a panel. */
INLINE vec
row_product(const T *x, const vec y[], const int nr)
{
    vec sum = vload(x) * y[0];
    LA_EACH(j, nr - 1) {
        sum = vfma(vload(&x[(j + 1) * VL]), y[j + 1], sum);
    }
    return sum;
}

/* row_l += the sums of the lanes of x_l, for VL rows */
INLINE void
add_lane_sums(T *row, vec x[])
{
    vstore(row, vload(row) + lane_sums(x));
}

/* One row before dv is known: R and N as they are at the token. */
INLINE void
momentum_row_until(struct momentum_back *b, ptrdiff_t i, T *s, T *m, ptrdiff_t row,
                   const int nr)
{
    const vec q = vset1(b->token.q[i]), k = vset1(b->token.k[i]);
    LA_EACH(j, nr) {
        const ptrdiff_t at = row + j * VL;
        const vec R = vfma(q, b->g[j], vload(&s[at]));
        const vec N = vfma(b->token.write, R, vload(&m[at]));
        vstore(&s[at], R);
        vstore(&m[at], N);
        b->dbeta = vfma(R, vload(&b->here[b->momentum + at]), b->dbeta);
        b->dg = vfma(R, vload(&b->before[at]), b->dg);
        b->dmu = vfma(N, vload(&b->before[b->momentum + at]), b->dmu);
        b->dv[j] = vfma(k, N, b->dv[j]);
    }
}

/* What needs no dv: dq and dk += their sums over the panel's columns, the sums of the
 * gates' gradients, and dv. */
INLINE void
momentum_until(struct momentum_back *back, T *grad, T *dq, T *dk, ptrdiff_t d,
               const int nr)
{
    struct momentum_back b = *back; /* in registers */
    T *const s = grad, *const m = grad + b.momentum;
    for (ptrdiff_t l = 0; l < d; l += VL) {
        vec reads[VL], writes[VL];
        LA_EACH(r, VL) {
            const ptrdiff_t i = l + r, row = i * nr * VL;
            reads[r] = writes[r] = (vec){0};
            if (i < d) {
                momentum_row_until(&b, i, s, m, row, nr);
                reads[r] = row_product(b.here + row, b.g, nr);
                writes[r] = row_product(m + row, b.e, nr);
            }
        }
        add_lane_sums(&dq[l], reads);
        add_lane_sums(&dk[l], writes);
    }
    *back = b;
}

/* What follows from dv: dp += its sums, and R and N before the token. */
INLINE void
momentum_past(const struct momentum_back *back, T *grad, T *dp, ptrdiff_t d,
              const int nr, const int weak)
{
    const struct momentum_back b = *back;
    const struct momentum_token t = b.token;
    vec dv[LA_MOMENTUM_NR];
    LA_EACH(j, nr) {
        dv[j] = -b.dv[j];
    }
    for (ptrdiff_t l = 0; l < d; l += VL) {
        vec erases[VL];
        LA_EACH(r, VL) {
            const ptrdiff_t i = l + r, row = i * nr * VL;
            erases[r] = (vec){0};
            if (i < d) {
                const vec p = vset1(b.p[i]);
                erases[r] = row_product(b.before + row, dv, nr);
                LA_EACH(j, nr) {
                    T *const s = grad + row + j * VL, *const m = s + b.momentum;
                    const vec R = faded(vload(s), t.keep_s, t.change_s, weak);
                    vstore(s, vfma(p, dv[j], R));
                    vstore(m, faded(vload(m), t.keep_m, t.change_m, weak));
                }
            }
        }
        add_lane_sums(&dp[l], erases);
    }
}

/* A token without a key: dq, and R. */
INLINE void
momentum_read_back(const struct momentum_back *b, T *grad, T *dq, ptrdiff_t d,
                   const int nr)
{
    for (ptrdiff_t l = 0; l < d; l += VL) {
        vec reads[VL];
        LA_EACH(r, VL) {
            const ptrdiff_t i = l + r, row = i * nr * VL;
            reads[r] = (vec){0};
            if (i < d) {
                const vec q = vset1(b->token.q[i]);
                reads[r] = row_product(b->here + row, b->g, nr);
                LA_EACH(j, nr) {
                    T *const s = grad + row + j * VL;
                    vstore(s, vfma(q, b->g[j], vload(s)));
                }
            }
        }
        add_lane_sums(&dq[l], reads);
    }
}

/* --- a block -------------------------------------------------------------------- */

/* Token i of a block, in the panel from column `col` on. */
INLINE void
momentum_token_back(const struct la_head *h, const struct momentum_backward_scratch *r,
                    ptrdiff_t i, ptrdiff_t keys, ptrdiff_t col, const int nr)
{
    const struct momentum_rows *const x = &r->rows;
    const ptrdiff_t size = momentum_size(h, nr), here = i < keys ? i + 1 : keys;
    T *const grad = momentum_at(r->grad, h, col), *const g = r->g.x + i * r->g.ld + col;
    T *const dq = r->dq.x + i * r->dq.ld, *const dp = r->dp.x + i * r->dp.ld;
    struct momentum_back b = {.momentum = size / 2, .here = r->states + here * size};
    b.token.q = x->q.x + i * x->q.ld;
    LA_EACH(j, nr) {
        b.g[j] = vload(&g[j * VL]);
    }
    if (i >= keys) {
        momentum_read_back(&b, grad, dq, h->d, nr);
        return;
    }
    b.token = momentum_token(x, i);
    b.p = x->p.x + i * x->p.ld;
    b.before = b.here - size;
    LA_EACH(j, nr) {
        b.e[j] = vload(&x->v.x[i * x->v.ld + col + j * VL]);
    }
    momentum_until(&b, grad, dq, r->dk.x + i * r->dk.ld, h->d, nr);
    if (is_weak(x, i)) {
        momentum_past(&b, grad, dp, h->d, nr, 1);
    }
    else {
        momentum_past(&b, grad, dp, h->d, nr, 0);
    }
    LA_EACH(j, nr) {
        vstore(&g[j * VL], b.dv[j]);
    }
    r->dg[i] += sum_lanes(b.dg);
    r->dmu[i] += sum_lanes(b.dmu);
    r->dbeta[i] += sum_lanes(b.dbeta);
}

/* A panel of a block: its states, and its tokens in reverse.  Nonzero: stop. */
INLINE int
momentum_panel_back(const struct la_head *h, const struct momentum_backward_scratch *r,
                    struct span t, ptrdiff_t col, const int nr, ptrdiff_t *until_poll)
{
    const ptrdiff_t keys = keys_left(h, t), size = momentum_size(h, nr);
    T *const first = r->checkpoints + t.first / r->interval * momentum_whole(h);
    if (give_up(h, until_poll, 20 * t.rows * h->d * nr * VL)) {
        return 1;
    }
    memcpy(r->states, momentum_at(first, h, col), (size_t)size * sizeof(T));
    momentum_tokens(h, &r->rows, keys, col, r->states, size, nr, 0, t.ahead);
    for (ptrdiff_t i = t.rows - 1; i >= 0; i--) {
        la_fetch_some(t.ahead);
        momentum_token_back(h, r, i, keys, col, nr);
    }
    return 0;
}

/* x <- exp of the gate times x; 0 where that is 0. */
static void
gate_gradients(T *x, struct momentum_gate gate, ptrdiff_t rows)
{
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        const vec decay = vload(&gate.keep[i]) + vload(&gate.change[i]);
        vstore(&x[i], keep_of(decay, vload(&x[i])) * decay);
    }
}

/* The gradients of the tokens t, from their sums. */
static void
store_momentum_gradients(const struct la_head *h,
                         const struct momentum_backward_scratch *r, struct span t)
{
    const ptrdiff_t keys = keys_left(h, t), all = round_up(t.rows, MR);
    const struct momentum_rows *const x = &r->rows;
    load_plain(x->k, &h->k, rows_from(t.first, keys), h->d);
    row_dots(r->deta, x->k, r->dk, keys, row_step(h->d));
    scale_rows(r->dk, keys, x->eta);
    gate_gradients(r->dg, x->g, keys);
    gate_gradients(r->dmu, x->mu, keys);
    clear_rows(r->g, keys, all);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        r->deta[i] = i < keys ? -r->deta[i] : 0;
        r->dbeta[i] = -r->dbeta[i];
    }
    store_rows(&h->dq, t, h->d, r->dq, r->scale);
    store_rows(&h->dk, t, h->d, r->dk, NULL);
    store_rows(&h->dv, t, h->m, r->g, NULL);
    store_rows(&h->dp, t, h->d, r->dp, NULL);
    store_numbers(&h->dg, t, r->dg);
    store_numbers(&h->dmu, t, r->dmu);
    store_numbers(&h->dbeta, t, r->dbeta);
    store_numbers(&h->deta, t, r->deta);
}

/* The block of tokens t.  Nonzero: stop. */
static int
momentum_block_back(const struct la_head *h, const struct momentum_backward_scratch *r,
                    struct span t, ptrdiff_t *until_poll)
{
    int stop = 0;
    const ptrdiff_t all = round_up(t.rows, MR);
    T *const sums[] = {r->dg, r->dmu, r->dbeta};
    struct span one = t;
    one.ahead = NULL;
    load_momentum_rows(h, &r->rows, t);
    load_plain(r->g, &h->grad_out, t, h->m);
    clear_rows(r->dq, 0, all);
    clear_rows(r->dk, 0, all);
    clear_rows(r->dp, 0, all);
    for (int i = 0; i < 3; i++) {
        clear(sums[i], row_step(r->interval));
    }
    scale_rows(r->rows.q, t.rows, r->scale);
    LA_BY_PANELS(h->m,
                 stop = stop || momentum_panel_back(h, r, t, col, nr, until_poll));
    if (!stop) {
        store_momentum_gradients(h, r, one);
    }
    return stop;
}

static int
run_momentum_delta_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct momentum_backward_scratch r = momentum_delta_backward_carve(h, &arena);
    const ptrdiff_t last = h->n > 0 ? (h->n - 1) / r.interval * r.interval : -1;
    struct la_fetch look = {0};
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t i = 0; i < r.interval; i++) {
        r.scale[i] = (T)h->scale;
    }
    if (leave_momentum(h, &r, &until_poll)) {
        return 1;
    }
    LA_BY_PANELS(h->m, load_momentum(momentum_at(r.grad, h, col), h, &h->grad_s,
                                     &h->grad_z, col, nr));
    for (ptrdiff_t i = last; i >= 0; i -= r.interval) {
        const struct span t =
            span(i, r.interval, i - r.interval, h->n, i > 0 ? &look : NULL);
        if (momentum_block_back(h, &r, t, &until_poll)) {
            return 1;
        }
    }
    LA_BY_PANELS(h->m, store_momentum(&h->ds0, &h->dz0, momentum_at(r.grad, h, col), h,
                                      col, nr));
    return 0;
}

#endif
