/* pair_transpose.h: pairs of blocks (pairs.h), transposed. */
#ifndef LA_PAIR_TRANSPOSE_H
#define LA_PAIR_TRANSPOSE_H

#include "pairs.h"

/* dst = the VL x VL lanes of x transposed. */
INLINE void
store_transposed(struct block dst, vec x[])
{
    vtranspose(x);
    LA_EACH(i, VL) {
        vstore(&dst.x[i * dst.ld], x[i]);
    }
}

#if LA_HAS_HALVES
INLINE int
pair_transposed_by(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                   ptrdiff_t lanes, const enum la_products by)
{
    ivec most = {0};
    for (ptrdiff_t j = 0; j < rows; j += VL) {
        for (ptrdiff_t l = 0; l < lanes; l += VL) {
            const struct block from = block_at(src, j, 2 * l);
            vec x[VL];
            LA_EACH(i, VL) {
                x[i] = (vec){0};
                if (j + i < rows) {
                    const T *row = &from.x[i * from.ld];
                    x[i] = pair_of_columns(row, cols - 2 * l, by);
                }
                note_sizes(&most, x[i], by);
            }
            store_transposed(block_at(dst, l, j), x);
        }
    }
    return reaches_infinity(most);
}

/* Lane j of row l of dst: columns 2 l and 2 l + 1 of row j of src; zeros past rows and
 * cols. */
static void
pair_transposed(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                enum la_products by)
{
    const ptrdiff_t lanes = padded_lanes(cols, by);
    LA_CONVERT(pair_transposed_by, by, dst, src, rows, cols, lanes);
}

INLINE int
pair_rows_transposed_by(struct block dst, struct block src, ptrdiff_t rows,
                        ptrdiff_t cols, ptrdiff_t lanes, const enum la_products by)
{
    ivec most = {0};
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        for (ptrdiff_t t = 0; t < lanes; t += VL) {
            vec x[VL];
            LA_EACH(i, VL) {
                const ptrdiff_t row = 2 * (t + i);
                x[i] = pair_of_rows(&src.x[row * src.ld + j], src.ld, rows - row, by);
                note_sizes(&most, x[i], by);
            }
            store_transposed(block_at(dst, j, t), x);
        }
    }
    return reaches_infinity(most);
}

/* Lane t of row j of dst: rows 2 t and 2 t + 1 of column j of src; zeros past rows. */
static void
pair_rows_transposed(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                     enum la_products by)
{
    const ptrdiff_t lanes = padded_lanes(rows, by);
    LA_CONVERT(pair_rows_transposed_by, by, dst, src, rows, cols, lanes);
}

/* The first and second numbers of the pairs x, y, each in pairs. */
INLINE void
split_pairs(vec *first, vec *second, vec x, vec y)
{
#if defined(__AVX512F__)
    typedef uint16_t words __attribute__((vector_size(64)));
    const words order = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                         22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                         44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    const __m512i a = (__m512i)x, b = (__m512i)y;
    *first = (vec)_mm512_permutex2var_epi16(a, (__m512i)order, b);
    *second = (vec)_mm512_permutex2var_epi16(a, (__m512i)(order + 1), b);
#else
    uint16_t from[4 * VL], to[2][2 * VL];
    memcpy(from, &x, sizeof(x));
    memcpy(from + 2 * VL, &y, sizeof(y));
    for (ptrdiff_t t = 0; t < 2 * VL; t++) {
        to[0][t] = from[2 * t];
        to[1][t] = from[2 * t + 1];
    }
    memcpy(first, to[0], sizeof(to[0]));
    memcpy(second, to[1], sizeof(to[1]));
#endif
}

/* The same, with x and y times factors. */
INLINE void
split_scaled_pairs(vec *first, vec *second, vec x, vec y, vec of_x, vec of_y,
                   const enum la_products by)
{
    *first = pairs_along(half_of_pairs(x, 0) * of_x, half_of_pairs(y, 0) * of_y, by);
    *second = pairs_along(half_of_pairs(x, 1) * of_x, half_of_pairs(y, 1) * of_y, by);
}

INLINE int
split_transposed_by(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                    ptrdiff_t lanes, const T *factor, const enum la_products by)
{
    ivec most = {0};
    for (ptrdiff_t t = 0; t < lanes; t += VL) {
        const ptrdiff_t i = 2 * t, j = i + VL;
        const vec of_x = factor != NULL ? some_columns(factor, i, rows) : (vec){0};
        const vec of_y = factor != NULL ? some_columns(factor, j, rows) : (vec){0};
        for (ptrdiff_t l = 0; 2 * l < cols; l++) {
            const T *p = &src.x[l * src.ld];
            T *to = &dst.x[2 * l * dst.ld + t];
            const vec x = i < rows ? vload(&p[i]) : (vec){0};
            const vec y = j < rows ? vload(&p[j]) : (vec){0};
            vec first, second;
            if (factor != NULL) {
                split_scaled_pairs(&first, &second, x, y, of_x, of_y, by);
                note_sizes(&most, first, by);
                note_sizes(&most, second, by);
            }
            else {
                split_pairs(&first, &second, x, y);
            }
            vstore(to, first);
            vstore(to + dst.ld, second);
        }
    }
    return reaches_infinity(most);
}

/* pair_rows_transposed of a block, each row times its factor, if given, from its
 * pair_transposed. */
static void
split_transposed(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                 const T *factor, enum la_products by)
{
    const ptrdiff_t lanes = padded_lanes(rows, by);
    LA_CONVERT(split_transposed_by, by, dst, src, rows, cols, lanes, factor);
}
#else
static void
pair_transposed(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                enum la_products by)
{
    (void)dst, (void)src, (void)rows, (void)cols, (void)by;
}

static void
pair_rows_transposed(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                     enum la_products by)
{
    (void)dst, (void)src, (void)rows, (void)cols, (void)by;
}

static void
split_transposed(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                 const T *factor, enum la_products by)
{
    (void)dst, (void)src, (void)rows, (void)cols, (void)factor, (void)by;
}
#endif

#endif
