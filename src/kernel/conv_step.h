/* conv_step.h: one token of the short convolution (conv.h) on a state.
 *
 *    y = bias + sum_{k < d} weight_k o s_k + weight_d o x, or silu of it
 *    s <- (s_1, ..., s_{d-1}, x)
 *
 * x, y, bias (m), weight (w,m), s (d,m).  One pass over channels, a vector at a time:
 * the state is read once and written once.  The sums are those of conv_tile.h, bit for
 * bit.  Without s0 the state in s1 is updated in place.  Filters of other lengths than
 * usual are left to the kernel for sequences; only this one needs scratch. */
#ifndef LA_CONV_STEP_H
#define LA_CONV_STEP_H

#include "conv.h"
#include "zip.h"

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

/* Whether x has n rows and lies by columns without gaps. */
INLINE int
is_dense(const struct la_array *x, const int n)
{
    const ptrdiff_t size = size_of(x->type);
    return x->rs == size && x->cs == n * size;
}

/* The n rows of channels [j, j + some) of x. */
INLINE void
read_channels(vec rows[], const struct la_array *x, ptrdiff_t j, ptrdiff_t some,
              const int n, const enum la_type type)
{
    const char *from = x->data + j * x->cs;
    if (is_dense(x, n) && some == VL) {
        vec columns[LA_ZIP_MAX];
        LA_EACH(i, n) {
            columns[i] = vread(from + i * VL * size_of(type), type);
        }
        vrows(rows, columns, n);
    }
    else {
        LA_EACH(i, n) {
            rows[i] = vread_part(from + i * x->rs, x->cs, some, type);
        }
    }
}

/* The same back, for a state. */
INLINE void
write_channels(const struct la_array *x, ptrdiff_t j, ptrdiff_t some, const vec rows[],
               const int n)
{
    char *to = x->data + j * x->cs;
    if (is_dense(x, n) && some == VL) {
        vec columns[LA_ZIP_MAX];
        vcolumns(columns, rows, n);
        LA_EACH(i, n) {
            vwrite(to + i * LA_VBYTES, columns[i], LA_NATIVE);
        }
    }
    else {
        LA_EACH(i, n) {
            vwrite_part(to + i * x->rs, x->cs, some, rows[i], LA_NATIVE);
        }
    }
}

/* Channels [j, j + some).  An input that the filters do not reach has the weight 0. */
INLINE void
step_filters(const struct la_head *h, ptrdiff_t j, ptrdiff_t some, const int w,
             const int d)
{
    vec in[LA_ZIP_MAX + 1], weight[LA_ZIP_MAX + 1] = {{0}};
    read_channels(in, &h->s0, j, some, d, LA_NATIVE);
    in[d] = load_at(&h->x, 0, j, j + some);
    LA_BY_TYPE(h->weight.type,
               read_channels(weight + d + 1 - w, &h->weight, j, some, w, type));
    vec y = load_at(&h->bias, 0, j, j + some);
    LA_EACH(k, d + 1) {
        y = vfma(weight[k], in[k], y);
    }
    if (h->silu != 0) {
        y = vsilu(y);
    }
    vwrite_part(h->y.data + j * h->y.cs, h->y.cs, some, y, h->y.type);
    write_channels(&h->s1, j, some, in + 1, d);
}

/* All channels; nonzero: stop. */
INLINE int
step_all_filters(const struct la_head *given, const int w, const int d)
{
    const struct la_head h = *given; /* which no write can change */
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t j = 0; j < h.m; j += VL) {
        if (give_up(&h, &until_poll, VL * w)) {
            return 1;
        }
        step_filters(&h, j, h.m - j < VL ? h.m - j : VL, w, d);
    }
    return 0;
}

static int
run_causal_conv1d_step(const struct la_head *h)
{
    struct la_head one = *h;
    one.s0 = h->s0.data != NULL ? h->s0 : h->s1;
    if (!is_usual_filter(h)) {
        return run_causal_conv1d(&one);
    }
    const int more = h->d == h->f;
    switch (h->f) {
    case 2:
        return more ? step_all_filters(&one, 2, 2) : step_all_filters(&one, 2, 1);
    case 3:
        return more ? step_all_filters(&one, 3, 3) : step_all_filters(&one, 3, 2);
    default:
        return more ? step_all_filters(&one, 4, 4) : step_all_filters(&one, 4, 3);
    }
}

#endif
