/* rescaled_features.h: positive random features of any magnitude, without a look ahead.
 *
 * With e_jf = u_jf - |t k_j|^2 / 2 - log(m) / 2 the logarithm of feature f of key j, m
 * of them, and M_if its largest up to token i, the quotient of attention is left as it
 * is by
 *
 *   b_jf = exp(e_jf - K_f),  a_if = exp(u_if + K_f - c_i),  c_i = max_f (u_if + M_if)
 *
 * where K_f = C round(M_if / C), C = 96 log 2, so that a change of K_f rescales a state
 * by a power of two.  The largest term of a_i.z_i is at least 1, which eps is added to,
 * and every number stays within 2^+-48.  A chunk is cut where any K_f changes: a piece
 * has one scale.  All is a function of the prefix alone.
 *
 * Beyond FAR_EXPONENT sums with K_f are rounded to more than their distance from M_if.
 * There
 *
 *   b_jf = exp((e_jf - M_jf) + (M_jf - K_f)),  a_if = exp((u_if + M_if - c_i) - ...)
 *
 * with M - K kept to half a step, and differences that are 0 for the largest: it wins,
 * however large it is, and nothing meets inf - inf.
 *
 * A state is s (f,m) and z (f) under K, and M (f). */
#ifndef LA_RESCALED_FEATURES_H
#define LA_RESCALED_FEATURES_H

#include "project.h"

#define STEP_BITS 96
#define STEP_HIGH                                                                      \
    ((T)66.53125) /* STEP_BITS log 2 in two parts: times a small integer */
#define STEP_LOW ((T)0.01087933375474970405) /* the first is exact */

#define FAR_STEPS ((T)(1LL << (MANTISSA_BITS - 12)))
#define FAR_EXPONENT (FAR_STEPS * STEP_HIGH)

enum { LA_RESCALED_ROWS_MAX = 64 }; /* of a chunk */

/* The features of one chunk. */
struct rescaled_features {
    ptrdiff_t f, width; /* features, and as whole vectors */
    T *omega;           /* t omega (d,f) */
    T t;
    struct block x, u, e;     /* rows of q or of k, u of queries, exponents of keys */
    struct block running_max; /* M before the chunk and after each of its rows */
    T *h, *c, *lane_max;   /* |t k|^2 / 2; c, and the lanes that it is the largest of */
    T *steps, *high, *low; /* round(M / C), and C times that in two parts */
    T *power;              /* by which powers of two the scale changes */
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

/* --- scales ----------------------------------------------------------------- */

/* M after so many rows of the chunk. */
INLINE T *
running_max_after(const struct rescaled_features *r, ptrdiff_t rows)
{
    return r->running_max.x + rows * r->running_max.ld;
}

/* x where it is finite, else 0: a feature without keys, M = -inf, counts as M = 0. */
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

/* Where the piece from row `from` of a chunk ends; sets its scale. */
static ptrdiff_t
piece_end(const struct rescaled_features *r, ptrdiff_t from, ptrdiff_t rows)
{
    ptrdiff_t to = from + 1;
    set_scale(r, running_max_after(r, to));
    if (has_scale(r, running_max_after(r, rows))) {
        return rows; /* M only grows */
    }
    while (has_scale(r, running_max_after(r, to + 1))) {
        to++;
    }
    return to;
}

/* The powers of two that take a state from the scale of one M to that of a later one,
 * or plain sums, `before` NULL; whether any is not 0.  Where there was no key there is
 * nothing to scale.  Beyond the limits nothing is left either way. */
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

/* A state (f, W), or `transposed` (K, f), under the next scale; z likewise.  NULL:
 * none. */
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

/* What a recurrence sums, S with E and z with ze, under the scale after `after`. */
static void
scale_sums(const struct rescaled_features *r, const struct scan *c, T *z, T *ze,
           int transposed)
{
    scale_state(r, c->s, c->K, c->W, transposed);
    scale_state(r, c->e, c->K, c->W, transposed);
    scale_vector(r, z);
    scale_vector(r, ze);
}

/* The caller's M, and the logarithm of z where he has plain sums, which is told by NaN;
 * whether he has. */
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

/* --- features --------------------------------------------------------------- */

/* Rows of u = t x omega. */
static void
project_block(const struct rescaled_features *r, ptrdiff_t d, struct block u,
              struct span t)
{
    const struct scan c = {
        .rows = t.rows,
        .K = d,
        .W = r->width,
        .a = r->x,
        .o = u,
        .s = r->omega,
        .ahead = t.ahead,
    };
    sweep(&c, LA_READ);
}

static void
project_queries(const struct la_head *h, const struct rescaled_features *r,
                struct span t)
{
    load_plain(r->x, &h->q, t, h->d);
    project_block(r, h->d, r->u, t);
}

/* Exponents of keys, whose rows stay in x. */
static void
project_keys(const struct la_head *h, const struct rescaled_features *r, struct span t)
{
    load_plain(r->x, &h->k, t, h->d);
    project_block(r, h->d, r->e, t);
    row_dots(r->h, r->x, r->x, t.rows, r->x.ld);
    const vec log_root_f = log_root(h->f);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        const vec half = vset1(r->h[i] * (r->t * r->t / 2)) + log_root_f;
        T *e = r->e.x + i * r->e.ld; /* in the order of log_features */
        for (ptrdiff_t j = 0; j < r->width; j += VL) {
            vstore(&e[j], exponent(vload(&e[j]), half));
        }
    }
}

/* M after each of some rows, the first `keys` of which have keys. */
static void
running_maxima(const struct rescaled_features *r, ptrdiff_t rows, ptrdiff_t keys)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        const T *e = r->e.x + i * r->e.ld;
        for (ptrdiff_t j = 0; j < r->width; j += VL) {
            const vec running_max = vload(&running_max_after(r, i)[j]);
            vstore(&running_max_after(r, i + 1)[j],
                   i < keys ? vmax(running_max, vload(&e[j])) : running_max);
        }
    }
}

/* In each lane, the largest u + M of a query; f of them count. */
INLINE vec
largest(const T *u, const T *running_max, ptrdiff_t f)
{
    vec max = vset1(-(T)INFINITY);
    for (ptrdiff_t j = 0; j < f; j += VL) {
        const vec sum = vload(&u[j]) + where_finite(vload(&running_max[j]));
        max = vmax(max, vselect(first_lanes(f - j), sum, max));
    }
    return max;
}

/* c_i from its lanes, for `rows` queries: the network of lane_sums, with max for +. */
static void
largest_lanes(T *c, const T *lane_max, ptrdiff_t rows)
{
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        vec x[VL];
        for (ptrdiff_t i = 0; i < VL; i++) {
            x[i] = vload(&lane_max[(first + i) * VL]);
        }
        for (ptrdiff_t half = VL / 2; half > 0; half /= 2) {
            for (ptrdiff_t i = 0; i < half; i++) {
                x[i] = vmax(vzip_low(x[i], x[i + half]), vzip_high(x[i], x[i + half]));
            }
        }
        vstore(&c[first], x[0]);
    }
}

/* c_i of some queries, row i of `running_max` for M. */
static void
query_maxima(const struct rescaled_features *r, ptrdiff_t rows,
             struct block running_max)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        const T *u = r->u.x + i * r->u.ld;
        vstore(&r->lane_max[i * VL],
               largest(u, running_max.x + i * running_max.ld, r->f));
    }
    largest_lanes(r->c, r->lane_max, rows);
}

/* Which feature has u + M = c_i, for query i and its M; -1 where none, which takes a
 * NaN. */
static ptrdiff_t
largest_feature(const struct rescaled_features *r, ptrdiff_t i, const T *running_max)
{
    const T *u = r->u.x + i * r->u.ld;
    for (ptrdiff_t j = 0; j < r->f; j += VL) {
        const ivec same =
            vload(&u[j]) + where_finite(vload(&running_max[j])) == vset1(r->c[i]);
        for (ptrdiff_t l = 0; vany(same) && l < VL && j + l < r->f; l++) {
            if (same[l]) {
                return j + l;
            }
        }
    }
    return -1;
}

/* The chunk t, the first `keys` of which have keys: u, e, M and c. */
static void
rescaled_chunk(const struct la_head *h, const struct rescaled_features *r,
               struct span t, ptrdiff_t keys)
{
    struct span some = t;
    some.rows = keys;
    project_queries(h, r, t);
    project_keys(h, r, some);
    running_maxima(r, t.rows, keys);
    query_maxima(r, t.rows, (struct block){running_max_after(r, 1), r->running_max.ld});
}

/* Whether any K_f is beyond FAR_EXPONENT. */
static int
scale_is_far(const struct rescaled_features *r)
{
    ivec far = {0};
    for (ptrdiff_t j = 0; j < r->width; j += VL) {
        far |= vminus_abs(vload(&r->steps[j])) < vset1(-FAR_STEPS);
    }
    return vany(far);
}

/* The exponents of one row of a, c not NULL, or of b where they are beyond that; x are
 * its u or e, and `running_max` its M. */
static __attribute__((noinline, cold)) void
far_exponents(const struct rescaled_features *r, T *y, const T *x, const T *running_max,
              const T *c)
{
    const vec limit = vset1(STEP_HIGH / 2 + 1);
    for (ptrdiff_t j = 0; j < r->width; j += VL) {
        const vec m = where_finite(vload(&running_max[j]));
        const vec above = (m - vload(&r->high[j])) - vload(&r->low[j]);
        const vec shift = vmin(limit, vmax(-limit, above));
        const vec a = ((vload(&x[j]) + m) - vset1(c ? *c : 0)) - shift;
        const vec b = (vload(&x[j]) - m) + shift;
        vstore(&y[j], c ? a : b);
    }
}

/* y_ij = exp((x_ij + sign K_j) - c_i) for some rows, 0 for those up to the next
 * multiple of MR, and past the last feature; c NULL: 0.  Rows of `running_max`: their
 * M. */
INLINE void
exponentials(const struct rescaled_features *r, struct block y, struct block x,
             struct block running_max, ptrdiff_t rows, T sign, const T *c)
{
    const vec side = vset1(sign);
    const int far = scale_is_far(r);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const T *from = x.x + i * x.ld;
        T *to = y.x + i * y.ld;
        const vec offset = vset1(c ? c[i] : 0);
        ptrdiff_t j = 0;
        if (far || (c != NULL && !(c[i] > -FAR_EXPONENT && c[i] < FAR_EXPONENT))) {
            far_exponents(r, to, from, running_max.x + i * running_max.ld,
                          c ? &c[i] : NULL);
            for (; j < r->width; j += VL) {
                vstore(&to[j], vkeep(first_lanes(r->f - j), vexp(vload(&to[j]))));
            }
        }
        for (; j < r->width; j += VL) {
            const vec sum = (vload(&from[j]) + side * vload(&r->high[j])) +
                            side * vload(&r->low[j]);
            vstore(&to[j], vkeep(first_lanes(r->f - j), vexp(sum - offset)));
        }
        for (; j < y.ld; j += VL) {
            vstore(&to[j], (vec){0});
        }
    }
    clear_rows(y, rows, round_up(rows, MR));
}

/* a and b of the rows [from, to) of the chunk, the first `keys` of which have keys. */
static void
rescaled_rows(const struct rescaled_features *r, struct block a, struct block b,
              ptrdiff_t from, ptrdiff_t to, ptrdiff_t keys)
{
    const ptrdiff_t rows = to - from, left = keys - from;
    const ptrdiff_t some = left < 0 ? 0 : left < rows ? left : rows;
    const struct block running_max = {running_max_after(r, from + 1),
                                      r->running_max.ld};
    exponentials(r, a, block_at(r->u, from, 0), running_max, rows, 1, r->c + from);
    exponentials(r, b, block_at(r->e, from, 0), running_max, some, -1, NULL);
    clear_rows(b, some, round_up(rows, MR));
}

#endif
