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
/* What LDTILECFG reads.  Registers 0 to 3 hold sums, 4 rows of pairs, and 5 to 7
 * columns of pairs: more than one, so that loads need not wait for products. */
static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* per row */
    uint8_t rows[16];
} amx_registers = {
    .palette = 1,
    .bytes = {LA_VBYTES, LA_VBYTES, LA_VBYTES, LA_VBYTES, 4 * LA_AMX_PAIRS, LA_VBYTES,
              LA_VBYTES, LA_VBYTES},
    .rows = {LA_AMX_ROWS, LA_AMX_ROWS, LA_AMX_ROWS, LA_AMX_ROWS, LA_AMX_ROWS,
             LA_AMX_PAIRS, LA_AMX_PAIRS, LA_AMX_PAIRS},
};
enum { LA_AMX_LEFT = 4, LA_AMX_RIGHT = 5 };

/* The register of columns that register `sum` is a product of. */
INLINE int
amx_right(const int sum)
{
    return LA_AMX_RIGHT + sum % 3;
}
_Static_assert(sizeof(amx_registers) == 64, "as LDTILECFG reads it");
_Static_assert(NR <= 4, "a register for each vector of a tile");

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
    return without_subnormals((vec)((ivec)x << 16));
}

INLINE vec
high_of_pairs(vec x)
{
    return without_subnormals((vec)((ivec)x & ((ivec){0} - 0x10000)));
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
#define LA_AMX_MULTIPLY(sum, right)                                                    \
    case sum:                                                                          \
        __asm__ volatile("tdpbf16ps %%tmm" #right ", %%tmm4, %%tmm" #sum : : :);       \
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

/* Register `sum` += the product of the rows and amx_right(sum). */
INLINE void
amx_multiply(struct amx_register *all, const int sum, const enum la_products by)
{
#if LA_HAS_AMX
    if (by == LA_AMX_PRODUCTS) {
        switch (sum) {
            LA_AMX_MULTIPLY(0, 5)
            LA_AMX_MULTIPLY(1, 6)
            LA_AMX_MULTIPLY(2, 7)
            LA_AMX_MULTIPLY(3, 5)
        }
        return;
    }
#endif
    (void)by;
    plain_amx_multiply(all, sum, LA_AMX_LEFT, amx_right(sum));
}

/* Sets the registers up, and gives them back.  A kernel uses them between these two
 * alone, where it calls nothing: a signal handler in Python, which runs while a call
 * polls, may use other libraries that set them up differently, and threads that hold no
 * tiles are cheaper to switch.  Functions need not preserve them for their callers. */
INLINE void
amx_begin(const enum la_products by)
{
#if LA_HAS_AMX
    if (by == LA_AMX_PRODUCTS) {
        __asm__ volatile("ldtilecfg %0" : : "m"(amx_registers) : "memory");
    }
#endif
    (void)by;
}

INLINE void
amx_end(const enum la_products by)
{
#if LA_HAS_AMX
    if (by == LA_AMX_PRODUCTS) {
        __asm__ volatile("tilerelease" : : : "memory");
    }
#endif
    (void)by;
}

/* The nr sums of LA_AMX_ROWS rows = 0. */
INLINE void
amx_clear_sums(struct amx_register *all, const int nr, const enum la_products by)
{
    LA_EACH(j, nr) {
        amx_clear(all, j, by);
    }
}

/* They += A B.  Both hold zeros up to a multiple of LA_AMX_PAIRS pairs; rows of A past
 * its last one may hold anything. */
INLINE void
amx_add_product(struct amx_register *all, const int nr, struct block a, struct block b,
                ptrdiff_t pairs, const enum la_products by)
{
    for (ptrdiff_t l = 0; l < pairs; l += LA_AMX_PAIRS) {
        amx_load(all, LA_AMX_LEFT, &a.x[l], a.ld, by);
        LA_EACH(j, nr) {
            amx_load(all, amx_right(j), &b.x[l * b.ld + j * VL], b.ld, by);
            amx_multiply(all, j, by);
        }
    }
}

/* The first `rows` rows of x = the sums. */
INLINE void
amx_store_sums(struct block x, const struct amx_register *all, const int nr,
               ptrdiff_t rows, const enum la_products by)
{
    LA_EACH(j, nr) {
        _Alignas(LA_ALIGN) T room[LA_AMX_ROWS * VL];
        if (rows >= LA_AMX_ROWS) {
            amx_store(&x.x[j * VL], x.ld, all, j, by);
            continue;
        }
        amx_store(room, VL, all, j, by);
        for (ptrdiff_t i = 0; i < rows; i++) {
            vstore(&x.x[i * x.ld + j * VL], vload(&room[i * VL]));
        }
    }
}
#endif

#endif
