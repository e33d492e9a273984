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
 * Scratch: blocks of a panel of columns.  Nothing of row j > i reaches row i.
 *
 * Numerics.  max - w rounds to a multiple of an ulp of max, which may be larger than w:
 * num and den are multiplied by the exponential of what was rounded away.  Their sums
 * are compensated, and factors near 1 are applied in two parts, as in gate.h: otherwise
 * the errors of 1 / w tokens would add up where little decays. */
#ifndef LA_WKV_H
#define LA_WKV_H

#include "scan.h"

/* num, den and max of a panel's columns, and what additions to num and den lost to
 * rounding. */
struct wkv_state {
    T *num, *den, *max, *num_lost, *den_lost;
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
    s.num_lost = take_row(arena, cols);
    s.den_lost = take_row(arena, cols);
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
    clear(s.num_lost, row_step(cols));
    clear(s.den_lost, row_step(cols));
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

/* Weights of the state and of the token's own key u + k as it is read, relative to the
 * larger one; 0 for -inf.  u + k would round u where k is large. */
INLINE void
wkv_weights(vec max, vec u, vec k, vec *old, vec *own)
{
    const vec zero = (vec){0}, one = vset1(1), least = vset1(-(T)INFINITY);
    const vec d = vselect(max == k, zero, max - k) - u;
    const vec e = vexp2(vset1(LOG2_E) * vminus_abs(d));
    *old = vkeep(max != least, vselect(d >= zero, one, e));
    *own = vkeep(k != least, vselect(d <= zero, one, e));
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
wkv_read(struct wkv_vectors s, vec u, vec k, vec v)
{
    vec old, own;
    wkv_weights(s.max, u, k, &old, &own);
    const vec den = vfma(old, s.den, own);
    return vkeep(den != (vec){0}, vfma(old, s.num, own * v) / den);
}

/* How a token changes the state: num <- (keep + change) num + own v, den likewise. */
struct wkv_decay {
    vec keep, change, own, max;
    ivec is_key; /* where the token's key is the new max */
};

INLINE struct wkv_decay
wkv_decay(vec max, vec w, vec k)
{
    const vec zero = (vec){0}, one = vset1(1), least = vset1(-(T)INFINITY);
    vec lost;
    const vec kept = two_sum(max, -w, &lost);
    const ivec is_key = k > kept, exists = kept != least;
    lost = vkeep(lost == lost, lost); /* of infinite max or w */
    const vec d = vselect(kept == k, zero, kept - k);
    const struct exp2_parts e =
        vexp2_parts(vset1(LOG2_E) * (vminus_abs(d) + vkeep(is_key, lost)));
    const vec head = vscale2(e.head, e.k), slope = vscale2(e.slope, e.k);
    const vec keep = vkeep(~is_key | (head > vset1((T)0.5)), one);
    const vec lost_decay = vfma(lost * vset1((T)0.5), lost, lost);
    const vec change = vselect(is_key, vfma(slope, e.r, head - keep), lost_decay);
    const vec own = vselect(is_key, one, vfma(slope, e.r, head));
    return (struct wkv_decay){
        .keep = vkeep(exists, keep),
        .change = vkeep(exists, change),
        .own = vkeep(k != least, own),
        .max = vselect(is_key, k, kept),
        .is_key = is_key,
    };
}

/* sum <- (keep + change) sum + more, compensated with `lost`. */
INLINE void
decay_sum(T *sum, T *lost, const struct wkv_decay *by, vec more)
{
    const vec before = vload(sum), old = kept_of(by->keep, before);
    const vec all = vfma(by->change, before, more) + kept_of(by->keep, vload(lost));
    const vec new = old + all;
    vstore(sum, new);
    vstore(lost, rounding_lost(old, all, new));
}

/* The state after a token, in the columns from j on. */
INLINE void
wkv_write(struct wkv_state s, ptrdiff_t j, vec w, vec k, vec v)
{
    const struct wkv_decay by = wkv_decay(vload(&s.max[j]), w, k);
    decay_sum(&s.num[j], &s.num_lost[j], &by, by.own * v);
    decay_sum(&s.den[j], &s.den_lost[j], &by, by.own);
    vstore(&s.max[j], by.max);
}

/* o of the tokens t, and the state after them. */
static void
wkv_rows(const struct la_head *h, const struct wkv_scratch *r, struct span t,
         ptrdiff_t cols)
{
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        const T *decay = decay_of(h, r, t.first + i);
        la_fetch_some(t.ahead);
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const vec k = vload(&r->k.x[i * r->k.ld + j]);
            const vec v = vload(&r->v.x[i * r->v.ld + j]);
            const vec o = wkv_read(wkv_at(r->s, j), vload(&r->u[j]), k, v);
            vstore(&r->o.x[i * r->o.ld + j], o);
            wkv_write(r->s, j, vload(&decay[j]), k, v);
        }
    }
}

static int
run_wkv(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct wkv_scratch r = wkv_carve(h, &arena);
    struct la_fetch ahead = {0};
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
        const ptrdiff_t cols = scan_cols(h, col, LA_SCAN_COLS);
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
