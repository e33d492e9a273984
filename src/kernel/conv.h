/* conv.h: short causal convolution of each channel, for a range of tokens of one
 * sequence.
 *
 *    p_t = bias + sum_{k < w} weight_k o x_{t - w + 1 + k},  y_t = p_t, or silu(p_t)
 *
 * with silu(p) = p sigmoid(p) and o the product per channel.  x, y (n,m), weight (w,m),
 * bias (m); s0, s (d,m): the last d = w - 1 inputs before the first token and at the
 * end, oldest first.  2 w n m flops, one pass over x and y.  Scratch: the weights and a few
 * rows.  Rows j > i never affect row i.
 *
 * Where the numbers of a token are adjacent, tiles read x and write y in the caller's
 * arrays.  Where a channel's tokens are adjacent, token after token takes the place of
 * column after column.  The rest, and the first tokens, are copied. */
#ifndef LA_CONV_H
#define LA_CONV_H

#include "conv_tile.h"

struct conv_scratch {
    struct block x, y, weight, channel;
    T *bias, *tokens;
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
    r.channel = take_block(arena, conv_taps(h) + 1, VL);
    r.tokens = take_row(arena, LA_CONV_TOKENS + conv_taps(h));
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

/* The rows of a block as an array. */
INLINE struct la_array
block_array(struct block b)
{
    return (struct la_array){(char *)b.x, b.ld * (ptrdiff_t)sizeof(T), sizeof(T),
                             LA_NATIVE};
}

/* The rows of x that tokens t of some columns read, x_{t - w + 1} to x_t: if `direct`
 * in the caller's array unless some are before the first token, else a copy. */
static struct la_array
conv_window(const struct la_head *h, struct block copy, struct span t, ptrdiff_t col,
            ptrdiff_t cols, int direct)
{
    const ptrdiff_t from = t.first - (conv_taps(h) - 1), early = -(h->first + from);
    const struct la_array x = shifted(&h->x, col * h->x.cs);
    const struct la_array s0 = shifted(&h->s0, col * h->s0.cs);
    ptrdiff_t i = 0;
    t.rows += conv_taps(h) - 1;
    if (direct && early <= 0) {
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
    return block_array(copy);
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
queue_next_panel(const struct la_head *h, struct span t, ptrdiff_t next, ptrdiff_t cols)
{
    const ptrdiff_t first = next < h->m ? t.first : t.first + LA_CONV_ROWS;
    const struct la_array x = shifted(&h->x, next < h->m ? next * h->x.cs : 0);
    if (first < h->n) {
        const ptrdiff_t rows =
            h->n - first < LA_CONV_ROWS ? h->n - first : LA_CONV_ROWS;
        look_ahead(&x, (struct span){t.first, rows, first, t.ahead}, cols);
    }
}

/* One panel of channels of the tokens t. */
static void
conv_panel_forward(const struct la_head *h, const struct conv_scratch *r, struct span t,
                   ptrdiff_t col, ptrdiff_t cols, ptrdiff_t before)
{
    const struct la_array y = shifted(&h->y, col * h->y.cs), own = block_array(r->y);
    const int wide = cols >= VL, streams = h->large && y.type == LA_NATIVE;
    const int direct = wide && by_rows(&y) && (!streams || before >= 0);
    const struct conv c = {
        .y = direct ? shifted(&y, t.first * y.rs) : own,
        .x = conv_window(h, r->x, t, col, cols, wide && by_rows(&h->x)),
        .weight = block_at(r->weight, 0, col),
        .start = r->bias + col,
        .taps = conv_taps(h),
        .silu = h->silu != 0,
        .before = direct && streams ? before : -1,
    };
    convolve(&c, t.rows, wide ? cols : VL, t.ahead);
    if (!direct) {
        stream_rows(&y, t, cols, r->y, h->large);
    }
}

/* The last column of a panel from `col` on, plus one: streams of all panels but the
 * first begin at a vector's boundary. */
INLINE ptrdiff_t
conv_panel_end(const struct la_head *h, ptrdiff_t col, ptrdiff_t before)
{
    const ptrdiff_t end = col + LA_CONV_COLS - (col == 0 && before > 0 ? VL - before : 0);
    return end < h->m ? end : h->m;
}

static int
run_causal_conv1d(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct conv_scratch r = causal_conv1d_carve(h, &arena);
    const ptrdiff_t before = columns_before_streams(&h->y);
    struct la_fetch ahead = {0};
    ptrdiff_t until_poll = 0;
    if (h->n > 0) { /* with many short sequences, most ranges of tokens are empty */
        load_taps(h, &r);
    }
    for (ptrdiff_t i = 0; i < h->n; i += LA_CONV_ROWS) {
        for (ptrdiff_t col = 0, end; col < h->m; col = end) {
            const struct span t = span(i, LA_CONV_ROWS, i, h->n, &ahead);
            end = conv_panel_end(h, col, before);
            if (give_up(h, &until_poll, t.rows * (end - col) * conv_taps(h))) {
                return 1;
            }
            queue_next_panel(h, t, end, end - col);
            conv_panel_forward(h, &r, t, col, end - col, col == 0 ? before : before < 0 ? before : 0);
        }
    }
    if (h->large) {
        end_streams();
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
