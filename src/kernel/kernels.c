/* kernels.c: every kernel of one instruction set.
 *
 * Compiled once per instruction set, with LA_ISA naming it and the flags that
 * select it; the bodies are included once per dtype.  Emits la_table_<LA_ISA>. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "table.h"
#include "fetch.h"
#include "isa.h"

#define FN(name) name##_f32
#define T float
#define INT int32_t
#define LA_HAS_HALVES 1
#define LA_LANES LA_LANES_f32
#define LA_MM(op) LA_PASTE(LA_MM_PREFIX(op), _ps)
#define ROUND_MAGIC 0x1.8p23f
#define LARGEST 0x1.fffffep127f
#define EXPONENT_BIAS 127
#define MANTISSA_BITS 23
#define EXP_MIN -104.0f
#define EXP_MAX 89.0f
#define LOG2_E 0x1.715476p0f
#define LN2_HIGH 0x1.63p-1f
#define LN2_LOW -0x1.bd0106p-13f
#define EXP_COEFFICIENTS                                                               \
    0x1p-1f, 0x1.55548ep-3f, 0x1.55545ep-5f, 0x1.123bdcp-7f, 0x1.6db4e2p-10f
#define LOG1P_COEFFICIENTS                                                             \
    0x1.555556p-2f, 0x1.9998d4p-3f, 0x1.24c926p-3f, 0x1.bc8cf8p-4f, 0x1.dba26p-4f
#define SIN_COEFFICIENTS -1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f
#define COS_COEFFICIENTS                                                               \
    4.166664568298827e-2f, -1.388731625493765e-3f, 2.443315711809948e-5f
#include "body.h"

#define FN(name) name##_f64
#define T double
#define INT int64_t
#define LA_HAS_HALVES 0
#define LA_LANES LA_LANES_f64
#define LA_MM(op) LA_PASTE(LA_MM_PREFIX(op), _pd)
#define ROUND_MAGIC 0x1.8p52
#define LARGEST 0x1.fffffffffffffp1023
#define EXPONENT_BIAS 1023
#define MANTISSA_BITS 52
#define EXP_MIN -746.0
#define EXP_MAX 710.0
#define LOG2_E 0x1.71547652b82fep0
#define LN2_HIGH 0x1.62e42fefp-1
#define LN2_LOW 0x1.473de6af278edp-34
#define EXP_COEFFICIENTS                                                               \
    0x1p-1, 0x1.5555555555557p-3, 0x1.5555555555556p-5, 0x1.11111111100bep-7,          \
        0x1.6c16c16c162c3p-10, 0x1.a01a01abf7ed6p-13, 0x1.a01a01a6e1a43p-16,           \
        0x1.71de01ff19a6bp-19, 0x1.27e4db47938d1p-22, 0x1.af4e5274a366cp-26,           \
        0x1.1f733f411b727p-29
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
#include "body.h"

const struct la_table LA_PASTE(la_table_, LA_ISA) = {
    .isa = LA_STRING(LA_ISA),
    .vector_bytes = LA_VBYTES,
    .kernels =
        {
#define LA_MAP(map)
#define LA_OP(op) {{op##_f32, op##_scratch_f32}, {op##_f64, op##_scratch_f64}},
#include "ops.def"
        },
    .tasks =
        {
#define LA_TASK(name, room, ...)                                                       \
    {{task_##name##_f32, room##_f32}, {task_##name##_f64, room##_f64}},
#include "tasks.def"
        },
};
