/* mapped.h: applies phi to the rows of a block as they are loaded, and the chain rule
 * through phi.
 *
 * Elementwise maps (feature.h) are applied to each vector as it is loaded.  A map of
 * whole rows is applied once they are in the block; its chain rule takes x and phi(x):
 *
 *    l2norm   y = r x, r = 1 / sqrt(x.x + 1e-6);   dx = r (g - (g.y) y) */
#ifndef LA_MAPPED_H
#define LA_MAPPED_H

#include "chunk.h"

/* Columns [j, j + VL) of a row, with zeros past `cols`: a gradient may hold any numbers
 * there. */
INLINE vec
load_inside(const T *row, ptrdiff_t j, ptrdiff_t cols)
{
    const vec x = vload(&row[j]);
    return cols - j < VL ? vkeep(first_lanes(cols - j), x) : x;
}

/* r of a row whose squares exceed the range of T, from the row divided by its largest
 * entry. */
static __attribute__((noinline, cold)) T
far_norm(const struct la_array *x, ptrdiff_t i, ptrdiff_t cols)
{
    _Alignas(LA_ALIGN) T lanes[VL];
    double max = 0, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            vstore(lanes, load_at(x, i, j, cols));
            for (int l = 0; l < VL; l++) {
                const double size = fabs((double)lanes[l]);
                if (pass == 0) {
                    max = size > max ? size : max;
                }
                else {
                    sum += size / max * (size / max);
                }
            }
        }
    }
    return max <= (double)LARGEST ? (T)(1 / max / sqrt(sum)) : 0;
}

/* r of the rows [first, first + some) of x, some <= VL. */
INLINE vec
inverse_norms(const struct la_array *x, ptrdiff_t first, ptrdiff_t some, ptrdiff_t cols)
{
    vec part[VL];
    LA_EACH(i, VL) {
        part[i] = (vec){0};
    }
    for (ptrdiff_t i = 0; by_rows(x) && i < some; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const vec y = load_at(x, first + i, j, cols);
            part[i] = vfma(y, y, part[i]);
        }
    }
    for (ptrdiff_t j = 0; !by_rows(x) && j < cols; j += VL) {
        _Alignas(LA_ALIGN) T copy[VL * VL];
        load_tile(copy, x, first, some, j, cols);
        for (ptrdiff_t i = 0; i < some; i++) {
            const vec y = vload(&copy[i * VL]);
            part[i] = vfma(y, y, part[i]);
        }
    }
    const vec sums = lane_sums(part);
    const vec r = vset1(1) / vsqrt(sums + vset1((T)1e-6));
    if (vany(sums > vset1(LARGEST))) {
        _Alignas(LA_ALIGN) T lanes[VL];
        vstore(lanes, r);
        for (ptrdiff_t i = 0; i < some; i++) {
            lanes[i] = lanes[i] == 0 ? far_norm(x, first + i, cols) : lanes[i];
        }
        return vload(lanes);
    }
    return r;
}

/* y = phi(y), in place; columns of y past `cols` are zeros. */
static void
phi_l2norm(struct block y, ptrdiff_t rows, ptrdiff_t cols)
{
    const struct la_array x = block_array(y);
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        const ptrdiff_t some = rows - first < VL ? rows - first : VL;
        _Alignas(LA_ALIGN) T r[VL];
        vstore(r, inverse_norms(&x, first, some, round_up(cols, VL)));
        for (ptrdiff_t i = 0; i < some; i++) {
            T *row = y.x + (first + i) * y.ld;
            for (ptrdiff_t j = 0; j < cols; j += VL) {
                vstore(&row[j], vload(&row[j]) * vset1(r[i]));
            }
        }
    }
}

static void
dphi_l2norm(struct block grad, const struct la_array *x, struct span t, ptrdiff_t cols,
            struct block y)
{
    for (ptrdiff_t first = 0; first < t.rows; first += VL) {
        const ptrdiff_t some = t.rows - first < VL ? t.rows - first : VL;
        _Alignas(LA_ALIGN) T r[VL], dot[VL];
        vec part[VL];
        vstore(r, inverse_norms(x, t.first + first, some, cols));
        for (ptrdiff_t i = 0; i < VL; i++) {
            part[i] = (vec){0};
            for (ptrdiff_t j = 0; i < some && j < cols; j += VL) {
                const vec g = load_inside(grad.x + (first + i) * grad.ld, j, cols);
                part[i] = vfma(g, vload(&y.x[(first + i) * y.ld + j]), part[i]);
            }
        }
        vstore(dot, lane_sums(part));
        for (ptrdiff_t i = 0; i < some; i++) {
            T *g = grad.x + (first + i) * grad.ld;
            for (ptrdiff_t j = 0; j < cols; j += VL) {
                const vec rest = vfma(
                    vset1(-dot[i]), vload(&y.x[(first + i) * y.ld + j]), vload(&g[j]));
                vstore(&g[j], vset1(r[i]) * rest);
            }
        }
    }
}

/* dst = phi(rows t of x); the other rows of dst are not touched. */
static void
load_mapped_rows(struct block dst, const struct la_array *x, struct span t,
                 ptrdiff_t cols, enum la_map map)
{
    switch (map) {
#define LA_MAP(map, is_signed)                                                         \
    case LA_MAP_##map:                                                                 \
        load_some_rows(dst, x, t, cols, map_##map);                                    \
        break;
#define LA_ROW_MAP(map, is_signed)                                                     \
    case LA_MAP_##map:                                                                 \
        load_some_rows(dst, x, t, cols, map_identity);                                 \
        phi_##map(dst, t.rows, cols);                                                  \
        break;
#include "../maps.def"
    default:
        break;
    }
}

/* dst = phi(rows t of x), and zeros up to the next multiple of MR. */
static void
load_mapped(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols,
            enum la_map map)
{
    look_ahead(x, t, cols);
    load_mapped_rows(dst, x, t, cols, map);
    clear_rows(dst, t.rows, round_up(t.rows, MR));
}

/* grad *= phi'(x), where y = phi(x), x by rows. */
INLINE void
chain_by_rows(struct block grad, const struct la_array *x, struct span t,
              ptrdiff_t cols, struct block y, vec (*dphi)(vec, vec))
{
    for (ptrdiff_t i = 0; i < t.rows; i++, grad.x += grad.ld, y.x += y.ld) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const vec slope = dphi(load_at(x, t.first + i, j, cols), vload(&y.x[j]));
            vstore(&grad.x[j], vload(&grad.x[j]) * slope);
        }
    }
}

/* grad *= phi'(x), where y = phi(x), for any layout of x. */
INLINE void
chain_with(struct block grad, const struct la_array *x, struct span t, ptrdiff_t cols,
           struct block y, vec (*dphi)(vec, vec))
{
    if (by_rows(x)) {
        chain_by_rows(grad, x, t, cols, y, dphi);
        return;
    }
    for (ptrdiff_t i = 0; i < t.rows; i += VL) {
        const ptrdiff_t rows = t.rows - i < VL ? t.rows - i : VL;
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            _Alignas(LA_ALIGN) T copy[VL * VL];
            const struct la_array tile = load_tile(copy, x, t.first + i, rows, j, cols);
            chain_by_rows(block_at(grad, i, j), &tile, rows_from(0, rows), VL,
                          block_at(y, i, j), dphi);
        }
    }
}

static void
chain(struct block grad, const struct la_array *x, struct span t, ptrdiff_t cols,
      struct block y, enum la_map map)
{
    if (map == LA_MAP_identity) { /* phi' is 1 */
        return;
    }
    switch (map) {
#define LA_MAP(map, is_signed)                                                         \
    case LA_MAP_##map:                                                                 \
        chain_with(grad, x, t, cols, y, dphi_##map);                                   \
        break;
#define LA_ROW_MAP(map, is_signed)                                                     \
    case LA_MAP_##map:                                                                 \
        dphi_##map(grad, x, t, cols, y);                                               \
        break;
#include "../maps.def"
    default:
        break;
    }
}

#endif
