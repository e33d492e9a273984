/* kernels.c: every kernel of one instruction set and one dtype.
 *
 * Compiled once for each pair: LA_ISA names the instruction set, whose flags the build
 * adds, and LA_DTYPE the dtype (dtypes.def).  All functions are static; the unit
 * exports only la_table_<LA_ISA>_<LA_DTYPE>. */
#include "causal.h"
#include "causal_backward.h"
#include "conv.h"
#include "conv_backward.h"
#include "conv_step.h"
#include "delta.h"
#include "delta_backward.h"
#include "delta_step.h"
#include "elementwise.h"
#include "fused_gated_delta_step.h"
#include "fused_gated_step.h"
#include "gated.h"
#include "gated_backward.h"
#include "gated_delta.h"
#include "gated_delta_backward.h"
#include "gated_step.h"
#include "linear_scan.h"
#include "linear_scan_backward.h"
#include "mlstm.h"
#include "mlstm_backward.h"
#include "mlstm_step.h"
#include "monomials.h"
#include "noncausal.h"
#include "project.h"
#include "rescaled_causal.h"
#include "rescaled_causal_backward.h"
#include "rescaled_features.h"
#include "row_maps.h"
#include "scaled_features.h"
#include "selective_scan.h"
#include "selective_scan_backward.h"
#include "selective_scan_step.h"
#include "softmax.h"
#include "softmax_backward.h"
#include "step.h"
#include "table.h"
#include "wkv.h"
#include "wkv_backward.h"

/* Each operator X carves its scratch in X_carve, which also measures it. */
#define LA_OP(op, form, properties, rows, doc)                                         \
    static size_t measure_##op(const struct la_head *h)                                \
    {                                                                                  \
        struct arena arena = {0};                                                      \
        op##_carve(h, &arena);                                                         \
        return arena.used;                                                             \
    }
#include "operators.def"

#define LA_TABLE_NAME(isa, dtype) LA_PASTE(LA_PASTE(la_table_, isa), LA_PASTE(_, dtype))

const struct la_table LA_TABLE_NAME(LA_ISA, LA_DTYPE) = {
    .vector_bytes = LA_VBYTES,
    .kernels =
        {
#define LA_OP(op, form, properties, rows, doc) {run_##op, measure_##op},
#include "operators.def"
        },
};
