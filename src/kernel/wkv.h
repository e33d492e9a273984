/* wkv.h: RWKV-4's attention without queries, each channel by itself, one sequence.
 *
 *   num_t = e^-w num_{t-1} + e^k_t v_t,  den_t = e^-w den_{t-1} + e^k_t
 *   o_t = (num_{t-1} + e^(u + k_t) v_t) / (den_{t-1} + e^(u + k_t))
 *                                                         Peng et al. 2023, eq. 14-18
 *
 * k, v, o (n,m), w, u (m).  num and den are held times e^-max, where max is the largest
 * exponent so far: max_t = max(max_{t-1} - w, k_t).  The state s0, s (3,m) has the rows
 * num, den and max.  Two exponentials and a division a number.  A token without a key
 * leaves the state as it is, and reads it; where there is no key at all o is 0.
 * Scratch: blocks of a panel of columns.  Nothing of row j > i reaches row i. */
#ifndef LA_WKV_H
#define LA_WKV_H

#include "scan.h"

/* num, den and max of a panel's columns. */
struct wkv_state {
    T *num, *den, *max;
};

struct wkv_scratch {
    struct block k, v, o; /* a panel's */
    T *w, *u, *none;      /* none: a decay of 0, that of tokens without a key */
    struct wkv_state s;
};

static struct wkv_state
take_wkv_state(struct arena *arena, ptrdiff_t cols)
{
    struct wkv_state s;
    s.num = take_row(arena, cols);
    s.den = take_row(arena, cols);
    s.max = take_row(arena, cols);
    return s;
}

static struct wkv_scratch
take_wkv(const struct la_head *h, struct arena *arena, ptrdiff_t rows)
{
    struct wkv_scratch r;
    const ptrdiff_t cols = scan_cols(h, 0, LA_SCAN_COLS);
    r.k = take_block(arena, rows, cols);
    r.v = take_block(arena, rows, cols);
    r.o = take_block(arena, rows, cols);
    r.w = take_row(arena, cols);
    r.u = take_row(arena, cols);
    r.none = take_row(arena, cols);
    r.s = take_wkv_state(arena, cols);
    return r;
}

static struct wkv_scratch
wkv_carve(const struct la_head *h, struct arena *arena)
{
    return take_wkv(h, arena, LA_SCAN_ROWS);
}

/* Row i of the columns of x from col on. */
INLINE struct la_array
row_at(const struct la_array *x, ptrdiff_t i, ptrdiff_t col)
{
    return shifted(x, i * x->rs + col * x->cs);
}

static void
load_wkv_state(struct wkv_state s, const struct la_array *x, ptrdiff_t col,
               ptrdiff_t cols, T max)
{
    T *rows[] = {s.num, s.den, s.max};
    for (ptrdiff_t i = 0; i < 3; i++) {
        const struct la_array row = row_at(x, i, col);
        load_vector(rows[i], &row, cols);
    }
    for (ptrdiff_t j = 0; x->data == NULL && j < cols; j++) {
        s.max[j] = max;
    }
}

static void
store_wkv_state(const struct la_array *x, struct wkv_state s, ptrdiff_t col,
                ptrdiff_t cols)
{
    T *rows[] = {s.num, s.den, s.max};
    for (ptrdiff_t i = 0; i < 3; i++) {
        const struct la_array row = row_at(x, i, col);
        store_vector(&row, rows[i], cols);
    }
}

/* w, u and the first state of the panel from col on. */
static void
begin_wkv(const struct la_head *h, const struct wkv_scratch *r, ptrdiff_t col,
          ptrdiff_t cols)
{
    const struct la_array w = row_at(&h->w, 0, col), u = row_at(&h->u, 0, col);
    load_vector(r->w, &w, cols);
    load_vector(r->u, &u, cols);
    clear(r->none, row_step(cols));
    load_wkv_state(r->s, &h->s0, col, cols, -(T)INFINITY);
}

/* k and v of the tokens t; those without a key have the key -inf, the value 0. */
static void
load_wkv(const struct la_head *h, const struct wkv_scratch *r, struct span t,
         ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array k = row_at(&h->k, 0, col), v = row_at(&h->v, 0, col);
    load_with_keys(r->k, h, &k, t, cols);
    load_with_keys(r->v, h, &v, t, cols);
    for (ptrdiff_t i = keys_left(h, t); i < t.rows; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            vstore(&r->k.x[i * r->k.ld + j], vset1(-(T)INFINITY));
        }
    }
}

/* The decay of row i. */
INLINE const T *
decay_of(const struct la_head *h, const struct wkv_scratch *r, ptrdiff_t i)
{
    return i < h->keys ? r->w : r->none;
}

/* e^(x - max) and e^(y - max), of which the larger is 1; 0 for -inf, whatever max is.
 */
INLINE void
wkv_weights(vec x, vec y, vec *of_x, vec *of_y)
{
    const vec zero = (vec){0}, one = vset1(1), least = vset1(-(T)INFINITY);
    const vec d = vselect(x == y, zero, x - y), e = vexp_bounded(vminus_abs(d));
    *of_x = vkeep(x != least, vselect(d >= zero, one, e));
    *of_y = vkeep(y != least, vselect(d <= zero, one, e));
}

/* The state, in registers. */
struct wkv_vectors {
    vec num, den, max;
};

INLINE struct wkv_vectors
wkv_at(struct wkv_state s, ptrdiff_t j)
{
    return (struct wkv_vectors){vload(&s.num[j]), vload(&s.den[j]), vload(&s.max[j])};
}

INLINE void
wkv_put(struct wkv_state s, ptrdiff_t j, struct wkv_vectors x)
{
    vstore(&s.num[j], x.num);
    vstore(&s.den[j], x.den);
    vstore(&s.max[j], x.max);
}

INLINE vec
wkv_read(struct wkv_vectors s, vec key, vec v)
{
    vec old, own;
    wkv_weights(s.max, key, &old, &own);
    const vec den = vfma(old, s.den, own);
    return vkeep(den != (vec){0}, vfma(old, s.num, own * v) / den);
}

INLINE struct wkv_vectors
wkv_write(struct wkv_vectors s, vec w, vec k, vec v)
{
    const vec kept = s.max - w;
    vec old, own;
    wkv_weights(kept, k, &old, &own);
    return (struct wkv_vectors){vfma(old, s.num, own * v), vfma(old, s.den, own),
                                vselect(k > kept, k, kept)};
}

/* o of the tokens t, and the state after them. */
static void
wkv_rows(const struct la_head *h, const struct wkv_scratch *r, struct span t,
         ptrdiff_t cols)
{
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        const T *decay = decay_of(h, r, t.first + i);
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const vec k = vload(&r->k.x[i * r->k.ld + j]);
            const vec v = vload(&r->v.x[i * r->v.ld + j]);
            const struct wkv_vectors s = wkv_at(r->s, j);
            vstore(&r->o.x[i * r->o.ld + j], wkv_read(s, vload(&r->u[j]) + k, v));
            wkv_put(r->s, j, wkv_write(s, vload(&decay[j]), k, v));
        }
    }
}

static int
run_wkv(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct wkv_scratch r = wkv_carve(h, &arena);
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
        const ptrdiff_t cols = scan_cols(h, col, LA_SCAN_COLS);
        const struct la_array o = row_at(&h->o, 0, col);
        begin_wkv(h, &r, col, cols);
        for (ptrdiff_t i = 0; i < h->n; i += LA_SCAN_ROWS) {
            const struct span t = span(i, LA_SCAN_ROWS, i, h->n, NULL);
            if (give_up(h, &until_poll, LA_WKV_WORK * t.rows * cols)) {
                return 1;
            }
            load_wkv(h, &r, t, col, cols);
            wkv_rows(h, &r, t, cols);
            stream_rows(&o, t, cols, r.o, h->large);
        }
        store_wkv_state(&h->s1, r.s, col, cols);
    }
    return 0;
}

/* One token.  Where no s0 is given the state is updated in place, in s1. */
static struct wkv_scratch
wkv_step_carve(const struct la_head *h, struct arena *arena)
{
    return wkv_carve(h, arena);
}

static int
run_wkv_step(const struct la_head *h)
{
    struct la_head one = *h;
    one.keys = h->n;
    one.s0 = h->s0.data != NULL ? h->s0 : h->s1;
    return run_wkv(&one);
}

#endif
