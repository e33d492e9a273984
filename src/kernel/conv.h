/* conv.h: short causal convolution of each channel, for a range of tokens of one
 * sequence.
 *
 *    p_t = bias + sum_{k < w} weight_k o x_{t - w + 1 + k},  y_t = p_t, or silu(p_t)
 *
 * with silu(p) = p sigmoid(p) and o the product per channel.  x, y (n,m), weight (w,m),
 * bias (m); s0, s (d,m): the last d = w - 1 inputs before the first token and at the
 * end, oldest first.  Taps are summed from the oldest on, eight at a time in registers.
 * 2 w n m flops.  Scratch: the weights and a few rows.  Rows j > i never affect row
 * i. */
#ifndef LA_CONV_H
#define LA_CONV_H

#include "recurrence.h"

struct conv_scratch {
    struct block x, y, weight;
    T *bias;
};

/* The number of taps: that of the weights, or more if the state has more rows.  The
 * extra taps are the oldest and have the weight 0. */
INLINE ptrdiff_t
conv_taps(const struct la_head *h)
{
    return h->f > h->d ? h->f : h->d + 1;
}

/* The number of channels of the panel at `col`. */
INLINE ptrdiff_t
panel_cols(const struct la_head *h, ptrdiff_t col)
{
    return h->m - col < LA_CONV_COLS ? h->m - col : LA_CONV_COLS;
}

static struct conv_scratch
causal_conv1d_carve(const struct la_head *h, struct arena *arena)
{
    struct conv_scratch r;
    r.x = take_block(arena, LA_CONV_ROWS + conv_taps(h) + MR, panel_cols(h, 0));
    r.y = take_block(arena, LA_CONV_ROWS, panel_cols(h, 0));
    r.weight = take_block(arena, conv_taps(h) + MR, h->m);
    r.bias = take_block(arena, MR, h->m).x;
    return r;
}

static void
load_taps(const struct la_head *h, const struct conv_scratch *r)
{
    const ptrdiff_t without = conv_taps(h) - h->f;
    clear_rows(r->weight, 0, without);
    load_plain(block_at(r->weight, without, 0), &h->weight, rows_from(0, h->f), h->m);
    load_plain((struct block){r->bias, row_step(h->m)}, &h->bias, rows_from(0, 1),
               h->m);
}

/* p sigmoid(p), from e^-|p| so that nothing overflows. */
INLINE vec
vsilu(vec p)
{
    const vec one = vset1(1), e = vexp_bounded(vminus_abs(p));
    return p * vselect(p < (vec){0}, e, one) / (one + e);
}

/* silu'(p) = s + p s (1 - s), s = sigmoid(p) */
INLINE vec
vsilu_slope(vec p)
{
    const vec one = vset1(1), e = vexp_bounded(vminus_abs(p)), d = one / (one + e);
    const ivec left = p < (vec){0};
    const vec s = vselect(left, e, one) * d, other = vselect(left, one, e) * d;
    return vfma(p * s, other, s);
}

/* The rows of x that tokens t of some columns read, x_{t - w + 1} to x_t: in the
 * caller's array if they are whole vectors and not before the first token, else a
 * copy. */
static struct la_array
conv_window(const struct la_head *h, struct block copy, struct span t, ptrdiff_t col,
            ptrdiff_t cols)
{
    const ptrdiff_t from = t.first - (conv_taps(h) - 1), early = -(h->first + from);
    const struct la_array x = shifted(&h->x, col * h->x.cs);
    const struct la_array s0 = shifted(&h->s0, col * h->s0.cs);
    ptrdiff_t i = 0;
    t.rows += conv_taps(h) - 1;
    if (early <= 0 && x.type == LA_NATIVE && x.cs == (ptrdiff_t)sizeof(T) &&
        cols % VL == 0) {
        return shifted(&x, from * x.rs);
    }
    for (; i < early && i < t.rows; i++) {
        const ptrdiff_t row = h->d - early + i;
        if (s0.data != NULL && row >= 0) {
            load_plain(block_at(copy, i, 0), &s0, rows_from(row, 1), cols);
        }
        else {
            clear(copy.x + i * copy.ld, copy.ld);
        }
    }
    load_plain(block_at(copy, i, 0), &x, rows_from(from + i, t.rows - i), cols);
    return (struct la_array){(char *)copy.x, copy.ld * (ptrdiff_t)sizeof(T), sizeof(T),
                             LA_NATIVE};
}

/* Rows of y = start + sum_{k < w} weight_k x_{i + k}, for one vector of columns. */
INLINE void
conv_tile(struct block y, struct la_array x, struct block weight, struct block start,
          ptrdiff_t rows, const int w, const int silu)
{
    vec k[LA_CONV_TAPS], window[LA_CONV_TAPS];
    LA_EACH(t, w) {
        k[t] = vload(&weight.x[t * weight.ld]);
        window[t] = t + 1 < w ? vload_any(x.data + t * x.rs) : (vec){0};
    }
    const char *next = x.data + (w - 1) * x.rs;
    for (ptrdiff_t i = 0; i < rows; i++, next += x.rs) {
        vec p = vload(&start.x[i * start.ld]);
        window[w - 1] = vload_any(next);
        LA_EACH(t, w) {
            p = vfma(k[t], window[t], p);
        }
        vstore(&y.x[i * y.ld], silu ? vsilu(p) : p);
        LA_EACH(t, w - 1) {
            window[t] = window[t + 1];
        }
    }
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

INLINE void
conv_columns(struct block y, struct la_array x, struct block weight, struct block start,
             ptrdiff_t rows, ptrdiff_t cols, const int w, const int silu,
             struct la_fetch *ahead)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        conv_tile(block_at(y, 0, j), shifted(&x, j * (ptrdiff_t)sizeof(T)),
                  block_at(weight, 0, j), block_at(start, 0, j), rows, w, silu);
        la_fetch_some(ahead);
    }
}

/* y = start + the convolution of the rows of x with `taps` taps; then silu, if asked
 * for. */
static void
convolve(struct block y, struct la_array x, struct block weight, struct block start,
         ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t taps, int silu,
         struct la_fetch *ahead)
{
    for (ptrdiff_t k = 0; k < taps; k += LA_CONV_TAPS) {
        const struct la_array from = shifted(&x, k * x.rs);
        const struct block some = block_at(weight, k, 0);
        if (silu && taps - k <= LA_CONV_TAPS) {
            LA_WITH_TAPS(taps - k,
                         conv_columns(y, from, some, start, rows, cols, w, 1, ahead));
        }
        else {
            LA_WITH_TAPS(taps - k,
                         conv_columns(y, from, some, start, rows, cols, w, 0, ahead));
        }
        start = y;
    }
}

/* Stores the last d inputs of the sequence, if these tokens include its end. */
static void
store_inputs(const struct la_head *h, struct block copy, ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array x = shifted(&h->x, col * h->x.cs);
    const struct la_array s0 = shifted(&h->s0, col * h->s0.cs);
    const struct la_array s1 = shifted(&h->s1, col * h->s1.cs);
    if (s1.data == NULL || h->first + h->n != h->s || (h->n == 0 && h->first > 0)) {
        return;
    }
    for (ptrdiff_t k = 0; k < h->d; k++) {
        const ptrdiff_t row = h->s - h->d + k; /* of the sequence */
        if (row >= 0) {
            load_plain(copy, &x, rows_from(row - h->first, 1), cols);
        }
        else if (s0.data != NULL) {
            load_plain(copy, &s0, rows_from(h->d + row, 1), cols);
        }
        else {
            clear(copy.x, copy.ld);
        }
        store_rows(&s1, rows_from(k, 1), cols, copy, NULL);
    }
}

/* Prefetches the rows of the next panel, or of the first panel of the next tokens. */
INLINE void
queue_next_panel(const struct la_head *h, struct span t, ptrdiff_t col)
{
    const int more = col + LA_CONV_COLS < h->m;
    const ptrdiff_t first = more ? t.first : t.first + LA_CONV_ROWS;
    const ptrdiff_t next = more ? col + LA_CONV_COLS : 0;
    const struct la_array x = shifted(&h->x, next * h->x.cs);
    if (first < h->n) {
        const ptrdiff_t rows =
            h->n - first < LA_CONV_ROWS ? h->n - first : LA_CONV_ROWS;
        look_ahead(&x, (struct span){t.first, rows, first, t.ahead},
                   panel_cols(h, next));
    }
}

static int
run_causal_conv1d(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct conv_scratch r = causal_conv1d_carve(h, &arena);
    struct la_fetch ahead = {0};
    ptrdiff_t until_poll = 0;
    if (h->n > 0) { /* with many short sequences, most ranges of tokens are empty */
        load_taps(h, &r);
    }
    for (ptrdiff_t i = 0; i < h->n; i += LA_CONV_ROWS) {
        for (ptrdiff_t col = 0; col < h->m; col += LA_CONV_COLS) {
            const struct span t = span(i, LA_CONV_ROWS, i, h->n, &ahead);
            const ptrdiff_t cols = panel_cols(h, col);
            const struct la_array y = shifted(&h->y, col * h->y.cs);
            if (give_up(h, &until_poll, t.rows * cols * conv_taps(h))) {
                return 1;
            }
            const struct la_array x = conv_window(h, r.x, t, col, cols);
            queue_next_panel(h, t, col);
            convolve(r.y, x, block_at(r.weight, 0, col),
                     (struct block){r.bias + col, 0}, t.rows, cols, conv_taps(h),
                     h->silu != 0, &ahead);
            stream_rows(&y, t, cols, r.y, h->large);
        }
    }
    for (ptrdiff_t col = 0; col < h->m; col += LA_CONV_COLS) {
        store_inputs(h, r.x, col, panel_cols(h, col));
    }
    return 0;
}

/* One token.  Without s0, the state in s1 is updated in place: each row is read before
 * it is overwritten. */
static struct conv_scratch
causal_conv1d_step_carve(const struct la_head *h, struct arena *arena)
{
    return causal_conv1d_carve(h, arena);
}

static int
run_causal_conv1d_step(const struct la_head *h)
{
    struct la_head one = *h;
    one.s0 = h->s0.data != NULL ? h->s0 : h->s1;
    return run_causal_conv1d(&one);
}

#endif
