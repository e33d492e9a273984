/* delta_step.h: one token of the delta rule, the gated delta rule or DPLR, on a state.
 *
 *    u = beta o (v - R^T e),  s <- R + b u^T,  R = exp(g) s     (delta: g = 0, e = b)
 *    u = s^T c,  s <- R + b u^T + k v^T                         (DPLR, c its a)
 *    o = scale s^T a = scale (R^T a + (a.b) u [+ (a.k) v])
 * with a = phi(q), b = phi(k).  See delta.h and gated_delta.h for the sources.  6 d m
 * flops.  One pass over the rows of the state computes both products with it, and the
 * update goes through them in reverse: if the state does not fit the first-level cache,
 * it finds the rows there that were read last.  Without s0, the state in s1 is updated
 * in place. */
#ifndef LA_DELTA_STEP_H
#define LA_DELTA_STEP_H

#include "delta.h"
#include "gate.h"
#include "token.h"

enum step_rule { DELTA_STEP, GATED_STEP, DPLR_STEP };

/* One row of each operand of a head, and its state. */
struct delta_step_scratch {
    T *a, *b, *k, *v, *u, *o; /* k: for DPLR */
    T *reads, *erases;    /* factors of s for o and u: a and e, decayed */
    T *decay;             /* exp(g), (d) */
    struct beta beta;
    T *scale;
    T dot, dot_k; /* a.b, a.k */
    struct la_array from, to; /* its state before and after the token */
    int resets; /* rows of the state must be set to 0 since they could be inf or NaN */
};

/* Two heads: one is read while the other is written. */
struct delta_step_pair {
    struct delta_step_scratch of[2];
};

static struct delta_step_scratch
carve_head(const struct la_head *h, struct arena *arena, enum step_rule rule)
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
    r.u = take_row(arena, h->m);
    r.o = take_row(arena, h->m);
    r.beta = take_beta(arena, h, 1);
    r.scale = take(arena, 1, VL);
    return r;
}

static struct delta_step_pair
step_rule_carve(const struct la_head *h, struct arena *arena, enum step_rule rule)
{
    struct delta_step_pair r;
    r.of[0] = carve_head(h, arena, rule);
    r.of[1] = carve_head(h, arena, rule);
    return r;
}

/* What a pass needs of a head, in locals: the compiler assumes that stores change what
 * pointers lead to. */
struct delta_rows {
    const char *in;
    char *out;
    ptrdiff_t in_step, out_step;
    const T *reads, *erases, *b, *k, *decay;
};

INLINE struct delta_rows
state_rows_of(const struct delta_step_scratch *r, ptrdiff_t row, ptrdiff_t byte)
{
    return (struct delta_rows){
        .in = r->from.data + row * r->from.rs + byte,
        .out = r->to.data + row * r->to.rs + byte,
        .in_step = r->from.rs,
        .out_step = r->to.rs,
        .reads = r->reads,
        .erases = r->erases,
        .b = r->b,
        .k = r->k,
        .decay = r->decay,
    };
}

/* u and o from x = s^T e and y = s^T a: nr vectors of columns from j on. */
INLINE void
write_of(const struct delta_step_scratch *r, vec x[], vec y[], ptrdiff_t j,
         const int nr, const enum step_rule rule)
{
    const vec dot = vset1(r->dot), dot_k = vset1(r->dot_k);
    LA_EACH(t, nr) {
        const ptrdiff_t col = j + t * VL;
        const vec v = vload(&r->v[col]);
        if (rule == DPLR_STEP) {
            y[t] = vfma(dot_k, v, y[t]);
        }
        else {
            x[t] = beta_at(&r->beta, 0, col) * (v - x[t]);
        }
        vstore(&r->u[col], x[t]);
        vstore(&r->o[col], vfma(dot, x[t], y[t]));
    }
}

/* One pass over the rows of two states, for nr vectors of columns from j on, of which
 * the last has `some` columns: reads that of `next`, and computes its u and o; writes
 * that of `last`, from its last row on.  Either may be NULL.  The read waits for memory,
 * and the write does not, so that a pass over both takes little longer than one. */
INLINE void
delta_step_tile(const struct delta_step_scratch *next,
                const struct delta_step_scratch *last, ptrdiff_t d, ptrdiff_t j,
                const int nr, const ptrdiff_t some, const enum step_rule rule,
                const int resets)
{
    const ptrdiff_t byte = j * (ptrdiff_t)sizeof(T);
    vec x[LA_STEP_NR], y[LA_STEP_NR], u[LA_STEP_NR], v[LA_STEP_NR];
    struct delta_rows from = {0}, to = {0};
    if (next != NULL) {
        from = state_rows_of(next, 0, byte);
        LA_EACH(t, nr) {
            x[t] = y[t] = (vec){0};
        }
    }
    if (last != NULL) {
        to = state_rows_of(last, d > 0 ? d - 1 : 0, byte);
        LA_EACH(t, nr) {
            u[t] = vload(&last->u[j + t * VL]);
            v[t] = vload(&last->v[j + t * VL]);
        }
    }
    for (ptrdiff_t i = 0; i < d; i++) {
        if (next != NULL) {
            const vec a = vset1(from.reads[i]), e = vset1(from.erases[i]);
            LA_EACH(t, nr) {
                const ptrdiff_t count = t + 1 < nr ? VL : some;
                vec s = held(vread_some(from.in + t * LA_VBYTES, count, LA_NATIVE));
                if (resets) {
                    s = kept_of(vset1(from.decay[i]), s);
                }
                x[t] = vfma(e, s, x[t]);
                y[t] = vfma(a, s, y[t]);
            }
            from.in += from.in_step;
        }
        if (last != NULL) {
            const ptrdiff_t l = d - 1 - i;
            const vec b = vset1(to.b[l]), k = vset1(to.k[l]);
            const vec kept = rule == DELTA_STEP ? vset1(1) : vset1(to.decay[l]);
            LA_EACH(t, nr) {
                const ptrdiff_t count = t + 1 < nr ? VL : some;
                vec s = vread_some(to.in + t * LA_VBYTES, count, LA_NATIVE);
                if (rule != DELTA_STEP) {
                    s = kept * (resets ? kept_of(kept, s) : s);
                }
                if (rule == DPLR_STEP) {
                    s = vfma(k, v[t], s);
                }
                vstore_pieces(to.out + t * LA_VBYTES, count, vfma(b, u[t], s));
            }
            to.in -= to.in_step;
            to.out -= to.out_step;
        }
    }
    if (next != NULL) {
        write_of(next, x, y, j, nr, rule);
    }
}

/* u, o and the new state of one column, at any stride. */
static void
delta_step_column(const struct delta_step_scratch *r, ptrdiff_t d, ptrdiff_t j,
                  const enum step_rule rule)
{
    const struct la_array *from = &r->from, *to = &r->to;
    const char *in = from->data + j * from->cs;
    char *out = to->data + j * to->cs;
    const int resets = r->resets;
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

/* Loads the rows of the token.  DPLR reads the rows of the state before a reset, so
 * they would be inf or NaN again. */
INLINE void
load_step(const struct la_head *h, struct delta_step_scratch *r,
          const enum step_rule rule)
{
    const ptrdiff_t d = h->d;
    r->from = h->arrays[state_read(h)];
    r->to = h->s1;
    r->resets = 0;
    r->scale[0] = (T)h->scale;
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
        return;
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
    r->resets = resets && rule == GATED_STEP;
}

/* delta_step_tile for all columns. */
INLINE void
delta_step_pass(const struct delta_step_scratch *next,
                const struct delta_step_scratch *last, ptrdiff_t d, ptrdiff_t m,
                const enum step_rule rule, const int resets)
{
    LA_BY_STEP_TILES(m, delta_step_tile(next, last, d, col, nr, some, rule, resets));
}

/* Reads the state of `next` and writes that of `last`, in one pass if neither has
 * resets.  Either may be NULL. */
INLINE void
read_and_write(const struct delta_step_scratch *next,
               const struct delta_step_scratch *last, ptrdiff_t d, ptrdiff_t m,
               const enum step_rule rule)
{
    if (next != NULL && last != NULL && !next->resets && !last->resets) {
        delta_step_pass(next, last, d, m, rule, 0);
        return;
    }
    if (last != NULL && last->resets) {
        delta_step_pass(NULL, last, d, m, rule, 1);
    }
    else if (last != NULL) {
        delta_step_pass(NULL, last, d, m, rule, 0);
    }
    if (next != NULL && next->resets) {
        delta_step_pass(next, NULL, d, m, rule, 1);
    }
    else if (next != NULL) {
        delta_step_pass(next, NULL, d, m, rule, 0);
    }
}

INLINE int
run_step_rule(const struct la_head *first, struct delta_step_pair *pair,
              const enum step_rule rule)
{
    struct la_head h = *first;
    const struct delta_step_scratch *last = NULL;
    ptrdiff_t until_poll = LA_POLL; /* the caller has just polled */
    for (ptrdiff_t i = 0; i < first->group; i++) {
        struct delta_step_scratch *const r = &pair->of[i % 2];
        if (give_up(&h, &until_poll, 3 * h.d * h.m)) {
            return 1;
        }
        if (i > 0) {
            next_head(&h);
        }
        load_step(&h, r, rule);
        if (by_vectors(&r->from, &r->to)) {
            read_and_write(r, last, h.d, h.m, rule);
            last = r;
        }
        for (ptrdiff_t j = last == NULL ? 0 : h.m; j < h.m; j++) {
            delta_step_column(r, h.d, j, rule);
        }
        store_token(&h.o, h.m, r->o, r->scale);
    }
    read_and_write(NULL, last, first->d, first->m, rule);
    return 0;
}

static struct delta_step_pair
delta_step_carve(const struct la_head *h, struct arena *arena)
{
    return step_rule_carve(h, arena, DELTA_STEP);
}

static int
run_delta_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct delta_step_pair r = delta_step_carve(h, &arena);
    return run_step_rule(h, &r, DELTA_STEP);
}

static struct delta_step_pair
gated_delta_step_carve(const struct la_head *h, struct arena *arena)
{
    return step_rule_carve(h, arena, GATED_STEP);
}

static int
run_gated_delta_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct delta_step_pair r = gated_delta_step_carve(h, &arena);
    return run_step_rule(h, &r, GATED_STEP);
}

static struct delta_step_pair
dplr_step_carve(const struct la_head *h, struct arena *arena)
{
    return step_rule_carve(h, arena, DPLR_STEP);
}

static int
run_dplr_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct delta_step_pair r = dplr_step_carve(h, &arena);
    return run_step_rule(h, &r, DPLR_STEP);
}

#endif
