/* ssd.h: gated linear attention with a strength for each write and a skip, one head.
 *
 *    s_i = exp(g_i) s_{i-1} + w_i k_i v_i^T                Dao and Gu 2024, eq. 1
 *    o_i = scale s_i^T q_i + D o v_i
 *
 * This is gated.h and gated_backward.h with the values of writes.h: about 4 n d m and
 * 12 n d m flops, plus the triangles. */
#ifndef LA_SSD_H
#define LA_SSD_H

#include "gated_backward_stages.h"
#include "gated_stages.h"

static struct gated_scratch
ssd_carve(const struct la_head *h, struct arena *arena)
{
    return gated_carve(h, arena);
}

static int
run_ssd(const struct la_head *h)
{
    return run_gated(h);
}

static int
stage_ssd(const struct la_head *h)
{
    return stage_gated(h);
}

static struct gated_backward_scratch
ssd_backward_carve(const struct la_head *h, struct arena *arena)
{
    return gated_backward_carve(h, arena);
}

static int
run_ssd_backward(const struct la_head *h)
{
    return run_gated_backward(h);
}

static int
stage_ssd_backward(const struct la_head *h)
{
    return stage_gated_backward(h);
}

#endif
