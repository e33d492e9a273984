/* rescaling.h: the scale of positive random features of any magnitude, which follows
 * the keys without looking ahead.
 *
 * Let e_jf = u_jf - |t k_j|^2 / 2 - log(m) / 2 be the logarithm of feature f of key j,
 * with m features, and M_if the largest e_jf up to token i.  The quotient of attention
 * does not change with
 *
 *    b_jf = exp(e_jf - K_f),  a_if = exp(u_if + K_f - c_i),  c_i = max_f (u_if + M_if)
 *
 * where K_f = C round(M_if / C), C = 96 log 2, so that a change of K_f rescales a state
 * by a power of two.  The largest term of a_i.z_i, to which eps is added, is at least
 * 1, and every number stays within 2^+-48.  A chunk is cut where any K_f changes, so
 * that each piece has one scale.  Everything is a function of the prefix alone.
 *
 * Beyond FAR_EXPONENT, sums with K_f have rounding errors larger than the distance of
 * K_f from M_if.  There,
 *
 *    b_jf = exp((e_jf - M_jf) + (M_jf - K_f)),  a_if = exp((u_if + M_if - c_i) - ...)
 *
 * with M - K limited to half a step, and differences that are exactly 0 for the largest
 * term: it dominates, however large it is, and inf - inf does not occur.
 *
 * A state is s (f,m) and z (f) under K, and M (f). */
#ifndef LA_RESCALING_H
#define LA_RESCALING_H

#include "project.h"

/* STEP_BITS log 2 in two parts: the first times a small integer is exact. */
#define STEP_BITS 96
#define STEP_HIGH ((T)66.53125)
#define STEP_LOW ((T)0.01087933375474970405)

#define FAR_STEPS ((T)(1LL << (MANTISSA_BITS - 12)))
#define FAR_EXPONENT (FAR_STEPS * STEP_HIGH)

/* The features of one chunk. */
struct rescaled_features {
    ptrdiff_t f, width; /* number of features; rounded up to whole vectors */
    T *omega;           /* t omega (d,f) */
    T t;
    struct block x, u, e;     /* rows of q or of k; u of queries; exponents of keys */
    struct block running_max; /* M before the chunk and after each of its rows */
    T *h, *c,
        *lane_max; /* |t k|^2 / 2; c; per lane, the maxima of which c is the largest */
    T *steps, *high, *low; /* round(M / C), and C times that in two parts */
    T *power; /* exponents of the powers of two by which the scale changes */
};

static struct rescaled_features
rescaled_features_carve(const struct la_head *h, struct arena *arena, ptrdiff_t rows)
{
    struct rescaled_features r = {.f = h->f, .width = round_up(h->f, VL), .t = (T)h->t};
    r.omega = take_state(arena, h->d, h->f);
    r.x = take_block(arena, rows, h->d);
    r.u = take_block(arena, rows, h->f);
    r.e = take_block(arena, rows, h->f);
    r.running_max = take_block(arena, rows + 1, h->f);
    r.h = take(arena, 1, rows);
    r.c = take(arena, 1, rows);
    r.lane_max = take(arena, rows, VL);
    r.steps = take_row(arena, h->f);
    r.high = take_row(arena, h->f);
    r.low = take_row(arena, h->f);
    r.power = take_row(arena, h->f);
    return r;
}

static void
load_directions(const struct la_head *h, const struct rescaled_features *r)
{
    load_state(r->omega, &h->omega, h->d, h->f);
    for (ptrdiff_t i = 0; i < state_size(h->d, h->f); i++) {
        r->omega[i] *= r->t;
    }
}

/* M after `rows` rows of the chunk. */
INLINE T *
running_max_after(const struct rescaled_features *r, ptrdiff_t rows)
{
    return r->running_max.x + rows * r->running_max.ld;
}

/* x if it is finite, else 0: a feature without keys, M = -inf, counts as M = 0. */
INLINE vec
where_finite(vec x)
{
    return vkeep(x - x == (vec){0}, x);
}

/* round(M / C) */
INLINE vec
steps_of(const T *running_max)
{
    const vec magic = vset1(ROUND_MAGIC), per_step = vset1(1 / (STEP_HIGH + STEP_LOW));
    return vfma(where_finite(vload(running_max)), per_step, magic) - magic;
}

static void
set_scale(const struct rescaled_features *r, const T *running_max)
{
    for (ptrdiff_t j = 0; j < r->width; j += VL) {
        const vec steps = steps_of(&running_max[j]);
        vstore(&r->steps[j], steps);
        vstore(&r->high[j], steps * vset1(STEP_HIGH));
        vstore(&r->low[j], steps * vset1(STEP_LOW));
    }
}

static int
has_scale(const struct rescaled_features *r, const T *running_max)
{
    ivec other = {0};
    for (ptrdiff_t j = 0; j < r->width; j += VL) {
        other |= steps_of(&running_max[j]) != vload(&r->steps[j]);
    }
    return !vany(other);
}

/* Sets the scale of the piece from row `from` of a chunk, and returns where it ends. */
static ptrdiff_t
piece_end(const struct rescaled_features *r, ptrdiff_t from, ptrdiff_t rows)
{
    ptrdiff_t to = from + 1;
    set_scale(r, running_max_after(r, to));
    if (has_scale(r, running_max_after(r, rows))) {
        return rows; /* M never decreases */
    }
    while (has_scale(r, running_max_after(r, to + 1))) {
        to++;
    }
    return to;
}

/* The exponents of the powers of two that take a state from the scale of one M to that
 * of a later one; `before` NULL: from plain sums.  Returns whether any is not 0.
 * Without keys there is nothing to scale.  Beyond the limits, the result underflows in
 * any case. */
static int
scale_change(const struct rescaled_features *r, const T *before, const T *after)
{
    const vec limit = vset1(2 * EXPONENT_BIAS - 2);
    ivec any = {0};
    for (ptrdiff_t j = 0; j < r->width; j += VL) {
        vec power = -steps_of(&after[j]);
        if (before != NULL) {
            const vec m = vload(&before[j]);
            power = vkeep(m - m == (vec){0}, steps_of(&before[j]) + power);
        }
        power = vmin(limit, vmax(-limit, vset1(STEP_BITS) * power));
        any |= power != (vec){0};
        vstore(&r->power[j], power);
    }
    return vany(any);
}

/* Scales a state (f, W) or, if `transposed`, (K, f) by the powers of two; s may be
 * NULL. */
static void
scale_state(const struct rescaled_features *r, T *s, ptrdiff_t K, ptrdiff_t W,
            int transposed)
{
    for (ptrdiff_t l = 0; s != NULL && l < K; l++) {
        for (ptrdiff_t j = 0; j < W; j += VL) {
            T *x = state_at(s, K, W, l, j);
            const vec power = transposed ? vload(&r->power[j]) : vset1(r->power[l]);
            vstore(x, vscale2(vload(x), power));
        }
    }
}

static void
scale_vector(const struct rescaled_features *r, T *z)
{
    for (ptrdiff_t j = 0; j < r->width; j += VL) {
        vstore(&z[j], vscale2(vload(&z[j]), vload(&r->power[j])));
    }
}

/* Scales the sums of a recurrence, S and z, and what they have lost to rounding. */
static void
scale_sums(const struct rescaled_features *r, const struct sweep *c, T *z, T *z_lost,
           int transposed)
{
    scale_state(r, c->s, c->K, c->W, transposed);
    scale_state(r, c->lost, c->K, c->W, transposed);
    scale_vector(r, z);
    scale_vector(r, z_lost);
}

/* Loads the caller's M or, if M is NaN, which marks plain sums, the logarithm of z.
 * Returns whether the sums are plain. */
static int
load_running_max(const struct la_head *h, const struct rescaled_features *r, const T *z)
{
    T *running_max = r->running_max.x;
    load_vector(running_max, &h->running_max, h->f);
    const int plain = h->f > 0 && isnan(running_max[0]);
    for (ptrdiff_t l = 0; plain && l < h->f; l++) {
        const double logarithm = log((double)z[l]);
        running_max[l] = isfinite(logarithm) ? (T)logarithm : -(T)INFINITY;
    }
    return plain;
}

#endif
