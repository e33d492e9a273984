/* conv.h: short causal convolution of each channel, for a range of tokens of one
 * sequence.
 *
 *    p_t = bias + sum_{k < w} weight_k o x_{t - w + 1 + k},  y_t = p_t, or silu(p_t)
 *
 * with silu(p) = p sigmoid(p) and o the product per channel.  x, y (n,m), weight (m,w),
 * bias (m), or none; s0, s (m,d): the last d = w - 1 inputs before the first token and
 * at the end, oldest first.  2 w n m flops, one pass over x and y.  Scratch: the
 * weights and a few rows.  Rows j > i never affect row i.
 *
 * Where the numbers of a token are adjacent, tiles read x and write y in the caller's
 * arrays.  Where a channel's tokens are adjacent, token after token takes the place of
 * column after column.  The rest, and the first tokens, are copied. */
#ifndef LA_CONV_H
#define LA_CONV_H

#include "conv_tile.h"

/* Tokens that are copied where a channel's tokens are adjacent: a tile, or all if fewer
 * than a vector would be left. */
#define CONV_EARLY (LA_CHAINS * VL)
#define CONV_EARLY_MAX (CONV_EARLY + VL)

struct conv_scratch {
    struct block x, y, weight;
    T *bias;
    struct block channel; /* one channel's: taps, bias */
    T *early, *result;    /* its first tokens */
};

/* The number of taps: that of the weights, or more if the state has more rows.  The
 * extra taps are the oldest and have the weight 0. */
INLINE ptrdiff_t
conv_taps(const struct la_head *h)
{
    return h->f > h->d ? h->f : h->d + 1;
}

/* For panels of `cols` channels. */
static struct conv_scratch
take_conv(const struct la_head *h, struct arena *arena, ptrdiff_t cols)
{
    struct conv_scratch r;
    r.x = take_block(arena, LA_CONV_ROWS + conv_taps(h) + MR, cols);
    r.y = take_block(arena, LA_CONV_ROWS, cols);
    r.weight = take_block(arena, conv_taps(h) + MR, h->m);
    r.bias = take_block(arena, MR, h->m).x;
    r.channel = (struct block){take(arena, conv_taps(h) + 1, VL), VL};
    r.early = take_row(arena, CONV_EARLY_MAX + conv_taps(h) + VL);
    r.result = take_row(arena, CONV_EARLY_MAX);
    return r;
}

static struct conv_scratch
causal_conv1d_carve(const struct la_head *h, struct arena *arena)
{
    return take_conv(h, arena, panel_cols(h, 0, LA_CONV_COLS));
}

/* Channels [col, ...) of weights or of a state, (m,f) or (m,d), with a row per tap or
 * input. */
INLINE struct la_array
by_tap(const struct la_array *x, ptrdiff_t col)
{
    return transposed(shifted(x, col * x->rs));
}

/* The bias, zeros for none. */
INLINE struct la_array
conv_bias(const struct la_head *h)
{
    static const T zero = 0;
    return la_is_given(&h->bias) ? h->bias : (struct la_array){.data = (char *)&zero};
}

static void
load_taps(const struct la_head *h, const struct conv_scratch *r)
{
    const ptrdiff_t without = conv_taps(h) - h->f;
    const struct la_array weight = by_tap(&h->weight, 0), bias = conv_bias(h);
    clear_rows(r->weight, 0, without);
    load_plain(block_at(r->weight, without, 0), &weight, rows_from(0, h->f), h->m);
    load_plain((struct block){r->bias, row_step(h->m)}, &bias, rows_from(0, 1), h->m);
}

/* The rows of x that tokens t of some columns read, x_{t - w + 1} to x_t: if `direct`
 * in the caller's array unless some are before the first token, else a copy. */
static struct la_array
conv_window(const struct la_head *h, struct block copy, struct span t, ptrdiff_t col,
            ptrdiff_t cols, int direct)
{
    const ptrdiff_t from = t.first - (conv_taps(h) - 1), early = -(h->first + from);
    const struct la_array x = shifted(&h->x, col * h->x.cs), s0 = by_tap(&h->s0, col);
    ptrdiff_t i = 0;
    t.rows += conv_taps(h) - 1;
    if (direct && early <= 0) {
        return shifted(&x, from * x.rs);
    }
    if (s0.data != NULL && 0 < early && early <= h->d) {
        /* All rows at once: of a state by columns they are transposed. */
        i = early < t.rows ? early : t.rows;
        load_plain(copy, &s0, rows_from(h->d - early, i), cols);
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
    const struct la_array s0 = by_tap(&h->s0, col), s1 = by_tap(&h->s1, col);
    if (s1.data == NULL || h->first + h->n != h->s || (h->n == 0 && h->first > 0)) {
        return;
    }
    /* All rows at once: of a state by columns they are transposed. */
    const ptrdiff_t old = h->s < h->d ? h->d - h->s : 0;
    if (s0.data != NULL) {
        load_plain(copy, &s0, rows_from(h->s, old), cols);
    }
    else {
        clear_rows(copy, 0, old);
    }
    load_plain(block_at(copy, old, 0), &x,
               rows_from(h->s - h->d + old - h->first, h->d - old), cols);
    store_rows(&s1, rows_from(0, h->d), cols, copy, NULL);
}

/* Whether results are written past the caches by tiles. */
INLINE int
may_stream(const struct la_head *h)
{
    return h->large && h->x.type == LA_NATIVE && columns_before_streams(&h->y) >= 0;
}

/* One panel of channels of the tokens t; its column `before` is at a vector's boundary.
 */
static void
conv_panel(const struct la_head *h, const struct conv_scratch *r, struct span t,
           ptrdiff_t col, ptrdiff_t cols, ptrdiff_t before)
{
    const struct la_array y = shifted(&h->y, col * h->y.cs);
    const int native = y.type == LA_NATIVE && h->x.type == LA_NATIVE;
    const int wide = cols >= VL, streams = may_stream(h);
    const int read = wide && by_rows(&h->x);
    const int uncopied = read && h->first + t.first >= conv_taps(h) - 1;
    const int same = native || (y.type == h->x.type && uncopied);
    const int direct =
        wide && same && by_rows(&y) && (streams || !(h->large && native));
    const struct conv c = {
        .y = direct ? shifted(&y, t.first * y.rs) : block_array(r->y),
        .x = conv_window(h, r->x, t, col, cols, read && (native || direct)),
        .weight = block_at(r->weight, 0, col),
        .start = r->bias + col,
        .taps = conv_taps(h),
        .silu = h->silu != 0,
        .far = h->large,
        .stream = direct && streams,
        .before = direct ? before : 0,
    };
    convolve(&c, t.rows, wide ? cols : VL, NULL);
    if (!direct) {
        stream_rows(&y, t, cols, r->y, h->large);
    }
}

/* Whether one channel's tokens are adjacent. */
INLINE int
by_channels(const struct la_head *h)
{
    return h->n >= LA_CONV_LONG && by_columns(&h->x) && by_columns(&h->y) &&
           h->x.type == h->y.type;
}

/* One channel of x (n,m), or of inputs by tap, as a row. */
INLINE struct la_array
channel_row(const struct la_array *x, ptrdiff_t col)
{
    struct la_array row = shifted(x, col * x->cs);
    row.cs = row.rs;
    return row;
}

/* Copies one channel of the first `count` tokens and of the taps - 1 before them.
 * Returns the address of the earliest. */
static T *
load_early(const struct la_head *h, T *copy, ptrdiff_t col, ptrdiff_t count)
{
    const ptrdiff_t before = conv_taps(h) - 1;
    const struct la_array inputs = by_tap(&h->s0, col);
    const struct la_array x = channel_row(&h->x, col), s0 = channel_row(&inputs, 0);
    T *first = copy + round_up(before, VL);
    for (ptrdiff_t i = 1; i <= before; i++) {
        const ptrdiff_t row = h->d + h->first - i; /* of the state */
        first[-i] = i <= h->first                 ? load_at(&x, -i, 0, 1)[0]
                    : s0.data != NULL && row >= 0 ? load_at(&s0, row, 0, 1)[0]
                                                  : 0;
    }
    load_row(first, round_up(count, VL), &x, 0, count);
    return first - before;
}

/* One channel of the first `count` tokens. */
static void
conv_early(const struct la_head *h, const struct conv_scratch *r, struct conv c,
           ptrdiff_t col, ptrdiff_t count)
{
    const struct la_array y = channel_row(&h->y, col);
    T *x = load_early(h, r->early, col, count);
    c.x = block_array((struct block){x, 1});
    c.y = block_array((struct block){r->result, 0});
    convolve_row(&c, round_up(count, VL));
    store_rows(&y, rows_from(0, 1), count, (struct block){r->result, 0}, NULL);
}

/* One channel of all tokens, which are adjacent. */
static int
conv_channel(const struct la_head *h, const struct conv_scratch *r, ptrdiff_t col,
             ptrdiff_t *until_poll)
{
    const ptrdiff_t taps = conv_taps(h), n = h->n;
    const struct la_array x = channel_row(&h->x, col), y = channel_row(&h->y, col);
    struct conv c = {.weight = r->channel,
                     .start = r->channel.x + taps * VL,
                     .taps = taps,
                     .silu = h->silu != 0,
                     .single = 1};
    for (ptrdiff_t k = 0; k < taps; k++) {
        vstore(r->channel.x + k * VL, vset1(r->weight.x[k * r->weight.ld + col]));
    }
    vstore(r->channel.x + taps * VL, vset1(r->bias[col]));
    const ptrdiff_t early = n < CONV_EARLY_MAX ? n : CONV_EARLY;
    conv_early(h, r, c, col, early);
    for (ptrdiff_t i = early, count; i < n; i += count) {
        count = n - i < 2 * LA_CONV_TOKENS ? n - i : LA_CONV_TOKENS;
        if (give_up(h, until_poll, count * taps)) {
            return 1;
        }
        c.x = shifted(&x, (i - (taps - 1)) * x.rs);
        c.y = shifted(&y, i * y.rs);
        c.y.rs = 0; /* one row */
        c.stream = h->large && columns_before_streams(&c.y) >= 0;
        c.before = columns_before_boundary(&c.y);
        convolve_row(&c, count);
    }
    return 0;
}

/* The last column of a panel from `col` on, plus one: streams of all panels but the
 * first begin at a vector's boundary. */
INLINE ptrdiff_t
conv_panel_end(const struct la_head *h, ptrdiff_t col, ptrdiff_t before)
{
    const ptrdiff_t end =
        col + LA_CONV_COLS - (col == 0 && before > 0 ? VL - before : 0);
    return end < h->m ? end : h->m;
}

/* All tokens, panel by panel. */
static int
conv_panels(const struct la_head *h, const struct conv_scratch *r)
{
    /* Tiles that end rows before a boundary cost more than crossing it in short rows.
     */
    const int align = h->m >= LA_CONV_COLS || may_stream(h);
    const ptrdiff_t before =
        align && by_rows(&h->y) ? columns_before_boundary(&h->y) : 0;
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t i = 0; i < h->n; i += LA_CONV_ROWS) {
        for (ptrdiff_t col = 0, end; col < h->m; col = end) {
            const struct span t = span(i, LA_CONV_ROWS, i, h->n, NULL);
            end = conv_panel_end(h, col, before);
            if (give_up(h, &until_poll, t.rows * (end - col) * conv_taps(h))) {
                return 1;
            }
            conv_panel(h, r, t, col, end - col, col > 0 ? 0 : before);
        }
    }
    return 0;
}

/* All tokens, channel by channel. */
static int
conv_channels(const struct la_head *h, const struct conv_scratch *r)
{
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t col = 0; col < h->m; col++) {
        if (conv_channel(h, r, col, &until_poll)) {
            return 1;
        }
    }
    return 0;
}

static int
run_causal_conv1d(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct conv_scratch r = causal_conv1d_carve(h, &arena);
    if (h->n > 0) { /* with many short sequences, most ranges of tokens are empty */
        load_taps(h, &r);
    }
    if (by_channels(h) ? conv_channels(h, &r) : conv_panels(h, &r)) {
        return 1;
    }
    if (h->large) {
        end_streams();
    }
    for (ptrdiff_t col = 0; col < h->m; col += LA_CONV_COLS) {
        store_inputs(h, r.x, col, panel_cols(h, col, LA_CONV_COLS));
    }
    return 0;
}

#endif
