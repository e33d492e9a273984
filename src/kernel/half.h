/* half.h: 16-bit numbers at the border: float16 and bfloat16 to float and back.
 *
 * Everything is computed in float; these are exact on the way in and round once, to
 * nearest even, on the way out.  bfloat16 is converted with integer arithmetic: the
 * AVX512_BF16 instructions flush subnormals. */
#ifndef LA_HALF_H
#define LA_HALF_H

#include <stdint.h>
#include <string.h>

#include "isa.h"
#include "table.h"

enum { LA_PIECE = 64 }; /* numbers converted at a time */

static inline float
la_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t
la_bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float
la_half_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) { /* inf, NaN */
        return la_float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    }
    /* 2^112 rebiases the exponent, and makes subnormals normal on the way. */
    return la_float_of_bits(sign |
                            la_bits_of_float(la_float_of_bits(rest << 13) * 0x1p112f));
}

static inline uint16_t
la_float_to_half(float x)
{
    const uint32_t bits = la_bits_of_float(x), sign = bits >> 16 & 0x8000;
    const uint32_t rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) { /* NaN */
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    }
    if (rest >= 0x477ff000) { /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7c00);
    }
    if (rest < 0x38800000) { /* subnormal: adding 1/2 rounds at its last bit */
        const uint32_t sum = la_bits_of_float(la_float_of_bits(rest) + 0.5f);
        return (uint16_t)(sign | (sum - 0x3f000000));
    }
    return (uint16_t)(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

static inline uint16_t
la_float_to_bfloat(float x)
{
    const uint32_t bits = la_bits_of_float(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const int is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return (uint16_t)(is_nan ? (bits >> 16 | 0x40) : rounded);
}

static inline void
la_widen_half(float *dst, const uint16_t *src, ptrdiff_t count)
{
    ptrdiff_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
        _mm256_storeu_ps(dst + i,
                         _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
    }
#endif
    for (; i < count; i++) {
        dst[i] = la_half_to_float(src[i]);
    }
}

static inline void
la_narrow_half(uint16_t *dst, const float *src, ptrdiff_t count)
{
    ptrdiff_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
        _mm_storeu_si128((void *)(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i),
                                                            _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < count; i++) {
        dst[i] = la_float_to_half(src[i]);
    }
}

/* dst[0:count] = numbers of the given type at src, `step` bytes apart. */
static void
la_widen(float *dst, const char *src, ptrdiff_t step, ptrdiff_t count,
         enum la_type type)
{
    uint16_t bits[LA_PIECE];
    for (ptrdiff_t i = 0; i < count; i += LA_PIECE) {
        const ptrdiff_t some = count - i < LA_PIECE ? count - i : LA_PIECE;
        if (step == sizeof(bits[0])) {
            memcpy(bits, src + i * step, (size_t)some * sizeof(bits[0]));
        }
        for (ptrdiff_t j = 0; step != sizeof(bits[0]) && j < some; j++) {
            memcpy(&bits[j], src + (i + j) * step, sizeof(bits[0]));
        }
        if (type == LA_HALF) {
            la_widen_half(dst + i, bits, some);
        }
        else {
            for (ptrdiff_t j = 0; j < some; j++) {
                dst[i + j] = la_float_of_bits((uint32_t)bits[j] << 16);
            }
        }
    }
}

/* Numbers of the given type at dst, `step` bytes apart, = factor src[0:count]. */
static void
la_narrow(char *dst, ptrdiff_t step, const float *src, ptrdiff_t count, float factor,
          enum la_type type)
{
    float product[LA_PIECE];
    uint16_t bits[LA_PIECE];
    for (ptrdiff_t i = 0; i < count; i += LA_PIECE) {
        const ptrdiff_t some = count - i < LA_PIECE ? count - i : LA_PIECE;
        for (ptrdiff_t j = 0; j < some; j++) {
            product[j] = src[i + j] * factor;
        }
        if (type == LA_HALF) {
            la_narrow_half(bits, product, some);
        }
        else {
            for (ptrdiff_t j = 0; j < some; j++) {
                bits[j] = la_float_to_bfloat(product[j]);
            }
        }
        if (step == sizeof(bits[0])) {
            memcpy(dst + i * step, bits, (size_t)some * sizeof(bits[0]));
        }
        for (ptrdiff_t j = 0; step != sizeof(bits[0]) && j < some; j++) {
            memcpy(dst + (i + j) * step, &bits[j], sizeof(bits[0]));
        }
    }
}

#endif
