/* vec.h: the vector type of one dtype and one instruction set, and the few operations
 * on it that C cannot express with + - * /.
 *
 * A unit has one dtype, T, whose constants are in dtype.h.  Vectors never cross a
 * non-inline function: their calling convention depends on the compiler's flags. */
#ifndef LA_VEC_H
#define LA_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "dtype.h"
#include "isa.h"

typedef T vec __attribute__((vector_size(LA_VBYTES)));
typedef INT ivec __attribute__((vector_size(LA_VBYTES)));
typedef T vec_any __attribute__((vector_size(LA_VBYTES), aligned(1), may_alias));

INLINE vec
vload(const T *p)
{
    return *(const vec *)p;
}

INLINE vec
vload_any(const char *p)
{
    return (vec) * (const vec_any *)p;
}

INLINE void
vstore(T *p, vec x)
{
    *(vec *)p = x;
}

/* x in every lane.  Subtracting +0 changes no number, not even the sign of a zero, so
 * compilers emit a plain broadcast. */
INLINE vec
vset1(T x)
{
    return x - (vec){0};
}

/* Lane numbers 0, 1, 2, ... */
INLINE ivec
viota(void)
{
    ivec v;
    for (int i = 0; i < VL; i++) {
        v[i] = i;
    }
    return v;
}

/* The mask of the first `count` lanes. */
INLINE ivec
first_lanes(ptrdiff_t count)
{
    return viota() < (ivec)((ivec){0} + (INT)count);
}

/* x where the mask is set, else 0, whatever x is there. */
INLINE vec
vkeep(ivec mask, vec x)
{
    return (vec)((ivec)x & mask);
}

/* x, or 0 in place of NaN. */
INLINE vec
vnumber(vec x)
{
#if defined(__AVX512F__)
    /* A digit per class of numbers: 8 makes +0 of both kinds of NaN, 0 keeps others. */
    return (vec)LA_MM(fixupimm)(x, x, (__m512i)((ivec){0} + 0x88), 0);
#else
    return vkeep(x == x, x);
#endif
}

INLINE vec
vselect(ivec mask, vec x, vec y)
{
    return (vec)(((ivec)x & mask) | ((ivec)y & ~mask));
}

/* keep x for keep = 1 or 0; the result is 0 if keep is 0, even if x is inf or NaN. */
INLINE vec
keep_of(vec keep, vec x)
{
    return vkeep(keep != (vec){0}, x);
}

/* Whether the mask is set in any lane. */
INLINE int
vany(ivec mask)
{
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)mask) != 0;
#elif defined(__SSE2__) && !defined(__AVX__)
    return _mm_movemask_epi8((__m128i)mask) != 0;
#else
    INT any = 0;
    for (int i = 0; i < VL; i++) {
        any |= mask[i];
    }
    return any != 0;
#endif
}

/* x y + z, rounded once if the instruction set has a fused multiply-add.  It is
 * explicit because compilers fuse x * y + z in some places and not in others: the bits
 * of a sum would depend on the shape of the tile. */
INLINE vec
vfma(vec x, vec y, vec z)
{
#if defined(__AVX512F__) || defined(__FMA__)
    return (vec)LA_MM(fmadd)(x, y, z);
#elif defined(__aarch64__)
    return (vec)LA_PASTE(vfmaq_, LA_DTYPE)(z, x, y);
#else
    return x * y + z;
#endif
}

/* vfma of single numbers, rounded as a lane is. */
INLINE T
fma_one(T x, T y, T z)
{
#if defined(__AVX512F__) || defined(__FMA__) || defined(__aarch64__)
    return sizeof(T) == sizeof(float) ? (T)__builtin_fmaf((float)x, (float)y, (float)z)
                                      : (T)__builtin_fma(x, y, z);
#else
    return x * y + z;
#endif
}

/* vmax and vmin return x if either argument is a NaN, so a NaN in x stays one. */
#if defined(__SSE2__)
INLINE vec
vmax(vec floor, vec x)
{
    return (vec)LA_MM(max)(floor, x);
}

INLINE vec
vmin(vec ceiling, vec x)
{
    return (vec)LA_MM(min)(ceiling, x);
}
#else
INLINE vec
vmax(vec floor, vec x)
{
    return vselect(floor > x, floor, x);
}

INLINE vec
vmin(vec ceiling, vec x)
{
    return vselect(ceiling < x, ceiling, x);
}
#endif

INLINE vec
vsqrt(vec x)
{
#if defined(__SSE2__)
    return (vec)LA_MM(sqrt)(x);
#elif defined(__aarch64__)
    return (vec)LA_PASTE(vsqrtq_, LA_DTYPE)(x);
#else
    for (int i = 0; i < VL; i++) {
        x[i] = (T)sqrt((double)x[i]);
    }
    return x;
#endif
}

/* x * 2^k for k held as an integral float, rounded once, subnormals included.
 * |k| must stay below 2 * the largest exponent. */
#if defined(__AVX512F__)
INLINE vec
vscale2(vec x, vec k)
{
    return (vec)LA_MM(scalef)(x, k);
}

INLINE vec
vscale2_near(vec x, vec k)
{
    return vscale2(x, k);
}
#else
/* 2^j, with j + EXPONENT_BIAS in the last bits of x. */
INLINE vec
vpower2(ivec x)
{
    return (vec)(x << MANTISSA_BITS);
}

/* 2^k may be outside the normal range; 2^(k/2) never is. */
INLINE vec
vscale2(vec x, vec k)
{
    const ivec half =
        (ivec)vfma(k, vset1((T)0.5), vset1((T)(ROUND_MAGIC + EXPONENT_BIAS)));
    const ivec whole = (ivec)(k + vset1((T)(ROUND_MAGIC + 2 * EXPONENT_BIAS)));
    return x * vpower2(half) * vpower2(whole - half);
}

/* The same of a normal x 2^(k + SUBNORMAL_BITS), or one whose result is 0: the second
 * factor is always the same. */
#define SUBNORMAL_BITS (MANTISSA_BITS + 2)
INLINE vec
vscale2_near(vec x, vec k)
{
    const vec up = k + vset1((T)(ROUND_MAGIC + EXPONENT_BIAS + SUBNORMAL_BITS));
    return x * vpower2((ivec)up) * vset1((T)1 / (T)((INT)1 << SUBNORMAL_BITS));
}
#endif

/* Interleave the low (high) halves of x and y: x0 y0 x1 y1 ... */
INLINE vec
vzip_low(vec x, vec y)
{
    return LA_PASTE(LA_ZIP_LOW_, LA_LANES)(x, y);
}

INLINE vec
vzip_high(vec x, vec y)
{
    return LA_PASTE(LA_ZIP_HIGH_, LA_LANES)(x, y);
}

/* The sum of the lanes. */
INLINE T
sum_lanes(vec x)
{
    LA_UNROLL
    for (int step = 1; step < VL; step *= 2) {
        x = vzip_low(x, x) + vzip_high(x, x);
    }
    return x[0];
}

/* The networks below are written out stage by stage: compilers keep arrays of vectors
 * in registers only if every loop over them has a constant length. */

INLINE void
vshuffle(vec x[])
{
    vec y[VL];
    LA_EACH(i, VL / 2) {
        y[2 * i] = vzip_low(x[i], x[i + VL / 2]);
        y[2 * i + 1] = vzip_high(x[i], x[i + VL / 2]);
    }
    LA_EACH(i, VL) {
        x[i] = y[i];
    }
}

/* Transpose VL rows of VL in place: log2(VL) perfect shuffles. */
INLINE void
vtranspose(vec x[])
{
    vshuffle(x);
    if (VL > 2) {
        vshuffle(x);
    }
    if (VL > 4) {
        vshuffle(x);
    }
    if (VL > 8) {
        vshuffle(x);
    }
}

INLINE void
fold(vec x[], const int half)
{
    LA_EACH(i, half) {
        x[i] = vzip_low(x[i], x[i + half]) + vzip_high(x[i], x[i + half]);
    }
}

#if LA_LANES == 16
/* The same sums as below.  All of these shuffles have immediate operands, which are
 * faster than those with indices; the order of x makes up for the order that they leave
 * the lanes in. */
INLINE vec
lane_sums(vec x[])
{
    vec y[8], z[4];
    LA_EACH(i, 8) {
        const vec a = x[i / 4 * 8 + i % 4], b = x[i / 4 * 8 + i % 4 + 4];
        y[i] = LA_HALVES_LOW(a, b) + LA_HALVES_HIGH(a, b);
    }
    LA_EACH(i, 4) {
        z[i] = LA_QUARTERS_EVEN(y[i], y[i + 4]) + LA_QUARTERS_ODD(y[i], y[i + 4]);
    }
    const vec u = LA_PAIRS_LOW(z[0], z[1]) + LA_PAIRS_HIGH(z[0], z[1]);
    const vec v = LA_PAIRS_LOW(z[2], z[3]) + LA_PAIRS_HIGH(z[2], z[3]);
    return LA_EVEN(u, v) + LA_ODD(u, v);
}
#else
/* Lane i of the result is the sum of the lanes of x[i]; x is destroyed.  This is the
 * network of vtranspose with pairs added as they appear. */
INLINE vec
lane_sums(vec x[])
{
    if (VL > 8) {
        fold(x, 8);
    }
    if (VL > 4) {
        fold(x, 4);
    }
    if (VL > 2) {
        fold(x, 2);
    }
    fold(x, 1);
    return x[0];
}
#endif

#endif
