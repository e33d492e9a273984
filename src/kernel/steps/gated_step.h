/* gated_step.h: one token of gated linear attention on a state.
 *
 *    s <- exp(g) s + b v^T,  o = scale s^T a                 a = phi(q), b = phi(k)
 *    with a bonus:  o = scale (s_before^T a + (a.(u o b)) v)        (gated.h)
 *
 * 4 d m flops, one exponential per decay.  The state is read and written once, which
 * takes nearly all of the time. */
#ifndef LA_GATED_STEP_H
#define LA_GATED_STEP_H

#include "../decays/decay.h"
#include "step.h"

struct gated_step_scratch {
    struct step_scratch step;
    T *g, *u;
};

static struct gated_step_scratch
gated_step_carve(const struct la_head *h, struct arena *arena)
{
    struct gated_step_scratch r;
    r.step = step_carve(h, arena);
    r.step.keep = take_row(arena, h->d);
    r.step.change = take_row(arena, h->d);
    r.g = take_row(arena, h->d);
    r.u = take_row(arena, h->d);
    return r;
}

/* The factors of the state's rows, all of g or, with channels, of r->g;
 * returns whether any is a reset. */
static int
set_decay(const struct la_head *h, const struct gated_step_scratch *r, vec g)
{
    ivec resets = is_reset(g);
    if (!h->g.has_channels) {
        _Alignas(LA_ALIGN) T keep[VL], change[VL];
        decay_parts(g, (vec){0}, keep, change);
        for (ptrdiff_t l = 0; l < h->d; l += VL) {
            vstore(&r->step.keep[l], vload(keep));
            vstore(&r->step.change[l], vload(change));
        }
        return vany(resets);
    }
    for (ptrdiff_t l = 0; l < h->d; l += VL) {
        g = vload(&r->g[l]);
        decay_parts(g, (vec){0}, &r->step.keep[l], &r->step.change[l]);
        resets |= is_reset(g);
    }
    return vany(resets);
}

static int
load_decay(const struct la_head *h, const struct gated_step_scratch *r)
{
    if (!h->g.has_channels) {
        return set_decay(h, r, vset1(load_token_number(&h->g)));
    }
    load_token_plain(r->g, &h->g, h->d);
    return set_decay(h, r, (vec){0});
}

/* Resets are rare: their rule is no compile-time constant, and code is small. */
static __attribute__((noinline, cold)) int
reset_state(const struct la_head *h, const struct step_scratch *r,
            ptrdiff_t *until_poll, int rule)
{
    return step_state(h, r, until_poll, rule | LA_STEP_RESET);
}

static int
decay_state(const struct la_head *h, const struct step_scratch *r,
            ptrdiff_t *until_poll, int resets)
{
    const int gated = LA_STEP_GATED, before = gated | LA_STEP_BEFORE;
    const int rule = la_is_given(&h->bonus) ? before : gated;
    return resets           ? reset_state(h, r, until_poll, rule)
           : rule == before ? step_state(h, r, until_poll, before)
                            : step_state(h, r, until_poll, gated);
}

/* o = (a.(u o b)) v, the share of the token's own key: with a bonus, the query reads
 * the state before the write. */
static void
own_value(const struct la_head *h, const struct gated_step_scratch *r)
{
    load_token_plain(r->u, &h->bonus, h->d);
    multiply_token(r->u, r->u, r->step.b, h->d);
    const vec own = vset1(token_dot(r->step.a, r->u, h->d));
    for (ptrdiff_t j = 0; j < h->m; j += VL) {
        vstore(&r->step.o[j], own * vload(&r->step.v[j]));
    }
}

INLINE int
gated_step_head(const struct la_head *h, void *scratch, ptrdiff_t *until_poll)
{
    const struct gated_step_scratch *const r = scratch;
    load_step_rows(h, &r->step);
    const int resets = load_decay(h, r);
    clear(r->step.o, row_step(h->m));
    if (la_is_given(&h->bonus)) {
        own_value(h, r);
    }
    if (decay_state(h, &r->step, until_poll, resets)) {
        return 1;
    }
    r->step.den[0] = (T)h->scale;
    store_token(&h->o, h->m, r->step.o, r->step.den);
    return 0;
}

static int
run_gated_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct gated_step_scratch r = gated_step_carve(h, &arena);
    return run_heads(h, &r, gated_step_head);
}

#endif
