/* layer_token.h: what one token of a layer passes through around the step on its
 * memory.
 *
 *    y = silu(conv(x))                                              before the step
 *    o <- o / sqrt(mean(o^2) + eps) o norm_weight o gate'(z)        after it
 *
 * with gate'(z) = z sigmoid(z) or sigmoid(z), before or after the norm, and the mean
 * over the columns of a group of heads.  The convolution and the step are those of
 * conv_step.h, delta_step.h and gated_step.h, called with a la_head of their own; their
 * results stay in scratch, in the dtype of the computation. */
#ifndef LA_LAYER_TOKEN_H
#define LA_LAYER_TOKEN_H

#include "../convolution/conv_step.h"
#include "../maps/elementwise.h"
#include "token.h"

/* Numbers in scratch as a row of an operand, and those `step` further on as that of the
 * next head. */
INLINE struct la_array
scratch_row(T *x, ptrdiff_t step)
{
    struct la_array row = block_array((struct block){x, 0});
    row.step = step * (ptrdiff_t)sizeof(T);
    return row;
}

/* A la_head for a kernel that this one calls, with what remains of the scratch. */
INLINE struct la_head
inner_head(const struct la_head *h, const struct arena *arena)
{
    struct la_head inner = {
        .n = 1,
        .s = 1,
        .keys = 1,
        .group = 1,
        .poll = h->poll,
        .poll_arg = h->poll_arg,
    };
    inner.scratch = arena->base ? arena->base + arena->used : NULL;
    return inner;
}

/* The convolution of channels [first, first + count). */
static struct la_head
conv_head(const struct la_head *h, const struct arena *arena, ptrdiff_t first,
          ptrdiff_t count)
{
    struct la_head conv = inner_head(h, arena);
    conv.d = h->sizes.p;
    conv.m = conv.all_m = count;
    conv.f = h->sizes.t;
    conv.silu = h->silu;
    conv.x = shifted(&h->x, first * h->x.cs);
    conv.weight = shifted(&h->weight, first * h->weight.rs);
    if (la_is_given(&h->bias)) {
        conv.bias = shifted(&h->bias, first * h->bias.cs);
    }
    conv.s0 = shifted(&h->conv0, first * h->conv0.rs);
    conv.s1 = shifted(&h->conv1, first * h->conv1.rs);
    return conv;
}

/* to = y, channels [first, first + count), and up to a vector more; nonzero: stop.
 * Without weights, y = x.  `to` need not be aligned. */
static int
convolve_token(const struct la_head *h, const struct arena *arena, ptrdiff_t first,
               ptrdiff_t count, T *to)
{
    if (!la_is_given(&h->weight)) {
        const struct la_array x = shifted(&h->x, first * h->x.cs);
        for (ptrdiff_t j = 0; j < count; j += VL) {
            *(vec_any *)&to[j] = (vec_any)load_at(&x, 0, j, count);
        }
        return 0;
    }
    struct la_head conv = conv_head(h, arena, first, count);
    conv.y = scratch_row(to, 0);
    return run_causal_conv1d_step(&conv);
}

/* The outputs of heads in scratch, and what is left to do with them. */
struct head_norm {
    struct block o;
    struct la_array out, gate, weight; /* of the caller; a row per head */
    ptrdiff_t cols;                    /* of a head */
    int gated, weighted, by_sigmoid;
};

/* o *= silu(z) or sigmoid(z), for one head. */
INLINE void
apply_gate(const struct head_norm *r, ptrdiff_t i)
{
    T *const o = r->o.x + i * r->o.ld;
    for (ptrdiff_t j = 0; r->gated && j < r->cols; j += VL) {
        const vec z = load_at(&r->gate, i, j, r->cols);
        vstore(&o[j], vload(&o[j]) * (r->by_sigmoid ? vsigmoid(z) : vsilu(z)));
    }
}

/* Divides heads [first, first + count) by their common root mean square, and multiplies
 * them by the weights. */
static void
normalize_heads(const struct head_norm *r, ptrdiff_t first, ptrdiff_t count, T eps)
{
    const T numbers = (T)(count * r->cols);
    vec sum = {0};
    for (ptrdiff_t i = first; i < first + count; i++) {
        const T *const o = r->o.x + i * r->o.ld;
        sum += vset1(token_dot(o, o, r->cols));
    }
    const vec factor = vset1(1) / vsqrt(sum / vset1(numbers) + vset1(eps));
    for (ptrdiff_t i = first; i < first + count; i++) {
        T *const o = r->o.x + i * r->o.ld;
        for (ptrdiff_t j = 0; j < r->cols; j += VL) {
            const vec weight = load_at(&r->weight, i, j, r->cols);
            vstore(&o[j], vload(&o[j]) * factor * weight);
        }
    }
}

/* Stores the heads' outputs, after norm and gate. */
static void
finish_heads(const struct head_norm *r, ptrdiff_t heads, ptrdiff_t group,
             int gate_first, T eps)
{
    for (ptrdiff_t i = 0; gate_first && i < heads; i++) {
        apply_gate(r, i);
    }
    for (ptrdiff_t i = 0; r->weighted && i < heads; i += group) {
        normalize_heads(r, i, heads - i < group ? heads - i : group, eps);
    }
    for (ptrdiff_t i = 0; !gate_first && i < heads; i++) {
        apply_gate(r, i);
    }
    store_rows(&r->out, rows_from(0, heads), r->cols, r->o, NULL);
}

#endif
