/* wkv_backward.h: gradients of wkv, one sequence.
 *
 * With a, b the weights of the state and of the token's own key as it is read, N / D =
 * o, E, e those of the state and of the key as it is written (wkv.h), R and Q the
 * gradients of num and den as they are held, from the last token on:
 *
 *   p = g_t / D,  x = p b (v_t - o_t)
 *   dk_t = x + e (R v_t + Q),  du += x,  dv_t = p b + e R
 *   dw -= E (R num + Q den),   R <- E R + a p,  Q <- E Q - a p o_t
 *
 * The gradient of the equation does not depend on max, but that of the state's three
 * fields does: r, the gradient of max, begins with grad_max - grad_num num - grad_den
 * den, and follows the larger of max - w and k.  A first scan leaves a checkpoint of
 * the state every sqrt(n) tokens; from the last of these blocks on it is computed
 * again, and swept in reverse.  Four exponentials and a division a number more than the
 * scan.  Scratch: 4 sqrt(n) rows, twice, of a panel. */
#ifndef LA_WKV_BACKWARD_H
#define LA_WKV_BACKWARD_H

#include "wkv.h"

struct wkv_backward_scratch {
    struct wkv_scratch scan; /* o: the cotangents */
    ptrdiff_t rows;          /* tokens from one checkpoint to the next */
    struct block dk, dv;
    struct block checkpoints; /* four rows each */
    struct block states;      /* before each token of a block, likewise */
    struct wkv_state r;       /* gradients of the state */
    T *dw, *du, *block_dw, *block_du, *lost_dw, *lost_du; /* sums over tokens */
};

static struct wkv_backward_scratch
wkv_backward_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = scan_interval(h->n);
    const ptrdiff_t cols = panel_cols(h, 0, LA_SCAN_COLS);
    struct wkv_backward_scratch r = {.rows = rows};
    T **const sums[] = {&r.dw, &r.du, &r.block_dw, &r.block_du, &r.lost_dw, &r.lost_du};
    r.scan = take_wkv(h, arena, rows);
    r.dk = take_block(arena, rows, cols);
    r.dv = take_block(arena, rows, cols);
    r.checkpoints = take_block(arena, 4 * scan_checkpoints(h->n), cols);
    r.states = take_block(arena, 4 * rows, cols);
    r.r = take_wkv_state(arena, cols);
    for (int i = 0; i < 6; i++) {
        *sums[i] = take_row(arena, cols);
    }
    return r;
}

/* Four rows of x as a state. */
INLINE struct wkv_state
wkv_state_of(struct block x, ptrdiff_t index)
{
    T *first = x.x + 4 * index * x.ld;
    return (struct wkv_state){.num = first,
                              .den = first + x.ld,
                              .top = first + 2 * x.ld,
                              .age = first + 3 * x.ld};
}

static void
copy_wkv_state(struct wkv_state y, struct wkv_state x, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        wkv_put(y, j, wkv_at(x, j));
    }
}

/* The state before each of the tokens t, where `states` are asked for, and after them.
 */
static void
wkv_states(const struct la_head *h, const struct wkv_backward_scratch *r, struct span t,
           ptrdiff_t cols, int states)
{
    const struct wkv_scratch *scan = &r->scan;
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        const vec ageing = ageing_of(h, t.first + i);
        la_fetch_some(t.ahead);
        if (states) {
            copy_wkv_state(wkv_state_of(r->states, i), scan->s, cols);
        }
        wkv_row(scan, i, cols, ageing, 0);
    }
}

/* The checkpoints, and the state after the last token. */
static int
leave_wkv(const struct la_head *h, const struct wkv_backward_scratch *r, ptrdiff_t col,
          ptrdiff_t cols, ptrdiff_t *until_poll)
{
    struct la_fetch ahead = {0};
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        const struct span t = span(i, r->rows, i + r->rows, h->n, &ahead);
        if (give_up(h, until_poll, LA_WKV_WORK * t.rows * cols)) {
            return 1;
        }
        copy_wkv_state(wkv_state_of(r->checkpoints, i / r->rows), r->scan.s, cols);
        load_wkv(h, &r->scan, t, col, cols);
        wkv_states(h, r, t, cols, 0);
        if (settles(h, t)) {
            settle_wkv(r->scan.s, r->scan.w, cols, NULL);
        }
    }
    return 0;
}

/* Adds to a sum that lies in memory. */
INLINE void
add_vec(T *sum, vec more)
{
    vstore(sum, vload(sum) + more);
}

/* Row i of a block, the columns from j on. */
INLINE void
wkv_row_back(const struct wkv_backward_scratch *r, ptrdiff_t i, ptrdiff_t j, vec ageing)
{
    const struct wkv_scratch *scan = &r->scan;
    const vec w = vload(&scan->w[j]), k = vload(&scan->k.x[i * scan->k.ld + j]);
    const vec v = value_of(k, vload(&scan->v.x[i * scan->v.ld + j]));
    const vec g = vload(&scan->o.x[i * scan->o.ld + j]);
    const struct wkv_vectors s = wkv_at(wkv_state_of(r->states, i), j);
    const struct wkv_vectors q = wkv_at(r->r, j);
    const vec age = s.age + ageing;
    const struct wkv_lead write = wkv_lead(s.top, age, w, k);
    const struct wkv_lead read = wkv_lead_read(s.top, s.age, w, vload(&scan->u[j]), k);
    const vec exponents[] = {wkv_exponent(write), wkv_exponent(read)};
    struct exp2_parts e[2];
    vexp2_parts_each(e, exponents, 2);
    const struct wkv_decay by = wkv_decay(s.top, age, write, k, e[0]);
    vec a, b;
    wkv_weights(s.top, read, k, e[1], &a, &b);
    const vec den = vfma(a, s.den, b);
    const ivec seen = den != (vec){0};
    const vec o = vkeep(seen, vfma(a, s.num, b * v) / den), p = vkeep(seen, g / den);
    const vec x = p * b * (v - o);
    const vec on = (by.keep + by.change) * vfma(q.num, s.num, q.den * s.den);
    const vec dmax = vkeep(~by.is_key, q.top);
    vstore(&r->dv.x[i * r->dv.ld + j], vfma(p, b, by.own * q.num));
    vstore(&r->dk.x[i * r->dk.ld + j],
           vfma(by.own, vfma(q.num, v, q.den), x) + vkeep(by.is_key, q.top));
    add_vec(&r->block_du[j], x);
    add_vec(&r->block_dw[j], -(on + dmax));
    decay_sum(&r->r.num[j], &r->r.num_lost[j], &by, a * p);
    decay_sum(&r->r.den[j], &r->r.den_lost[j], &by, -(a * p * o));
    vstore(&r->r.top[j], dmax);
}

/* The tokens t, of whose states the scan is to begin with the checkpoint. */
static void
wkv_block_back(const struct la_head *h, const struct wkv_backward_scratch *r,
               struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array g = row_at(&h->grad_out, 0, col);
    copy_wkv_state(r->scan.s, wkv_state_of(r->checkpoints, t.first / r->rows), cols);
    clear(r->scan.s.num_lost, row_step(cols));
    clear(r->scan.s.den_lost, row_step(cols));
    load_wkv(h, &r->scan, t, col, cols);
    wkv_states(h, r, t, cols, 1);
    if (settles(h, t)) {
        settle_wkv(r->scan.s, r->scan.w, cols, &r->r);
    }
    load_plain(r->scan.o, &g, t, cols);
    clear(r->block_dw, row_step(cols));
    clear(r->block_du, row_step(cols));
    for (ptrdiff_t i = t.rows - 1; i >= 0; i--) {
        const vec ageing = ageing_of(h, t.first + i);
        la_fetch_some(t.ahead);
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            wkv_row_back(r, i, j, ageing);
        }
        if (t.first + i == h->keys) {
            clear(r->block_dw, row_step(cols)); /* tokens without a key do not decay */
        }
    }
    if (keys_left(h, t) == 0) {
        clear(r->block_dw, row_step(cols));
    }
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        add_to_sum(&r->dw[j], &r->lost_dw[j], vload(&r->block_dw[j]));
        add_to_sum(&r->du[j], &r->lost_du[j], vload(&r->block_du[j]));
    }
    clear_rows(r->dk, keys_left(h, t), t.rows);
    clear_rows(r->dv, keys_left(h, t), t.rows);
}

/* The gradient of max where that of the three fields is given (sign 1), or the other
 * way round (-1): r.top -= sign (r.num num + r.den den). */
static void
meet_max(struct wkv_state r, struct wkv_state s, ptrdiff_t cols, T sign)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        struct wkv_vectors q = wkv_at(r, j);
        const struct wkv_vectors x = wkv_at(s, j);
        q.top -= vset1(sign) * vfma(q.num, x.num, q.den * x.den);
        wkv_put(r, j, q);
    }
}

static int
wkv_panel_back(const struct la_head *h, const struct wkv_backward_scratch *r,
               ptrdiff_t col, ptrdiff_t cols, ptrdiff_t *until_poll)
{
    const ptrdiff_t last = h->n > 0 ? (h->n - 1) / r->rows * r->rows : -1;
    const struct la_array dk = row_at(&h->dk, 0, col), dv = row_at(&h->dv, 0, col);
    const struct la_array last_grad[] = {h->grad_s, h->grad_z, h->grad_log_scale};
    const struct la_array first_grad[] = {h->ds0, h->dz0, h->dlog_scale0};
    load_wkv_state(r->r, last_grad, col, cols, 0);
    begin_wkv(h, &r->scan, col, cols);
    if (leave_wkv(h, r, col, cols, until_poll)) {
        return 1;
    }
    if (la_is_given(&h->grad_s) || la_is_given(&h->grad_z)) {
        meet_max(r->r, r->scan.s, cols, 1);
    }
    struct la_fetch ahead = {0};
    for (ptrdiff_t i = last; i >= 0; i -= r->rows) {
        const struct span t =
            span(i, r->rows, i - r->rows, h->n, i > 0 ? &ahead : NULL);
        if (give_up(h, until_poll, 3 * LA_WKV_WORK * t.rows * cols)) {
            return 1;
        }
        wkv_block_back(h, r, t, col, cols);
        stream_rows(&dk, t, cols, r->dk, h->large);
        stream_rows(&dv, t, cols, r->dv, h->large);
    }
    load_first_wkv(h, r->scan.s, col, cols);
    meet_max(r->r, r->scan.s, cols, -1);
    store_wkv_state(first_grad, r->r, col, cols);
    return 0;
}

static int
run_wkv_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct wkv_backward_scratch r = wkv_backward_carve(h, &arena);
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
        const ptrdiff_t cols = panel_cols(h, col, LA_SCAN_COLS);
        const struct la_array dw = row_at(&h->dw, 0, col), du = row_at(&h->du, 0, col);
        T *const sums[] = {r.dw, r.du, r.lost_dw, r.lost_du};
        for (int i = 0; i < 4; i++) {
            clear(sums[i], row_step(cols));
        }
        if (wkv_panel_back(h, &r, col, cols, &until_poll)) {
            return 1;
        }
        store_vector(&dw, r.dw, cols);
        store_vector(&du, r.du, cols);
    }
    return 0;
}

#endif
