/* body.h: all kernels of one dtype.  kernels.c includes it once for each. */
#define vec FN(vec)
#define ivec FN(ivec)

#include "vec.h"
#include "half.h"
#include "feature.h"
#include "chunk.h"
#include "micro.h"
#include "state.h"
#include "scan.h"
#include "causal.h"
#include "noncausal.h"
#include "functions.h"
#include "elementwise.h"
#include "dpfp.h"
#include "project.h"
#include "running.h"
#include "softmax.h"
#include "softmax_backward.h"
#include "step.h"
#include "delta.h"
#include "delta_backward.h"
#include "delta_step.h"

#undef vec
#undef ivec
#undef FN
#undef T
#undef INT
#undef LA_HAS_HALVES
#undef LA_LANES
#undef LA_MM
#undef ROUND_MAGIC
#undef EXPONENT_BIAS
#undef MANTISSA_BITS
#undef EXP_MIN
#undef EXP_MAX
#undef LOG2_E
#undef LN2_HIGH
#undef LN2_LOW
#undef EXP_COEFFICIENTS
#undef LOG1P_COEFFICIENTS
#undef SIN_COEFFICIENTS
#undef COS_COEFFICIENTS
#undef FAR
#undef LA_QUERIES
#undef LARGEST
#undef STEP_HIGH
#undef STEP_LOW
