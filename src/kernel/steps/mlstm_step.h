/* mlstm_step.h: one token of mLSTM on a state.
 *
 *    s <- exp(g) s + write k v^T,  z likewise, log_scale <- m       (mlstm.h)
 *
 * with the gates of mlstm_gates.h, relative to the running maximum m as the state holds
 * it, which is rounded.  4 d m flops; the state is read and written once, which takes
 * nearly all of the time. */
#ifndef LA_MLSTM_STEP_H
#define LA_MLSTM_STEP_H

#include "gated_step.h"
#include "../recurrences/mlstm.h"

struct mlstm_step_scratch {
    struct gated_step_scratch gated;
    T *i, *f, *top;
};

static struct mlstm_step_scratch
mlstm_step_carve(const struct la_head *h, struct arena *arena)
{
    struct mlstm_step_scratch r = {.gated = gated_step_carve(h, arena)};
    r.i = take_row(arena, 1);
    r.f = take_row(arena, 1);
    r.top = take_row(arena, 1);
    return r;
}

/* The token's gates: f <- g, i <- write, top <- m; and log_scale. */
static void
load_step_gates(const struct la_head *h, const struct mlstm_step_scratch *r)
{
    T first;
    memcpy(&first, h->log_scale0.data, sizeof(first));
    load_token_row(r->i, &h->i_gate, rows_from(0, 1));
    load_token_row(r->f, &h->f_gate, rows_from(0, 1));
    log_sigmoids(r->f, 1);
    clear(r->top, VL);
    struct running_maximum m = {first, 0, 0};
    gate_token(&m, r->f, r->i);
    r->top[0] = settle_maximum(&m, r->f, r->i);
    gate_exponentials(r->i, 1);
    memcpy(h->log_scale1.data, r->top, sizeof(T));
}

/* z <- exp(g) z + b */
static void
step_sums(const struct la_head *h, const struct step_scratch *r, int resets)
{
    load_vector(r->z, &h->z0, h->d);
    for (ptrdiff_t l = 0; l < h->d; l += VL) {
        const vec keep = vload(&r->keep[l]), change = vload(&r->change[l]);
        const vec z = resets ? (vec){0} : vload(&r->z[l]);
        vstore(&r->z[l], vfma(change, z, keep_of(keep, z)) + vload(&r->b[l]));
    }
    store_vector(&h->z1, r->z, h->d);
}

static int
run_mlstm_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct mlstm_step_scratch all = mlstm_step_carve(h, &arena);
    const struct step_scratch r = all.gated.step;
    ptrdiff_t until_poll = LA_POLL; /* the caller has just polled */
    load_step_rows(h, &r);
    load_step_gates(h, &all);
    const int resets = set_decay(h, &all.gated, vset1(all.f[0]));
    write_rows((struct block){r.b, row_step(h->d)}, (struct block){r.v, row_step(h->m)},
               1, all.i);
    clear(r.o, row_step(h->m));
    if (decay_state(h, &r, &until_poll, resets)) {
        return 1;
    }
    if (h->normalize) {
        step_sums(h, &r, resets);
        vstore(r.den, vset1(token_dot(r.a, r.z, h->d)));
    }
    mlstm_outputs(h, (struct block){r.o, row_step(h->m)}, r.den, r.lift, all.top, 1);
    store_token(&h->o, h->m, r.o, r.den);
    return 0;
}

#endif
