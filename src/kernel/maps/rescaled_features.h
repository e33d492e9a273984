/* rescaled_features.h: positive random features under the scale of rescaling.h, one
 * chunk at a time. */
#ifndef LA_RESCALED_FEATURES_H
#define LA_RESCALED_FEATURES_H

#include "rescaling.h"

/* Rows of u = t x omega. */
static void
project_block(const struct rescaled_features *r, ptrdiff_t d, struct block u,
              struct span t)
{
    const struct sweep c = {
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

/* Exponents of keys; their rows stay in x. */
static void
project_keys(const struct la_head *h, const struct rescaled_features *r, struct span t)
{
    load_plain(r->x, &h->k, t, h->d);
    project_block(r, h->d, r->e, t);
    row_dots(r->h, r->x, r->x, t.rows, r->x.ld);
    const vec log_root_f = log_root(h->f);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        const vec half = vset1(r->h[i] * (r->t * r->t / 2)) + log_root_f;
        T *e = r->e.x + i * r->e.ld; /* in the order of operations of log_features */
        for (ptrdiff_t j = 0; j < r->width; j += VL) {
            vstore(&e[j], exponent(vload(&e[j]), half));
        }
    }
}

/* M after each of some rows, of which the first `keys` have keys. */
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

/* In each lane, the largest u + M of a query; u has f numbers. */
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

/* c_i of `rows` queries from the lanes' maxima: the network of lane_sums with max for
 * +. */
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

/* c_i of some queries; row i of `running_max` is M. */
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

/* The feature with u + M = c_i, for query i and its M; -1 if there is none (a NaN). */
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

/* u, e, M and c of the chunk t, of which the first `keys` tokens have keys. */
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

/* The exponents of one row of a (c not NULL) or of b if K is beyond FAR_EXPONENT; x is
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

/* y_ij = exp((x_ij + sign K_j) - c_i) for some rows (c NULL: 0), with zeros up to the
 * next multiple of MR and past the last feature.  Rows of `running_max` are their M. */
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
        if (far || (c != NULL && !(c[i] > -FAR_EXPONENT && c[i] < FAR_EXPONENT))) {
            far_exponents(r, to, from, running_max.x + i * running_max.ld,
                          c ? &c[i] : NULL);
            continue;
        }
        for (ptrdiff_t j = 0; j < r->width; j += VL) {
            const vec sum = (vload(&from[j]) + side * vload(&r->high[j])) +
                            side * vload(&r->low[j]);
            vstore(&to[j], sum - offset);
        }
    }
    const struct la_array here = block_array(y);
    load_by_rows(y, &here, rows_from(0, rows), r->f, map_exp, LA_NATIVE);
    clear_rows(y, rows, round_up(rows, MR));
}

/* a and b of the rows [from, to) of the chunk, of which the first `keys` rows have
 * keys. */
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
