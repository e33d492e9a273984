/* linear_scan.h: a first-order recurrence of each number, one sequence.
 *
 *   h_i = a_i h_{i-1} + x_i, or exp(a_i) h_{i-1} + x_i where a holds logarithms
 *
 * a, x, h (n,m), the state s0, s (m): h before the first token and after the last.
 * With `reverse` the last token is the first: rows follow one another backwards.  One
 * fused multiply-add a number: memory traffic is all its time, but for one column,
 * which waits for each sum.  Scratch: blocks of a panel of columns, and the state.
 * Nothing of row j > i reaches row i. */
#ifndef LA_LINEAR_SCAN_H
#define LA_LINEAR_SCAN_H

#include "scan.h"

struct linear_scan_scratch {
    struct block a, x, y; /* a panel's, where it does not lie as it is computed */
    T *s;
};

static struct linear_scan_scratch
take_linear(const struct la_head *h, struct arena *arena, ptrdiff_t most)
{
    struct linear_scan_scratch r;
    const ptrdiff_t rows = h->n < most ? round_up(h->n, MR) : most;
    const ptrdiff_t cols = scan_cols(h, 0, LA_LINEAR_COLS);
    r.a = take_block(arena, rows, cols);
    r.x = take_block(arena, rows, cols);
    r.y = take_block(arena, rows, cols);
    r.s = take_row(arena, h->m);
    return r;
}

static struct linear_scan_scratch
linear_scan_carve(const struct la_head *h, struct arena *arena)
{
    return take_linear(h, arena, LA_SCAN_ROWS);
}

/* Columns of the panel from `col` on: whole vectors, or those of the last in part. */
INLINE ptrdiff_t
linear_cols(const struct la_head *h, ptrdiff_t col)
{
    const ptrdiff_t cols = scan_cols(h, col, LA_LINEAR_COLS);
    return cols > VL ? cols / VL * VL : cols;
}

/* Whether the rows of x are those of a block. */
INLINE int
lies_as_block(const struct la_array *x, ptrdiff_t cols)
{
    const ptrdiff_t size = sizeof(T);
    return x->type == LA_NATIVE && x->cs == size && x->rs % size == 0 &&
           (uintptr_t)x->data % sizeof(T) == 0 && cols % VL == 0;
}

/* The rows t of it, which need not begin on a vector's boundary. */
INLINE struct block
block_of(const struct la_array *x, struct span t)
{
    return (struct block){(T *)(x->data + t.first * x->rs),
                          x->rs / (ptrdiff_t)sizeof(T)};
}

/* Rows t of x, where they lie or copied. */
INLINE struct block
block_or_copy(struct block copy, const struct la_array *x, struct span t,
              ptrdiff_t cols)
{
    if (lies_as_block(x, cols)) {
        return block_of(x, t);
    }
    load_plain(copy, x, t, cols);
    return copy;
}

/* a, or e^a */
INLINE vec
factor_of(const T *a, const int is_log)
{
    const vec x = vload_any((const char *)a);
    return is_log ? vexp(x) : x;
}

/* nr vectors of columns from j on, in registers, over all rows. */
INLINE void
scan_narrow(struct block y, struct block a, struct block x, T *s, ptrdiff_t rows,
            ptrdiff_t j, const int nr, const int is_log)
{
    vec h[NR];
    LA_EACH(k, nr) {
        h[k] = vload(&s[j + k * VL]);
    }
    for (ptrdiff_t i = 0; i < rows; i++) {
        LA_EACH(k, nr) {
            const ptrdiff_t col = j + k * VL;
            const vec w = vload_any((const char *)&x.x[i * x.ld + col]);
            h[k] = vfma(factor_of(&a.x[i * a.ld + col], is_log), h[k], w);
            *(vec_any *)&y.x[i * y.ld + col] = (vec_any)h[k];
        }
    }
    LA_EACH(k, nr) {
        vstore(&s[j + k * VL], h[k]);
    }
}

/* Row by row, as they follow in memory. */
INLINE void
scan_wide(struct block y, struct block a, struct block x, T *s, ptrdiff_t rows,
          ptrdiff_t cols, const int is_log)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const vec w = vload_any((const char *)&x.x[i * x.ld + j]);
            const vec h = vfma(factor_of(&a.x[i * a.ld + j], is_log), vload(&s[j]), w);
            vstore(&s[j], h);
            *(vec_any *)&y.x[i * y.ld + j] = (vec_any)h;
        }
    }
}

/* y = h of the rows, and s, the state before them, that after them. */
INLINE void
scan_block(struct block y, struct block a, struct block x, T *s, ptrdiff_t rows,
           ptrdiff_t cols, const int is_log)
{
    const ptrdiff_t W = round_up(cols, VL);
    if (W > NR * VL) {
        scan_wide(y, a, x, s, rows, W, is_log);
        return;
    }
    LA_BY_TILES(W, scan_narrow(y, a, x, s, rows, col, nr, is_log));
}

static void
linear_block(const struct la_head *h, struct block y, struct block a, struct block x,
             T *s, ptrdiff_t rows, ptrdiff_t cols)
{
    if (h->log != 0) {
        scan_block(y, a, x, s, rows, cols, 1);
    }
    else {
        scan_block(y, a, x, s, rows, cols, 0);
    }
}

/* The rows of x, the last one first. */
static void
turn_rows(struct la_array *x, ptrdiff_t n)
{
    *x = shifted(x, (n - 1) * x->rs);
    x->rs = -x->rs;
}

/* h with its tokens in the order in which they are scanned. */
static struct la_head
in_order(const struct la_head *h)
{
    struct la_head turned = *h;
    if (h->reverse != 0 && h->n > 0) {
        turn_rows(&turned.a, h->n);
        turn_rows(&turned.x, h->n);
        turn_rows(&turned.grad_out, h->n);
        turn_rows(&turned.y, h->n);
        turn_rows(&turned.da, h->n);
        turn_rows(&turned.dx, h->n);
    }
    return turned;
}

static int
scan_rows(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct linear_scan_scratch r = linear_scan_carve(h, &arena);
    ptrdiff_t until_poll = 0;
    load_vector(r.s, &h->s0, h->m);
    for (ptrdiff_t i = 0; i < h->n; i += LA_SCAN_ROWS) {
        for (ptrdiff_t col = 0, cols; col < h->m; col += cols) {
            const struct span t = span(i, LA_SCAN_ROWS, i, h->n, NULL);
            cols = linear_cols(h, col);
            const struct la_array a = shifted(&h->a, col * h->a.cs);
            const struct la_array x = shifted(&h->x, col * h->x.cs);
            const struct la_array out = shifted(&h->y, col * h->y.cs);
            if (give_up(h, &until_poll, t.rows * cols)) {
                return 1;
            }
            const int direct = !h->large && lies_as_block(&out, cols);
            const struct block y = direct ? block_of(&out, t) : r.y;
            linear_block(h, y, block_or_copy(r.a, &a, t, cols),
                         block_or_copy(r.x, &x, t, cols), r.s + col, t.rows, cols);
            if (!direct) {
                stream_rows(&out, t, cols, y, h->large);
            }
        }
    }
    store_vector(&h->s1, r.s, h->m);
    return 0;
}

static int
run_linear_scan(const struct la_head *h)
{
    const struct la_head turned = in_order(h);
    return scan_rows(&turned);
}

/* One token.  Where no s0 is given the state is updated in place, in s1. */
static struct linear_scan_scratch
linear_scan_step_carve(const struct la_head *h, struct arena *arena)
{
    return linear_scan_carve(h, arena);
}

static int
run_linear_scan_step(const struct la_head *h)
{
    struct la_head one = *h;
    one.s0 = h->s0.data != NULL ? h->s0 : h->s1;
    return run_linear_scan(&one);
}

#endif
