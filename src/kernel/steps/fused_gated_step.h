/* fused_gated_step.h: one token of a Mamba-2 layer between its projections.
 *
 *    [v | k | q] = silu(conv(x)),  t = clamp(softplus(dt + dt_bias), least, most)
 *    the step of gated_step with q, k, t v, exp(-exp(A_log) t)
 *    o <- (o + D v) silu(gate),  o <- o / sqrt(mean(o^2) + eps) o norm_weight
 *
 *                             Dao and Gu 2024, section 7 (there x, B, C for v, k, q)
 *
 * x (c), c = n m + 2 K d with K heads of keys, of which each serves n / K heads of
 * values; s (n,d,m); the mean is over `groups` groups of heads.  Scratch: a few rows,
 * the outputs of the heads, and that of the convolution and the step. */
#ifndef LA_FUSED_GATED_STEP_H
#define LA_FUSED_GATED_STEP_H

#include "gated_step.h"
#include "layer_token.h"

struct fused_gated_scratch {
    T *x, *v, *t, *g;
    struct block o;
    struct arena rest;
};

static struct fused_gated_scratch
fused_gated_step_carve(const struct la_head *h, struct arena *arena)
{
    struct fused_gated_scratch r;
    r.x = take_row(arena, h->sizes.c + VL);
    r.v = take_row(arena, h->n * h->m + VL);
    r.t = take_row(arena, h->n + VL);
    r.g = take_row(arena, h->n + VL);
    r.o = take_block(arena, h->n, h->m);
    r.rest = *arena;
    const struct la_head conv = conv_head(h, arena, 0, h->sizes.c);
    struct la_head step = inner_head(h, arena);
    step.d = h->d;
    step.m = h->m;
    struct arena for_step = *arena;
    causal_conv1d_step_carve(&conv, arena);
    gated_step_carve(&step, &for_step);
    arena->used = for_step.used > arena->used ? for_step.used : arena->used;
    return r;
}

/* Time steps and the logarithms of decays. */
static void
load_time_steps(const struct la_head *h, const struct fused_gated_scratch *r)
{
    const vec least = vset1((T)h->least), most = vset1((T)h->most);
    for (ptrdiff_t i = 0; i < h->n; i += VL) {
        const ptrdiff_t left = h->n - i;
        const vec x = get(&h->dt, i, left) + get(&h->dt_bias, i, left);
        const vec t = vmin(most, vmax(least, phi_softplus(x)));
        vstore(&r->t[i], t);
        vstore(&r->g[i], -vexp(get(&h->A_log, i, left)) * t);
    }
}

/* x = [v | k | q], and t v; nonzero: stop. */
static int
load_values_in_time(const struct la_head *h, const struct fused_gated_scratch *r)
{
    if (convolve_token(h, &r->rest, 0, h->sizes.c, r->x)) {
        return 1;
    }
    for (ptrdiff_t i = 0; i < h->n; i++) {
        const T *const from = r->x + i * h->m;
        T *const to = r->v + i * h->m;
        for (ptrdiff_t j = 0; j < h->m; j++) {
            to[j] = r->t[i] * from[j];
        }
    }
    return 0;
}

/* The steps of all heads; nonzero: stop. */
static int
step_key_heads(const struct la_head *h, const struct fused_gated_scratch *r)
{
    const ptrdiff_t values = h->n * h->m, keys = (h->sizes.c - values) / (2 * h->d);
    const ptrdiff_t repeats = h->n / keys;
    struct la_head step = inner_head(h, &r->rest);
    step.d = h->d;
    step.m = step.all_m = h->m;
    step.scale = h->scale;
    step.group = repeats;
    for (ptrdiff_t key = 0; key < keys; key++) {
        const ptrdiff_t at = key * repeats;
        step.k = scratch_row(r->x + values + key * h->d, 0);
        step.q = scratch_row(r->x + values + (keys + key) * h->d, 0);
        step.v = scratch_row(r->v + at * h->m, h->m);
        step.g = scratch_row(r->g + at, 1);
        step.o = scratch_row(r->o.x + at * r->o.ld, r->o.ld);
        step.s0 = shifted(&h->s0, at * h->s0.step);
        step.s1 = shifted(&h->s1, at * h->s1.step);
        if (run_gated_step(&step)) {
            return 1;
        }
    }
    return 0;
}

/* o += D v */
static void
add_token(const struct la_head *h, const struct fused_gated_scratch *r)
{
    for (ptrdiff_t i = 0; la_is_given(&h->D) && i < h->n; i++) {
        const struct la_array D = shifted(&h->D, i * h->D.rs);
        const T weight = load_token_number(&D);
        for (ptrdiff_t j = 0; j < h->m; j++) {
            r->o.x[i * r->o.ld + j] += weight * r->x[i * h->m + j];
        }
    }
}

static int
run_fused_gated_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct fused_gated_scratch r = fused_gated_step_carve(h, &arena);
    clear(r.o.x, h->n * r.o.ld);
    load_time_steps(h, &r);
    if (load_values_in_time(h, &r) || step_key_heads(h, &r)) {
        return 1;
    }
    add_token(h, &r);
    const struct head_norm norm = {
        .o = r.o,
        .out = h->o,
        .gate = h->gate,
        .weight = h->norm_weight,
        .cols = h->m,
        .gated = la_is_given(&h->gate),
        .weighted = la_is_given(&h->norm_weight),
    };
    const ptrdiff_t groups = h->groups >= 1 && h->groups < (double)h->n
                                 ? (ptrdiff_t)h->groups
                             : h->groups >= 1 ? h->n
                                              : 1;
    finish_heads(&norm, h->n, h->n / groups, 1, (T)h->eps);
    return 0;
}

#endif
