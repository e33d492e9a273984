/* kernels.c: every kernel of one instruction set and one dtype.
 *
 * Compiled once for each pair: LA_ISA names the instruction set, whose flags the build
 * adds, and LA_DTYPE the dtype (dtypes.def).  All functions are static; the unit
 * exports only la_table_<LA_ISA>_<LA_DTYPE>. */
#include "table.h"
#include "maps/elementwise.h"
#include "maps/monomials.h"
#include "maps/project.h"
#include "maps/rescaled_features.h"
#include "maps/row_maps.h"
#include "maps/scaled_features.h"
#include "convolution/conv.h"
#include "convolution/conv_backward.h"
#include "convolution/conv_step.h"
#include "scans/linear_scan.h"
#include "scans/linear_scan_backward.h"
#include "scans/selective_scan.h"
#include "scans/selective_scan_backward.h"
#include "scans/wkv.h"
#include "scans/wkv_backward.h"
#include "recurrences/causal.h"
#include "recurrences/causal_backward.h"
#include "recurrences/causal_backward_stages.h"
#include "recurrences/delta.h"
#include "recurrences/delta_backward.h"
#include "recurrences/delta_stages.h"
#include "recurrences/delta_backward_stages.h"
#include "recurrences/gated.h"
#include "recurrences/gated_backward.h"
#include "recurrences/gated_backward_stages.h"
#include "recurrences/ssd.h"
#include "recurrences/gated_delta.h"
#include "recurrences/gated_delta_backward.h"
#include "recurrences/mlstm.h"
#include "recurrences/mlstm_backward.h"
#include "recurrences/momentum_delta.h"
#include "recurrences/momentum_delta_backward.h"
#include "recurrences/rescaled_causal.h"
#include "recurrences/rescaled_causal_backward.h"
#include "recurrences/slstm.h"
#include "recurrences/slstm_backward.h"
#include "recurrences/slstm_states.h"
#include "attention/noncausal.h"
#include "attention/softmax.h"
#include "attention/softmax_backward.h"
#include "steps/delta_step.h"
#include "steps/fused_gated_delta_step.h"
#include "steps/fused_gated_step.h"
#include "steps/gated_step.h"
#include "steps/mlstm_step.h"
#include "steps/momentum_delta_step.h"
#include "steps/selective_scan_step.h"
#include "steps/slstm_step.h"
#include "steps/ssd_step.h"
#include "steps/step.h"

/* Each operator X carves its scratch in X_carve, which also measures it. */
#define LA_OP(op, form, properties, rows, doc)                                         \
    static size_t measure_##op(const struct la_head *h)                                \
    {                                                                                  \
        struct arena arena = {0};                                                      \
        op##_carve(h, &arena);                                                         \
        return arena.used;                                                             \
    }
#include "operators.def"

#define LA_MEASURE_STAGES(op, chunk, common)                                           \
    static size_t record_##op(const struct la_head *h)                                 \
    {                                                                                  \
        struct arena arena = {0};                                                      \
        chunk(h, &arena);                                                              \
        return arena.used;                                                             \
    }                                                                                  \
    static size_t shared_##op(const struct la_head *h)                                 \
    {                                                                                  \
        struct arena arena = {0};                                                      \
        common(h, &arena);                                                             \
        return arena.used;                                                             \
    }
LA_MEASURE_STAGES(causal, take_causal_record, take_lost)
LA_MEASURE_STAGES(causal_backward, take_causal_chunk, take_causal_rates)
LA_MEASURE_STAGES(gated, take_gated_chunk, take_lost)
LA_MEASURE_STAGES(gated_backward, take_gated_adjoint, take_gated_memory)
LA_MEASURE_STAGES(ssd, take_gated_chunk, take_lost)
LA_MEASURE_STAGES(ssd_backward, take_gated_adjoint, take_gated_memory)
LA_MEASURE_STAGES(delta, take_delta_record, take_delta_shared)
LA_MEASURE_STAGES(gated_delta, take_gated_delta_record, take_delta_shared)
LA_MEASURE_STAGES(dplr, take_dplr_record, take_delta_shared)
LA_MEASURE_STAGES(delta_backward, take_delta_adjoint, take_delta_memory)
LA_MEASURE_STAGES(gated_delta_backward, take_gated_delta_adjoint,
                  take_gated_delta_memory)
LA_MEASURE_STAGES(dplr_backward, take_dplr_adjoint, take_dplr_memory)

#define LA_MEASURE_STAGED(op, take)                                                    \
    static size_t staged_##op(const struct la_head *h)                                 \
    {                                                                                  \
        struct arena arena = {0};                                                      \
        take(h, &arena);                                                               \
        return arena.used;                                                             \
    }
LA_MEASURE_STAGED(causal_backward, take_causal_gradient)
LA_MEASURE_STAGED(gated_backward, take_gated_gradient)
LA_MEASURE_STAGED(ssd_backward, take_gated_gradient)
LA_MEASURE_STAGED(delta_backward, take_delta_gradient)
LA_MEASURE_STAGED(gated_delta_backward, take_gated_delta_gradient)
LA_MEASURE_STAGED(dplr_backward, take_dplr_gradient)

#define LA_STAGES(op, scratch, least, passes)                                          \
    [LA_OP_##op] = {stage_##op, scratch##_##op, record_##op, shared_##op, least, passes}

#define LA_TABLE_NAME(isa, dtype) LA_PASTE(LA_PASTE(la_table_, isa), LA_PASTE(_, dtype))

const struct la_table LA_TABLE_NAME(LA_ISA, LA_DTYPE) = {
    .vector_bytes = LA_VBYTES,
    .stages =
        {
            LA_STAGES(causal, measure, NULL, 1),
            LA_STAGES(causal_backward, staged, NULL, 2),
            LA_STAGES(gated, measure, NULL, 1),
            LA_STAGES(gated_backward, staged, least_gated_chunks, 2),
            LA_STAGES(ssd, measure, NULL, 1),
            LA_STAGES(ssd_backward, staged, least_gated_chunks, 2),
            LA_STAGES(delta, measure, NULL, 1),
            LA_STAGES(gated_delta, measure, NULL, 1),
            LA_STAGES(dplr, measure, NULL, 1),
            LA_STAGES(delta_backward, staged, least_delta_chunks, 2),
            LA_STAGES(gated_delta_backward, staged, least_delta_chunks, 2),
            LA_STAGES(dplr_backward, staged, least_delta_chunks, 2),
        },
    .kernels =
        {
#define LA_OP(op, form, properties, rows, doc) {run_##op, measure_##op},
#include "operators.def"
        },
};
