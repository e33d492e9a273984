/* fused_gated_delta_step.h: one token of a Gated DeltaNet or of Kimi Delta Attention,
 * between its projections.
 *
 *    [q | k | v] = silu(conv(x)),  g = log_decay(a),  b = beta_scale sigmoid(beta)
 *    the step of gated_delta_step with phi(q), phi(k), v, exp(g), b
 *    o <- o / sqrt(mean(o^2) + eps) o norm_weight o silu(gate)
 *
 *                               Yang et al. 2025, section 3.4
 *                               Kimi Team 2025 (d gates per head, sigmoid)
 *
 * x (c), c = 2 K d + n m with K heads of keys, of which each serves n / K heads of
 * values; s (n,d,m).  Heads are independent, so a call may have some of them: those of
 * whole heads of keys that begin among heads [first, first + n).  Scratch: a few rows,
 * the outputs of the heads, and that of the convolution and the step. */
#ifndef LA_FUSED_GATED_DELTA_STEP_H
#define LA_FUSED_GATED_DELTA_STEP_H

#include "delta_step.h"
#include "layer_token.h"

/* Heads of keys [key, key + keys), of which each serves `repeats` heads of values, and
 * how many heads of values these begin after the call's first. */
struct key_heads {
    ptrdiff_t all, key, keys, repeats, after;
};

static struct key_heads
key_heads(const struct la_head *h)
{
    struct key_heads r;
    r.all = (h->sizes.c - h->s * h->m) / (2 * h->d);
    r.repeats = h->s / r.all;
    r.key = (h->first + r.repeats - 1) / r.repeats;
    r.keys = (h->first + h->n + r.repeats - 1) / r.repeats - r.key;
    r.after = r.key * r.repeats - h->first;
    return r;
}

struct fused_gated_delta_scratch {
    T *x, *g, *beta;
    ptrdiff_t g_step; /* from head to head */
    struct block o;
    struct arena rest;
};

static struct fused_gated_delta_scratch
fused_gated_delta_step_carve(const struct la_head *h, struct arena *arena)
{
    struct key_heads heads = key_heads(h);
    heads.keys = (h->n + heads.repeats - 1) / heads.repeats; /* wherever they begin */
    const ptrdiff_t values = heads.keys * heads.repeats;
    const ptrdiff_t channels = 2 * heads.keys * h->d + values * h->m;
    struct fused_gated_delta_scratch r;
    r.g_step = h->a.has_channels ? row_step(h->d) : 1;
    r.x = take_row(arena, channels + VL);
    r.g = take(arena, 1, values * r.g_step + VL);
    r.beta = take_row(arena, values + VL);
    r.o = take_block(arena, values, h->m);
    r.rest = *arena;
    const struct la_head conv = conv_head(h, arena, 0, channels);
    struct la_head step = inner_head(h, arena);
    step.d = h->d;
    step.m = h->m;
    struct arena for_step = *arena;
    causal_conv1d_step_carve(&conv, arena);
    gated_delta_step_carve(&step, &for_step);
    arena->used = for_step.used > arena->used ? for_step.used : arena->used;
    return r;
}

/* x = [q | k | v] of these heads; nonzero: stop. */
static int
convolve_heads(const struct la_head *h, const struct fused_gated_delta_scratch *r,
               const struct key_heads *heads)
{
    const ptrdiff_t all = heads->all * h->d, some = heads->keys * h->d;
    const ptrdiff_t at = heads->key * h->d, width = heads->repeats * h->m;
    if (heads->keys == heads->all) {
        return convolve_token(h, &r->rest, 0, h->sizes.c, r->x);
    }
    return convolve_token(h, &r->rest, at, some, r->x) ||
           convolve_token(h, &r->rest, all + at, some, r->x + some) ||
           convolve_token(h, &r->rest, 2 * all + heads->key * width,
                          heads->keys * width, r->x + 2 * some);
}

/* g of one vector of gates: a, A_log, dt_bias. */
INLINE vec
log_decays(const struct la_head *h, vec a, vec A_log, vec dt_bias)
{
    return h->bounded != 0
               ? bounded_log_decay_of(a, A_log, dt_bias, vset1((T)h->lower_bound))
               : log_decay_of(a, A_log, dt_bias);
}

/* g and beta of heads of values [after, after + values). */
static void
load_gates(const struct la_head *h, const struct fused_gated_delta_scratch *r,
           ptrdiff_t after, ptrdiff_t values)
{
    const struct la_array a = shifted(&h->a, after * h->a.rs);
    const struct la_array A_log = shifted(&h->A_log, after * h->A_log.rs);
    const struct la_array dt_bias = shifted(&h->dt_bias, after * h->dt_bias.rs);
    const struct la_array beta = shifted(&h->beta, after * h->beta.rs);
    const vec beta_scale = vset1((T)h->beta_scale);
    for (ptrdiff_t i = 0; i < values; i += VL) {
        vstore(&r->beta[i], beta_scale * vsigmoid(get(&beta, i, values - i)));
    }
    for (ptrdiff_t i = 0; !h->a.has_channels && i < values; i += VL) {
        const ptrdiff_t left = values - i;
        vstore(&r->g[i], log_decays(h, get(&a, i, left), get(&A_log, i, left),
                                    get(&dt_bias, i, left)));
    }
    for (ptrdiff_t i = 0; h->a.has_channels && i < values; i++) {
        const struct la_array rate = shifted(&A_log, i * A_log.rs);
        const vec A = vset1(load_token_number(&rate));
        for (ptrdiff_t l = 0; l < h->d; l += VL) {
            vstore(&r->g[i * r->g_step + l], log_decays(h, load_at(&a, i, l, h->d), A,
                                                        load_at(&dt_bias, i, l, h->d)));
        }
    }
}

/* The step of the first run of heads of values: those of the first head of keys. */
static struct la_head
step_run(const struct la_head *h, const struct fused_gated_delta_scratch *r,
         const struct key_heads *heads)
{
    const ptrdiff_t keys = heads->keys * h->d;
    const ptrdiff_t next_keys = heads->repeats == 1 ? h->d : 0;
    struct la_head step = inner_head(h, &r->rest);
    step.group = heads->repeats == 1 ? heads->keys : heads->repeats;
    step.d = h->d;
    step.m = step.all_m = h->m;
    step.map = h->map;
    step.scale = h->scale;
    step.q = scratch_row(r->x, next_keys);
    step.k = scratch_row(r->x + keys, next_keys);
    step.v = scratch_row(r->x + 2 * keys, h->m);
    step.g = scratch_row(r->g, r->g_step);
    step.g.has_channels = h->a.has_channels;
    step.beta = scratch_row(r->beta, 1);
    step.o = scratch_row(r->o.x, r->o.ld);
    step.s0 = shifted(&h->s0, heads->after * h->s0.step);
    step.s1 = shifted(&h->s1, heads->after * h->s1.step);
    return step;
}

/* Moves to the run of the next head of keys. */
INLINE void
next_run(struct la_head *step)
{
    const ptrdiff_t keys = step->d * (ptrdiff_t)sizeof(T);
    struct la_array *const moved[] = {&step->v, &step->g,  &step->beta,
                                      &step->o, &step->s0, &step->s1};
    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        moved[i]->data += step->group * moved[i]->step;
    }
    step->q.data += keys;
    step->k.data += keys;
}

/* The steps of all these heads; nonzero: stop.  One run computes those that share keys,
 * or all if each has keys of its own. */
static int
step_heads(const struct la_head *h, const struct fused_gated_delta_scratch *r,
           const struct key_heads *heads)
{
    const ptrdiff_t runs = heads->repeats == 1 ? 1 : heads->keys;
    struct la_head step = step_run(h, r, heads); /* KiB, so made once */
    for (ptrdiff_t key = 0; key < runs; key++) {
        if (run_gated_delta_step(&step)) {
            return 1;
        }
        next_run(&step);
    }
    return 0;
}

static int
run_fused_gated_delta_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct fused_gated_delta_scratch r = fused_gated_delta_step_carve(h, &arena);
    const struct key_heads heads = key_heads(h);
    const ptrdiff_t values = heads.keys * heads.repeats;
    if (values == 0) {
        return 0;
    }
    clear(r.o.x, values * r.o.ld);
    load_gates(h, &r, heads.after, values);
    if (convolve_heads(h, &r, &heads) || step_heads(h, &r, &heads)) {
        return 1;
    }
    const struct head_norm norm = {
        .o = r.o,
        .out = shifted(&h->o, heads.after * h->o.rs),
        .gate = shifted(&h->gate, heads.after * h->gate.rs),
        .weight = h->norm_weight, /* the same for all heads */
        .cols = h->m,
        .gated = la_is_given(&h->gate),
        .weighted = la_is_given(&h->norm_weight),
        .by_sigmoid = h->by_sigmoid != 0,
    };
    finish_heads(&norm, values, 1, 0, (T)h->eps);
    return 0;
}

#endif
