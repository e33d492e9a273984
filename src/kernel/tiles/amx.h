/* amx.h: products of blocks of pairs (pairs.h) by AMX, or by plain C that computes the
 * same sums.
 *
 * A tile register holds up to 16 rows of 64 bytes.  TDPBF16PS adds to each number z of
 * one register the product of a row of pairs x and a column of pairs y of two others:
 *
 *    z + (e + o)   e = sum_l x_l0 y_l0,   o = sum_l x_l1 y_l1   of 16 or 8 pairs
 *
 * e and o are chains of multiply-adds that begin with 0.  Each of these and both
 * additions are rounded to nearest; subnormal numbers are zeros, among operands and
 * results (Intel, Software Developer's Manual, volume 2).  Sums longer than 16 pairs
 * are cut into parts of 16, the last of which ends with zeros.  Plain C without fused
 * multiply-adds rounds products below 2^-126 before it adds them.
 *
 * Both implementations run the functions below, which contain one instruction each. */
#ifndef LA_AMX_H
#define LA_AMX_H

#include "pair_transpose.h"

#if LA_HAS_HALVES
/* What LDTILECFG reads.  A block of sums is up to two registers high and two wide: 0 to
 * 3, row by row.  4 and 5 hold rows of pairs, 6 and 7 columns of pairs. */
static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* per row */
    uint8_t rows[16];
} amx_registers = {
    .palette = 1,
    .bytes = {LA_VBYTES, LA_VBYTES, LA_VBYTES, LA_VBYTES, 4 * LA_AMX_PAIRS,
              4 * LA_AMX_PAIRS, LA_VBYTES, LA_VBYTES},
    .rows = {LA_AMX_ROWS, LA_AMX_ROWS, LA_AMX_ROWS, LA_AMX_ROWS, LA_AMX_ROWS,
             LA_AMX_ROWS, LA_AMX_PAIRS, LA_AMX_PAIRS},
};
enum { LA_AMX_LEFT = 4, LA_AMX_RIGHT = 6 };
_Static_assert(sizeof(amx_registers) == 64, "as LDTILECFG reads it");

/* A register of the plain implementation. */
struct amx_register {
    _Alignas(LA_ALIGN) T x[LA_AMX_ROWS][LA_AMX_PAIRS];
};

/* x, or 0 if x is subnormal. */
INLINE vec
without_subnormals(vec x)
{
    const vec size = (vec)((ivec)x & INT32_MAX);
    return vselect(size < vset1(LA_SMALLEST), (vec)((ivec)x & INT32_MIN), x);
}

/* The halves of pairs as floats. */
INLINE vec
low_of_pairs(vec x)
{
    return without_subnormals(half_of_pairs(x, 0));
}

INLINE vec
high_of_pairs(vec x)
{
    return without_subnormals(half_of_pairs(x, 1));
}

/* VL numbers of a sum += a row of pairs and VL columns of pairs. */
INLINE void
plain_amx_sum(T *sum, const T *row, const struct amx_register *columns, ptrdiff_t j,
              ptrdiff_t pairs)
{
    vec even = {0}, odd = {0};
    for (ptrdiff_t l = 0; l < pairs; l++) {
        const vec x = vpair(&row[l]), y = vload(&columns->x[l][j]);
        even = without_subnormals(vfma(low_of_pairs(x), low_of_pairs(y), even));
        odd = without_subnormals(vfma(high_of_pairs(x), high_of_pairs(y), odd));
    }
    const vec more = without_subnormals(even + odd);
    vstore(sum, without_subnormals(without_subnormals(vload(sum)) + more));
}

static void
plain_amx_multiply(struct amx_register *all, int sum, int rows, int columns)
{
    for (ptrdiff_t i = 0; i < amx_registers.rows[sum]; i++) {
        for (ptrdiff_t j = 0; j < amx_registers.bytes[sum] / 4; j += VL) {
            plain_amx_sum(&all[sum].x[i][j], all[rows].x[i], &all[columns], j,
                          amx_registers.bytes[rows] / 4);
        }
    }
}

static void
plain_amx_load(struct amx_register *all, int to, const T *p, ptrdiff_t ld)
{
    for (ptrdiff_t i = 0; i < amx_registers.rows[to]; i++) {
        memcpy(all[to].x[i], p + i * ld, amx_registers.bytes[to]);
    }
}

static void
plain_amx_store(T *p, ptrdiff_t ld, const struct amx_register *all, int from)
{
    for (ptrdiff_t i = 0; i < amx_registers.rows[from]; i++) {
        memcpy(p + i * ld, all[from].x[i], amx_registers.bytes[from]);
    }
}

#if LA_HAS_AMX
/* No intrinsics: the unit is compiled without them, and compilers know of no tile
 * register that they would have to keep.  An instruction names its registers. */
#define LA_AMX_LOAD(to)                                                                \
    case to:                                                                           \
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #to                              \
                         :                                                             \
                         : "r"(p), "r"(step)                                           \
                         : "memory");                                                  \
        break;
#define LA_AMX_STORE(from)                                                             \
    case from:                                                                         \
        __asm__ volatile("tilestored %%tmm" #from ", (%0,%1,1)"                        \
                         :                                                             \
                         : "r"(p), "r"(step)                                           \
                         : "memory");                                                  \
        break;
#define LA_AMX_ZERO(sum)                                                               \
    case sum:                                                                          \
        __asm__ volatile("tilezero %%tmm" #sum : : :);                                 \
        break;
#define LA_AMX_MULTIPLY(sum, left, right)                                              \
    case sum:                                                                          \
        __asm__ volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sum       \
                         :                                                             \
                         :                                                             \
                         :);                                                           \
        break;
#define LA_AMX_SUMS(of) of(0) of(1) of(2) of(3)
#endif

/* Register `to`, of rows or columns of pairs, = rows ld apart. */
INLINE void
amx_load(struct amx_register *all, const int to, const T *p, ptrdiff_t ld,
         const enum la_products by)
{
#if LA_HAS_AMX
    if (by == LA_AMX_PRODUCTS) {
        const ptrdiff_t step = ld * (ptrdiff_t)sizeof(T);
        switch (to) {
            LA_AMX_LOAD(4)
            LA_AMX_LOAD(5)
            LA_AMX_LOAD(6)
            LA_AMX_LOAD(7)
        }
        return;
    }
#endif
    (void)by;
    plain_amx_load(all, to, p, ld);
}

INLINE void
amx_store(T *p, ptrdiff_t ld, const struct amx_register *all, const int from,
          const enum la_products by)
{
#if LA_HAS_AMX
    if (by == LA_AMX_PRODUCTS) {
        const ptrdiff_t step = ld * (ptrdiff_t)sizeof(T);
        switch (from) {
            LA_AMX_SUMS(LA_AMX_STORE)
        }
        return;
    }
#endif
    (void)by;
    plain_amx_store(p, ld, all, from);
}

/* Register `sum` = 0. */
INLINE void
amx_clear(struct amx_register *all, const int sum, const enum la_products by)
{
#if LA_HAS_AMX
    if (by == LA_AMX_PRODUCTS) {
        switch (sum) {
            LA_AMX_SUMS(LA_AMX_ZERO)
        }
        return;
    }
#endif
    (void)by;
    memset(&all[sum], 0, sizeof(all[sum]));
}

/* Register `sum` of a block += the product of its rows and its columns. */
INLINE void
amx_multiply(struct amx_register *all, const int sum, const enum la_products by)
{
#if LA_HAS_AMX
    if (by == LA_AMX_PRODUCTS) {
        switch (sum) {
            LA_AMX_MULTIPLY(0, 4, 6)
            LA_AMX_MULTIPLY(1, 4, 7)
            LA_AMX_MULTIPLY(2, 5, 6)
            LA_AMX_MULTIPLY(3, 5, 7)
        }
        return;
    }
#endif
    (void)by;
    plain_amx_multiply(all, sum, LA_AMX_LEFT + sum / 2, LA_AMX_RIGHT + sum % 2);
}

/* Sets the registers up, unless they are: this takes as long as a dozen products.  They
 * stay so until the kernel returns or polls for longer than a look at the clock: what
 * runs then may set them up differently (cpu.h). */
INLINE void
amx_begin(int *tiles, const enum la_products by)
{
#if LA_HAS_AMX
    if (by == LA_AMX_PRODUCTS && !*tiles) {
        __asm__ volatile("ldtilecfg %0" : : "m"(amx_registers) : "memory");
        *tiles = 1;
    }
#endif
    (void)tiles, (void)by;
}

/* A product A B of a sum of them.  Both hold zeros up to a multiple of LA_AMX_PAIRS
 * pairs; rows of A past its last one may hold anything. */
struct amx_term {
    struct block a, b;
    ptrdiff_t pairs;
};

/* Register `sum` to x, of which `rows` rows exist. */
INLINE void
amx_store_rows(struct block x, ptrdiff_t rows, const struct amx_register *all,
               const int sum, const enum la_products by)
{
    _Alignas(LA_ALIGN) T room[LA_AMX_ROWS * VL];
    if (rows >= LA_AMX_ROWS) {
        amx_store(x.x, x.ld, all, sum, by);
        return;
    }
    amx_store(room, VL, all, sum, by);
    for (ptrdiff_t i = 0; i < rows; i++) {
        vstore(&x.x[i * x.ld], vload(&room[i * VL]));
    }
}

/* x = the sum of `count` terms, for two registers of rows if `tall`, and of columns, if
 * `wide`, from vector j on. */
INLINE void
amx_block(struct amx_register *all, struct block x, ptrdiff_t rows, ptrdiff_t j,
          const struct amx_term *terms, int count, const int tall, const int wide,
          const enum la_products by)
{
    LA_EACH(sum, 4) {
        if (sum / 2 <= tall && sum % 2 <= wide) {
            amx_clear(all, sum, by);
        }
    }
    for (int t = 0; t < count; t++) {
        const struct block a = terms[t].a, b = block_at(terms[t].b, 0, j * VL);
        for (ptrdiff_t l = 0; l < terms[t].pairs; l += LA_AMX_PAIRS) {
            amx_load(all, LA_AMX_LEFT, &a.x[l], a.ld, by);
            amx_load(all, LA_AMX_RIGHT, &b.x[l * b.ld], b.ld, by);
            amx_multiply(all, 0, by);
            if (wide) {
                amx_load(all, LA_AMX_RIGHT + 1, &b.x[l * b.ld + VL], b.ld, by);
                amx_multiply(all, 1, by);
            }
            if (tall) {
                amx_load(all, LA_AMX_LEFT + 1, &a.x[LA_AMX_ROWS * a.ld + l], a.ld, by);
                amx_multiply(all, 2, by);
            }
            if (tall && wide) {
                amx_multiply(all, 3, by);
            }
        }
    }
    LA_EACH(sum, 4) {
        if (sum / 2 <= tall && sum % 2 <= wide) {
            const ptrdiff_t i = sum / 2 * LA_AMX_ROWS;
            amx_store_rows(block_at(x, i, (j + sum % 2) * VL), rows - i, all, sum, by);
        }
    }
}

/* The first `rows` rows of x = the sum of `count` terms, up to LA_AMX_BLOCK rows of nr
 * vectors. */
INLINE void
amx_rows(struct amx_register *all, struct block x, ptrdiff_t rows, const int nr,
         const struct amx_term *terms, int count, const enum la_products by)
{
    const int tall = rows > LA_AMX_ROWS;
    for (int j = 0; j + 1 < nr; j += 2) {
        if (tall) {
            amx_block(all, x, rows, j, terms, count, 1, 1, by);
        }
        else {
            amx_block(all, x, rows, j, terms, count, 0, 1, by);
        }
    }
    if (nr % 2 == 1 && tall) {
        amx_block(all, x, rows, nr - 1, terms, count, 1, 0, by);
    }
    else if (nr % 2 == 1) {
        amx_block(all, x, rows, nr - 1, terms, count, 0, 0, by);
    }
}
#endif

#endif
