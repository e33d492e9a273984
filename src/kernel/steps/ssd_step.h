/* ssd_step.h: one token of ssd.h on a state, by gated_step.h. */
#ifndef LA_SSD_STEP_H
#define LA_SSD_STEP_H

#include "gated_step.h"

static struct gated_step_scratch
ssd_step_carve(const struct la_head *h, struct arena *arena)
{
    return gated_step_carve(h, arena);
}

static int
run_ssd_step(const struct la_head *h)
{
    return run_gated_step(h);
}

#endif
