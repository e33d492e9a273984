/* isa.h: properties of the compiler's target, under the names that the kernels use. */
#ifndef LA_ISA_H
#define LA_ISA_H

#include "../tuning.h"

/* LA_VBYTES: bytes per vector. */
#if defined(__AVX512F__)
#define LA_VBYTES 64
#define LA_LANES_f32 16
#define LA_LANES_f64 8
#define LA_MM_PREFIX(op) _mm512_##op
#elif defined(__AVX__)
#define LA_VBYTES 32
#define LA_LANES_f32 8
#define LA_LANES_f64 4
#define LA_MM_PREFIX(op) _mm256_##op
#else
#define LA_VBYTES 16
#define LA_LANES_f32 4
#define LA_LANES_f64 2
#define LA_MM_PREFIX(op) _mm_##op
#endif

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define LA_PASTE_(a, b) a##b
#define LA_PASTE(a, b) LA_PASTE_(a, b)

/* Whether to compile the instructions of AMX, for which only Linux is asked (os.h). */
#if defined(__AVX512F__) && defined(__linux__)
#define LA_HAS_AMX LA_HAS_HALVES
#else
#define LA_HAS_AMX 0
#endif

/* Numbers per vector: VL. */
#define NR LA_NR
#define VL ((ptrdiff_t)(LA_VBYTES / sizeof(T)))

/* Flags of a sweep over the state. */
#define LA_READ 1
#define LA_WRITE 2

/* The low (high) halves of x and y interleaved, by number of lanes. */
#define LA_ZIP_LOW_2(x, y) __builtin_shufflevector(x, y, 0, 2)
#define LA_ZIP_HIGH_2(x, y) __builtin_shufflevector(x, y, 1, 3)
#define LA_ZIP_LOW_4(x, y) __builtin_shufflevector(x, y, 0, 4, 1, 5)
#define LA_ZIP_HIGH_4(x, y) __builtin_shufflevector(x, y, 2, 6, 3, 7)
#define LA_ZIP_LOW_8(x, y) __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11)
#define LA_ZIP_HIGH_8(x, y) __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15)
#define LA_ZIP_LOW_16(x, y)                                                            \
    __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,  \
                            23)
#define LA_ZIP_HIGH_16(x, y)                                                           \
    __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,    \
                            30, 15, 31)

/* Of 16 lanes: halves of x and y; quarters; pairs and numbers of each quarter. */
#define LA_HALVES_LOW(x, y)                                                            \
    __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22,  \
                            23)
#define LA_HALVES_HIGH(x, y)                                                           \
    __builtin_shufflevector(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28,    \
                            29, 30, 31)
#define LA_QUARTERS_EVEN(x, y)                                                         \
    __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25,    \
                            26, 27)
#define LA_QUARTERS_ODD(x, y)                                                          \
    __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29,  \
                            30, 31)
#define LA_PAIRS_LOW(x, y)                                                             \
    __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13,    \
                            28, 29)
#define LA_PAIRS_HIGH(x, y)                                                            \
    __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15,  \
                            30, 31)
#define LA_EVEN(x, y)                                                                  \
    __builtin_shufflevector(x, y, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14,   \
                            28, 30)
#define LA_ODD(x, y)                                                                   \
    __builtin_shufflevector(x, y, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15,   \
                            29, 31)

/* Unrolled loops: entirely, because the arrays that they index must live in registers,
 * or four times.  GCC takes the number as an upper limit. */
#if defined(__clang__)
#define LA_UNROLL _Pragma("clang loop unroll(full)")
#define LA_UNROLL_BY_4 _Pragma("clang loop unroll_count(4)")
#else
#define LA_UNROLL _Pragma("GCC unroll 16")
#define LA_UNROLL_BY_4 _Pragma("GCC unroll 4")
#endif
#define LA_EACH(i, n)                                                                  \
    LA_UNROLL                                                                          \
    for (int i = 0; i < (n); i++)

/* Runs `call` for n vectors of columns from column j on, until all are done.  n is a
 * constant, `most` or, for the rest, 1. */
#define LA_TOGETHER(most, cols, call)                                                  \
    do {                                                                               \
        ptrdiff_t j = 0;                                                               \
        for (; j + (most) * VL <= (cols); j += (most) * VL) {                          \
            enum { n = (most) };                                                       \
            call;                                                                      \
        }                                                                              \
        for (; j < (cols); j += VL) {                                                  \
            enum { n = 1 };                                                            \
            call;                                                                      \
        }                                                                              \
    } while (0)

/* Runs `call` for a tile of nr vectors from column `col` on, for all W columns: tiles
 * of NR vectors and a narrower one for the rest.  It is a macro and not a function that
 * takes a function because nr has to be a constant in every loop. */
#define LA_TILE(width, call)                                                           \
    do {                                                                               \
        enum { nr = (width) };                                                         \
        call;                                                                          \
    } while (0)
#if LA_NR > 2
#define LA_NARROW_TILES(call)                                                          \
    case 3:                                                                            \
        LA_TILE(3, call);                                                              \
        break;                                                                         \
    case 2:                                                                            \
        LA_TILE(2, call);                                                              \
        break;
#else
#define LA_NARROW_TILES(call)
#endif
#define LA_BY_TILES(W, call)                                                           \
    do {                                                                               \
        ptrdiff_t col = 0;                                                             \
        for (; col + NR * VL <= (W); col += NR * VL) {                                 \
            LA_TILE(NR, call);                                                         \
        }                                                                              \
        switch (((W) - col) / VL) {                                                    \
            LA_NARROW_TILES(call)                                                      \
        case 1:                                                                        \
            LA_TILE(1, call);                                                          \
            break;                                                                     \
        default:                                                                       \
            break;                                                                     \
        }                                                                              \
    } while (0)

#define INLINE static inline __attribute__((always_inline))

#endif
