/* slstm_states.h: the states of sLSTM (slstm.h) after each token, one head of some
 * sequences; and their gradients.
 *
 *    y_t = (h_t, c_t, n_t, m_t)                       y (n,4,d)
 *
 * As slstm and slstm_backward, whose flops and scratch they have. */
#ifndef LA_SLSTM_STATES_H
#define LA_SLSTM_STATES_H

#include "slstm_backward.h"

static struct slstm_scratch
slstm_states_carve(const struct la_head *h, struct arena *arena)
{
    struct slstm_scratch r = slstm_carve(h, arena);
    r.fields = 4;
    return r;
}

static int
run_slstm_states(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct slstm_scratch r = slstm_states_carve(h, &arena);
    return slstm_all(h, &r);
}

static struct slstm_backward_scratch
slstm_states_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct slstm_backward_scratch r = slstm_backward_carve(h, arena);
    r.forward.fields = 4;
    return r;
}

static int
run_slstm_states_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct slstm_backward_scratch r = slstm_states_backward_carve(h, &arena);
    return reverse_all(h, &r);
}

#endif
