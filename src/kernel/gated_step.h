/* gated_step.h: one token of gated linear attention on a state.
 *
 *    s <- exp(g) s + b v^T,  o = scale s^T a                 a = phi(q), b = phi(k)
 *    with a bonus:  o = scale (s_before^T a + (a.(u o b)) v)        (gated.h)
 *
 * 4 d m flops, one exponential per gate.  The state is read and written once, which
 * takes nearly all of the time.  Without s0, the state in s1 is updated in place. */
#ifndef LA_GATED_STEP_H
#define LA_GATED_STEP_H

#include "gate.h"
#include "step.h"

struct gated_step_scratch {
    struct step_scratch step;
    struct block g, u; /* one row of each */
};

static struct gated_step_scratch
gated_step_carve(const struct la_head *h, struct arena *arena)
{
    struct gated_step_scratch r;
    r.step = step_carve(h, arena);
    r.step.keep = take_row(arena, h->d);
    r.step.change = take_row(arena, h->d);
    r.g = take_block(arena, MR, h->channels[LA_AT_g] ? h->d : 1);
    r.u = take_block(arena, MR, h->d);
    return r;
}

/* The factors of the state's rows, all of the gate g or, with channels, of r->g;
 * returns whether any gate is a reset. */
static int
set_decay(const struct la_head *h, const struct gated_step_scratch *r, vec g)
{
    ivec resets = {0};
    for (ptrdiff_t l = 0; l < h->d; l += VL) {
        g = h->channels[LA_AT_g] ? vload(&r->g.x[l]) : g;
        decay_parts(g, (vec){0}, &r->step.keep[l], &r->step.change[l]);
        resets |= is_reset(g);
    }
    return vany(resets);
}

static int
load_decay(const struct la_head *h, const struct gated_step_scratch *r)
{
    load_plain(r->g, &h->g, rows_from(0, 1), h->channels[LA_AT_g] ? h->d : 1);
    return set_decay(h, r, vset1(r->g.x[0]));
}

/* step_state with a kind that is a compile-time constant. */
static int
decay_state(const struct la_head *h, const struct step_scratch *r, int resets)
{
    const int gated = LA_STEP_GATED, before = gated | LA_STEP_BEFORE;
    if (resets) {
        return la_is_given(&h->bonus) ? step_state(h, r, before | LA_STEP_RESET)
                                      : step_state(h, r, gated | LA_STEP_RESET);
    }
    return la_is_given(&h->bonus) ? step_state(h, r, before) : step_state(h, r, gated);
}

/* o = (a.(u o b)) v, the share of the token's own key: with a bonus, the query reads
 * the state before the write. */
static void
own_value(const struct la_head *h, const struct gated_step_scratch *r)
{
    load_plain(r->u, &h->bonus, rows_from(0, 1), h->d);
    for (ptrdiff_t l = 0; l < h->d; l += VL) {
        vstore(&r->u.x[l], vload(&r->u.x[l]) * vload(&r->step.b.x[l]));
    }
    row_dots(r->step.den, r->step.a, r->u, 1, round_up(h->d, VL));
    const vec own = vset1(r->step.den[0]);
    for (ptrdiff_t j = 0; j < h->m; j += VL) {
        vstore(&r->step.o.x[j], own * vload(&r->step.v.x[j]));
    }
}

static int
run_gated_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct gated_step_scratch r = gated_step_carve(h, &arena);
    load_token(h, &r.step);
    const int resets = load_decay(h, &r);
    clear(r.step.o.x, r.step.o.ld);
    if (la_is_given(&h->bonus)) {
        own_value(h, &r);
    }
    if (decay_state(h, &r.step, resets)) {
        return 1;
    }
    factors(h, r.step.den, 1, 0, NULL);
    store_rows(&h->o, rows_from(0, 1), h->m, r.step.o, r.step.den);
    return 0;
}

#endif
