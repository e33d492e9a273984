/* delta_step.h: one token of the delta rule, the gated delta rule or DPLR, on a state.
 *
 *    u = beta o (v - R^T e),  s <- R + b u^T,  R = exp(g) s     (delta: g = 0, e = b)
 *    u = s^T c,  s <- R + b u^T + k v^T                         (DPLR, c its a)
 *    o = scale s^T a = scale (R^T a + (a.b) u [+ (a.k) v])
 * with a = phi(q), b = phi(k).  See delta.h and gated_delta.h for the sources.  6 d m
 * flops.  One pass over the rows of the state computes both products with it, and a
 * second one, which finds them in the first- or second-level cache, updates them: both
 * in order, as processors prefetch best.  Prefetching the next head, or reading it
 * while this one is written, takes as long: two multiply-adds per number and pass are
 * the limit.  Without s0, the state in s1 is updated in place. */
#ifndef LA_DELTA_STEP_H
#define LA_DELTA_STEP_H

#include "delta.h"
#include "gate.h"
#include "token.h"

enum step_rule { DELTA_STEP, GATED_STEP, DPLR_STEP };

/* One row of each operand. */
struct delta_step_scratch {
    T *a, *b, *k, *v, *o; /* k: for DPLR */
    T *reads, *erases;    /* factors of s for o and u: a and e, decayed */
    T *decay;             /* exp(g), (d) */
    struct beta beta;
    T *scale;
    T dot, dot_k; /* a.b, a.k */
};

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
    r.beta = take_beta(arena, h, 1);
    r.scale = take(arena, 1, VL);
    return r;
}

/* x = s^T e, y = s^T a: nr vectors of columns, of which the last has `some`. */
INLINE void
delta_step_read(const struct delta_step_scratch *r, const char *in, ptrdiff_t step,
                ptrdiff_t d, vec x[], vec y[], const int nr, const ptrdiff_t some,
                const int resets)
{
    const T *const reads = r->reads, *const erases = r->erases, *const decay = r->decay;
    LA_EACH(t, nr) {
        x[t] = y[t] = (vec){0};
    }
    for (ptrdiff_t i = 0; i < d; i++, in += step) {
        const vec a = vset1(reads[i]), e = vset1(erases[i]);
        LA_EACH(t, nr) {
            const ptrdiff_t count = t + 1 < nr ? VL : some;
            vec s = held(vread_some(in + t * LA_VBYTES, count, LA_NATIVE));
            if (resets) {
                s = kept_of(vset1(decay[i]), s);
            }
            x[t] = vfma(e, s, x[t]);
            y[t] = vfma(a, s, y[t]);
        }
    }
}

/* u, o and the new state: nr vectors of columns from j on, of which the last has `some`
 * columns.  Nonzero: stop. */
INLINE int
delta_step_tile(const struct la_head *h, const struct delta_step_scratch *r,
                ptrdiff_t *until_poll, const struct la_array *from,
                const struct la_array *to, ptrdiff_t j, const int nr,
                const ptrdiff_t some, const enum step_rule rule, const int resets)
{
    const ptrdiff_t d = h->d;
    if (give_up(h, until_poll, 3 * d * nr * VL)) {
        return 1;
    }
    const ptrdiff_t byte = j * (ptrdiff_t)sizeof(T);
    const ptrdiff_t in_step = from->rs, out_step = to->rs;
    const T *const b_of = r->b, *const k_of = r->k, *const decay = r->decay;
    const vec dot = vset1(r->dot), dot_k = vset1(r->dot_k);
    vec x[LA_STEP_NR], y[LA_STEP_NR], v[LA_STEP_NR];
    delta_step_read(r, from->data + byte, in_step, d, x, y, nr, some, resets);
    LA_EACH(t, nr) {
        const ptrdiff_t col = j + t * VL;
        v[t] = vload(&r->v[col]);
        if (rule == DPLR_STEP) {
            y[t] = vfma(dot_k, v[t], y[t]);
        }
        else {
            x[t] = beta_at(&r->beta, 0, col) * (v[t] - x[t]);
        }
        vstore(&r->o[col], vfma(dot, x[t], y[t]));
    }
    const char *in = from->data + byte;
    char *out = to->data + byte;
    for (ptrdiff_t i = 0; i < d; i++, in += in_step, out += out_step) {
        const vec b = vset1(b_of[i]), k = vset1(k_of[i]);
        const vec kept = rule == DELTA_STEP ? vset1(1) : vset1(decay[i]);
        LA_EACH(t, nr) {
            const ptrdiff_t count = t + 1 < nr ? VL : some;
            vec s = vread_some(in + t * LA_VBYTES, count, LA_NATIVE);
            if (rule != DELTA_STEP) {
                s = kept * (resets ? kept_of(kept, s) : s);
            }
            if (rule == DPLR_STEP) {
                s = vfma(k, v[t], s);
            }
            vstore_pieces(out + t * LA_VBYTES, count, vfma(b, x[t], s));
        }
    }
    return 0;
}

/* delta_step_tile for one column, at any stride. */
INLINE void
delta_step_column(const struct delta_step_scratch *r, const struct la_array *from,
                  const struct la_array *to, ptrdiff_t d, ptrdiff_t j,
                  const enum step_rule rule, const int resets)
{
    const char *in = from->data + j * from->cs;
    char *out = to->data + j * to->cs;
    const T v = r->v[j];
    T x = 0, y = 0, s;
    for (ptrdiff_t i = 0; i < d; i++) {
        memcpy(&s, in + i * from->rs, sizeof(T));
        s = resets && r->decay[i] == 0 ? 0 : s;
        x = fma_one(r->erases[i], s, x);
        y = fma_one(r->reads[i], s, y);
    }
    if (rule == DPLR_STEP) {
        y = fma_one(r->dot_k, v, y);
    }
    else {
        x = r->beta.rows.x[j * r->beta.step] * (v - x);
    }
    r->o[j] = fma_one(r->dot, x, y);
    for (ptrdiff_t i = 0; i < d; i++) {
        memcpy(&s, in + i * from->rs, sizeof(T));
        if (rule != DELTA_STEP) {
            s = resets && r->decay[i] == 0 ? 0 : s * r->decay[i];
        }
        if (rule == DPLR_STEP) {
            s = fma_one(r->k[i], v, s);
        }
        s = fma_one(r->b[i], x, s);
        memcpy(out + i * to->rs, &s, sizeof(T));
    }
}

/* All columns of the state; nonzero: stop. */
INLINE int
delta_step_state(const struct la_head *h, const struct delta_step_scratch *r,
                 ptrdiff_t *until_poll, const enum step_rule rule, const int resets)
{
    const struct la_array from = h->arrays[state_read(h)], to = h->s1;
    if (by_vectors(&from, &to)) {
        int stop = 0;
        LA_BY_STEP_TILES(h->m,
                         stop = stop || delta_step_tile(h, r, until_poll, &from, &to,
                                                        col, nr, some, rule, resets));
        return stop;
    }
    for (ptrdiff_t j = 0; j < h->m; j++) {
        if (give_up(h, until_poll, 3 * h->d)) {
            return 1;
        }
        delta_step_column(r, &from, &to, h->d, j, rule, resets);
    }
    return 0;
}

/* decay = exp(g) in every channel; returns whether any gate is a reset. */
static int
load_step_decay(const struct la_head *h, T *decay)
{
    ivec resets = {0};
    if (!h->channels[LA_AT_g]) {
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
    if (h->channels[LA_AT_beta]) {
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
