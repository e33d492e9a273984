/* pairs.h: products of numbers rounded to bfloat16, summed in float (set_products).
 *
 * Each lane of a block of pairs holds two numbers, next to each other in a row or in a
 * column of the block that it was made from, which holds them in float.  A product of
 * two lanes is
 *
 *    z + x_1 y_1, rounded, + x_0 y_0, rounded
 *
 * as AVX512_BF16 sums it, which also takes subnormal numbers as zeros.  The other
 * implementation keeps them. */
#ifndef LA_PAIRS_H
#define LA_PAIRS_H

#include "../vectors/half.h"

/* Whether products are of 16 rows at a time (amx.h). */
INLINE int
by_amx(const enum la_products by)
{
    return by == LA_PLAIN_AMX_PRODUCTS || by == LA_AMX_PRODUCTS;
}

/* How pairs are converted, and multiplied where a tile register would hold a score that
 * its row must not see. */
INLINE enum la_products
one_by_one(const enum la_products by)
{
    return by == LA_AMX_PRODUCTS         ? LA_NATIVE_PRODUCTS
           : by == LA_PLAIN_AMX_PRODUCTS ? LA_BFLOAT_PRODUCTS
                                         : by;
}

/* The lane at p in every lane. */
INLINE vec
vpair(const T *p)
{
    INT bits;
    memcpy(&bits, p, sizeof(bits));
    return (vec)((ivec){0} + bits);
}

/* The first or, if `second`, the second numbers of pairs. */
INLINE vec
half_of_pairs(vec x, const int second)
{
#if LA_HAS_HALVES
    return second != LA_SECOND_HALF ? (vec)((ivec)x & ((ivec){0} - 0x10000))
                                    : (vec)((ivec)x << 16);
#else
    (void)second;
    return x;
#endif
}

/* z + x y, lane by lane. */
INLINE vec
vproduct(vec x, vec y, vec z, const enum la_products by)
{
#if LA_HAS_HALVES
#if defined(__AVX512F__)
    if (by ==
        LA_NATIVE_PRODUCTS) { /* no intrinsic: the unit is compiled without them */
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(z) : "v"(x), "v"(y));
        return z;
    }
#endif
    if (by != LA_FLOAT_PRODUCTS) {
        z = vfma(half_of_pairs(x, 1), half_of_pairs(y, 1), z);
        return vfma(half_of_pairs(x, 0), half_of_pairs(y, 0), z);
    }
#endif
    (void)by;
    return vfma(x, y, z);
}

#if LA_HAS_HALVES
/* Of the pairs of 2 VL numbers, the first up to the one at `last` or, if `upper`, those
 * from it on; zeros in place of others. */
INLINE vec
some_of_pairs(vec pairs, ptrdiff_t last, const int upper)
{
    const ivec at = (ivec){0} + (INT)last;
    const ivec ones = (ivec){0} + (LA_SECOND_HALF ? -0x10000 : 0xffff);
    const ivec first = 2 * viota(), second = first + 1;
    const ivec some = upper ? ((first >= at) & ones) | ((second >= at) & ~ones)
                            : ((first <= at) & ones) | ((second <= at) & ~ones);
    return vkeep(some, pairs);
}

/* x as bfloat16.  Finite numbers stay finite: a product with zero must not be a NaN. */
INLINE
u16
to_operand(vec x)
{
    const vec most = vset1(0x1.fep127f), size = (vec)((ivec)x & INT32_MAX);
    const ivec far = (size > most) & (size <= vset1(LARGEST));
    return to_bfloat(vselect(far, (vec)((ivec)most | ((ivec)x & INT32_MIN)), x));
}

/* Columns [j, j + VL) of a row; zeros past `cols`. */
INLINE vec
some_columns(const T *row, ptrdiff_t j, ptrdiff_t cols)
{
    if (j + VL <= cols) {
        return vload(&row[j]);
    }
    return j < cols ? vkeep(first_lanes(cols - j), vload(&row[j])) : (vec){0};
}

/* Lanes whose low halves are x as bfloat16 and whose high halves are y. */
INLINE vec
pair_of(vec x, vec y)
{
    const ivec first = widen(to_operand(x)), second = widen(to_operand(y));
    return (vec)(LA_SECOND_HALF ? first << 16 | second : second << 16 | first);
}

#if defined(__AVX512F__)
/* x and y as bfloat16, one after the other; numbers far from 0 become infinite. */
INLINE vec
native_operands(vec x, vec y)
{
    vec both;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(y), "v"(x));
    return both;
}

INLINE vec
native_pair_of(vec x, vec y)
{
    typedef uint16_t words __attribute__((vector_size(64)));
    const words order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)native_operands(x, y);
    return (vec)_mm512_permutexvar_epi16((__m512i)order, both);
}
#endif

/* most = the larger of itself and the sizes of pairs, times 2, if the processor
 * converted them. */
INLINE void
note_sizes(ivec *most, vec pairs, const enum la_products by)
{
#if defined(__AVX512F__)
    if (by == LA_NATIVE_PRODUCTS) {
        const __m512i sizes = _mm512_add_epi16((__m512i)pairs, (__m512i)pairs);
        *most = (ivec)_mm512_max_epu16((__m512i)*most, sizes);
    }
#endif
    (void)most, (void)pairs, (void)by;
}

/* Whether one of them is not finite. */
INLINE int
reaches_infinity(ivec most)
{
#if defined(__AVX512F__)
    const __m512i infinity = _mm512_set1_epi16((short)0xff00);
    return _mm512_cmpge_epu16_mask((__m512i)most, infinity) != 0;
#else
    (void)most;
    return 0;
#endif
}

/* Converts by f(..., by), which returns whether a number that the processor converted
 * is not finite: all of them are converted one by one then, and where it converts none.
 * Whether that was so. */
#define LA_CONVERT(f, by, ...)                                                         \
    (one_by_one(by) == LA_BFLOAT_PRODUCTS || f(__VA_ARGS__, LA_NATIVE_PRODUCTS)        \
         ? (f(__VA_ARGS__, LA_BFLOAT_PRODUCTS), 1)                                     \
         : 0)

/* The pairs of VL columns of two rows; zeros for those that do not exist. */
INLINE vec
pair_of_rows(const T *row, ptrdiff_t ld, ptrdiff_t rows, const enum la_products by)
{
    const vec x = rows > 0 ? vload(row) : (vec){0};
    const vec y = rows > 1 ? vload(row + ld) : (vec){0};
#if defined(__AVX512F__)
    if (by == LA_NATIVE_PRODUCTS) {
        return native_pair_of(x, y);
    }
#endif
    (void)by;
    return pair_of(x, y);
}

/* Lane j of row t of dst: columns j of rows 2 t and 2 t + 1 of src; zeros past the
 * last row.  Returns whether a number that the processor converted is not finite. */
INLINE int
pair_rows_by(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
             const enum la_products by)
{
    ivec most = {0};
    for (ptrdiff_t i = 0; i < rows; i += 2) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const T *row = &src.x[i * src.ld + j];
            const vec pairs = pair_of_rows(row, src.ld, rows - i, by);
            note_sizes(&most, pairs, by);
            vstore(&dst.x[i / 2 * dst.ld + j], pairs);
        }
    }
    return reaches_infinity(most);
}

/* The same.  Returns whether a number may not be finite. */
static int
pair_rows(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
          enum la_products by)
{
    return LA_CONVERT(pair_rows_by, by, dst, src, rows, cols);
}

/* The numbers of x, and after them those of y, in pairs. */
INLINE vec
pairs_along(vec x, vec y, const enum la_products by)
{
#if defined(__AVX512F__)
    if (by == LA_NATIVE_PRODUCTS) {
        return native_operands(x, y);
    }
#endif
    vec pairs;
    const u16 halves[] = {to_operand(x), to_operand(y)};
    memcpy(&pairs, halves, sizeof(pairs));
    (void)by;
    return pairs;
}

/* The pairs of 2 VL columns of a row; zeros past `cols`. */
INLINE vec
pair_of_columns(const T *row, ptrdiff_t cols, const enum la_products by)
{
    return pairs_along(some_columns(row, 0, cols), some_columns(row, VL, cols), by);
}

/* Lane l of row i of dst: columns 2 l and 2 l + 1 of row i of src; zeros past cols, up
 * to `width` rounded up to whole vectors. */
INLINE int
pair_columns_by(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
                ptrdiff_t width, const enum la_products by)
{
    ivec most = {0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j < width; j += 2 * VL) {
            const vec pairs = pair_of_columns(&src.x[i * src.ld + j], cols - j, by);
            note_sizes(&most, pairs, by);
            vstore(&dst.x[i * dst.ld + j / 2], pairs);
        }
    }
    return reaches_infinity(most);
}

static void
pair_columns(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
             ptrdiff_t width, enum la_products by)
{
    LA_CONVERT(pair_columns_by, by, dst, src, rows, cols, width);
}
#else
static int
pair_rows(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
          enum la_products by)
{
    (void)dst, (void)src, (void)rows, (void)cols, (void)by;
    return 0;
}

static void
pair_columns(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols,
             ptrdiff_t width, enum la_products by)
{
    (void)dst, (void)src, (void)rows, (void)cols, (void)width, (void)by;
}
#endif

/* How many lanes of a column hold `rows` numbers. */
INLINE ptrdiff_t
lanes_of(ptrdiff_t rows, const enum la_products by)
{
    return by == LA_FLOAT_PRODUCTS ? rows : (rows + 1) / 2;
}

/* How many are multiplied: with AMX, up to 15 zeros follow. */
INLINE ptrdiff_t
padded_lanes(ptrdiff_t rows, const enum la_products by)
{
    return round_up(lanes_of(rows, by), by_amx(by) ? LA_AMX_PAIRS : 1);
}

/* Room for the pairs of a tile of nr vectors, if it takes pairs. */
#define LA_PANEL(name, rows, nr, by)                                                   \
    _Alignas(LA_ALIGN) T name[(by) == LA_FLOAT_PRODUCTS ? VL : (rows) / 2 * (nr) * VL]

/* The pairs of rows of src, at `room`; or src, if products are of floats. */
INLINE struct block
paired(T *room, struct block src, ptrdiff_t rows, ptrdiff_t cols,
       const enum la_products by)
{
    const struct block dst = {room, cols};
    if (by == LA_FLOAT_PRODUCTS) {
        return src;
    }
    pair_rows(dst, src, rows, cols, by);
    if (by_amx(by)) {
        clear_rows(dst, lanes_of(rows, by), padded_lanes(rows, by));
    }
    return dst;
}

#endif
