/* monomials.h: maps of rows whose products are polynomials of the inner product.  With
 * u = t x and the products p of all pairs i <= j,
 *
 *    f = d (d + 1) / 2:         sqrt 2 u_i u_j and u_i^2, whose products are (u.w)^2
 *    f = 1 + d + d (d + 1) / 2: 1, u, u_i u_j and u_i^2 / sqrt 2, whose products are
 *                               1 + u.w + (u.w)^2 / 2              Arora et al. 2024
 *
 * About f operations per row, 2 f backward.  Scratch: a few rows. */
#ifndef LA_MONOMIALS_H
#define LA_MONOMIALS_H

#include "../tiles/recurrence.h"

/* x has zeros up to one vector past its end, and so has y.  The first `lead` features
 * are 1 and u; `weight` is that of two different numbers, and HALF_ROOT times it that
 * of a square. */
struct monomials_scratch {
    ptrdiff_t lead;
    T weight;
    T *x, *y, *dx;
};

#define HALF_ROOT ((T)0.70710678118654752440)

static struct monomials_scratch
monomials_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t d = h->d, pairs = d * (d + 1) / 2, most = 1 + d + pairs;
    const int all = h->f > pairs;
    struct monomials_scratch r = {all ? 1 + d : 0, all ? 1 : 2 * HALF_ROOT, NULL, NULL,
                                  NULL};
    r.x = take(arena, 1, round_up(d, VL) + VL);
    r.y = take(arena, 1, round_up(h->f > most ? h->f : most, VL) + VL);
    r.dx = take(arena, 1, round_up(d, VL) + VL);
    return r;
}

static void
load_scaled(const struct monomials_scratch *r, const struct la_head *h, ptrdiff_t row)
{
    const ptrdiff_t ld = round_up(h->d, VL);
    load_row(r->x, ld, &h->x, row, h->d);
    for (ptrdiff_t j = 0; j < ld; j += VL) {
        vstore(&r->x[j], vset1((T)h->t) * vload(&r->x[j]));
    }
    vstore(&r->x[ld], (vec){0});
}

static int
run_monomials(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct monomials_scratch r = monomials_carve(h, &arena);
    const ptrdiff_t d = h->d;
    for (ptrdiff_t row = 0; row < h->n; row++) {
        load_scaled(&r, h, row);
        if (r.lead) {
            r.y[0] = 1;
            memcpy(&r.y[1], r.x, (size_t)d * sizeof(T));
        }
        T *y = r.y + r.lead;
        for (ptrdiff_t i = 0; i < d; y += d - i++) {
            const vec u = vset1(r.weight * r.x[i]);
            for (ptrdiff_t j = i; j < d; j += VL) {
                *(vec_any *)&y[j - i] = (vec_any)(u * vload_any((const char *)&r.x[j]));
            }
            y[0] *= HALF_ROOT;
        }
        store_rows(&h->y, rows_from(row, 1), h->f, (struct block){r.y, 0}, NULL);
    }
    return 0;
}

static struct monomials_scratch
monomials_backward_carve(const struct la_head *h, struct arena *arena)
{
    return monomials_carve(h, arena);
}

/* dx_i += sum_j>=i g_ij x_j and dx_j += g_ij x_i, where g_ii counts HALF_ROOT times. */
static void
add_pairs(const struct monomials_scratch *r, ptrdiff_t d)
{
    T *g = r->y + r->lead;
    for (ptrdiff_t i = 0; i < d; g += d - i++) {
        const vec u = vset1(r->x[i]);
        vec sum = {0};
        g[0] *= HALF_ROOT;
        for (ptrdiff_t j = i; j < d; j += VL) {
            const vec some =
                vkeep(first_lanes(d - j), vload_any((const char *)&g[j - i]));
            vec_any *dx = (vec_any *)&r->dx[j];
            sum += some * vload_any((const char *)&r->x[j]);
            *dx = (vec_any)((vec)*dx + some * u);
        }
        r->dx[i] += sum_lanes(sum);
    }
}

static int
run_monomials_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct monomials_scratch r = monomials_backward_carve(h, &arena);
    const ptrdiff_t d = h->d, ld = round_up(h->f, VL);
    const T factor = (T)h->t * r.weight;
    vstore(&r.y[ld], (vec){0});
    for (ptrdiff_t row = 0; row < h->n; row++) {
        load_scaled(&r, h, row);
        load_row(r.y, ld, &h->grad_out, row, h->f);
        memset(r.dx, 0, (size_t)(round_up(d, VL) + VL) * sizeof(T));
        if (r.lead) {
            memcpy(r.dx, &r.y[1], (size_t)d * sizeof(T));
        }
        add_pairs(&r, d);
        store_rows(&h->dx, rows_from(row, 1), d, (struct block){r.dx, 0}, &factor);
    }
    return 0;
}

#undef HALF_ROOT
#endif
