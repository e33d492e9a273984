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
#include "momentum_reverse.h"
#include "../scans/scan.h"

/* A block of tokens, with their sums over columns for each of some panels. */
struct momentum_block {
    struct momentum_rows rows;
    struct block g; /* grad_out; then dv */
    T *sums;
};

/* What all blocks share. */
struct momentum_memory {
    T *state, *grad; /* S and M; R and N */
    T *checkpoints;  /* before each block */
};

struct momentum_backward_scratch {
    ptrdiff_t interval; /* tokens of a block */
    struct momentum_block block;
    struct momentum_memory all;
    T *deta, *scale;
    T *states; /* a panel before each token of a block, and after it */
};

/* Sums over columns of the tokens of a block. */
struct momentum_sums {
    struct block dq, dk, dp; /* dq, N E, S (-dv) */
    T *dg, *dmu, *dbeta;     /* <R, S>, <N, M>, <R, M> */
};

INLINE ptrdiff_t
momentum_sums_size(const struct la_head *h)
{
    const ptrdiff_t rows = scan_interval(h->n);
    return 3 * (rows * row_step(h->d) + row_step(rows));
}

INLINE struct momentum_sums
momentum_sums(const struct la_head *h, T *x)
{
    const ptrdiff_t rows = scan_interval(h->n), ld = row_step(h->d);
    T *const y = x + rows * ld, *const z = y + rows * ld, *const row = z + rows * ld;
    return (struct momentum_sums){
        {x, ld}, {y, ld}, {z, ld}, row, row + row_step(rows), row + 2 * row_step(rows)};
}

static struct momentum_block
take_momentum_block(const struct la_head *h, struct arena *arena, ptrdiff_t panels)
{
    const ptrdiff_t rows = scan_interval(h->n);
    struct momentum_block x = {.rows = take_momentum_rows(h, arena, rows)};
    x.g = take_block(arena, rows, h->m);
    x.sums = take(arena, panels, momentum_sums_size(h));
    return x;
}

static struct momentum_memory
take_momentum_memory(const struct la_head *h, struct arena *arena)
{
    return (struct momentum_memory){
        .state = take_momentum(arena, h, 1),
        .grad = take_momentum(arena, h, 1),
        .checkpoints = take_momentum(arena, h, scan_checkpoints(h->n)),
    };
}

/* What a thread needs for itself. */
static struct momentum_backward_scratch
take_momentum_gradient(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = scan_interval(h->n);
    return (struct momentum_backward_scratch){
        .interval = rows,
        .deta = take_row(arena, rows),
        .scale = take_row(arena, rows),
        .states = take(arena, rows + 1, momentum_size(h, LA_MOMENTUM_NR)),
    };
}

static struct momentum_backward_scratch
momentum_delta_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct momentum_backward_scratch r = take_momentum_gradient(h, arena);
    r.block = take_momentum_block(h, arena, 1);
    r.all = take_momentum_memory(h, arena);
    return r;
}

/* The checkpoint of a panel of S and M before the tokens t. */
INLINE T *
momentum_checkpoint(const struct la_head *h, const struct momentum_backward_scratch *r,
                    struct span t, ptrdiff_t col)
{
    const ptrdiff_t size = 2 * numbers_in_tiles(h->d, h->m);
    return momentum_at(r->all.checkpoints + t.first / r->interval * size, h, col);
}

/* Leaves the checkpoint of a panel before the tokens t, and goes on to the state after
 * them, unless they are the last.  Nonzero: stop. */
INLINE int
momentum_scan(const struct la_head *h, const struct momentum_backward_scratch *r,
              struct span t, ptrdiff_t col, const int nr, ptrdiff_t *until_poll)
{
    T *const x = momentum_at(r->all.state, h, col);
    memcpy(momentum_checkpoint(h, r, t, col), x,
           (size_t)momentum_size(h, nr) * sizeof(T));
    if (t.next >= h->n) {
        return 0;
    }
    if (give_up(h, until_poll, 5 * t.rows * h->d * nr * VL)) {
        return 1;
    }
    momentum_tokens(h, &r->block.rows, keys_left(h, t), col, x, 0, nr, 0, t.ahead);
    return 0;
}

/* The checkpoints. */
static int
leave_momentum(const struct la_head *h, const struct momentum_backward_scratch *r,
               ptrdiff_t *until_poll)
{
    struct la_fetch look = {0};
    LA_BY_PANELS(h->m, load_momentum(momentum_at(r->all.state, h, col), h, &h->s0,
                                     &h->z0, col, nr));
    for (ptrdiff_t i = 0; i < h->n; i += r->interval) {
        const struct span t = span(i, r->interval, i + r->interval, h->n, &look);
        int stop = 0;
        if (t.next < h->n) {
            load_momentum_rows(h, &r->block.rows, t);
        }
        LA_BY_PANELS(h->m, stop = stop || momentum_scan(h, r, t, col, nr, until_poll));
        if (stop) {
            return 1;
        }
    }
    return 0;
}

/* --- a block -------------------------------------------------------------------- */

/* Token i of a block, in the panel from column `col` on, whose sums are added. */
INLINE void
momentum_token_back(const struct la_head *h, const struct momentum_backward_scratch *r,
                    const struct momentum_sums *sums, ptrdiff_t i, ptrdiff_t keys,
                    ptrdiff_t col, const int nr)
{
    const struct momentum_rows *const x = &r->block.rows;
    const ptrdiff_t size = momentum_size(h, nr), here = i < keys ? i + 1 : keys;
    T *const grad = momentum_at(r->all.grad, h, col);
    T *const g = r->block.g.x + i * r->block.g.ld + col;
    T *const dq = sums->dq.x + i * sums->dq.ld;
    T *const dp = sums->dp.x + i * sums->dp.ld;
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
    momentum_until(&b, grad, dq, sums->dk.x + i * sums->dk.ld, h->d, nr);
    if (is_weak(x, i)) {
        momentum_past(&b, grad, dp, h->d, nr, 1);
    }
    else {
        momentum_past(&b, grad, dp, h->d, nr, 0);
    }
    LA_EACH(j, nr) {
        vstore(&g[j * VL], b.dv[j]);
    }
    sums->dg[i] += sum_lanes(b.dg);
    sums->dmu[i] += sum_lanes(b.dmu);
    sums->dbeta[i] += sum_lanes(b.dbeta);
}

/* A panel of a block: its states, and its tokens in reverse.  Nonzero: stop. */
INLINE int
momentum_panel_back(const struct la_head *h, const struct momentum_backward_scratch *r,
                    T *sums, struct span t, ptrdiff_t col, const int nr,
                    ptrdiff_t *until_poll)
{
    const ptrdiff_t keys = keys_left(h, t), size = momentum_size(h, nr);
    const struct momentum_sums of_panel = momentum_sums(h, sums);
    if (give_up(h, until_poll, 20 * t.rows * h->d * nr * VL)) {
        return 1;
    }
    memcpy(r->states, momentum_checkpoint(h, r, t, col), (size_t)size * sizeof(T));
    momentum_tokens(h, &r->block.rows, keys, col, r->states, size, nr, 0, t.ahead);
    for (ptrdiff_t i = t.rows - 1; i >= 0; i--) {
        la_fetch_some(t.ahead);
        momentum_token_back(h, r, &of_panel, i, keys, col, nr);
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

static void
load_momentum_block(const struct la_head *h, const struct momentum_backward_scratch *r,
                    struct span t)
{
    load_momentum_rows(h, &r->block.rows, t);
    load_plain(r->block.g, &h->grad_out, t, h->m);
    scale_rows(r->block.rows.q, t.rows, r->scale);
}

/* The gradients of the tokens t, from their sums. */
static void
store_momentum_gradients(const struct la_head *h,
                         const struct momentum_backward_scratch *r, struct span t)
{
    const ptrdiff_t keys = keys_left(h, t), all = round_up(t.rows, MR);
    const struct momentum_rows *const x = &r->block.rows;
    const struct momentum_sums sums = momentum_sums(h, r->block.sums);
    load_plain(x->k, &h->k, rows_from(t.first, keys), h->d);
    row_dots(r->deta, x->k, sums.dk, keys, row_step(h->d));
    scale_rows(sums.dk, keys, x->eta);
    gate_gradients(sums.dg, x->g, keys);
    gate_gradients(sums.dmu, x->mu, keys);
    clear_rows(r->block.g, keys, all);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        r->deta[i] = i < keys ? -r->deta[i] : 0;
        sums.dbeta[i] = -sums.dbeta[i];
    }
    store_rows(&h->dq, t, h->d, sums.dq, r->scale);
    store_rows(&h->dk, t, h->d, sums.dk, NULL);
    store_rows(&h->dv, t, h->m, r->block.g, NULL);
    store_rows(&h->dp, t, h->d, sums.dp, NULL);
    store_numbers(&h->dg, t, sums.dg);
    store_numbers(&h->dmu, t, sums.dmu);
    store_numbers(&h->dbeta, t, sums.dbeta);
    store_numbers(&h->deta, t, r->deta);
}

/* The block of tokens t.  Nonzero: stop. */
static int
momentum_block_back(const struct la_head *h, const struct momentum_backward_scratch *r,
                    struct span t, ptrdiff_t *until_poll)
{
    int stop = 0;
    struct span one = t;
    one.ahead = NULL;
    load_momentum_block(h, r, t);
    clear(r->block.sums, momentum_sums_size(h));
    LA_BY_PANELS(h->m, stop = stop || momentum_panel_back(h, r, r->block.sums, t, col,
                                                          nr, until_poll));
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
    fill_scale(r.scale, h, r.interval);
    if (leave_momentum(h, &r, &until_poll)) {
        return 1;
    }
    LA_BY_PANELS(h->m, load_momentum(momentum_at(r.all.grad, h, col), h, &h->grad_s,
                                     &h->grad_z, col, nr));
    for (ptrdiff_t i = last; i >= 0; i -= r.interval) {
        const struct span t =
            span(i, r.interval, i - r.interval, h->n, i > 0 ? &look : NULL);
        if (momentum_block_back(h, &r, t, &until_poll)) {
            return 1;
        }
    }
    LA_BY_PANELS(h->m, store_momentum(&h->ds0, &h->dz0, momentum_at(r.all.grad, h, col),
                                      h, col, nr));
    return 0;
}

#endif
