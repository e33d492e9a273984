/* mlstm_stages.h: mLSTM (mlstm.h) in stages (stages.c), those of gated attention.  The
 * gates of all tokens are made before the first group. */
#ifndef LA_MLSTM_STAGES_H
#define LA_MLSTM_STAGES_H

#include "gated_stages.h"
#include "mlstm.h"

/* What all groups share, beside what the state has lost. */
static struct mlstm_gates
take_mlstm_memory(const struct la_head *h, struct arena *arena)
{
    take_lost(h, arena);
    return take_mlstm_gates(h, arena);
}

static int
stage_mlstm(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0}, shared = {h->chunks->shared, 0};
    struct mlstm_scratch r = take_mlstm(h, &arena);
    r.gates = take_mlstm_memory(h, &shared);
    const struct la_head one = mlstm_head(h, &r);
    if (h->stage.kind == LA_CUT && begins_head(h) && load_mlstm_gates(h, &r.gates)) {
        return 1;
    }
    return gated_stage(&one, &r.gated);
}

#endif
