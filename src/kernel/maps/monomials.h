/* monomials.h: maps of rows whose products are polynomials of the inner product.  With
 * u = t x and the products p of all pairs i <= j,
 *
 *    f = d (d + 1) / 2:         sqrt 2 u_i u_j and u_i^2, whose products are (u.w)^2
 *    f = 1 + d + d (d + 1) / 2: 1, u, u_i u_j and u_i^2 / sqrt 2, whose products are
 *                               1 + u.w + (u.w)^2 / 2              Arora et al. 2024
 *
 * About f operations per row, 2 f backward.  Scratch: up to VL rows; gradients take VL
 * of them side by side, each in a lane. */
#ifndef LA_MONOMIALS_H
#define LA_MONOMIALS_H

#include "../tiles/recurrence.h"

/* The first `lead` features are 1 and u; `weight` is that of two different numbers, and
 * HALF_ROOT times it that of a square. */
struct monomials_scratch {
    ptrdiff_t lead;
    T weight;
    struct block x, y, dx; /* of gradients, transposed */
};

#define HALF_ROOT ((T)0.70710678118654752440)

/* How many features there are, whatever size the caller's are. */
INLINE ptrdiff_t
most_features(const struct la_head *h)
{
    const ptrdiff_t most = 1 + h->d + h->d * (h->d + 1) / 2;
    return h->f > most ? h->f : most;
}

static struct monomials_scratch
without_rows(const struct la_head *h)
{
    const int all = h->f > h->d * (h->d + 1) / 2;
    return (struct monomials_scratch){.lead = all ? 1 + h->d : 0,
                                      .weight = all ? 1 : 2 * HALF_ROOT};
}

/* Rows of features at a time, up to VL: those that stay in the first-level cache. */
INLINE ptrdiff_t
rows_of_features(const struct la_head *h)
{
    const ptrdiff_t row = most_features(h) * (ptrdiff_t)sizeof(T);
    const ptrdiff_t rows = LA_FEATURE_BYTES / row;
    return rows < 1 ? 1 : rows < VL ? rows : VL;
}

/* x has zeros up to one vector past its end, and y has room for as many. */
static struct monomials_scratch
monomials_carve(const struct la_head *h, struct arena *arena)
{
    struct monomials_scratch r = without_rows(h);
    r.x = take_block(arena, rows_of_features(h), h->d + VL);
    r.y = take_block(arena, rows_of_features(h), most_features(h) + VL);
    return r;
}

INLINE void
scale_block(struct block x, ptrdiff_t rows, T factor)
{
    for (ptrdiff_t i = 0; i < rows * x.ld; i += VL) {
        vstore(&x.x[i], vset1(factor) * vload(&x.x[i]));
    }
}

/* The features of u, which has d numbers. */
static void
monomials_of(const struct monomials_scratch *r, T *y, const T *u, ptrdiff_t d)
{
    if (r->lead) {
        y[0] = 1;
        memcpy(&y[1], u, (size_t)d * sizeof(T));
        y += r->lead;
    }
    for (ptrdiff_t i = 0; i < d; y += d - i++) {
        const vec x = vset1(r->weight * u[i]);
        for (ptrdiff_t j = i; j < d; j += VL) {
            *(vec_any *)&y[j - i] = (vec_any)(x * vload_any((const char *)&u[j]));
        }
        y[0] *= HALF_ROOT;
    }
}

static int
run_monomials(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct monomials_scratch r = monomials_carve(h, &arena);
    const ptrdiff_t rows = rows_of_features(h);
    for (ptrdiff_t row = 0; row < h->n; row += rows) {
        const struct span t = span(row, rows, 0, h->n, NULL);
        load_across(r.x, &h->x, t, h->d);
        scale_block(r.x, t.rows, (T)h->t);
        for (ptrdiff_t i = 0; i < t.rows; i++) {
            monomials_of(&r, &r.y.x[i * r.y.ld], &r.x.x[i * r.x.ld], h->d);
        }
        store_rows(&h->y, t, h->f, r.y, NULL);
    }
    return 0;
}

static struct monomials_scratch
monomials_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct monomials_scratch r = without_rows(h);
    r.x = take_block(arena, h->d, VL);
    r.y = take_block(arena, most_features(h), VL);
    r.dx = take_block(arena, h->d, VL);
    return r;
}

/* Rows from `row` on as columns. */
INLINE struct la_array
as_columns(const struct la_array *x, ptrdiff_t row)
{
    return transposed(shifted(x, row * x->rs));
}

/* dst = rows t of x, transposed. */
static void
load_lanes(struct block dst, const struct la_array *x, struct span t, ptrdiff_t numbers)
{
    const struct la_array from = as_columns(x, t.first);
    load_across(dst, &from, rows_from(0, numbers), t.rows);
}

/* dx_i += sum_j>=i g_ij x_j and dx_j += g_ij x_i, where g_ii counts HALF_ROOT times. */
static void
add_pairs(const struct monomials_scratch *r, ptrdiff_t d)
{
    const T *g = &r->y.x[r->lead * r->y.ld];
    for (ptrdiff_t i = 0; i < d; i++) {
        const vec u = vload(&r->x.x[i * r->x.ld]);
        T *const dx = &r->dx.x[i * r->dx.ld];
        const vec own = vset1(HALF_ROOT) * vload(g);
        vec sum = vfma(own, u, vfma(own, u, vload(dx)));
        g += r->y.ld;
        for (ptrdiff_t j = i + 1; j < d; j++, g += r->y.ld) {
            T *const other = &r->dx.x[j * r->dx.ld];
            sum = vfma(vload(g), vload(&r->x.x[j * r->x.ld]), sum);
            vstore(other, vfma(vload(g), u, vload(other)));
        }
        vstore(dx, sum);
    }
}

static int
run_monomials_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct monomials_scratch r = monomials_backward_carve(h, &arena);
    const ptrdiff_t d = h->d;
    for (ptrdiff_t row = 0; row < h->n; row += VL) {
        const struct span t = span(row, VL, 0, h->n, NULL);
        load_lanes(r.x, &h->x, t, d);
        scale_block(r.x, d, (T)h->t);
        load_lanes(r.y, &h->grad_out, t, h->f);
        clear_rows(r.dx, 0, d);
        if (r.lead) {
            memcpy(r.dx.x, &r.y.x[r.y.ld], (size_t)(d * r.dx.ld) * sizeof(T));
        }
        add_pairs(&r, d);
        scale_block(r.dx, d, (T)h->t * r.weight);
        const struct la_array to = as_columns(&h->dx, row);
        store_rows(&to, rows_from(0, d), t.rows, r.dx, NULL);
    }
    return 0;
}

#undef HALF_ROOT
#endif
