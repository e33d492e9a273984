/* wkv.h: RWKV-4's attention without queries, each channel by itself, one sequence.
 *
 *   num_t = e^-w num_{t-1} + e^k_t v_t,  den_t = e^-w den_{t-1} + e^k_t
 *   o_t = (num_{t-1} + e^(u + k_t) v_t) / (den_{t-1} + e^(u + k_t))
 *                                                         Peng et al. 2023, eq. 14-18
 *
 * k, v, o (n,m), w, u (m).  num and den are held times e^-max, where max is the largest
 * exponent so far: max_t = max(max_{t-1} - w, k_t).  The state's s, z and log_scale (m)
 * are num, den and max.  Two exponentials and a division a number.  A token without a
 * key leaves the state as it is, and reads it; where there is no key at all o is 0.  A
 * key of -inf writes nothing, whatever its value is.  Scratch: blocks of a panel of
 * columns.  Nothing of row j > i reaches row i.  wkv_state.h has the
 * numerics. */
#ifndef LA_WKV_H
#define LA_WKV_H

#include "scan.h"
#include "wkv_state.h"

struct wkv_scratch {
    struct block k, v, o; /* a panel's */
    T *w, *u;
    struct wkv_state s;
};

static struct wkv_scratch
take_wkv(const struct la_head *h, struct arena *arena, ptrdiff_t rows)
{
    struct wkv_scratch r;
    const ptrdiff_t cols = panel_cols(h, 0, LA_SCAN_COLS);
    r.k = take_block(arena, rows, cols);
    r.v = take_block(arena, rows, cols);
    r.o = take_block(arena, rows, cols);
    r.w = take_row(arena, cols);
    r.u = take_row(arena, cols);
    r.s = take_wkv_state(arena, cols);
    return r;
}

static struct wkv_scratch
wkv_carve(const struct la_head *h, struct arena *arena)
{
    return take_wkv(h, arena, LA_SCAN_ROWS);
}

/* The state before the first token, of which there is none where it is not given. */
static void
load_first_wkv(const struct la_head *h, struct wkv_state s, ptrdiff_t col,
               ptrdiff_t cols)
{
    const struct la_array first[] = {h->s0, h->z0, h->log_scale0};
    load_wkv_state(s, first, col, cols, -(T)INFINITY);
}

/* w, u and the first state of the panel from col on. */
static void
begin_wkv(const struct la_head *h, const struct wkv_scratch *r, ptrdiff_t col,
          ptrdiff_t cols)
{
    const struct la_array w = row_at(&h->w, 0, col), u = row_at(&h->u, 0, col);
    load_vector(r->w, &w, cols);
    load_vector(r->u, &u, cols);
    load_first_wkv(h, r->s, col, cols);
}

/* k and v of the tokens t; those without a key have the key -inf, the value 0. */
static void
load_wkv(const struct la_head *h, const struct wkv_scratch *r, struct span t,
         ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array k = row_at(&h->k, 0, col), v = row_at(&h->v, 0, col);
    load_existing(r->k, h, &k, t, cols, LA_MAP_identity);
    load_existing(r->v, h, &v, t, cols, LA_MAP_identity);
    for (ptrdiff_t i = keys_left(h, t); i < t.rows; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            vstore(&r->k.x[i * r->k.ld + j], vset1(-(T)INFINITY));
        }
    }
}

/* 1, by which row i ages the state, or 0 if it has no key. */
INLINE vec
ageing_of(const struct la_head *h, ptrdiff_t i)
{
    return vset1(i < h->keys ? 1 : 0);
}

/* Row i, n vectors of columns from j on: o, if `reads`, and the state after the token.
 * All exponentials are taken together, since each is a chain of operations. */
INLINE void
wkv_columns(const struct wkv_scratch *r, ptrdiff_t i, ptrdiff_t j, vec ageing,
            const int reads, const int n)
{
    const T *k_row = &r->k.x[i * r->k.ld + j], *v_row = &r->v.x[i * r->v.ld + j];
    struct wkv_vectors s[LA_WKV_TOGETHER];
    struct wkv_lead write[LA_WKV_TOGETHER], read[LA_WKV_TOGETHER];
    struct exp2_parts e[2 * LA_WKV_TOGETHER];
    vec x[2 * LA_WKV_TOGETHER];
    LA_EACH(c, n) {
        const ptrdiff_t at = j + c * VL;
        const vec w = vload(&r->w[at]), k = vload(&k_row[c * VL]);
        s[c] = wkv_at(r->s, at);
        write[c] = wkv_lead(s[c].top, s[c].age + ageing, w, k);
        x[c] = wkv_exponent(write[c]);
        if (reads) {
            read[c] = wkv_lead_read(s[c].top, s[c].age, w, vload(&r->u[at]), k);
            x[n + c] = wkv_exponent(read[c]);
        }
    }
    vexp2_parts_each(e, x, reads ? 2 * n : n);
    LA_EACH(c, n) {
        const vec k = vload(&k_row[c * VL]), v = value_of(k, vload(&v_row[c * VL]));
        if (reads) {
            vec old, own;
            wkv_weights(s[c].top, read[c], k, e[n + c], &old, &own);
            vstore(&r->o.x[i * r->o.ld + j + c * VL], wkv_read(s[c], old, own, v));
        }
        const vec age = s[c].age + ageing;
        const struct wkv_decay by = wkv_decay(s[c].top, age, write[c], k, e[c]);
        wkv_write(r->s, j + c * VL, &by, v);
    }
}

/* Row i of all columns. */
INLINE void
wkv_row(const struct wkv_scratch *r, ptrdiff_t i, ptrdiff_t cols, vec ageing,
        const int reads)
{
    LA_TOGETHER(LA_WKV_TOGETHER, cols, wkv_columns(r, i, j, ageing, reads, n));
}

/* o of the tokens t, and the state after them. */
static void
wkv_rows(const struct la_head *h, const struct wkv_scratch *r, struct span t,
         ptrdiff_t cols)
{
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        la_fetch_some(t.ahead);
        wkv_row(r, i, cols, ageing_of(h, t.first + i), 1);
    }
}

/* Whether the state is settled after the tokens t: at the end, and before ages would
 * round. */
INLINE int
settles(const struct la_head *h, struct span t)
{
    const ptrdiff_t end = t.first + t.rows;
    return end == h->n || end / LA_WKV_SETTLE != t.first / LA_WKV_SETTLE;
}

static int
run_wkv(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct wkv_scratch r = wkv_carve(h, &arena);
    const struct la_array last[] = {h->s1, h->z1, h->log_scale1};
    struct la_fetch ahead = {0};
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
        const ptrdiff_t cols = panel_cols(h, col, LA_SCAN_COLS);
        const struct la_array o = row_at(&h->o, 0, col);
        begin_wkv(h, &r, col, cols);
        for (ptrdiff_t i = 0; i < h->n; i += LA_SCAN_ROWS) {
            const ptrdiff_t next = i + LA_SCAN_ROWS;
            const struct span t = span(i, LA_SCAN_ROWS, next, h->n, &ahead);
            if (give_up(h, &until_poll, LA_WKV_WORK * t.rows * cols)) {
                return 1;
            }
            load_wkv(h, &r, t, col, cols);
            look_ahead(&o, t, cols);
            wkv_rows(h, &r, t, cols);
            const int settled = settles(h, t);
            if (carries_lost(h) && (settled || next % LA_CUT_TOKENS == 0)) {
                settle_carried_wkv(r.s, r.w, cols);
            }
            else if (settled) {
                settle_wkv(r.s, r.w, cols, NULL);
            }
            stream_rows(&o, t, cols, r.o, h->large);
        }
        store_wkv_state(last, r.s, col, cols);
    }
    return 0;
}

/* One token. */
static struct wkv_scratch
wkv_step_carve(const struct la_head *h, struct arena *arena)
{
    return wkv_carve(h, arena);
}

static int
run_wkv_step(const struct la_head *h)
{
    return run_wkv(h);
}

#endif
