/* f32.h: single precision: the type T, its layout, and the constants of its
 * functions. */
#ifndef LA_DTYPE_H
#define LA_DTYPE_H

#define T float
#define INT int32_t
#define LA_HAS_HALVES 1
#define LA_LANES LA_LANES_f32
#define ROUND_MAGIC 0x1.8p23f
#define LARGEST 0x1.fffffep127f
#define EXPONENT_BIAS 127
#define MANTISSA_BITS 23
#define LA_SMALLEST 0x1p-126f /* normal number */
#define EXP_MIN -104.0f
#define EXP_MAX 89.0f
#define EXP_NEAR 70.0f /* 2^25 e^x is finite */
#define LA_DECAY_MIN -60.0f
#define LA_DECAY_MAX 20.0f
#define LA_DECAY_SCALE 0x1p29f
#define LOG_2 0x1.62e43p-1f
#define LOG2_E 0x1.715476p0f
#define LN2_HIGH 0x1.63p-1f
#define LN2_LOW -0x1.bd0106p-13f
#define EXP_COEFFICIENTS                                                               \
    0x1p-1f, 0x1.55548ep-3f, 0x1.55545ep-5f, 0x1.123bdcp-7f, 0x1.6db4e2p-10f
#define EXP2_COEFFICIENTS                                                              \
    0x1.62e43p-1f, 0x1.ebfbep-3f, 0x1.c6af6cp-5f, 0x1.3b2a54p-7f, 0x1.5f089p-10f,      \
        0x1.44138ap-13f
#define LOG1P_COEFFICIENTS                                                             \
    0x1.555556p-2f, 0x1.9998d4p-3f, 0x1.24c926p-3f, 0x1.bc8cf8p-4f, 0x1.dba26p-4f
#define SIN_COEFFICIENTS -1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f
#define COS_COEFFICIENTS                                                               \
    4.166664568298827e-2f, -1.388731625493765e-3f, 2.443315711809948e-5f
#define LA_MM(op) LA_PASTE(LA_MM_PREFIX(op), _ps)

#endif
