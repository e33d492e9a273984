/* gated_step.h: one token of gated linear attention on a state.
 *
 *    s <- exp(g) s + b v^T,  o = scale s^T a                 a = phi(q), b = phi(k)
 *    with a bonus:  o = scale (s_before^T a + (a.(u o b)) v)        (gated.h)
 *    with a strength w and a skip D:  w v in place of v, o + D o v  (writes.h)
 *
 * 4 d m flops, one exponential per decay.  The state is read and written once, which
 * takes nearly all of the time. */
#ifndef LA_GATED_STEP_H
#define LA_GATED_STEP_H

#include "../decays/decay.h"
#include "../recurrences/writes.h"
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

/* v <- w v */
static void
scale_value(const struct la_head *h, const struct step_scratch *r)
{
    const T strength = load_token_number(&h->strength);
    scale_rows((struct block){r->v, row_step(h->m)}, 1, &strength);
}

/* o <- scale o + D o v, with the unscaled v; den, the factor of o, becomes 1. */
static void
skip_token(const struct la_head *h, const struct step_scratch *r)
{
    const struct block o = {r->o, row_step(h->m)};
    T *const v = r->rotated_v, *const skip = r->rotated_o; /* unused by now */
    load_token_plain(v, &h->v, h->m);
    load_token_plain(skip, &h->D, h->m);
    scale_rows(o, 1, r->den);
    add_skip(o, skip, (struct block){v, 0}, 1, h->m);
    r->den[0] = 1;
}

INLINE int
gated_step_head(const struct la_head *h, void *scratch, ptrdiff_t *until_poll)
{
    const struct gated_step_scratch *const r = scratch;
    load_step_rows(h, &r->step);
    if (la_is_given(&h->strength)) {
        scale_value(h, &r->step);
    }
    const int resets = load_decay(h, r);
    clear(r->step.o, row_step(h->m));
    if (la_is_given(&h->bonus)) {
        own_value(h, r);
    }
    if (decay_state(h, &r->step, until_poll, resets)) {
        return 1;
    }
    r->step.den[0] = (T)h->scale;
    if (la_is_given(&h->D)) {
        skip_token(h, &r->step);
    }
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
