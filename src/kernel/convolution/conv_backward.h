/* conv_backward.h: gradients of the short causal convolution, one sequence.
 *
 * With gp_t = g_t o silu'(p_t), or g_t, and gp = 0 past the last token:
 *
 *    dx_t = sum_{k < w} weight_{w-1-k} o gp_{t+k} for t >= 0; for t < 0, this is ds0
 *    dweight_k = sum_t gp_t o x_{t-w+1+k},  dbias = sum_t gp_t
 *
 * so that dx is a convolution of gp with the reversed taps, w - 1 rows late.  The
 * gradient of the final state is added to its rows.  p is recomputed.  6 w n m flops.
 * Long sums are compensated.  Scratch: the weights twice and some rows. */
#ifndef LA_CONV_BACKWARD_H
#define LA_CONV_BACKWARD_H

#include "conv.h"

struct conv_backward_scratch {
    struct conv_scratch forward; /* y: grad_out, then dx */
    struct block reversed, gp, dw, lost;
    T *zeros;
};

/* Whether the tokens of a channel are adjacent, in all arrays.  Panels are narrow then:
 * the lines of many channels would lie in few sets of the caches. */
INLINE int
has_adjacent_tokens(const struct la_head *h)
{
    return along_columns(&h->x) && along_columns(&h->grad_out) && along_columns(&h->dx);
}

/* The number of channels of the panel at `col`. */
INLINE ptrdiff_t
gradient_cols(const struct la_head *h, ptrdiff_t col)
{
    return panel_cols(h, col, has_adjacent_tokens(h) ? LA_SCAN_CHANNELS : LA_CONV_COLS);
}

static struct conv_backward_scratch
causal_conv1d_backward_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t taps = conv_taps(h), cols = gradient_cols(h, 0);
    struct conv_backward_scratch r = {.forward = take_conv(h, arena, cols)};
    r.reversed = take_block(arena, taps, h->m);
    r.gp = take_block(arena, LA_CONV_ROWS + taps - 1, cols);
    r.dw = take_block(arena, taps + 1, cols); /* the last row is dbias */
    r.lost = take_block(arena, taps + 1, cols);
    r.zeros = take_row(arena, cols);
    return r;
}

/* Runs `call` with w, the number of taps, a compile-time constant. */
#define LA_WITH_TAPS(taps, call)                                                       \
    do {                                                                               \
        switch (taps) {                                                                \
            LA_TAPS_CASE(1, call)                                                      \
            LA_TAPS_CASE(2, call)                                                      \
            LA_TAPS_CASE(3, call)                                                      \
            LA_TAPS_CASE(4, call)                                                      \
            LA_TAPS_CASE(5, call)                                                      \
            LA_TAPS_CASE(6, call)                                                      \
            LA_TAPS_CASE(7, call)                                                      \
        default: {                                                                     \
            enum { w = LA_CONV_TAPS };                                                 \
            call;                                                                      \
        }                                                                              \
        }                                                                              \
    } while (0)
#define LA_TAPS_CASE(count, call)                                                      \
    case count: {                                                                      \
        enum { w = (count) };                                                          \
        call;                                                                          \
        break;                                                                         \
    }

/* Rows of dw += sum_i gp_i x_{i+k}, for one vector of columns. */
INLINE void
conv_weight_tile(struct block dw, struct block lost, struct block gp, struct la_array x,
                 ptrdiff_t rows, const int w)
{
    vec sum[LA_CONV_TAPS], window[LA_CONV_TAPS];
    LA_EACH(t, w) {
        sum[t] = (vec){0};
        window[t] = t + 1 < w ? vload_any(x.data + t * x.rs) : (vec){0};
    }
    const char *next = x.data + (w - 1) * x.rs;
    for (ptrdiff_t i = 0; i < rows; i++, next += x.rs) {
        const vec g = vload(&gp.x[i * gp.ld]);
        window[w - 1] = vload_any(next);
        LA_EACH(t, w) {
            sum[t] = vfma(g, window[t], sum[t]);
        }
        LA_EACH(t, w - 1) {
            window[t] = window[t + 1];
        }
    }
    LA_EACH(t, w) {
        add_to_sum(&dw.x[t * dw.ld], &lost.x[t * lost.ld], sum[t]);
    }
}

INLINE void
conv_weight_columns(struct block dw, struct block lost, struct block gp,
                    struct la_array x, ptrdiff_t rows, ptrdiff_t cols, const int w)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        conv_weight_tile(block_at(dw, 0, j), block_at(lost, 0, j), block_at(gp, 0, j),
                         shifted(&x, j * (ptrdiff_t)sizeof(T)), rows, w);
    }
}

/* One panel of channels. */
struct conv_columns {
    ptrdiff_t col, cols;
    struct la_array x, grad_out, dx, ds0, grad_s;
};

/* n vectors of gp = y, or y o silu'(gp). */
INLINE void
store_cotangents(T *gp, const T *y, int silu, const int n)
{
    vec g[LA_MAPPED], slope[LA_MAPPED];
    LA_EACH(c, n) {
        g[c] = vload(&y[c * VL]);
    }
    if (silu) {
        LA_EACH(c, n) {
            slope[c] = vload(&gp[c * VL]);
        }
        vsilu_slope_each(slope, n);
        LA_EACH(c, n) {
            g[c] *= slope[c];
        }
    }
    LA_EACH(c, n) {
        vstore(&gp[c * VL], g[c]);
    }
}

/* gp of the tokens t, stored after the w - 1 rows before them, and its sums. */
static void
conv_cotangents(const struct la_head *h, const struct conv_backward_scratch *r,
                const struct conv_columns *p, struct span t)
{
    const ptrdiff_t taps = conv_taps(h);
    const int direct = h->x.type == LA_NATIVE && by_rows(&h->x) && p->cols % VL == 0;
    const struct block gp = block_at(r->gp, taps - 1, 0), grad_out = r->forward.y;
    const struct la_array x = conv_window(h, r->forward.x, t, p->col, p->cols, direct);
    load_plain(grad_out, &p->grad_out, rows_from(t.first, t.rows), p->cols);
    if (h->silu != 0) {
        const struct conv c = {
            .y = block_array(gp),
            .x = x,
            .weight = block_at(r->forward.weight, 0, p->col),
            .start = r->forward.bias + p->col,
            .taps = taps,
        };
        convolve(&c, t.rows, round_up(p->cols, VL), t.ahead);
    }
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        T *to = &gp.x[i * gp.ld];
        const T *y = &grad_out.x[i * grad_out.ld];
        LA_TOGETHER(LA_MAPPED, p->cols,
                    store_cotangents(&to[j], &y[j], h->silu != 0, n));
    }
    for (ptrdiff_t k = 0; k < taps; k += LA_CONV_TAPS) {
        LA_WITH_TAPS(taps - k, conv_weight_columns(
                                   block_at(r->dw, k, 0), block_at(r->lost, k, 0), gp,
                                   shifted(&x, k * x.rs), t.rows, p->cols, w));
    }
    add_rows(r->dw.x + taps * r->dw.ld, r->lost.x + taps * r->lost.ld, gp, t.rows);
}

/* dx of `rows` tokens, from token i - (w - 1) on.  Tokens before 0 belong to the
 * initial state.  The gradient of the final state is added to the last d tokens of the
 * sequence. */
static void
conv_gradients(const struct la_head *h, const struct conv_backward_scratch *r,
               const struct conv_columns *p, ptrdiff_t i, ptrdiff_t rows,
               struct la_fetch *ahead)
{
    const ptrdiff_t taps = conv_taps(h), from = i - (taps - 1);
    const struct block dx = r->forward.y;
    const struct conv c = {
        .y = block_array(dx),
        .x = block_array(r->gp),
        .weight = block_at(r->reversed, 0, p->col),
        .start = r->zeros,
        .taps = taps,
    };
    convolve(&c, rows, round_up(p->cols, VL), ahead);
    ptrdiff_t early = 0; /* rows of tokens before 0 */
    for (ptrdiff_t k = 0; k < rows; k++) {
        const ptrdiff_t token = from + k, final = token - (h->n - h->d);
        const struct block row = block_at(dx, k, 0);
        for (ptrdiff_t j = 0; p->grad_s.data != NULL && final >= 0 && j < p->cols;
             j += VL) {
            vstore(&row.x[j],
                   vload(&row.x[j]) + load_at(&p->grad_s, final, j, p->cols));
        }
        early += token < 0;
        if (token < 0 && p->ds0.data != NULL && h->d + token >= 0) { /* d may be less */
            store_rows(&p->ds0, rows_from(h->d + token, 1), p->cols, row, NULL);
        }
    }
    store_rows(&p->dx, rows_from(from + early, rows - early), p->cols,
               block_at(dx, early, 0), NULL);
}

static int
conv_backward_panel(const struct la_head *h, const struct conv_backward_scratch *r,
                    const struct conv_columns *p)
{
    const ptrdiff_t taps = conv_taps(h), late = taps - 1;
    const struct la_array dw = by_tap(&h->dweight, p->col);
    const struct la_array db = shifted(&h->dbias, p->col * h->dbias.cs);
    struct la_fetch ahead = {0};
    ptrdiff_t until_poll = 0, rows = 0;
    clear_rows(r->dw, 0, taps + 1);
    clear_rows(r->lost, 0, taps + 1);
    clear_rows(r->gp, 0, late);
    for (ptrdiff_t i = 0; i < h->n + late; i += rows) {
        const ptrdiff_t all = h->n + late - i;
        rows = all < LA_CONV_ROWS ? all : LA_CONV_ROWS;
        if (give_up(h, &until_poll, 4 * rows * p->cols * taps)) {
            return 1;
        }
        const ptrdiff_t left = h->n - i, some = left < rows ? left : rows;
        if (some > 0) {
            const struct span t = span(i, some, i + some, h->n, &ahead);
            /* Processors prefetch so few columns by themselves. */
            if (!has_adjacent_tokens(h) && left - some >= some) {
                look_ahead(&p->x, t, p->cols);
                look_ahead(&p->grad_out, t, p->cols);
                look_ahead(&p->dx, t, p->cols);
            }
            conv_cotangents(h, r, p, t);
        }
        clear_rows(block_at(r->gp, late, 0), some > 0 ? some : 0, rows);
        conv_gradients(h, r, p, i, rows, &ahead);
        memmove(r->gp.x, r->gp.x + rows * r->gp.ld,
                (size_t)(late * r->gp.ld) * sizeof(T));
    }
    store_rows(&dw, rows_from(0, h->f), p->cols, block_at(r->dw, taps - h->f, 0), NULL);
    if (la_is_given(&db)) {
        store_rows(&db, rows_from(0, 1), p->cols, block_at(r->dw, taps, 0), NULL);
    }
    return 0;
}

static int
run_causal_conv1d_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct conv_backward_scratch r = causal_conv1d_backward_carve(h, &arena);
    const ptrdiff_t taps = conv_taps(h);
    load_taps(h, &r.forward);
    for (ptrdiff_t k = 0; k < taps; k++) {
        memcpy(r.reversed.x + k * r.reversed.ld,
               r.forward.weight.x + (taps - 1 - k) * r.forward.weight.ld,
               (size_t)r.reversed.ld * sizeof(T));
    }
    clear(r.zeros, row_step(gradient_cols(h, 0)));
    for (ptrdiff_t col = 0, cols; col < h->m; col += cols) {
        cols = gradient_cols(h, col);
        const struct conv_columns p = {
            .col = col,
            .cols = cols,
            .x = shifted(&h->x, col * h->x.cs),
            .grad_out = shifted(&h->grad_out, col * h->grad_out.cs),
            .dx = shifted(&h->dx, col * h->dx.cs),
            .ds0 = by_tap(&h->ds0, col),
            .grad_s = by_tap(&h->grad_s, col),
        };
        if (conv_backward_panel(h, &r, &p)) {
            return 1;
        }
    }
    return 0;
}

#endif
