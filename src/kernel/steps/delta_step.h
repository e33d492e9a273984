/* delta_step.h: one token of the delta rule, the gated delta rule or DPLR, on a state.
 *
 *    u = beta o (v - M^T e),  s <- M + b u^T,  M = exp(g) s     (delta: g = 0, e = b)
 *    u = s^T c,  s <- M + b u^T + k v^T                         (DPLR, c its a)
 *    o = scale s^T a = scale (M^T a + (a.b) u [+ (a.k) v])
 *
 * with a = phi(q), b = phi(k).  See delta.h and gated_delta.h for the sources.  6 d m
 * flops.  One pass over the rows of the state computes both products with it, and a
 * second one, which finds them in the first- or second-level cache, updates them: both
 * in order, as processors prefetch best.  Prefetching the next head, or reading it
 * while this one is written, takes as long: two multiply-adds per number and pass are
 * the limit. */
#ifndef LA_DELTA_STEP_H
#define LA_DELTA_STEP_H

#include "delta_step_columns.h"
#include "delta_step_tile.h"
#include "../decays/decay.h"

static struct delta_step_scratch
step_rule_carve(const struct la_head *h, struct arena *arena, enum step_rule rule)
{
    struct delta_step_scratch r = {0};
    r.a = r.reads = take_row(arena, h->d);
    r.b = r.erases = r.k = take_row(arena, h->d);
    if (rule != DELTA_STEP) {
        r.reads = take_row(arena, h->d);
        r.erases = take_row(arena, h->d);
        r.decay = take_row(arena, h->d);
    }
    if (rule == DPLR_STEP) {
        r.k = take_row(arena, h->d);
    }
    r.v = take_row(arena, h->m);
    r.o = take_row(arena, h->m);
    r.rotated_v = take_row(arena, h->m);
    r.rotated_o = take_row(arena, h->m);
    r.beta.step = h->beta.has_channels;
    r.beta.rows.x = take_row(arena, r.beta.step ? h->m : 1);
    r.rotated_beta = take_row(arena, r.beta.step ? h->m : 1);
    r.scale = take(arena, 1, VL);
    return r;
}

/* decay = exp(g) in every channel; returns whether any is a reset. */
static int
load_step_decay(const struct la_head *h, T *decay)
{
    ivec resets = {0};
    if (!h->g.has_channels) {
        const vec g = vset1(load_token_number(&h->g)), all = vexp(g);
        for (ptrdiff_t l = 0; l < h->d; l += VL) {
            vstore(&decay[l], all);
        }
        return vany(is_reset(g));
    }
    load_token_plain(decay, &h->g, h->d);
    for (ptrdiff_t l = 0; l < h->d; l += VL) {
        const vec g = vload(&decay[l]);
        vstore(&decay[l], vexp(g));
        resets |= is_reset(g);
    }
    return vany(resets);
}

static void
load_step_beta(const struct la_head *h, const struct beta *beta)
{
    if (h->beta.has_channels) {
        load_token_plain(beta->rows.x, &h->beta, h->m);
    }
    else {
        vstore(beta->rows.x, vset1(load_token_number(&h->beta)));
    }
}

/* Loads the rows of the token.  Returns whether rows of the state must be set to 0
 * since they could be inf or NaN.  DPLR reads the rows before the reset, so they would
 * be inf or NaN again. */
INLINE int
load_step(const struct la_head *h, struct delta_step_scratch *r,
          const enum step_rule rule)
{
    const ptrdiff_t d = h->d;
    load_token_mapped(r->a, &h->q, d, h->map);
    load_token_mapped(r->k, &h->k, d, h->map);
    load_token_plain(r->v, &h->v, h->m);
    if (rule == DPLR_STEP) {
        load_token_plain(r->b, &h->b, d);
        load_token_plain(r->erases, &h->a, d);
        r->dot_k = token_dot(r->a, r->k, d);
    }
    else {
        load_step_beta(h, &r->beta);
    }
    r->dot = token_dot(r->a, r->b, d);
    if (rule == DELTA_STEP) {
        return 0;
    }
    const int resets = load_step_decay(h, r->decay);
    multiply_token(r->reads, r->a, r->decay, d);
    if (rule == GATED_STEP) {
        if (la_is_given(&h->erase)) {
            load_token_plain(r->erases, &h->erase, d);
        }
        multiply_token(r->erases, la_is_given(&h->erase) ? r->erases : r->b, r->decay,
                       d);
    }
    return resets && rule == GATED_STEP;
}

/* All columns of the state, of numbers of that type; nonzero: stop. */
INLINE int
delta_step_state_of(const struct la_head *h, const struct delta_step_scratch *r,
                    ptrdiff_t *until_poll, const enum step_rule rule, const int resets,
                    const enum la_type type)
{
    const struct la_array from = h->s0, to = h->s1;
    if (by_vectors(&from, &to)) {
        const struct rotation by = rotation_of(&from, &to, h->d, h->m), none = {0};
        return type == LA_NATIVE && !resets && by.shift > 0
                   ? delta_step_rotated(h, r, until_poll, from, to, &by, rule)
                   : delta_step_columns(h, r, until_poll, &from, &to, &none, rule,
                                        resets, type);
    }
    if (both_by_columns(&from, &to)) {
        return delta_step_squares(h, r, until_poll, &from, &to, rule, resets, type);
    }
    for (ptrdiff_t j = 0; j < h->m; j++) {
        if (give_up(h, until_poll, 3 * h->d)) {
            return 1;
        }
        delta_step_column(r, &from, &to, h->d, j, rule, resets);
    }
    return 0;
}

#if LA_HAS_HALVES
/* The same of 16 bits.  Not inlined: compilers give the loops over other states fewer
 * registers beside these. */
static __attribute__((noinline)) int
delta_step_halves(const struct la_head *h, const struct delta_step_scratch *r,
                  ptrdiff_t *until_poll, enum step_rule rule, int resets)
{
    int stop = 0;
    switch (rule) {
    case DELTA_STEP:
        LA_BY_HALF(h->s1.type,
                   stop = delta_step_state_of(h, r, until_poll, DELTA_STEP, 0, type));
        break;
    case DPLR_STEP:
        LA_BY_HALF(h->s1.type,
                   stop = delta_step_state_of(h, r, until_poll, DPLR_STEP, 0, type));
        break;
    default:
        LA_BY_HALF(
            h->s1.type,
            stop = resets ? delta_step_state_of(h, r, until_poll, GATED_STEP, 1, type)
                          : delta_step_state_of(h, r, until_poll, GATED_STEP, 0, type));
    }
    return stop;
}
#endif

INLINE int
delta_step_state(const struct la_head *h, const struct delta_step_scratch *r,
                 ptrdiff_t *until_poll, const enum step_rule rule, const int resets)
{
#if LA_HAS_HALVES
    return h->s1.type == LA_NATIVE
               ? delta_step_state_of(h, r, until_poll, rule, resets, LA_NATIVE)
               : delta_step_halves(h, r, until_poll, rule, resets);
#else
    return delta_step_state_of(h, r, until_poll, rule, resets, LA_NATIVE);
#endif
}

INLINE int
step_rule_head(const struct la_head *h, struct delta_step_scratch *r,
               ptrdiff_t *until_poll, const enum step_rule rule)
{
    const int resets = load_step(h, r, rule);
    if (resets ? delta_step_state(h, r, until_poll, rule, 1)
               : delta_step_state(h, r, until_poll, rule, 0)) {
        return 1;
    }
    r->scale[0] = (T)h->scale;
    store_token(&h->o, h->m, r->o, r->scale);
    return 0;
}

static struct delta_step_scratch
delta_step_carve(const struct la_head *h, struct arena *arena)
{
    return step_rule_carve(h, arena, DELTA_STEP);
}

INLINE int
delta_step_head(const struct la_head *h, void *scratch, ptrdiff_t *until_poll)
{
    return step_rule_head(h, scratch, until_poll, DELTA_STEP);
}

static int
run_delta_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct delta_step_scratch r = delta_step_carve(h, &arena);
    return run_heads(h, &r, delta_step_head);
}

static struct delta_step_scratch
gated_delta_step_carve(const struct la_head *h, struct arena *arena)
{
    return step_rule_carve(h, arena, GATED_STEP);
}

INLINE int
gated_delta_step_head(const struct la_head *h, void *scratch, ptrdiff_t *until_poll)
{
    return step_rule_head(h, scratch, until_poll, GATED_STEP);
}

static int
run_gated_delta_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct delta_step_scratch r = gated_delta_step_carve(h, &arena);
    return run_heads(h, &r, gated_delta_step_head);
}

static struct delta_step_scratch
dplr_step_carve(const struct la_head *h, struct arena *arena)
{
    return step_rule_carve(h, arena, DPLR_STEP);
}

INLINE int
dplr_step_head(const struct la_head *h, void *scratch, ptrdiff_t *until_poll)
{
    return step_rule_head(h, scratch, until_poll, DPLR_STEP);
}

static int
run_dplr_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct delta_step_scratch r = dplr_step_carve(h, &arena);
    return run_heads(h, &r, dplr_step_head);
}

#endif
