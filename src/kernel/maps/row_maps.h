/* row_maps.h: maps of rows that take a few operations per feature.
 *
 *    the fused maps of rows (mapped.h), as separate operators
 *    sum_normalize: y / (sum y + eps), 0 where that is 0 / 0
 *    dpfp: r = relu([x, -x]),  y = (r[j] r[(j - i) mod 2d], i = 1..nu), f = 2 d nu
 *                                                        Schlag et al. 2021, eq. 37-38
 *
 * Scratch: a few blocks of rows; for dpfp, a few rows. */
#ifndef LA_ROW_MAPS_H
#define LA_ROW_MAPS_H

#include "../tiles/recurrence.h"

INLINE vec *
at(T *p)
{
    return (vec *)p;
}

/* Up to LA_BLOCK rows from row i on. */
INLINE struct span
rows_of(const struct la_head *h, ptrdiff_t i)
{
    return span(i, LA_BLOCK, i + LA_BLOCK, h->n, NULL);
}

/* Separate operators for maps of rows: y = phi(x), and the chain rule. */
struct row_map_scratch {
    struct block y, grad;
};

static struct row_map_scratch
row_map_carve(const struct la_head *h, struct arena *arena)
{
    struct row_map_scratch r;
    r.y = take_block(arena, LA_BLOCK, h->d);
    r.grad = take_block(arena, LA_BLOCK, h->d);
    return r;
}

static int
run_row_map(const struct la_head *h, enum la_map map, int backward)
{
    struct arena arena = {h->scratch, 0};
    const struct row_map_scratch r = row_map_carve(h, &arena);
    for (ptrdiff_t i = 0; i < h->n; i += LA_BLOCK) {
        const struct span t = rows_of(h, i);
        load_mapped(r.y, &h->x, t, h->d, map);
        if (backward) {
            load_plain(r.grad, &h->grad_out, t, h->d);
            chain(r.grad, &h->x, t, h->d, r.y, map);
        }
        store_rows(backward ? &h->dx : &h->y, t, h->d, backward ? r.grad : r.y, NULL);
    }
    return 0;
}

#define LA_RUN_ROW_MAP(name, map, backward)                                            \
    static struct row_map_scratch name##_carve(const struct la_head *h,                \
                                               struct arena *arena)                    \
    {                                                                                  \
        return row_map_carve(h, arena);                                                \
    }                                                                                  \
    static int run_##name(const struct la_head *h)                                     \
    {                                                                                  \
        return run_row_map(h, map, backward);                                          \
    }
#define LA_ROW_MAP(map, is_signed)                                                     \
    LA_RUN_ROW_MAP(map, LA_MAP_##map, 0)                                               \
    LA_RUN_ROW_MAP(map##_backward, LA_MAP_##map, 1)
#include "../maps.def"

struct sum_normalize_scratch {
    ptrdiff_t ld;
    T *y, *grad, *ones, *sum, *dot, *lift;
};

static struct sum_normalize_scratch
sum_normalize_carve(const struct la_head *h, struct arena *arena)
{
    struct sum_normalize_scratch r = {.ld = row_step(h->f)};
    r.y = take(arena, LA_BLOCK, r.ld);
    r.grad = take(arena, LA_BLOCK, r.ld);
    r.ones = take(arena, 1, r.ld);
    r.sum = take(arena, 1, LA_BLOCK);
    r.dot = take(arena, 1, LA_BLOCK);
    r.lift = take(arena, 1, LA_BLOCK);
    return r;
}

/* sum_i = 1 / (sum of row i of y + eps).  If that is very large, it is the inverse of
 * lift_i times the denominator, and row i of y is multiplied by lift_i (see
 * factors). */
static void
inverse_sums(const struct sum_normalize_scratch *r, ptrdiff_t rows, T eps)
{
    for (ptrdiff_t j = 0; j < r->ld; j++) {
        r->ones[j] = 1;
    }
    row_dots(r->sum, (struct block){r->y, r->ld}, (struct block){r->ones, 0}, rows,
             r->ld);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const T sum = r->sum[i] + eps;
        r->lift[i] = sum != 0 && fabs((double)(1 / sum)) > (double)LIFT ? LIFT : 1;
        r->sum[i] = sum == 0 ? 0 : 1 / (r->lift[i] * sum);
    }
    if (any_lifted(rows, r->lift)) {
        lift_rows((struct block){r->y, r->ld}, rows, r->ld, r->lift);
    }
}

static int
run_sum_normalize(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct sum_normalize_scratch r = sum_normalize_carve(h, &arena);
    for (ptrdiff_t i = 0; i < h->n; i += LA_BLOCK) {
        const struct span some = rows_of(h, i);
        load_plain((struct block){r.y, r.ld}, &h->x, some, h->f);
        inverse_sums(&r, some.rows, (T)h->eps);
        store_rows(&h->y, some, h->f, (struct block){r.y, r.ld}, r.sum);
    }
    return 0;
}

/* dy = (g - g.(y / sum)) / sum */
static struct sum_normalize_scratch
sum_normalize_backward_carve(const struct la_head *h, struct arena *arena)
{
    return sum_normalize_carve(h, arena);
}

static int
run_sum_normalize_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct sum_normalize_scratch r = sum_normalize_carve(h, &arena);
    for (ptrdiff_t i = 0; i < h->n; i += LA_BLOCK) {
        const struct span some = rows_of(h, i);
        load_plain((struct block){r.y, r.ld}, &h->x, some, h->f);
        load_plain((struct block){r.grad, r.ld}, &h->grad_out, some, h->f);
        inverse_sums(&r, some.rows, (T)h->eps);
        row_dots(r.dot, (struct block){r.grad, r.ld}, (struct block){r.y, r.ld},
                 some.rows, r.ld);
        for (ptrdiff_t l = 0; l < some.rows; l++) {
            const vec mean = vset1(r.dot[l] * r.sum[l]);
            for (ptrdiff_t j = 0; j < r.ld; j += VL) {
                *at(&r.grad[l * r.ld + j]) -= mean;
            }
        }
        if (any_lifted(some.rows, r.lift)) {
            lift_rows((struct block){r.grad, r.ld}, some.rows, r.ld, r.lift);
        }
        store_rows(&h->dx, some, h->f, (struct block){r.grad, r.ld}, r.sum);
    }
    return 0;
}

/* Rows of 2d numbers, with nu more on one side, since indices wrap, and one vector of
 * padding. */
struct dpfp_scratch {
    ptrdiff_t width, nu;
    T *x, *r, *y, *product, *dr;
};

static struct dpfp_scratch
dpfp_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t width = 2 * h->d;
    struct dpfp_scratch r = {.width = width, .nu = width ? h->f / width : 0};
    r.x = take(arena, 1, width + VL);
    r.r = take(arena, 1, width + r.nu + VL);
    r.y = take(arena, 1, h->f + VL);
    r.product = take(arena, 1, width + r.nu + VL);
    r.dr = take(arena, 1, width + VL);
    return r;
}

/* r[nu + j] = relu([x, -x])[j], and r[0..nu) extends it periodically to the left. */
static void
rectify(const struct dpfp_scratch *r, const struct la_array *x, ptrdiff_t row)
{
    const ptrdiff_t d = r->width / 2;
    T *half = r->r + r->nu;
    load_row(r->x, round_up(d, VL), x, row, d);
    for (int side = 0; side < 2; side++, half += d) {
        for (ptrdiff_t j = 0; j < d; j += VL) {
            const vec y = vload(&r->x[j]);
            *(vec_any *)&half[j] = (vec_any)phi_relu(side ? -y : y);
        }
    }
    for (ptrdiff_t i = r->nu - 1; i >= 0; i--) {
        r->r[i] = r->r[i + r->width];
    }
}

static int
run_dpfp(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct dpfp_scratch r = dpfp_carve(h, &arena);
    for (ptrdiff_t row = 0; row < h->n; row++) {
        rectify(&r, &h->x, row);
        const char *here = (const char *)(r.r + r.nu);
        for (ptrdiff_t i = 1; i <= r.nu; i++) {
            T *y = r.y + (i - 1) * r.width;
            for (ptrdiff_t j = 0; j < r.width * (ptrdiff_t)sizeof(T); j += LA_VBYTES) {
                const vec product = vload_any(here + j) *
                                    vload_any(here + j - i * (ptrdiff_t)sizeof(T));
                *(vec_any *)((char *)y + j) = (vec_any)product;
            }
        }
        store_rows(&h->y, rows_from(row, 1), h->f, (struct block){r.y, 0}, NULL);
    }
    return 0;
}

/* dr[j] = sum_i g_i[j] r[j - i] + (g_i r)[j + i] */
static void
unrectify(const struct dpfp_scratch *r)
{
    const T *here = r->r + r->nu;
    memset(r->dr, 0, (size_t)r->width * sizeof(T));
    for (ptrdiff_t i = 1; i <= r->nu; i++) {
        const T *g = r->y + (i - 1) * r->width;
        for (ptrdiff_t j = 0; j < r->width; j++) {
            r->product[j] = g[j] * here[j];
        }
        for (ptrdiff_t j = 0; j < i; j++) {
            r->product[r->width + j] = r->product[j];
        }
        for (ptrdiff_t j = 0; j < r->width; j++) {
            r->dr[j] += g[j] * here[j - i] + r->product[j + i];
        }
    }
}

static struct dpfp_scratch
dpfp_backward_carve(const struct la_head *h, struct arena *arena)
{
    return dpfp_carve(h, arena);
}

static int
run_dpfp_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct dpfp_scratch r = dpfp_carve(h, &arena);
    const ptrdiff_t d = r.width / 2;
    for (ptrdiff_t row = 0; row < h->n; row++) {
        rectify(&r, &h->x, row);
        load_row(r.y, round_up(h->f, VL), &h->grad_out, row, h->f);
        unrectify(&r);
        for (ptrdiff_t j = 0; j < d; j++) {
            r.x[j] = r.x[j] > 0 ? r.dr[j] : r.x[j] < 0 ? -r.dr[d + j] : 0;
        }
        store_rows(&h->dx, rows_from(row, 1), d, (struct block){r.x, 0}, NULL);
    }
    return 0;
}

#endif
