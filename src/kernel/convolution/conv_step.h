/* conv_step.h: one token of the short convolution (conv.h) on a state.
 *
 *    y = bias + sum_{k < d} weight_k o s_k + weight_d o x, or silu of it
 *    s <- (s_1, ..., s_{d-1}, x)
 *
 * x, y, bias (m), weight (m,w), s (m,d).  One pass over channels, a vector at a time:
 * the state is read once and written once.  The sums are those of conv_tile.h, bit for
 * bit.  s0 may be s1.  Filters of other lengths than usual are left to the kernel for
 * sequences; only this one needs scratch. */
#ifndef LA_CONV_STEP_H
#define LA_CONV_STEP_H

#include "conv.h"
#include "../vectors/zip.h"

/* Whether the filters are of usual length, and the state has the inputs that they need
 * or one more, as some callers hold it. */
INLINE int
is_usual_filter(const struct la_head *h)
{
    return h->f >= 2 && h->f <= LA_ZIP_MAX && (h->d == h->f - 1 || h->d == h->f);
}

static struct conv_scratch
causal_conv1d_step_carve(const struct la_head *h, struct arena *arena)
{
    const struct conv_scratch none = {.early = NULL};
    return is_usual_filter(h) ? none : causal_conv1d_carve(h, arena);
}

/* Whether x, of n rows, lies by columns without gaps. */
INLINE int
is_dense(const struct la_array *x, const int n)
{
    const ptrdiff_t size = size_of(x->type);
    return x->cs == n * size && (n == 1 || x->rs == size);
}

/* The n rows of channels [j, j + some) of any x, and back. */
static __attribute__((noinline)) void
read_any_channels(T *rows, const struct la_array *x, ptrdiff_t j, ptrdiff_t some,
                  ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        vstore(&rows[i * VL], load_at(x, i, j, j + some));
    }
}

static __attribute__((noinline)) void
write_any_channels(const struct la_array *x, ptrdiff_t j, ptrdiff_t some, const T *rows,
                   ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        char *to = x->data + i * x->rs + j * x->cs;
        vwrite_part(to, x->cs, some, vload(&rows[i * VL]), x->type);
    }
}

/* The same of usual arrays in registers. */
INLINE void
read_channels(vec rows[], const struct la_array *x, ptrdiff_t j, ptrdiff_t some,
              const int n)
{
    const char *from = x->data + j * x->cs;
    if (some == VL && is_dense(x, n)) {
        LA_BY_TYPE(x->type, read_dense_columns(rows, from, n, type));
    }
    else if (some == VL && by_rows(x)) {
        LA_BY_TYPE(x->type, LA_EACH(i, n) { rows[i] = vread(from + i * x->rs, type); });
    }
    else {
        _Alignas(LA_ALIGN) T copy[LA_ZIP_MAX * VL];
        read_any_channels(copy, x, j, some, n);
        LA_EACH(i, n) {
            rows[i] = vload(&copy[i * VL]);
        }
    }
}

INLINE void
write_channels(const struct la_array *x, ptrdiff_t j, ptrdiff_t some, const vec rows[],
               const int n)
{
    char *to = x->data + j * x->cs;
    if (some == VL && is_dense(x, n)) {
        vec columns[LA_ZIP_MAX];
        vcolumns(columns, rows, n);
        LA_BY_TYPE(x->type, vwrite_each(to, VL * size_of(type), columns, n, type));
    }
    else if (some == VL && by_rows(x)) {
        LA_BY_TYPE(x->type, vwrite_each(to, x->rs, rows, n, type));
    }
    else {
        _Alignas(LA_ALIGN) T copy[LA_ZIP_MAX * VL];
        LA_EACH(i, n) {
            vstore(&copy[i * VL], rows[i]);
        }
        write_any_channels(x, j, some, copy, n);
    }
}

/* What a step of usual filters reads and writes; states and weights by tap. */
struct filter_step {
    struct la_array x, y, bias, weight, s0, s1;
    int silu;
};

/* The sums of channels [j, j + some), whose inputs move on.  An input that the filters
 * do not reach has the weight 0. */
INLINE vec
sum_filters(const struct filter_step *r, ptrdiff_t j, ptrdiff_t some, const int w,
            const int d)
{
    vec in[LA_ZIP_MAX + 1], weight[LA_ZIP_MAX + 1] = {{0}}, y = {0};
    read_channels(in, &r->s0, j, some, d);
    read_channels(&in[d], &r->x, j, some, 1);
    read_channels(&weight[d + 1 - w], &r->weight, j, some, w);
    if (la_is_given(&r->bias)) {
        read_channels(&y, &r->bias, j, some, 1);
    }
    LA_EACH(k, d + 1) {
        y = vfma(weight[k], in[k], y);
    }
    write_channels(&r->s1, j, some, &in[1], d);
    return y;
}

/* n vectors of channels from j on, together, as silu is a chain of many operations; a
 * single one may have `some` channels. */
INLINE void
step_filters(const struct filter_step *r, ptrdiff_t j, ptrdiff_t some, const int n,
             const int w, const int d)
{
    vec y[LA_CHAINS];
    LA_EACH(i, n) {
        y[i] = sum_filters(r, j + i * VL, some, w, d);
    }
    if (r->silu) {
        vsilu_each(y, n);
    }
    LA_EACH(i, n) {
        write_channels(&r->y, j + i * VL, some, &y[i], 1);
    }
}

/* Whether all arrays have one type and lie by rows, so that one loop suffices. */
static int
is_uniform(const struct filter_step *r)
{
    const struct la_array *const all[] = {&r->x,      &r->y,  &r->bias,
                                          &r->weight, &r->s0, &r->s1};
    int uniform = 1;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        uniform = uniform && (!la_is_given(all[i]) ||
                              (all[i]->type == r->x.type && by_rows(all[i])));
    }
    return uniform;
}

/* A vector of the inputs, `byte` bytes on, moves on as it is: nothing is rounded. */
INLINE void
move_inputs(const struct filter_step *r, ptrdiff_t byte, const int d)
{
    const char *const next = r->s0.data + r->s0.rs + byte;
    vec in[LA_ZIP_MAX]; /* all of them first, as s0 may be s1 */
    LA_EACH(k, d) {
        in[k] = vload_any(k + 1 < d ? next + k * r->s0.rs : r->x.data + byte);
    }
    LA_EACH(k, d) {
        *(vec_any *)(r->s1.data + k * r->s1.rs + byte) = (vec_any)in[k];
    }
}

/* step_filters of uniform arrays, by the same operations. */
INLINE void
step_uniform(const struct filter_step *r, ptrdiff_t j, const int n, const int w,
             const int d, const enum la_type type)
{
    const ptrdiff_t size = size_of(type);
    vec y[LA_CHAINS];
    LA_EACH(i, n / 2) {
        const ptrdiff_t byte = (j + 2 * i * VL) * size;
        vec *const sum = &y[2 * i];
        sum[0] = sum[1] = (vec){0};
        if (la_is_given(&r->bias)) {
            vread_two(sum, r->bias.data + byte, type);
        }
        LA_EACH(k, d + 1) {
            const char *from = k < d ? r->s0.data + k * r->s0.rs : r->x.data;
            const char *weight = r->weight.data + (k + w - d - 1) * r->weight.rs;
            vec in[2], f[2] = {{0}};
            vread_two(in, from + byte, type);
            if (k + w > d) {
                vread_two(f, weight + byte, type);
            }
            sum[0] = vfma(f[0], in[0], sum[0]);
            sum[1] = vfma(f[1], in[1], sum[1]);
        }
        LA_EACH(part, 2 * size / (ptrdiff_t)sizeof(T)) {
            move_inputs(r, byte + part * LA_VBYTES, d);
        }
    }
    if (r->silu) {
        vsilu_each(y, n);
    }
    LA_EACH(i, n / 2) {
        vwrite_two(r->y.data + (j + 2 * i * VL) * size, &y[2 * i], type);
    }
}

/* The channels before `end`, a multiple of LA_CHAINS vectors; nonzero: stop. */
INLINE int
step_all_uniform(const struct la_head *h, const struct filter_step *all, ptrdiff_t end,
                 const int w, const int d, const enum la_type type)
{
    const struct filter_step r = *all; /* which no write can change */
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t j = 0; j < end; j += LA_CHAINS * VL) {
        if (give_up(h, &until_poll, LA_CHAINS * VL * w)) {
            return 1;
        }
        step_uniform(&r, j, LA_CHAINS, w, d, type);
    }
    return 0;
}

/* All channels; nonzero: stop. */
INLINE int
step_all_filters(const struct la_head *h, const int w, const int d)
{
    const struct filter_step r = {
        .x = h->x,
        .y = h->y,
        .bias = h->bias,
        .weight = by_tap(&h->weight, 0),
        .s0 = by_tap(&h->s0, 0),
        .s1 = by_tap(&h->s1, 0),
        .silu = h->silu != 0,
    };
    const ptrdiff_t m = h->m; /* which no write can change */
    ptrdiff_t until_poll = 0, j = 0;
    const ptrdiff_t whole = m / (LA_CHAINS * VL) * (LA_CHAINS * VL);
    if (is_uniform(&r)) {
        int stop = 0;
        LA_BY_TYPE(r.x.type, stop = step_all_uniform(h, &r, whole, w, d, type));
        if (stop) {
            return 1;
        }
        j = whole;
    }
    for (; j < whole; j += LA_CHAINS * VL) {
        if (give_up(h, &until_poll, LA_CHAINS * VL * w)) {
            return 1;
        }
        step_filters(&r, j, VL, LA_CHAINS, w, d);
    }
    for (; j < m; j += VL) {
        step_filters(&r, j, m - j < VL ? m - j : VL, 1, w, d);
    }
    return 0;
}

static int
run_causal_conv1d_step(const struct la_head *h)
{
    if (!is_usual_filter(h)) {
        return run_causal_conv1d(h);
    }
    const int more = h->d == h->f;
    switch (h->f) {
    case 2:
        return more ? step_all_filters(h, 2, 2) : step_all_filters(h, 2, 1);
    case 3:
        return more ? step_all_filters(h, 3, 3) : step_all_filters(h, 3, 2);
    default:
        return more ? step_all_filters(h, 4, 4) : step_all_filters(h, 4, 3);
    }
}

#endif
