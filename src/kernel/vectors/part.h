/* part.h: loads and stores the first numbers of a vector.
 *
 * If the width of a matrix is not a multiple of the vector length, each row ends in
 * part of a vector.  Only its numbers are touched in memory, and the lanes past them
 * are zeros.  AVX-512 masks both loads and stores; AVX masks only loads, because on
 * AMD's processors up to Zen 4 a masked store takes ten times as long as the two or
 * three stores that replace it.  Without masks, numbers are inserted into their lanes
 * one by one, in registers: a vector load from memory that was just written number by
 * number waits until all of the stores have reached the cache. */
#ifndef LA_PART_H
#define LA_PART_H

#include <string.h>

#include "../table.h"
#include "vec.h"

typedef uint16_t u16 __attribute__((vector_size(LA_VBYTES / sizeof(T) * 2)));
typedef uint16_t u16_any
    __attribute__((vector_size(LA_VBYTES / sizeof(T) * 2), aligned(1), may_alias));

/* to[0:bytes] = from[0:bytes], an even number of bytes below that of a vector.  Sizes
 * are constant, and each piece of `from` was written by a single store. */
INLINE void
copy_part(char *to, const char *from, ptrdiff_t bytes)
{
    if (LA_VBYTES > 32 && bytes & 32) {
        memcpy(to, from, 32);
        to += 32, from += 32;
    }
    if (LA_VBYTES > 16 && bytes & 16) {
        memcpy(to, from, 16);
        to += 16, from += 16;
    }
    if (bytes & 8) {
        memcpy(to, from, 8);
        to += 8, from += 8;
    }
    if (bytes & 4) {
        memcpy(to, from, 4);
        to += 4, from += 4;
    }
    if (bytes & 2) {
        memcpy(to, from, 2);
    }
}

/* The first `count` < VL numbers at p, then zeros. */
INLINE vec
vload_part(const char *p, ptrdiff_t count)
{
#if defined(__AVX512F__)
    return (vec)LA_MM(maskz_loadu)((1u << count) - 1, p);
#elif defined(__AVX__)
    return (vec)LA_MM(maskload)((const T *)p, (__m256i)first_lanes(count));
#else
    vec x = {0};
    LA_EACH(i, VL - 1) {
        if (i < count) {
            T y;
            memcpy(&y, p + i * (ptrdiff_t)sizeof(T), sizeof(T));
            x[i] = y;
        }
    }
    return x;
#endif
}

/* Stores the first `count` <= VL numbers of x at p, without masks: a load of any byte
 * that a masked store might have written waits until that store has reached the cache,
 * which delays callers that read the next row at once. */
INLINE void
vstore_pieces(char *p, ptrdiff_t count, vec x)
{
    if (count == VL) {
        *(vec_any *)p = (vec_any)x;
        return;
    }
    _Alignas(LA_ALIGN) T lanes[VL];
    vstore(lanes, x);
    copy_part(p, (const char *)lanes, count * (ptrdiff_t)sizeof(T));
}

/* Stores the first `count` < VL numbers of x at p. */
INLINE void
vstore_part(char *p, ptrdiff_t count, vec x)
{
#if defined(__AVX512F__)
    LA_MM(mask_storeu)(p, (1u << count) - 1, x);
#else
    vstore_pieces(p, count, x);
#endif
}

#if LA_HAS_HALVES
/* hload_part and hstore_part do the same for numbers of 16 bits. */
INLINE
u16
hload_part(const char *p, ptrdiff_t count)
{
#if defined(__AVX512F__)
    return (u16)_mm256_maskz_loadu_epi16((1u << count) - 1, p);
#else
    u16 x = {0};
    LA_EACH(i, VL - 1) {
        if (i < count) {
            uint16_t y;
            memcpy(&y, p + 2 * i, 2);
            x[i] = y;
        }
    }
    return x;
#endif
}

INLINE void
hstore_part(char *p, ptrdiff_t count, u16 x)
{
#if defined(__AVX512F__)
    _mm256_mask_storeu_epi16(p, (1u << count) - 1, (__m256i)x);
#else
    _Alignas(LA_ALIGN) uint16_t lanes[VL];
    *(u16 *)lanes = x;
    copy_part(p, (const char *)lanes, 2 * count);
#endif
}
#endif

#endif
