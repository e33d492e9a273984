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
#include "recurrences/causal_stages.h"
#include "recurrences/causal_backward.h"
#include "recurrences/causal_backward_stages.h"
#include "recurrences/delta.h"
#include "recurrences/delta_backward.h"
#include "recurrences/delta_stages.h"
#include "recurrences/delta_backward_stages.h"
#include "recurrences/gated.h"
#include "recurrences/gated_stages.h"
#include "recurrences/gated_backward.h"
#include "recurrences/gated_backward_stages.h"
#include "recurrences/ssd.h"
#include "recurrences/gated_delta.h"
#include "recurrences/gated_delta_backward.h"
#include "recurrences/mlstm.h"
#include "recurrences/mlstm_stages.h"
#include "recurrences/mlstm_backward.h"
#include "recurrences/mlstm_backward_stages.h"
#include "recurrences/momentum_delta.h"
#include "recurrences/momentum_delta_backward.h"
#include "recurrences/momentum_backward_stages.h"
#include "recurrences/rescaled_causal.h"
#include "recurrences/rescaled_causal_backward.h"
#include "recurrences/slstm.h"
#include "recurrences/slstm_backward.h"
#include "recurrences/slstm_states.h"
#include "attention/noncausal.h"
#include "attention/noncausal_backward.h"
#include "attention/noncausal_stages.h"
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

/* The bytes that `take` takes; op##_carve is that of an operator's scratch. */
#define LA_MEASURE(name, take)                                                         \
    static size_t name(const struct la_head *h)                                        \
    {                                                                                  \
        struct arena arena = {0};                                                      \
        take(h, &arena);                                                               \
        return arena.used;                                                             \
    }
#define LA_OP(op, form, properties, rows, doc) LA_MEASURE(measure_##op, op##_carve)
#include "operators.def"

/* Operators with stages: what their scratch, a record, and what all groups share are
 * taken by; the tokens of a chunk; the least chunks of a group, its passes, whether the
 * second one is in reverse, whether something follows them, and panels of the state. */
#define LA_ALL_STAGES(X)                                                               \
    X(causal, causal_carve, take_causal_record, take_lost, run_tokens, NULL, 1, 0, 0,  \
      NULL)                                                                            \
    X(causal_backward, take_causal_gradient, take_causal_chunk, take_causal_rates,     \
      gradient_rows, NULL, 2, 1, 0, NULL)                                              \
    X(noncausal, noncausal_carve, take_noncausal_run, take_noncausal_sums,             \
      noncausal_run_tokens, NULL, 2, 0, 0, NULL)                                       \
    X(noncausal_backward, noncausal_backward_carve, take_noncausal_run,                \
      take_noncausal_sums, noncausal_run_tokens, NULL, 3, 0, 0, NULL)                  \
    X(gated, gated_carve, take_gated_chunk, take_lost, head_rows, NULL, 1, 0, 0, NULL) \
    X(gated_backward, take_gated_gradient, take_gated_adjoint, take_gated_memory,      \
      gated_gradient_rows, least_gated_chunks, 2, 1, 0, NULL)                          \
    X(ssd, gated_carve, take_gated_chunk, take_lost, head_rows, NULL, 1, 0, 0, NULL)   \
    X(ssd_backward, take_gated_gradient, take_gated_adjoint, take_gated_memory,        \
      gated_gradient_rows, least_gated_chunks, 2, 1, 0, NULL)                          \
    X(mlstm, take_mlstm, take_gated_chunk, take_mlstm_memory, head_rows, NULL, 1, 0,   \
      0, NULL)                                                                         \
    X(mlstm_backward, take_mlstm_gradient, take_mlstm_adjoint,                         \
      take_mlstm_gradient_memory, gated_gradient_rows, least_gated_chunks, 2, 1, 1,    \
      NULL)                                                                            \
    X(delta, delta_carve, take_delta_record, take_delta_shared, delta_rows, NULL, 1,   \
      0, 0, NULL)                                                                      \
    X(delta_backward, take_delta_gradient, take_delta_adjoint, take_delta_memory,      \
      delta_rows, least_delta_chunks, 2, 1, 0, NULL)                                   \
    X(gated_delta, gated_delta_carve, take_gated_delta_record, take_delta_shared,      \
      delta_rows, NULL, 1, 0, 0, NULL)                                                 \
    X(gated_delta_backward, take_gated_delta_gradient, take_gated_delta_adjoint,       \
      take_gated_delta_memory, delta_rows, least_delta_chunks, 2, 1, 0, NULL)          \
    X(dplr, dplr_carve, take_dplr_record, take_delta_shared, delta_rows, NULL, 1, 0,   \
      0, NULL)                                                                         \
    X(dplr_backward, take_dplr_gradient, take_dplr_adjoint, take_dplr_memory,          \
      delta_rows, least_delta_chunks, 2, 1, 0, NULL)                                   \
    X(momentum_delta_backward, take_momentum_gradient, take_momentum_record,           \
      take_momentum_memory, momentum_block_rows, NULL, 2, 1, 0, momentum_panels)

#define LA_MEASURE_STAGES(op, scratch, record, shared, rows, least, passes, reverse,   \
                          ends, panels)                                                \
    LA_MEASURE(scratch_of_##op, scratch)                                               \
    LA_MEASURE(record_of_##op, record)                                                 \
    LA_MEASURE(shared_of_##op, shared)
LA_ALL_STAGES(LA_MEASURE_STAGES)

#define LA_STAGES(op, scratch, record, shared, rows, least, passes, reverse, ends,     \
                  panels)                                                              \
    [LA_OP_##op] = {stage_##op, scratch_of_##op, record_of_##op, shared_of_##op,       \
                    rows,       least,           passes,         reverse,              \
                    ends,       panels},

#define LA_TABLE_NAME(isa, dtype) LA_PASTE(LA_PASTE(la_table_, isa), LA_PASTE(_, dtype))

const struct la_table LA_TABLE_NAME(LA_ISA, LA_DTYPE) = {
    .vector_bytes = LA_VBYTES,
    .stages = {LA_ALL_STAGES(LA_STAGES)},
    .kernels =
        {
#define LA_OP(op, form, properties, rows, doc) {run_##op, measure_##op},
#include "operators.def"
        },
};
