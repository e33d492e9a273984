/* own_pairs.h: rows of bfloat16 numbers as they are in memory, made into what products
 * take (pairs.h).
 *
 * Such a row is one of pairs along columns: it is copied, not converted.  The product
 * of two of its numbers is a float, unless it overflows or vanishes, so that only sums
 * are rounded. */
#ifndef LA_OWN_PAIRS_H
#define LA_OWN_PAIRS_H

#include "pair_transpose.h"

/* Which operands of a sweep (micro.h) are such rows: those of both A and B; of V. */
struct own {
    int rows, values;
};

#if LA_HAS_HALVES
/* VL pairs of a row, which may be in the caller's array. */
INLINE vec
own_lanes(const T *row)
{
    return vload_any((const char *)row);
}

/* Numbers of the same columns of two rows in pairs, side by side. */
INLINE void
zip_words(vec *low, vec *high, vec x, vec y)
{
#if defined(__AVX512F__)
    typedef uint16_t words __attribute__((vector_size(64)));
    const words order = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i a = (__m512i)x, b = (__m512i)y;
    *low = (vec)_mm512_permutex2var_epi16(a, (__m512i)order, b);
    *high = (vec)_mm512_permutex2var_epi16(a, (__m512i)(order + 16), b);
#else
    enum { WORDS = LA_VBYTES / 2 };
    uint16_t from[2][WORDS], to[2][WORDS];
    memcpy(from[0], &x, sizeof(x));
    memcpy(from[1], &y, sizeof(y));
    for (ptrdiff_t t = 0; t < 2 * WORDS; t++) {
        to[t / WORDS][t % WORDS] = from[t % 2][t / 2];
    }
    memcpy(low, to[0], sizeof(*low));
    memcpy(high, to[1], sizeof(*high));
#endif
}

/* Pairs whose numbers are multiplied by two factors. */
INLINE vec
scaled_pairs(vec x, vec first, vec second, const enum la_products by)
{
    const vec low = half_of_pairs(x, 0) * first, high = half_of_pairs(x, 1) * second;
#if defined(__AVX512F__)
    if (by == LA_NATIVE_PRODUCTS) {
        return native_pair_of(low, high);
    }
#endif
    (void)by;
    return pair_of(low, high);
}

/* Both below return whether a number that the processor converted is not finite. */
INLINE int
scale_own_rows_by(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                  ptrdiff_t lanes, const T *factor, const enum la_products by)
{
    ivec most = {0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        const vec x = vset1(factor[i]);
        for (ptrdiff_t l = 0; l < lanes; l += VL) {
            vec pairs = scaled_pairs(own_lanes(&src.x[i * src.ld + l]), x, x, by);
            if (cols < 2 * (l + VL)) { /* inf times a zero past the columns is NaN */
                pairs = some_of_pairs(pairs, cols - 2 * l - 1, 0);
            }
            note_sizes(&most, pairs, by);
            vstore(&dst.x[i * dst.ld + l], pairs);
        }
    }
    return reaches_infinity(most);
}

INLINE int
zip_rows_by(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
            const T *factor, const enum la_products by)
{
    ivec most = {0};
    for (ptrdiff_t i = 0; i < rows; i += 2) {
        const T *x = &src.x[i * src.ld], *y = x + src.ld;
        const vec first = vset1(factor != NULL ? factor[i] : 0);
        const vec second = vset1(factor != NULL && i + 1 < rows ? factor[i + 1] : 0);
        for (ptrdiff_t j = 0; j < cols; j += 2 * VL) {
            vec both[2];
            zip_words(&both[0], &both[1], own_lanes(&x[j / 2]), own_lanes(&y[j / 2]));
            for (ptrdiff_t t = 0; t < 2 && j + t * VL < cols; t++) {
                if (factor != NULL) {
                    both[t] = scaled_pairs(both[t], first, second, by);
                }
                note_sizes(&most, both[t], by);
                vstore(&dst.x[i / 2 * dst.ld + j + t * VL], both[t]);
            }
        }
    }
    return reaches_infinity(most);
}

/* dst = rows of src, each times its factor, and zeros up to a multiple of MR rows. */
static void
scale_own_rows(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
               const T *factor, enum la_products by)
{
    const ptrdiff_t lanes = padded_lanes(cols, by);
    LA_CONVERT(scale_own_rows_by, by, dst, src, rows, cols, lanes, factor);
    clear_rows(dst, rows, round_up(rows, MR));
}

/* pair_rows of a block, each row times its factor, if given, from its own rows, which
 * end with zeros up to a multiple of MR rows.  Returns whether a number may not be
 * finite. */
static int
zip_rows(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
         const T *factor, enum la_products by)
{
    return LA_CONVERT(zip_rows_by, by, dst, src, rows, cols, factor);
}

/* pair_transposed of a block, from its own rows. */
static void
transpose_own_rows(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t lanes)
{
    for (ptrdiff_t j = 0; j < rows; j += VL) {
        for (ptrdiff_t l = 0; l < lanes; l += VL) {
            vec x[VL];
            LA_EACH(i, VL) {
                x[i] =
                    j + i < rows ? own_lanes(&src.x[(j + i) * src.ld + l]) : (vec){0};
            }
            store_transposed(block_at(dst, l, j), x);
        }
    }
}
#else
static void
scale_own_rows(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
               const T *factor, enum la_products by)
{
    (void)dst, (void)src, (void)rows, (void)cols, (void)factor, (void)by;
}

static int
zip_rows(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
         const T *factor, enum la_products by)
{
    (void)dst, (void)src, (void)rows, (void)cols, (void)factor, (void)by;
    return 0;
}

static void
transpose_own_rows(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t lanes)
{
    (void)dst, (void)src, (void)rows, (void)lanes;
}
#endif

#endif
