/* mlstm_backward_stages.h: the gradients of mLSTM (mlstm_backward.h) in stages
 * (stages.c), those of gated attention.
 *
 * What tokens add to R depends on the denominators of their outputs, and so on the
 * states: the first pass computes these denominators, as gradients do, and notes what
 * follows from them.  That takes 2 n d m flops more, and two triangles. */
#ifndef LA_MLSTM_BACKWARD_STAGES_H
#define LA_MLSTM_BACKWARD_STAGES_H

#include "gated_backward_stages.h"
#include "mlstm_backward.h"

static struct mlstm_backward_scratch
take_mlstm_gradient(const struct la_head *h, struct arena *arena)
{
    const struct la_head one = with_z(h);
    return mlstm_rows(h, arena, take_gated_gradient(&one, arena));
}

static struct gated_adjoint
take_mlstm_adjoint(const struct la_head *h, struct arena *arena)
{
    const struct la_head one = with_z(h);
    return take_gated_adjoint(&one, arena);
}

/* What all groups share, beside what those of gated attention do. */
static struct mlstm_sequence
take_mlstm_gradient_memory(const struct la_head *h, struct arena *arena)
{
    const struct la_head one = with_z(h);
    take_gated_memory(&one, arena);
    return take_mlstm_sequence(h, arena);
}

static int
stage_mlstm_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0}, shared = {h->chunks->shared, 0};
    struct mlstm_backward_scratch r = take_mlstm_gradient(h, &arena);
    r.all = take_mlstm_gradient_memory(h, &shared);
    const struct la_head one = mlstm_gradient_head(h, &r.all);
    const int begins = h->stage.kind == LA_CUT && begins_head(h) && !h->chunks->reverse;
    if (h->stage.kind == LA_END) {
        return end_mlstm_gradient(h, &r.all, r.z);
    }
    clear(r.slope, row_step(r.gated.chunks.rows)); /* without z */
    return (begins && begin_mlstm_gradient(h, &r.all, r.z)) ||
           gated_backward_stage(&one, &r.gated);
}

#endif
