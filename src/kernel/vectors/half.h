/* half.h: loads and stores vectors of numbers as operands store them: in the kernel's
 * own dtype T or, if T is float, as float16 or bfloat16.
 *
 * All computation is in float.  16-bit numbers are converted to float exactly when
 * loaded, and rounded once, to nearest even, when stored.  bfloat16 is converted with
 * integer arithmetic because the AVX512_BF16 instructions flush subnormals. */
#ifndef LA_HALF_H
#define LA_HALF_H

#include <string.h>

#include "part.h"
#include "../table.h"
#include "vec.h"

/* Bytes per number. */
INLINE ptrdiff_t
size_of(enum la_type type)
{
    return la_type_size(type, sizeof(T));
}

#if LA_HAS_HALVES
INLINE vec
from_half(u16 bits)
{
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps((__m256i)bits);
#elif defined(__F16C__)
    return (vec)_mm256_cvtph_ps((__m128i)bits);
#else
    const ivec h = __builtin_convertvector(bits, ivec);
    const ivec sign = (h & 0x8000) << 16, rest = h & 0x7fff;
    /* No subnormal float on the way: the caller's modes may flush it to 0. */
    const vec small = __builtin_convertvector(rest, vec) * 0x1p-24f;
    const vec normal = (vec)((rest << 13) + 0x38000000);
    const vec finite = vselect(rest < 0x400, small, normal);
    const ivec other = 0x7f800000 | (rest & 0x3ff) << 13; /* inf, NaN */
    return (vec)(sign | (ivec)vselect(rest >= 0x7c00, (vec)other, finite));
#endif
}

INLINE
u16
to_half(vec x)
{
#if defined(__AVX512F__)
    return (u16)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    return (u16)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
    const ivec bits = (ivec)x, sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    ivec h = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
    /* Subnormal results: adding 1/2 rounds at their last bit. */
    const ivec small = (ivec)((vec)rest + 0.5f) - 0x3f000000;
    const ivec nan = 0x7e00 | (rest >> 13 & 0x3ff);
    h = (ivec)vselect(rest < 0x38800000, (vec)small, (vec)h);
    h = (ivec)vselect(rest >= 0x477ff000, (vec)((ivec){0} + 0x7c00), (vec)h);
    h = (ivec)vselect(rest > 0x7f800000, (vec)nan, (vec)h);
    return __builtin_convertvector(sign | h, u16);
#endif
}

/* Conversions of integers: compilers make several instructions of
 * __builtin_convertvector. */
INLINE ivec
widen(u16 bits)
{
#if defined(__AVX512F__)
    return (ivec)_mm512_cvtepu16_epi32((__m256i)bits);
#elif defined(__AVX2__)
    return (ivec)_mm256_cvtepu16_epi32((__m128i)bits);
#else
    return __builtin_convertvector(bits, ivec);
#endif
}

INLINE
u16
narrow(ivec bits)
{
#if defined(__AVX512F__)
    return (u16)_mm512_cvtepi32_epi16((__m512i)bits);
#else
    return __builtin_convertvector(bits, u16);
#endif
}

INLINE vec
from_bfloat(u16 bits)
{
    return (vec)(widen(bits) << 16);
}

/* x rounded to bfloat16, in the high half of each lane; the low half is unspecified. */
INLINE ivec
rounded_to_bfloat(vec x)
{
    const ivec bits = (ivec)x, rounded = bits + 0x7fff + (bits >> 16 & 1);
    const ivec nan = bits | 0x400000;
#if defined(__AVX512F__)
    /* gcc 12 makes a vector of vselect's mask. */
    const __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return (ivec)_mm512_mask_mov_epi32((__m512i)rounded, is_nan, (__m512i)nan);
#else
    return (ivec)vselect(x == x, (vec)rounded, (vec)nan);
#endif
}

INLINE
u16
to_bfloat(vec x)
{
    return narrow(rounded_to_bfloat(x) >> 16);
}
#endif

/* Whether the second of two adjacent numbers of 16 bits is the low half of a lane. */
#define LA_SECOND_HALF (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)

#if LA_HAS_HALVES
INLINE vec
from_bits(u16 bits, enum la_type type)
{
    return type == LA_HALF ? from_half(bits) : from_bfloat(bits);
}

INLINE
u16
to_bits(vec x, enum la_type type)
{
    return type == LA_HALF ? to_half(x) : to_bfloat(x);
}
#endif

/* VL consecutive numbers at p. */
INLINE vec
vread(const char *p, enum la_type type)
{
#if LA_HAS_HALVES
    if (type != LA_NATIVE) {
        return from_bits((u16) * (const u16_any *)p, type);
    }
#endif
    (void)type;
    return vload_any(p);
}

INLINE void
vwrite(char *p, vec x, enum la_type type)
{
#if LA_HAS_HALVES
    if (type != LA_NATIVE) {
        *(u16_any *)p = (u16_any)to_bits(x, type);
        return;
    }
#endif
    (void)type;
    *(vec_any *)p = (vec_any)x;
}

#if defined(__AVX512F__) && LA_HAS_HALVES
/* Whether there is a NaN in the pairs of n vectors. */
INLINE int
any_nan(const vec x[], const int n)
{
    int nan = 0;
    LA_EACH(i, n / 2) {
        const __m512 a = (__m512)x[2 * i], b = (__m512)x[2 * i + 1];
        nan |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
    }
    return nan;
}

/* Numbers with these high and low halves, none a NaN, rounded to bfloat16: 16-bit
 * arithmetic rounds twice as many at once. */
INLINE __m512i
round_words(__m512i high, __m512i low)
{
    typedef uint16_t words __attribute__((vector_size(64)));
    const words half = 0x8000 - ((words)high & 1); /* a tie rounds to even */
    return _mm512_mask_add_epi16(high, _mm512_cmpgt_epu16_mask(low, (__m512i)half),
                                 high, _mm512_set1_epi16(1));
}

/* to_bfloat of x and of y, one after the other, neither with a NaN. */
INLINE __m512i
to_bfloats(vec x, vec y)
{
    typedef uint16_t words __attribute__((vector_size(64)));
    const words even = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                        32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    const __m512i a = (__m512i)x, b = (__m512i)y;
    const __m512i low = _mm512_permutex2var_epi16(a, (__m512i)even, b);
    const __m512i high = _mm512_permutex2var_epi16(a, (__m512i)(even + 1), b);
    return round_words(high, low);
}
#endif

/* n vectors, `step` bytes apart. */
INLINE void
vwrite_each(char *p, ptrdiff_t step, const vec x[], const int n,
            const enum la_type type)
{
#if defined(__AVX512F__) && LA_HAS_HALVES
    if (type == LA_BFLOAT && n > 1 && !any_nan(x, n)) {
        LA_EACH(i, n / 2) {
            const __m512i both = to_bfloats(x[2 * i], x[2 * i + 1]);
            char *to = p + 2 * i * step;
            *(u16_any *)to = (u16_any)_mm512_castsi512_si256(both);
            *(u16_any *)(to + step) = (u16_any)_mm512_extracti64x4_epi64(both, 1);
        }
        if (n % 2 == 1) {
            vwrite(p + (n - 1) * step, x[n - 1], type);
        }
        return;
    }
#endif
    LA_EACH(i, n) {
        vwrite(p + i * step, x[i], type);
    }
}

/* 2 VL consecutive numbers at p, in the order that takes fewest operations, which is
 * that of vwrite_two: of bfloat16, those at even places come first. */
INLINE void
vread_two(vec x[2], const char *p, enum la_type type)
{
    if (type == LA_BFLOAT) {
        const ivec both = (ivec)vload_any(p);
        x[LA_SECOND_HALF] = (vec)(both << 16);
        x[!LA_SECOND_HALF] = (vec)(both & -0x10000);
        return;
    }
    x[0] = vread(p, type);
    x[1] = vread(p + VL * size_of(type), type);
}

INLINE void
vwrite_two(char *p, const vec x[2], enum la_type type)
{
#if LA_HAS_HALVES
    const vec low = x[LA_SECOND_HALF], high = x[!LA_SECOND_HALF];
#if defined(__AVX512F__)
    if (type == LA_BFLOAT && !any_nan(x, 2)) {
        const __mmask32 odd = 0xaaaaaaaa;
        const __m512i a = (__m512i)low, b = (__m512i)high;
        const __m512i lows = _mm512_mask_blend_epi16(odd, a, _mm512_slli_epi32(b, 16));
        const __m512i highs = _mm512_mask_blend_epi16(odd, _mm512_srli_epi32(a, 16), b);
        *(vec_any *)p = (vec_any)round_words(highs, lows);
        return;
    }
#endif
    if (type == LA_BFLOAT) {
        const ivec first = rounded_to_bfloat(low) >> 16 & 0xffff;
        *(vec_any *)p = (vec_any)(first | (rounded_to_bfloat(high) & -0x10000));
        return;
    }
#endif
    vwrite_each(p, VL * size_of(type), x, 2, type);
}

/* The first `count` <= VL consecutive numbers at p, then zeros. */
INLINE vec
vread_some(const char *p, ptrdiff_t count, enum la_type type)
{
    if (count == VL) {
        return vread(p, type);
    }
#if LA_HAS_HALVES
    if (type != LA_NATIVE) {
        return from_bits(hload_part(p, count), type);
    }
#endif
    return vload_part(p, count);
}

INLINE void
vwrite_some(char *p, ptrdiff_t count, vec x, enum la_type type)
{
    if (count == VL) {
        vwrite(p, x, type);
        return;
    }
#if LA_HAS_HALVES
    if (type != LA_NATIVE) {
        hstore_part(p, count, to_bits(x, type));
        return;
    }
#endif
    vstore_part(p, count, x);
}

/* Stores the first `count` <= VL numbers at p without masks (vstore_pieces). */
INLINE void
vwrite_pieces(char *p, ptrdiff_t count, vec x, enum la_type type)
{
#if LA_HAS_HALVES
    if (type != LA_NATIVE) {
        _Alignas(LA_ALIGN) uint16_t lanes[VL];
        if (count == VL) {
            vwrite(p, x, type);
            return;
        }
        *(u16 *)lanes = to_bits(x, type);
        copy_part(p, (const char *)lanes, 2 * count);
        return;
    }
#endif
    (void)type;
    vstore_pieces(p, count, x);
}

/* The number at p, and x there. */
INLINE T
read_one(const char *p, enum la_type type)
{
    T x;
    if (type != LA_NATIVE) {
        return vread_some(p, 1, type)[0];
    }
    memcpy(&x, p, sizeof(T));
    return x;
}

INLINE void
write_one(char *p, T x, enum la_type type)
{
    if (type != LA_NATIVE) {
        vwrite_pieces(p, 1, vset1(x), type);
        return;
    }
    memcpy(p, &x, sizeof(T));
}

INLINE void
copy_number(char *to, const char *from, enum la_type type)
{
    if (type == LA_NATIVE) {
        memcpy(to, from, sizeof(T));
    }
    else {
        memcpy(to, from, 2);
    }
}

/* The first `count` <= VL numbers at p, `step` bytes apart, then zeros. */
INLINE vec
vread_part(const char *p, ptrdiff_t step, ptrdiff_t count, enum la_type type)
{
    const ptrdiff_t size = size_of(type);
    if (step == size) {
        return vread_some(p, count, type);
    }
    _Alignas(LA_ALIGN) char lanes[LA_VBYTES] = {0};
    for (ptrdiff_t i = 0; i < count; i++) {
        copy_number(lanes + i * size, p + i * step, type);
    }
    return vread(lanes, type);
}

INLINE void
vwrite_part(char *p, ptrdiff_t step, ptrdiff_t count, vec x, enum la_type type)
{
    const ptrdiff_t size = size_of(type);
    if (step == size) {
        vwrite_some(p, count, x, type);
        return;
    }
    _Alignas(LA_ALIGN) char lanes[LA_VBYTES];
    vwrite(lanes, x, type);
    for (ptrdiff_t i = 0; i < count; i++) {
        copy_number(p + i * step, lanes + i * size, type);
    }
}

#endif
