/* delta_step.h: one token of the delta rule, the gated delta rule or DPLR, on a state.
 *
 *    u = beta o (v - R^T e),  s <- R + b u^T,  R = exp(g) s     (delta: g = 0, e = b)
 *    u = s^T c,  s <- R + b u^T + k v^T                         (DPLR, c its a)
 *    o = scale s^T a = scale (R^T a + (a.b) u [+ (a.k) v])
 * with a = phi(q), b = phi(k).  See delta.h and gated_delta.h for the sources.  6 d m
 * flops: one pass over the state computes both products with it, and the update then
 * finds it in cache, and prefetches the next columns.  There are two loads and a store
 * per number, where causal's step has one and one, so it takes half as much again in
 * cache. Without s0, the state in s1 is updated in place. */
#ifndef LA_DELTA_STEP_H
#define LA_DELTA_STEP_H

#include "delta.h"
#include "gate.h"

enum step_rule { DELTA_STEP, GATED_STEP, DPLR_STEP };

/* One row of each operand; blocks have MR rows where a load clears rows up to MR. */
struct delta_step_scratch {
    struct block a, b, k, v, o; /* k: for DPLR */
    struct block reads, erases; /* factors of s for o and u: a and e, decayed */
    struct block decay;         /* exp(g), (d) */
    struct beta beta;
    T *dot, *dot_k, *scale;
};

static struct delta_step_scratch
step_rule_carve(const struct la_head *h, struct arena *arena, enum step_rule rule)
{
    struct delta_step_scratch r;
    r.a = r.reads = take_block(arena, MR, h->d);
    r.b = r.erases = r.k = take_block(arena, MR, h->d);
    r.decay = (struct block){NULL, 0};
    if (rule != DELTA_STEP) {
        r.reads = take_block(arena, MR, h->d);
        r.erases = take_block(arena, MR, h->d);
        r.decay = take_block(arena, MR, h->d);
    }
    if (rule == DPLR_STEP) {
        r.k = take_block(arena, MR, h->d);
    }
    r.v = take_block(arena, MR, h->m);
    r.o = take_block(arena, 1, h->m);
    r.beta = take_beta(arena, h, MR);
    r.dot = take(arena, 1, VL);
    r.dot_k = take(arena, 1, VL);
    r.scale = take(arena, 1, VL);
    return r;
}

/* u, o and the new state: nr vectors of columns from j on, of which the last has `some`
 * columns.  The columns that come next are `ahead` bytes further on. */
INLINE void
delta_step_tile(const struct delta_step_scratch *r, const struct la_array *from,
                const struct la_array *to, ptrdiff_t d, ptrdiff_t j, ptrdiff_t ahead,
                const int nr, const ptrdiff_t some, const enum step_rule rule,
                const int resets)
{
    const ptrdiff_t byte = j * (ptrdiff_t)sizeof(T);
    const T *const b_of = r->b.x, *const k_of = r->k.x, *const decay = r->decay.x;
    const char *in = from->data + byte;
    char *out = to->data + byte;
    vec x[NR], y[NR], v[NR];
    LA_EACH(t, nr) {
        x[t] = y[t] = (vec){0};
    }
    for (ptrdiff_t i = 0; i < d; i++) {
        const vec a = vset1(r->reads.x[i]), e = vset1(r->erases.x[i]);
        LA_EACH(t, nr) {
            vec s = vread_some(in + i * from->rs + t * LA_VBYTES,
                               t + 1 < nr ? VL : some, LA_NATIVE);
            if (resets) {
                s = kept_of(vset1(decay[i]), s);
            }
            x[t] = vfma(e, s, x[t]);
            y[t] = vfma(a, s, y[t]);
        }
    }
    const vec dot = vset1(r->dot[0]), dot_k = vset1(r->dot_k[0]);
    LA_EACH(t, nr) {
        const ptrdiff_t col = j + t * VL;
        v[t] = vload(&r->v.x[col]);
        if (rule == DPLR_STEP) {
            y[t] = vfma(dot_k, v[t], y[t]);
        }
        else {
            x[t] = beta_at(&r->beta, 0, col) * (v[t] - x[t]);
        }
        vstore(&r->o.x[col], vfma(dot, x[t], y[t]));
    }
    for (ptrdiff_t i = 0; i < d; i++, in += from->rs, out += to->rs) {
        const vec b = vset1(b_of[i]), k = vset1(k_of[i]);
        const vec kept = rule == DELTA_STEP ? vset1(1) : vset1(decay[i]);
        LA_EACH(t, nr) {
            const ptrdiff_t count = t + 1 < nr ? VL : some;
            vec s = vread_some(in + t * LA_VBYTES, count, LA_NATIVE);
            __builtin_prefetch(in + ahead + t * LA_VBYTES);
            if (rule != DELTA_STEP) {
                s = kept * (resets ? kept_of(kept, s) : s);
            }
            if (rule == DPLR_STEP) {
                s = vfma(k, v[t], s);
            }
            vstore_pieces(out + t * LA_VBYTES, count, vfma(b, x[t], s));
        }
    }
}

/* delta_step_tile for one column, at any stride. */
INLINE void
delta_step_column(const struct delta_step_scratch *r, const struct la_array *from,
                  const struct la_array *to, ptrdiff_t d, ptrdiff_t j,
                  const enum step_rule rule, const int resets)
{
    const char *in = from->data + j * from->cs;
    char *out = to->data + j * to->cs;
    const T v = r->v.x[j];
    T x = 0, y = 0, s;
    for (ptrdiff_t i = 0; i < d; i++) {
        memcpy(&s, in + i * from->rs, sizeof(T));
        s = resets && r->decay.x[i] == 0 ? 0 : s;
        x = fma_one(r->erases.x[i], s, x);
        y = fma_one(r->reads.x[i], s, y);
    }
    if (rule == DPLR_STEP) {
        y = fma_one(r->dot_k[0], v, y);
    }
    else {
        x = r->beta.rows.x[j * r->beta.step] * (v - x);
    }
    r->o.x[j] = fma_one(r->dot[0], x, y);
    for (ptrdiff_t i = 0; i < d; i++) {
        memcpy(&s, in + i * from->rs, sizeof(T));
        if (rule != DELTA_STEP) {
            s = resets && r->decay.x[i] == 0 ? 0 : s * r->decay.x[i];
        }
        if (rule == DPLR_STEP) {
            s = fma_one(r->k.x[i], v, s);
        }
        s = fma_one(r->b.x[i], x, s);
        memcpy(out + i * to->rs, &s, sizeof(T));
    }
}

/* Computes the next columns from j on, with `left` to go; returns how many. */
INLINE ptrdiff_t
delta_step_columns(const struct delta_step_scratch *r, const struct la_array *from,
                   const struct la_array *to, ptrdiff_t d, ptrdiff_t j, ptrdiff_t left,
                   const enum step_rule rule, const int resets)
{
    const int unit = from->cs == (ptrdiff_t)sizeof(T) && to->cs == (ptrdiff_t)sizeof(T);
    if (unit && left >= NR * VL) {
        const ptrdiff_t width = NR * LA_VBYTES;
        /* The next head's first column follows. */
        const ptrdiff_t next = d * from->rs - j * (ptrdiff_t)sizeof(T);
        delta_step_tile(r, from, to, d, j, left > NR * VL ? width : next, NR, VL, rule,
                        resets);
        return NR * VL;
    }
    if (unit && left >= VL) {
        delta_step_tile(r, from, to, d, j, LA_VBYTES, 1, VL, rule, resets);
        return VL;
    }
    if (unit) {
        delta_step_tile(r, from, to, d, j, LA_VBYTES, 1, left, rule, resets);
        return left;
    }
    delta_step_column(r, from, to, d, j, rule, resets);
    return 1;
}

/* decay = exp(g) in every channel; returns whether any gate is a reset. */
static int
load_step_decay(const struct la_head *h, struct block decay)
{
    ivec resets = {0};
    if (h->d == 0) {
        return 0; /* the block then holds no number at all */
    }
    load_plain(decay, &h->g, rows_from(0, 1), h->channels[LA_AT_g] ? h->d : 1);
    const vec first = vset1(decay.x[0]), all = vexp(first);
    for (ptrdiff_t l = 0; l < h->d; l += VL) {
        const vec g = h->channels[LA_AT_g] ? vload(&decay.x[l]) : first;
        vstore(&decay.x[l], h->channels[LA_AT_g] ? vexp(g) : all);
        resets |= is_reset(g);
    }
    return vany(resets);
}

/* Loads the rows of the token.  Returns whether rows of the state must be set to 0
 * since they could be inf or NaN.  DPLR reads the rows before the reset, so they would
 * be inf or NaN again. */
INLINE int
load_step(const struct la_head *h, const struct delta_step_scratch *r,
          const enum step_rule rule)
{
    const struct span one = rows_from(0, 1);
    load_mapped(r->a, &h->q, one, h->d, h->map);
    load_mapped(r->k, &h->k, one, h->d, h->map);
    load_plain(r->v, &h->v, one, h->m);
    if (rule == DPLR_STEP) {
        load_plain(r->b, &h->b, one, h->d);
        load_plain(r->erases, &h->a, one, h->d);
        row_dots(r->dot_k, r->a, r->k, 1, r->a.ld);
    }
    else {
        load_beta(h, one, &r->beta);
        r->dot_k[0] = 0;
    }
    row_dots(r->dot, r->a, r->b, 1, r->a.ld);
    if (rule == DELTA_STEP) {
        return 0;
    }
    const int resets = load_step_decay(h, r->decay);
    memcpy(r->reads.x, r->a.x, (size_t)r->a.ld * sizeof(T));
    multiply_rows(r->reads, r->reads, r->decay, 1, h->d);
    if (rule == GATED_STEP) {
        if (la_is_given(&h->erase)) {
            load_plain(r->erases, &h->erase, one, h->d);
        }
        else {
            memcpy(r->erases.x, r->b.x, (size_t)r->b.ld * sizeof(T));
        }
        multiply_rows(r->erases, r->erases, r->decay, 1, h->d);
    }
    return resets && rule == GATED_STEP;
}

INLINE int
run_step_rule(const struct la_head *h, const enum step_rule rule)
{
    struct arena arena = {h->scratch, 0};
    const struct delta_step_scratch r = step_rule_carve(h, &arena, rule);
    const struct la_array *from = h->s0.data ? &h->s0 : &h->s1, *to = &h->s1;
    ptrdiff_t j = 0, until_poll = 0;
    const int resets = load_step(h, &r, rule);
    while (j < h->m) {
        if (give_up(h, &until_poll, 3 * h->d * NR * VL)) {
            return 1;
        }
        j += resets ? delta_step_columns(&r, from, to, h->d, j, h->m - j, rule, 1)
                    : delta_step_columns(&r, from, to, h->d, j, h->m - j, rule, 0);
    }
    factors(h, r.scale, 1, 0, NULL);
    store_rows(&h->o, rows_from(0, 1), h->m, r.o, r.scale);
    return 0;
}

static struct delta_step_scratch
delta_step_carve(const struct la_head *h, struct arena *arena)
{
    return step_rule_carve(h, arena, DELTA_STEP);
}

static int
run_delta_step(const struct la_head *h)
{
    return run_step_rule(h, DELTA_STEP);
}

static struct delta_step_scratch
gated_delta_step_carve(const struct la_head *h, struct arena *arena)
{
    return step_rule_carve(h, arena, GATED_STEP);
}

static int
run_gated_delta_step(const struct la_head *h)
{
    return run_step_rule(h, GATED_STEP);
}

static struct delta_step_scratch
dplr_step_carve(const struct la_head *h, struct arena *arena)
{
    return step_rule_carve(h, arena, DPLR_STEP);
}

static int
run_dplr_step(const struct la_head *h)
{
    return run_step_rule(h, DPLR_STEP);
}

#endif
