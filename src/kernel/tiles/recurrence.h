/* recurrence.h: functions that the recurrences share: sums over rows, the keys of a
 * chunk, denominators and cotangents. */
#ifndef LA_RECURRENCE_H
#define LA_RECURRENCE_H

#include "chunk.h"
#include "mapped.h"
#include "scores.h"
#include "state.h"
#include "sweep.h"
#include "interleave.h"

/* sum_i = x_i.y_i */
static void
row_dots(T *sum, struct block x, struct block y, ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        const ptrdiff_t some = rows - first < VL ? rows - first : VL;
        vec part[VL];
        for (ptrdiff_t i = 0; i < VL; i++) {
            part[i] = (vec){0};
            for (ptrdiff_t l = 0; i < some && l < cols; l += VL) {
                part[i] = vfma(vload(&x.x[(first + i) * x.ld + l]),
                               vload(&y.x[(first + i) * y.ld + l]), part[i]);
            }
        }
        vstore(&sum[first], lane_sums(part));
    }
}

/* sum_i = a_i.z + sum_{j <= i} of the scores a_i.b_j.  With z the sum of earlier b_j,
 * this is a_i times the sum of all b_j that row i may see.  Rows of scores are padded
 * to whole vectors. */
static void
score_sums(T *sum, const struct sweep *c, const T *z)
{
    for (ptrdiff_t first = 0; first < c->rows; first += VL) {
        vec part[VL];
        for (ptrdiff_t r = 0; r < VL; r++) {
            const ptrdiff_t i = first + r < c->rows ? first + r : c->rows - 1;
            part[r] = (vec){0};
            for (ptrdiff_t l = 0; l < c->a.ld; l += VL) {
                part[r] = vfma(vload(&c->a.x[i * c->a.ld + l]), vload(&z[l]), part[r]);
            }
            for (ptrdiff_t j = 0; j <= i; j += VL) {
                part[r] += vkeep(first_lanes(i + 1 - j),
                                 vload(&c->dots.x[i * c->dots.ld + j]));
            }
        }
        vstore(&sum[first], lane_sums(part));
    }
}

/* sum_i = a_i.(z + b_0 + ... + b_i), without scores, which may have been rounded;
 * seen = b_0 + ... + b_rows-1. */
static void
seen_sums(T *sum, T *seen, struct block a, struct block b, const T *z, ptrdiff_t rows)
{
    clear(seen, b.ld);
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        vec part[VL];
        LA_EACH(r, VL) {
            part[r] = (vec){0};
        }
        for (ptrdiff_t l = 0; l < b.ld; l += VL) {
            const vec before = vload(&z[l]);
            vec here = vload(&seen[l]);
            LA_EACH(r, VL) {
                const ptrdiff_t i = first + r;
                if (i < rows) {
                    here += vload(&b.x[i * b.ld + l]);
                    part[r] = vfma(vload(&a.x[i * a.ld + l]), before + here, part[r]);
                }
            }
            vstore(&seen[l], here);
        }
        vstore(&sum[first], lane_sums(part));
    }
}

/* Where a sum over this many tokens, in chunks of `rows`, keeps what it loses: nowhere
 * if it is short.  If all chunks are alike, each addition may round the same way, and a
 * few hundred of them exceeded the error bound.  Compensation costs the memory traffic
 * of a second state, 5 %, so sums of up to LA_PLAIN_SUMS chunks, far below the bound,
 * go without.  So do sums of up to LA_PLAIN_PAIRED_SUMS next to products of bfloat16
 * operands, whose rounding exceeds what those lose; with AMX the traffic takes up to a
 * fifth of the time. */
INLINE T *
lost_if_long(const struct la_head *h, T *lost, ptrdiff_t tokens, ptrdiff_t rows)
{
    const ptrdiff_t plain =
        h->products == LA_FLOAT_PRODUCTS ? LA_PLAIN_SUMS : LA_PLAIN_PAIRED_SUMS;
    return tokens > plain * rows ? lost : NULL;
}

/* Begins such a sum, or goes on with it after `at` tokens. */
static void
compensate_from(struct sweep *c, const struct la_head *h, T *lost, ptrdiff_t tokens,
                ptrdiff_t rows, ptrdiff_t at)
{
    c->lost = lost_if_long(h, lost, tokens, rows);
    if (c->lost != NULL && at == 0) {
        clear(lost, state_size(c->K, c->W));
    }
}

static void
compensate(struct sweep *c, const struct la_head *h, T *lost, ptrdiff_t rows)
{
    compensate_from(c, h, lost, h->n, rows, 0);
}

/* Sets up compensation for the state, whether or not its sum has begun.  A call that
 * carries what the sum loses always compensates: other calls may follow it. */
INLINE void
compensate_state(struct sweep *c, const struct la_head *h, T *lost, ptrdiff_t rows)
{
    c->lost = carries_lost(h) ? lost : lost_if_long(h, lost, h->n, rows);
}

/* sum += more, compensated (Kahan 1965): `lost` holds what earlier additions lost to
 * rounding and is added with the next chunk.  Otherwise, errors of additions that all
 * round one way would grow over thousands of chunks. */
INLINE void
add_to_sum(T *sum, T *lost, vec more)
{
    const vec old = vload(sum), all = vload(lost) + more, new = old + all;
    vstore(sum, new);
    vstore(lost, rounding_lost(old, all, new));
}

/* Row i of zs = z + b_0 + ... + b_i; then z = the last row, compensated with `lost`. */
static void
running_sums(struct block zs, T *z, T *lost, struct block b, ptrdiff_t rows)
{
    for (ptrdiff_t l = 0; l < b.ld; l += VL) {
        const vec before = vload(&z[l]);
        vec sum = (vec){0};
        for (ptrdiff_t i = 0; i < rows; i++) {
            sum += vload(&b.x[i * b.ld + l]);
            vstore(&zs.x[i * zs.ld + l], before + sum);
        }
        add_to_sum(&z[l], &lost[l], sum);
    }
}

/* The sum of VL columns of b, from column l on. */
INLINE vec
sum_of_columns(struct block b, ptrdiff_t rows, ptrdiff_t l)
{
    vec sum = (vec){0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        sum += vload(&b.x[i * b.ld + l]);
    }
    return sum;
}

/* z += sum, compensated with `lost` */
INLINE void
add_row(T *z, T *lost, const T *sum, ptrdiff_t count)
{
    for (ptrdiff_t l = 0; l < count; l += VL) {
        add_to_sum(&z[l], &lost[l], vload(&sum[l]));
    }
}

/* z += sum of the rows of b, compensated with `lost` */
static void
add_rows(T *z, T *lost, struct block b, ptrdiff_t rows)
{
    for (ptrdiff_t l = 0; l < b.ld; l += VL) {
        add_to_sum(&z[l], &lost[l], sum_of_columns(b, rows, l));
    }
}

static int
all_zero(const T *x, ptrdiff_t count)
{
    ptrdiff_t i = 0;
    while (i < count && x[i] == 0) {
        i++;
    }
    return i == count;
}

/* Whether the first state is zero in all columns of the values.  Every panel of columns
 * must get the same answer as the whole head. */
static int
starts_from_zero(const struct la_head *h)
{
    int zero = 1;
    for (ptrdiff_t l = 0; h->all_s0.data != NULL && zero && l < h->d; l++) {
        for (ptrdiff_t j = 0; zero && j < h->all_m; j++) {
            T x;
            memcpy(&x, h->all_s0.data + l * h->all_s0.rs + j * h->all_s0.cs, sizeof(x));
            zero = x == 0;
        }
    }
    return zero;
}

/* Whether the queries see no key: no token has one, and the first state and z (as the
 * sweep holds it) are zero. */
static int
no_keys(const struct la_head *h, const T *z)
{
    return h->keys == 0 && all_zero(z, h->d) && starts_from_zero(h);
}

/* If an inverse is larger than this, or infinite, LIFT times the number is inverted. */
#define LIFT ((T)(MANTISSA_BITS == 52 ? 0x1p512 : 0x1p64))

/* factor_i = scale / (scale den_i + eps), in place; scale if not normalised.  If
 * queries see no key at all, 0 / 0 gives 0; any other denominator of 0 follows IEEE.
 *
 * If the denominator is so small that the factor, or its product with a row, might be
 * infinite, lift_i is LIFT, else 1.  The factor is then that of a query whose features
 * and eps are lift_i times as large, and the caller must multiply the row by lift_i as
 * well (lift_rows).  Returns whether any row is lifted. */
static int
factors(const struct la_head *h, T *den, ptrdiff_t rows, int keyless, T *lift)
{
    const vec scale = vset1((T)h->scale), eps = vset1((T)h->eps), one = vset1(1);
    int lifted = 0;
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        if (!h->normalize) {
            vstore(&den[i], scale);
            continue;
        }
        vec y = vfma(scale, vload(&den[i]), eps), factor = scale / y;
        if (lift != NULL) {
            const ivec some = first_lanes(rows - i) & (y != (vec){0});
            const ivec far = some & ((factor > vset1(LIFT)) | (factor < vset1(-LIFT)));
            const vec by = vselect(far, vset1(LIFT), one);
            vstore(&lift[i], by);
            if (vany(far)) {
                lifted = 1;
                y *= by;
                factor = scale / y;
            }
        }
        vstore(&den[i], keyless ? vkeep(y != (vec){0}, factor) : factor);
    }
    return lifted;
}

/* Multiplies row i of x (rows, cols) by lift_i, which is 1 for almost all rows. */
static __attribute__((noinline, cold)) void
lift_rows(struct block x, ptrdiff_t rows, ptrdiff_t cols, const T *lift)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t l = 0; lift[i] != 1 && l < cols; l++) {
            x.x[i * x.ld + l] *= lift[i];
        }
    }
}

static int
any_lifted(ptrdiff_t rows, const T *lift)
{
    int any = 0;
    for (ptrdiff_t i = 0; i < rows; i++) {
        any |= lift[i] != 1;
    }
    return any;
}

/* Polls on the first call for a head (*left = 0) and then about once per LA_POLL
 * multiply-adds; the next step has `work` of them.  Returns nonzero to stop. */
INLINE int
give_up(const struct la_head *h, ptrdiff_t *left, ptrdiff_t work)
{
    const int due = *left <= 0;
    *left = (due ? LA_POLL : *left) - work;
    return due && h->poll(h->poll_arg);
}

/* The number of tokens of t that have a key. */
INLINE ptrdiff_t
keys_left(const struct la_head *h, struct span t)
{
    const ptrdiff_t left = h->keys - t.first;
    return left < 0 ? 0 : left < t.rows ? left : t.rows;
}

/* dst = phi of the tokens t of x, and 0 where no key exists. */
static void
load_existing(struct block dst, const struct la_head *h, const struct la_array *x,
              struct span t, ptrdiff_t cols, enum la_map map)
{
    const ptrdiff_t all = round_up(t.rows, MR);
    t.rows = keys_left(h, t);
    load_mapped(dst, x, t, cols, map);
    clear_rows(dst, t.rows, all);
}

static void
load_features(const struct la_head *h, struct span t, struct block b)
{
    load_existing(b, h, &h->k, t, h->d, h->map);
}

static void
load_values(const struct la_head *h, struct span t, struct block v)
{
    load_existing(v, h, &h->v, t, h->m, LA_MAP_identity);
}

static void
load_keys(const struct la_head *h, struct span t, struct block b, struct block v)
{
    load_features(h, t, b);
    load_values(h, t, v);
}

/* x_ij += w_j */
static void
add_to_rows(struct block x, ptrdiff_t rows, const T *w)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j < rows; j++) {
            x.x[i * x.ld + j] += w[j];
        }
    }
}

/* Multiplies row i of x by factor[i]. */
static void
scale_rows(struct block x, ptrdiff_t rows, const T *factor)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        const vec scale = vset1(factor[i]);
        for (ptrdiff_t l = 0; l < x.ld; l += VL) {
            vstore(&x.x[i * x.ld + l], vload(&x.x[i * x.ld + l]) * scale);
        }
    }
}

/* The sum of w_i a_i, for VL columns of a, from column l on. */
INLINE vec
weighted_sum(struct block a, const T *w, ptrdiff_t rows, ptrdiff_t l)
{
    vec sum = (vec){0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        sum = vfma(vset1(w[i]), vload(&a.x[i * a.ld + l]), sum);
    }
    return sum;
}

/* z += sum_i w_i a_i, compensated with `lost` */
static void
add_weighted(T *z, T *lost, struct block a, const T *w, ptrdiff_t rows)
{
    for (ptrdiff_t l = 0; l < a.ld; l += VL) {
        add_to_sum(&z[l], &lost[l], weighted_sum(a, w, rows, l));
    }
}

/* The gradient with respect to a = phi(q) of some rows, from u_i = S_i g_i:
 *    r_i = scale / (scale a_i.z_i + eps)      stored in r
 *    w_i = -r_i^2 a_i.u_i                     stored in w
 *    da_i = r_i u_i + w_i z_i                 in place of u
 *
 * Since g_i.num_i = a_i.u_i, the output itself is not needed.  Columns of u past the
 * last whole vector are uninitialised.  If lift_i (see factors) is not 1, all of these
 * are for lift_i a_i.  Returns whether any row is lifted. */
static int
query_gradient(const struct la_head *h, struct block u, struct block a, struct block zs,
               ptrdiff_t rows, T *r, T *w, int keyless, T *lift)
{
    const ptrdiff_t cols = round_up(h->d, VL);
    if (h->normalize) {
        row_dots(r, a, zs, rows, cols);
        row_dots(w, a, u, rows, cols);
    }
    const int lifted = factors(h, r, rows, keyless, lift);
    if (lifted) {
        lift_rows((struct block){w, 1}, rows, 1, lift);
    }
    for (ptrdiff_t i = 0; i < rows; i++) {
        const T wi = h->normalize ? -r[i] * (r[i] * w[i]) : 0;
        w[i] = wi;
        for (ptrdiff_t l = 0; l < cols; l += VL) {
            vec da = vset1(r[i]) * vload(&u.x[i * u.ld + l]);
            if (h->normalize) {
                da = vfma(vset1(wi), vload(&zs.x[i * zs.ld + l]), da);
            }
            vstore(&u.x[i * u.ld + l], da);
        }
    }
    return lifted;
}

#endif
