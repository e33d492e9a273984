/* momentum_delta.h: the delta rule with momentum, one head, token by token.
 *
 *    E_i = v_i - S_{i-1}^T p_i
 *    M_i = exp(mu_i) M_{i-1} - eta_i k_i E_i^T
 *    S_i = exp(g_i) S_{i-1} - beta_i M_i,  o_i = scale S_i^T q_i
 *                                       Momentum DeltaNet 2026, arXiv:2605.05838
 *
 * q, k, p (n,d), v, o (n,m), g, mu, beta, eta (n).  The state's s and z (d,m) are S and
 * M.  A chunk would take as many multiply-adds as its tokens one by one, six per number
 * of S, as its tokens read and write both matrices; so each token makes one pass over
 * them, panel by panel of columns (momentum_panel.h).
 *
 * 12 n d m flops.  Scratch: S and M, 2 d m numbers, and a few rows.  Tokens past the
 * last key only read.  Rows j > i never affect row i. */
#ifndef LA_MOMENTUM_DELTA_H
#define LA_MOMENTUM_DELTA_H

#include "momentum_panel.h"

struct momentum_delta_scratch {
    struct momentum_rows rows;
    T *state, *scale;
};

static struct momentum_delta_scratch
momentum_delta_carve(const struct la_head *h, struct arena *arena)
{
    return (struct momentum_delta_scratch){
        .rows = take_momentum_rows(h, arena, LA_CHUNK_MAX),
        .state = take_momentum(arena, h, 1),
        .scale = take_row(arena, LA_CHUNK_MAX),
    };
}

static int
run_momentum_delta(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct momentum_delta_scratch r = momentum_delta_carve(h, &arena);
    struct la_fetch look = {0};
    ptrdiff_t until_poll = 0;
    LA_BY_PANELS(
        h->m, load_momentum(momentum_at(r.state, h, col), h, &h->s0, &h->z0, col, nr));
    fill_scale(r.scale, h, LA_CHUNK_MAX);
    for (ptrdiff_t i = 0; i < h->n; i += LA_CHUNK_MAX) {
        const struct span t = span(i, LA_CHUNK_MAX, i + LA_CHUNK_MAX, h->n, &look);
        if (give_up(h, &until_poll, 6 * t.rows * h->d * h->m)) {
            return 1;
        }
        load_momentum_rows(h, &r.rows, t);
        look_ahead(&h->o, t, h->m);
        LA_BY_PANELS(h->m, momentum_outputs(h, &r.rows, t.rows, keys_left(h, t), col,
                                            momentum_at(r.state, h, col), nr, &look));
        store_rows(&h->o, t, h->m, r.rows.o, r.scale);
    }
    LA_BY_PANELS(
        h->m, store_momentum(&h->s1, &h->z1, momentum_at(r.state, h, col), h, col, nr));
    return 0;
}

#endif
