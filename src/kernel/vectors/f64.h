/* f64.h: double precision: the type T, its layout, and the constants of its
 * functions. */
#ifndef LA_DTYPE_H
#define LA_DTYPE_H

#define T double
#define INT int64_t
#define LA_HAS_HALVES 0
#define LA_LANES LA_LANES_f64
#define ROUND_MAGIC 0x1.8p52
#define LARGEST 0x1.fffffffffffffp1023
#define EXPONENT_BIAS 1023
#define MANTISSA_BITS 52
#define LA_SMALLEST 0x1p-1022 /* normal number */
#define EXP_MIN -746.0
#define EXP_MAX 710.0
#define EXP_NEAR 670.0 /* 2^54 e^x is finite */
#define LA_DECAY_MIN -450.0
#define LA_DECAY_MAX 150.0
#define LA_DECAY_SCALE 0x1p216
#define LOG_2 0x1.62e42fefa39efp-1
#define LOG2_E 0x1.71547652b82fep0
#define LN2_HIGH 0x1.62e42fefp-1
#define LN2_LOW 0x1.473de6af278edp-34
#define EXP_COEFFICIENTS                                                               \
    0x1p-1, 0x1.5555555555557p-3, 0x1.5555555555556p-5, 0x1.11111111100bep-7,          \
        0x1.6c16c16c162c3p-10, 0x1.a01a01abf7ed6p-13, 0x1.a01a01a6e1a43p-16,           \
        0x1.71de01ff19a6bp-19, 0x1.27e4db47938d1p-22, 0x1.af4e5274a366cp-26,           \
        0x1.1f733f411b727p-29
#define EXP2_COEFFICIENTS                                                              \
    0x1.62e42fefa39efp-1, 0x1.ebfbdff82c598p-3, 0x1.c6b08d704a0c2p-5,                  \
        0x1.3b2ab6fba1ddap-7, 0x1.5d87fe78a5276p-10, 0x1.430913096fd9fp-13,            \
        0x1.ffcbfc670dcd4p-17, 0x1.62bfd47773353p-20, 0x1.b524fae627834p-24,           \
        0x1.e6063f7217bc6p-28, 0x1.e9d3fe3952179p-32
#define LOG1P_COEFFICIENTS                                                             \
    0x1.5555555555555p-2, 0x1.9999999999944p-3, 0x1.2492492499d46p-3,                  \
        0x1.c71c71bedea97p-4, 0x1.745d19937b1fcp-4, 0x1.3b13515f6f9efp-4,              \
        0x1.111abdc8abe16p-4, 0x1.e0a2d581ab68fp-5, 0x1.bc37f0140c19ep-5,              \
        0x1.32e0d25c9c761p-5, 0x1.401d3e65cdc48p-4
#define SIN_COEFFICIENTS                                                               \
    -1.66666666666666324348e-01, 8.33333333332248946124e-03,                           \
        -1.98412698298579493134e-04, 2.75573137070700676789e-06,                       \
        -2.50507602534068634195e-08, 1.58969099521155010221e-10
#define COS_COEFFICIENTS                                                               \
    4.16666666666666019037e-02, -1.38888888888741095749e-03,                           \
        2.48015872894767294178e-05, -2.75573143513906633035e-07,                       \
        2.08757232129817482790e-09, -1.13596475577881948265e-11
#define LA_MM(op) LA_PASTE(LA_MM_PREFIX(op), _pd)

#endif
