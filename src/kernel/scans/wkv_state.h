/* wkv_state.h: the state of wkv (wkv.h): how it is held, what a token reads from it and
 * writes to it.
 *
 * max_t is held as top - age w, top the key that was the last to exceed it, age the
 * number of tokens since.  Exponents are (top - k) - age w, whose error is one
 * rounding of each difference, however large the keys are and however long ago top was
 * set.  The sums are compensated, and factors near 1 are applied in two parts, as in
 * decay.h: otherwise the errors of 1 / w tokens would add up where little decays.
 *
 * A state has one number, top - age w rounded, and num and den are multiplied by the
 * exponential of what was rounded away.  In a sequence that is resumed token by token
 * these factors could multiply up: where den leaves [SETTLED_LEAST, SETTLED_MOST] the
 * logarithm of it moves to max.  What one number cannot hold at all, since its ulp
 * exceeds LOST_MOST, is cut off. */
#ifndef LA_WKV_STATE_H
#define LA_WKV_STATE_H

#include "../decays/decay_factors.h"
#include "scan.h"

#define SETTLED_LEAST ((T)0x1p-24)
#define SETTLED_MOST ((T)0x1p40)

/* num, den, top and age of a panel's columns, and what additions to num and den lost to
 * rounding. */
struct wkv_state {
    T *num, *den, *top, *age, *num_lost, *den_lost;
};

static struct wkv_state
take_wkv_state(struct arena *arena, ptrdiff_t cols)
{
    struct wkv_state s;
    s.num = take_row(arena, cols);
    s.den = take_row(arena, cols);
    s.top = take_row(arena, cols);
    s.age = take_row(arena, cols);
    s.num_lost = take_row(arena, cols);
    s.den_lost = take_row(arena, cols);
    return s;
}

/* Row i of the columns of x from col on. */
INLINE struct la_array
row_at(const struct la_array *x, ptrdiff_t i, ptrdiff_t col)
{
    return shifted(x, i * x->rs + col * x->cs);
}

/* A state of num, den and max as its caller holds it: the columns from col on. */
static void
load_wkv_state(struct wkv_state s, const struct la_array x[3], ptrdiff_t col,
               ptrdiff_t cols, T top)
{
    const struct la_array lost[] = {lost_of(&x[0]), lost_of(&x[1])};
    T *rows[] = {s.num, s.den, s.top}, *rests[] = {s.num_lost, s.den_lost};
    for (ptrdiff_t i = 0; i < 3; i++) {
        const struct la_array row = row_at(&x[i], 0, col);
        load_vector(rows[i], &row, cols);
    }
    for (ptrdiff_t i = 0; i < 2; i++) {
        const struct la_array row = row_at(&lost[i], 0, col);
        load_vector(rests[i], &row, cols);
    }
    clear(s.age, row_step(cols));
    for (ptrdiff_t j = 0; !la_is_given(&x[2]) && j < cols; j++) {
        s.top[j] = top;
    }
}

static void
store_wkv_state(const struct la_array x[3], struct wkv_state s, ptrdiff_t col,
                ptrdiff_t cols)
{
    const struct la_array all[] = {x[0], x[1], x[2], lost_of(&x[0]), lost_of(&x[1])};
    T *rows[] = {s.num, s.den, s.top, s.num_lost, s.den_lost};
    for (ptrdiff_t i = 0; i < 5; i++) {
        const struct la_array row = row_at(&all[i], 0, col);
        store_vector(&row, rows[i], cols);
    }
}

/* A token's value, 0 if its key writes nothing. */
INLINE vec
value_of(vec k, vec v)
{
    return vkeep(k != vset1(-(T)INFINITY), v);
}

/* The state, in registers. */
struct wkv_vectors {
    vec num, den, top, age;
};

INLINE struct wkv_vectors
wkv_at(struct wkv_state s, ptrdiff_t j)
{
    return (struct wkv_vectors){vload(&s.num[j]), vload(&s.den[j]), vload(&s.top[j]),
                                vload(&s.age[j])};
}

INLINE void
wkv_put(struct wkv_state s, ptrdiff_t j, struct wkv_vectors x)
{
    vstore(&s.num[j], x.num);
    vstore(&s.den[j], x.den);
    vstore(&s.top[j], x.top);
    vstore(&s.age[j], x.age);
}

/* age w, 0 at first whatever w is */
INLINE vec
decayed(vec age, vec w)
{
    return vkeep(age != (vec){0}, age * w);
}

/* How far a state is ahead of a key: d = top - k - gone, of which gone = age w is what
 * it has decayed by. */
struct wkv_lead {
    vec gone, d;
};

INLINE struct wkv_lead
wkv_lead(vec top, vec age, vec w, vec k)
{
    const vec gone = decayed(age, w), d = vselect(top == k, (vec){0}, top - k);
    return (struct wkv_lead){gone, d - gone};
}

/* The same of a key as it is read, u + k.  The sum would round u where k is large, so u
 * is subtracted last. */
INLINE struct wkv_lead
wkv_lead_read(vec top, vec age, vec w, vec u, vec k)
{
    struct wkv_lead by = wkv_lead(top, age, w, k);
    by.d -= u;
    return by;
}

/* The exponent, to base 2, of the smaller weight relative to the larger one. */
INLINE vec
wkv_exponent(struct wkv_lead by)
{
    return vset1(LOG2_E) * vminus_abs(by.d);
}

/* Whether the state is more than nothing. */
INLINE ivec
remains(vec top, struct wkv_lead by)
{
    return (top != vset1(-(T)INFINITY)) & (by.gone != vset1((T)INFINITY));
}

/* Weights of the state and of the token's own key as it is read, relative to the larger
 * one, whose exponential e is; 0 for -inf. */
INLINE void
wkv_weights(vec top, struct wkv_lead by, vec k, struct exp2_parts e, vec *old, vec *own)
{
    const vec zero = (vec){0}, one = vset1(1), less = vexp2_of(e);
    *old = vkeep(remains(top, by), vselect(by.d >= zero, one, less));
    *own = vkeep(k != vset1(-(T)INFINITY), vselect(by.d <= zero, one, less));
}

INLINE vec
wkv_read(struct wkv_vectors s, vec old, vec own, vec v)
{
    const vec den = vfma(old, s.den, own);
    return vkeep(den != (vec){0}, vfma(old, s.num, own * v) / den);
}

/* How a token changes the state: num <- (keep + change) num + own v, den likewise. */
struct wkv_decay {
    vec keep, change, own, top, age;
    ivec is_key; /* where the token's key is the new max */
};

INLINE struct wkv_decay
wkv_decay(vec top, vec age, struct wkv_lead by, vec k, struct exp2_parts e)
{
    const vec one = vset1(1), least = vset1(-(T)INFINITY);
    const ivec is_key = by.d < (vec){0}, exists = remains(top, by);
    const vec head = vscale2(e.head, e.k), slope = vscale2(e.slope, e.k);
    const vec keep = vkeep(~is_key | (head > vset1((T)0.5)), one);
    const vec change = vkeep(is_key, vfma(slope, e.r, head - keep));
    const vec own = vselect(is_key, one, vfma(slope, e.r, head));
    return (struct wkv_decay){
        .keep = vkeep(exists, keep),
        .change = vkeep(exists, change),
        .own = vkeep(k != least, own),
        .top = vselect(is_key, k, top),
        .age = vkeep(~is_key, age),
        .is_key = is_key,
    };
}

/* sum <- (keep + change) sum + more, compensated with `lost`. */
INLINE void
decay_sum(T *sum, T *lost, const struct wkv_decay *by, vec more)
{
    const vec before = vload(sum), old = keep_of(by->keep, before);
    const vec all = vfma(by->change, before, more) + keep_of(by->keep, vload(lost));
    const vec new = old + all;
    vstore(sum, new);
    vstore(lost, rounding_lost(old, all, new));
}

/* The state after a token, in the columns from j on. */
INLINE void
wkv_write(struct wkv_state s, ptrdiff_t j, const struct wkv_decay *by, vec v)
{
    decay_sum(&s.num[j], &s.num_lost[j], by, by->own * v);
    decay_sum(&s.den[j], &s.den_lost[j], by, by->own);
    vstore(&s.top[j], by->top);
    vstore(&s.age[j], by->age);
}

/* Moves max of the columns from j on to one number, and returns the logarithm of the
 * factor that makes up for it. */
INLINE vec
settle_max(struct wkv_state s, ptrdiff_t j, vec w)
{
    const struct wkv_vectors x = wkv_at(s, j);
    const vec zero = (vec){0}, most = vset1(LOST_MOST);
    const ivec outside = (x.den < vset1(SETTLED_LEAST)) | (x.den > vset1(SETTLED_MOST));
    const ivec power = ((ivec)x.den >> MANTISSA_BITS) - EXPONENT_BIAS;
    const vec log_den = vkeep(outside & (x.den > zero) & (x.age != zero),
                              vset1(LOG_2) * __builtin_convertvector(power, vec));
    vec lost;
    vstore(&s.top[j], two_sum(x.top, log_den - decayed(x.age, w), &lost));
    vstore(&s.age[j], zero);
    lost = vmin(most, vmax(-most, lost)) - log_den;
    return vnumber(lost); /* of infinite max or w */
}

/* e^x in two parts: as decay_parts, in a few operations where x is next to 0. */
INLINE void
settled_parts(vec x, vec *keep, vec *change)
{
    const vec near = vset1(1 / (T)(1 << (MANTISSA_BITS / 2)));
    const ivec far = vminus_abs(x) < -near;
    *keep = vset1(1);
    *change = vfma(x * vset1((T)0.5), x, x);
    if (vany(far)) {
        _Alignas(LA_ALIGN) T parts[2][VL];
        decay_parts(x, (vec){0}, parts[0], parts[1]);
        *keep = vselect(far, vload(parts[0]), *keep);
        *change = vselect(far, vload(parts[1]), *change);
    }
}

/* y <- (keep + change) y */
INLINE void
settle_sum(T *y, vec keep, vec change)
{
    const vec x = vload(y);
    vstore(y, vselect(change == (vec){0}, x, vfma(change, x, keep_of(keep, x))));
}

/* The same, compensated with `lost`. */
INLINE void
settle_with_lost(T *y, T *lost, vec keep, vec change)
{
    const vec x = vload(y), rest = vload(lost), old = keep_of(keep, x);
    const vec all = vfma(change, x, vfma(change, rest, keep_of(keep, rest)));
    const vec new = old + all;
    const ivec same = change == (vec){0};
    vstore(y, vselect(same, x, new));
    vstore(lost, vselect(same, rest, rounding_lost(old, all, new)));
}

/* settle_wkv of a call that carries what num and den have lost. */
static void
settle_carried_wkv(struct wkv_state s, const T *w, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        vec keep, change;
        settled_parts(settle_max(s, j, vload(&w[j])), &keep, &change);
        settle_with_lost(&s.num[j], &s.num_lost[j], keep, change);
        settle_with_lost(&s.den[j], &s.den_lost[j], keep, change);
    }
}

/* The state relative to one number, as callers hold it; r, its gradient where it is
 * given, relative to what it was before. */
static void
settle_wkv(struct wkv_state s, const T *w, ptrdiff_t cols, const struct wkv_state *r)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        vec keep, change;
        settled_parts(settle_max(s, j, vload(&w[j])), &keep, &change);
        settle_sum(&s.num[j], keep, change);
        settle_sum(&s.den[j], keep, change);
        vstore(&s.num_lost[j], (vec){0});
        vstore(&s.den_lost[j], (vec){0});
        if (r != NULL) {
            settle_sum(&r->num[j], keep, change);
            settle_sum(&r->den[j], keep, change);
        }
    }
}

#endif
