/* linear_scan_backward.h: gradients of the linear scan, one sequence.
 *
 * With the gradient r_i of h_i, from the last token on:
 *
 *   r_i = g_i + a_{i+1} r_{i+1},  dx_i = r_i,  da_i = r_i h_{i-1},  ds0 = a_0 r_0
 *
 * and da_i times a_i where a holds logarithms; of complex numbers what r_i is
 * multiplied by is conjugated, so that gradients are dL/dRe + i dL/dIm of real L.  A
 * first scan leaves a checkpoint of h every sqrt(n) tokens; from the last of these
 * blocks on it is computed again, and swept in reverse.  5 n m flops.  Scratch: sqrt(n)
 * rows, twice, of a panel. */
#ifndef LA_LINEAR_SCAN_BACKWARD_H
#define LA_LINEAR_SCAN_BACKWARD_H

#include "linear_scan.h"

struct linear_scan_backward_scratch {
    struct linear_scan_scratch scan; /* y: h of a block */
    ptrdiff_t rows;                  /* tokens from one checkpoint to the next */
    struct block dx, checkpoints;
    T *r; /* what later tokens give the state; (m) */
};

static struct linear_scan_backward_scratch
linear_scan_backward_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t interval = scan_interval(h->n), copied = copied_rows(h);
    const ptrdiff_t rows = interval > copied ? interval : copied;
    struct linear_scan_backward_scratch r = {.rows = rows};
    r.scan = take_linear(h, arena, rows);
    r.dx = take_block(arena, rows, panel_columns(h));
    r.checkpoints = take_block(arena, scan_checkpoints(h->n), all_columns(h));
    r.r = take_row(arena, all_columns(h));
    return r;
}

/* One panel of columns. */
struct linear_panel {
    ptrdiff_t col, cols;
    struct la_array a, x, grad_out, da, dx;
    int rule;
};

/* r y, or r times the conjugate of y */
INLINE vec
times_later(vec r, vec y, const int rule)
{
    return rule & SCAN_COMPLEX ? times_conjugate(r, y) : r * y;
}

/* dx and da, which may lie where h does; `before` is the row before its first.  Of
 * whole vectors of columns, with `some` = VL, or of `some` columns. */
INLINE void
linear_back(struct block dx, struct block da, struct block h, struct block a,
            struct block g, const T *before, T *r, ptrdiff_t rows, ptrdiff_t cols,
            ptrdiff_t some, const int rule)
{
    for (ptrdiff_t i = rows - 1; i >= 0; i--) {
        const T *last = i > 0 ? h.x + (i - 1) * h.ld : before;
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const vec factor = factor_of(load_some(&a.x[i * a.ld + j], some), rule);
            const vec grad = vload(&r[j]) + load_some(&g.x[i * g.ld + j], some);
            const vec on = times_later(grad, factor, rule), old = vload(&last[j]);
            const vec da_here = times_later(rule & SCAN_LOG ? on : grad, old, rule);
            store_some(&dx.x[i * dx.ld + j], some, grad);
            store_some(&da.x[i * da.ld + j], some, da_here);
            vstore(&r[j], on);
        }
    }
}

/* The states before each block. */
static int
leave_rows(const struct la_head *h, const struct linear_scan_backward_scratch *r,
           const struct linear_panel *p, ptrdiff_t *until_poll)
{
    T *s = r->scan.s + p->col;
    const size_t bytes = (size_t)round_up(p->cols, VL) * sizeof(T);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        const struct span t = span(i, r->rows, i, h->n, NULL);
        memcpy(block_at(r->checkpoints, i / r->rows, p->col).x, s, bytes);
        if (give_up(h, until_poll, t.rows * p->cols)) {
            return 1;
        }
        if (i + t.rows < h->n) {
            linear_block(p->rule, r->scan.y,
                         factors_or_copy(r->scan.a, &p->a, t, p->cols, p->rule),
                         block_or_copy(r->scan.x, &p->x, t, p->cols), s, t.rows,
                         p->cols, -1);
        }
    }
    return 0;
}

static void
linear_block_back(const struct la_head *h, const struct linear_scan_backward_scratch *r,
                  const struct linear_panel *p, struct span t)
{
    const T *before = block_at(r->checkpoints, t.first / r->rows, p->col).x;
    T *s = r->scan.s + p->col, *later = r->r + p->col;
    const ptrdiff_t W = round_up(p->cols, VL);
    const struct block a = factors_or_copy(r->scan.a, &p->a, t, p->cols, p->rule);
    memcpy(s, before, (size_t)W * sizeof(T));
    linear_block(p->rule, r->scan.y, a, block_or_copy(r->scan.x, &p->x, t, p->cols), s,
                 t.rows, p->cols, -1);
    const struct block g = block_or_copy(r->scan.x, &p->grad_out, t, p->cols);
    const int direct = !h->large && lies_as_block(&p->dx) && lies_as_block(&p->da);
    const struct block dx = direct ? block_of(&p->dx, t) : r->dx;
    const struct block da = direct ? block_of(&p->da, t) : r->scan.y;
    if (p->cols < VL) {
        LA_BY_RULE(p->rule, linear_back(dx, da, r->scan.y, a, g, before, later, t.rows,
                                        p->cols, p->cols, rule));
    }
    else {
        LA_BY_RULE(p->rule, linear_back(dx, da, r->scan.y, a, g, before, later, t.rows,
                                        p->cols, VL, rule));
    }
    if (!direct) {
        store_parts(&p->dx, t, p->cols, dx, h->large);
        store_parts(&p->da, t, p->cols, da, h->large);
    }
}

/* h: in order. */
static int
scan_rows_back(const struct la_head *h, struct linear_scan_backward_scratch r, int rule)
{
    const ptrdiff_t last = h->n > 0 ? (h->n - 1) / r.rows * r.rows : -1;
    ptrdiff_t until_poll = 0;
    load_part_row(r.scan.s, &h->s0, h->m);
    load_part_row(r.r, &h->grad_s, h->m);
    for (ptrdiff_t col = 0; col < h->m; col += linear_cols(h, col, 0)) {
        const struct linear_panel p = {
            .col = col,
            .cols = linear_cols(h, col, 0),
            .a = parts_from(&h->a, col),
            .x = parts_from(&h->x, col),
            .grad_out = parts_from(&h->grad_out, col),
            .da = parts_from(&h->da, col),
            .dx = parts_from(&h->dx, col),
            .rule = rule,
        };
        if (leave_rows(h, &r, &p, &until_poll)) {
            return 1;
        }
        for (ptrdiff_t i = last; i >= 0; i -= r.rows) {
            if (give_up(h, &until_poll, 3 * r.rows * p.cols)) {
                return 1;
            }
            linear_block_back(h, &r, &p, span(i, r.rows, i, h->n, NULL));
        }
    }
    store_part_row(&h->ds0, r.r, h->m);
    return 0;
}

static int
run_linear_scan_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct la_head flipped = in_order(h);
    return scan_rows_back(&flipped, linear_scan_backward_carve(h, &arena),
                          rule_of_scan(h));
}

#endif
