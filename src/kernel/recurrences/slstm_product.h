/* slstm_product.h: products of a few rows with a matrix that stays in cache.
 *
 * A packed matrix (K, W) lies by vectors of columns, each K vectors without gaps.
 * Every number of a product is a sum of chains of KC multiply-adds each, in the order
 * of the rows of the matrix: its bits do not depend on how many rows are multiplied
 * together. */
#ifndef LA_SLSTM_PRODUCT_H
#define LA_SLSTM_PRODUCT_H

#include "../tiles/chunk.h"

/* Rows of a register tile of four vectors; vectors of a tile of one row. */
enum { LA_PRODUCT_ROWS = LA_NR, LA_PRODUCT_WIDE = 8 };

/* w = x (rows, cols), in a packed matrix of K rows. */
static void
pack_matrix(T *w, ptrdiff_t K, const struct la_array *x, ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        const struct la_array part = shifted(x, j * x->cs);
        load_some_rows((struct block){w + j * K, VL}, &part, rows_from(0, rows),
                       cols - j < VL ? cols - j : VL, map_identity);
    }
}

/* O += A W for rows [k, k + kc) of W, nr vectors of its columns. */
INLINE void
product_tile(struct block o, struct block a, const T *w, ptrdiff_t K, ptrdiff_t k,
             ptrdiff_t kc, const int rows, const int nr)
{
    vec acc[LA_PRODUCT_ROWS][LA_PRODUCT_WIDE];
    LA_EACH(i, rows) {
        LA_EACH(j, nr) {
            acc[i][j] = (vec){0};
        }
    }
    for (ptrdiff_t l = k; l < k + kc; l++) {
        vec y[LA_PRODUCT_WIDE];
        LA_EACH(j, nr) {
            y[j] = vload(&w[(j * K + l) * VL]);
        }
        LA_EACH(i, rows) {
            const vec x = vset1(a.x[i * a.ld + l]);
            LA_EACH(j, nr) {
                acc[i][j] = vfma(x, y[j], acc[i][j]);
            }
        }
    }
    LA_EACH(i, rows) {
        LA_EACH(j, nr) {
            T *p = &o.x[i * o.ld + j * VL];
            vstore(p, vload(p) + acc[i][j]);
        }
    }
}

/* The same for all rows of W and `rows` rows of A, `most` at a time: parts of W stay in
 * the first-level cache meanwhile. */
INLINE void
product_columns(struct block o, struct block a, ptrdiff_t rows, const T *w, ptrdiff_t K,
                const int most, const int nr)
{
    for (ptrdiff_t k = 0; k < K; k += KC) {
        const ptrdiff_t kc = K - k < KC ? K - k : KC;
        ptrdiff_t i = 0;
        for (; most > 1 && i + most <= rows; i += most) {
            product_tile(block_at(o, i, 0), block_at(a, i, 0), w, K, k, kc, most, nr);
        }
        for (; i < rows; i++) {
            product_tile(block_at(o, i, 0), block_at(a, i, 0), w, K, k, kc, 1, nr);
        }
    }
}

/* O (rows, W) += A (rows, K) W (K, W).  A product of one row takes the wide tiles of W
 * `backwards` or not: after one in the other direction, the last ones are in the
 * first-level cache. */
static void
add_product(struct block o, struct block a, ptrdiff_t rows, const T *w, ptrdiff_t K,
            ptrdiff_t W, int backwards)
{
    const ptrdiff_t wide = LA_PRODUCT_WIDE * VL, tiles = rows == 1 ? W / wide : 0;
    ptrdiff_t j = tiles * wide;
    for (ptrdiff_t i = 0; i < tiles; i++) {
        const ptrdiff_t at = (backwards ? tiles - 1 - i : i) * wide;
        product_columns(block_at(o, 0, at), a, 1, w + at * K, K, 1, LA_PRODUCT_WIDE);
    }
    for (; j + 4 * VL <= W; j += 4 * VL) {
        product_columns(block_at(o, 0, j), a, rows, w + j * K, K, LA_PRODUCT_ROWS, 4);
    }
    for (; j < W; j += VL) {
        product_columns(block_at(o, 0, j), a, rows, w + j * K, K, LA_PRODUCT_ROWS, 1);
    }
}

#endif
