/* linear_scan.h: a first-order recurrence of each number, real or complex, one
 * sequence.
 *
 *   h_i = a_i h_{i-1} + x_i, or exp(a_i) h_{i-1} + x_i where a holds logarithms
 *
 * a, x, h (n,m), the state s0, s (m): h before the first token and after the last.
 * With `reverse` the last token is the first: rows follow one another backwards.  One
 * fused multiply-add a number: memory traffic is all its time, but for one column,
 * which waits for each sum.  Of complex numbers the columns are those of their parts,
 * each real part before its imaginary one: 8 flops a number.  Scratch: blocks of a
 * panel of columns, and the state.  Nothing of row j > i reaches row i. */
#ifndef LA_LINEAR_SCAN_H
#define LA_LINEAR_SCAN_H

#include "../tiles/complex_vector.h"
#include "scan.h"

/* What a scan does, its rule: of factors or logarithms, of real or complex numbers. */
enum { SCAN_LOG = 1, SCAN_COMPLEX = 2 };

/* What `call` does with `rule` a constant. */
#define LA_BY_RULE(rule_of, call)                                                      \
    do {                                                                               \
        switch (rule_of) {                                                             \
        case 0: {                                                                      \
            enum { rule = 0 };                                                         \
            call;                                                                      \
            break;                                                                     \
        }                                                                              \
        case SCAN_LOG: {                                                               \
            enum { rule = SCAN_LOG };                                                  \
            call;                                                                      \
            break;                                                                     \
        }                                                                              \
        case SCAN_COMPLEX: {                                                           \
            enum { rule = SCAN_COMPLEX };                                              \
            call;                                                                      \
            break;                                                                     \
        }                                                                              \
        default: {                                                                     \
            enum { rule = SCAN_COMPLEX | SCAN_LOG };                                   \
            call;                                                                      \
            break;                                                                     \
        }                                                                              \
        }                                                                              \
    } while (0)

struct linear_scan_scratch {
    struct block a, x, y; /* a panel's, where it does not lie as it is computed */
    T *s;
};

/* Columns of the call: two to a complex number. */
INLINE ptrdiff_t
all_columns(const struct la_head *h)
{
    return h->a.type == LA_COMPLEX ? 2 * h->m : h->m;
}

/* Whether the tokens of a column lie nearer to each other than columns do. */
INLINE int
has_near_tokens(const struct la_head *h)
{
    const ptrdiff_t rs = h->x.rs, cs = h->x.cs;
    return !by_rows(&h->x) && (rs < 0 ? -rs : rs) < (cs < 0 ? -cs : cs);
}

/* Columns of the widest panel: few of such columns, for many tokens, as the lines of
 * more would not stay in the cache until the next tokens. */
INLINE ptrdiff_t
panel_columns(const struct la_head *h)
{
    const ptrdiff_t all = all_columns(h);
    const ptrdiff_t most = has_near_tokens(h) ? LA_SCAN_CHANNELS : LA_LINEAR_COLS;
    return all < most ? all : most;
}

/* Tokens of a block that is copied. */
INLINE ptrdiff_t
copied_rows(const struct la_head *h)
{
    return has_near_tokens(h) ? LA_SCAN_COLUMN_ROWS : LA_SCAN_ROWS;
}

static struct linear_scan_scratch
take_linear(const struct la_head *h, struct arena *arena, ptrdiff_t most)
{
    struct linear_scan_scratch r;
    const ptrdiff_t rows = h->n < most ? round_up(h->n, MR) : most;
    const ptrdiff_t cols = panel_columns(h);
    r.a = take_block(arena, rows, cols);
    r.x = take_block(arena, rows, cols);
    r.y = take_block(arena, rows, cols);
    r.s = take_row(arena, all_columns(h));
    return r;
}

static struct linear_scan_scratch
linear_scan_carve(const struct la_head *h, struct arena *arena)
{
    return take_linear(h, arena, copied_rows(h));
}

/* Columns of the panel from `col` on: whole vectors, or those of the last in part; with
 * `stream` all that there are. */
INLINE ptrdiff_t
linear_cols(const struct la_head *h, ptrdiff_t col, int stream)
{
    const ptrdiff_t cols = panel_cols(h, col, panel_columns(h));
    return cols > VL && !stream ? cols / VL * VL : cols;
}

/* Rows t of x, where they lie or copied. */
INLINE struct block
block_or_copy(struct block copy, const struct la_array *x, struct span t,
              ptrdiff_t cols)
{
    if (lies_as_block(x)) {
        return block_of(x, t);
    }
    load_parts(copy, x, t, cols);
    return copy;
}

/* Rows t of a as scans take them: complex logarithms become factors in a copy, since
 * sines and cosines would take too many registers in a scan. */
INLINE struct block
factors_or_copy(struct block copy, const struct la_array *a, struct span t,
                ptrdiff_t cols, int rule)
{
    if (rule != (SCAN_COMPLEX | SCAN_LOG)) {
        return block_or_copy(copy, a, t, cols);
    }
    load_parts(copy, a, t, cols);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            T *x = &copy.x[i * copy.ld + j];
            vstore(x, vexp_complex(vload(x)));
        }
    }
    return copy;
}

/* The numbers at x, a vector's or the first `some` of them, and zeros; and back. */
INLINE vec
load_some(const T *x, ptrdiff_t some)
{
    return vread_some((const char *)x, some, LA_NATIVE);
}

INLINE void
store_some(T *x, ptrdiff_t some, vec y)
{
    vwrite_some((char *)x, some, y, LA_NATIVE);
}

/* The same of whole vectors, or of part of one; with `stream` past the caches. */
INLINE void
store_next(T *x, ptrdiff_t some, vec y, const int stream)
{
    if (stream && some == VL) {
        vstream(x, y);
    }
    else {
        store_some(x, some, y);
    }
}

/* a, or e^a */
INLINE vec
factor_of(vec x, const int rule)
{
    return rule == SCAN_LOG ? vexp(x) : x;
}

/* a h + x */
INLINE vec
next_of(vec a, vec h, vec x, const int rule)
{
    return rule & SCAN_COMPLEX ? vfma_complex(a, h, x) : vfma(a, h, x);
}

/* nr vectors of columns from j on, or `some` columns of one, in registers, over all
 * rows. */
INLINE void
scan_narrow(struct block y, struct block a, struct block x, T *s, ptrdiff_t rows,
            ptrdiff_t j, const int nr, ptrdiff_t some, const int rule, const int stream)
{
    vec h[NR];
    LA_EACH(k, nr) {
        h[k] = load_some(&s[j + k * VL], some);
    }
    for (ptrdiff_t i = 0; i < rows; i++) {
        LA_EACH(k, nr) {
            const ptrdiff_t col = j + k * VL;
            const vec w = load_some(&x.x[i * x.ld + col], some);
            const vec factor = factor_of(load_some(&a.x[i * a.ld + col], some), rule);
            h[k] = next_of(factor, h[k], w, rule);
            store_next(&y.x[i * y.ld + col], some, h[k], stream);
        }
    }
    LA_EACH(k, nr) {
        store_some(&s[j + k * VL], some, h[k]);
    }
}

/* `some` numbers of a row from column j on. */
INLINE void
scan_next(T *y, const T *a, const T *x, T *s, ptrdiff_t j, ptrdiff_t some,
          const int rule, const int stream)
{
    const vec factor = factor_of(load_some(&a[j], some), rule);
    const vec h = next_of(factor, load_some(&s[j], some), load_some(&x[j], some), rule);
    store_some(&s[j], some, h);
    store_next(&y[j], some, h, stream);
}

/* Row by row, as they follow in memory.  The columns `before` a vector's boundary of y,
 * if any, are part of a vector, and so are the last. */
INLINE void
scan_wide(struct block y, struct block a, struct block x, T *s, ptrdiff_t rows,
          ptrdiff_t cols, ptrdiff_t before, const int rule, const int stream)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        T *to = y.x + i * y.ld;
        const T *factors = a.x + i * a.ld, *in = x.x + i * x.ld;
        ptrdiff_t j = before;
        if (before > 0) {
            scan_next(to, factors, in, s, 0, before, rule, 0);
        }
        for (; j + VL <= cols; j += VL) {
            scan_next(to, factors, in, s, j, VL, rule, stream);
        }
        if (j < cols) {
            scan_next(to, factors, in, s, j, cols - j, rule, 0);
        }
    }
}

/* One column of real numbers: a vector with one number takes longer to load and to
 * store than its sum takes. */
INLINE void
scan_column(struct block y, struct block a, struct block x, T *s, ptrdiff_t rows)
{
    T h = s[0];
    for (ptrdiff_t i = 0; i < rows; i++) {
        h = fma_one(a.x[i * a.ld], h, x.x[i * x.ld]);
        y.x[i * y.ld] = h;
    }
    s[0] = h;
}

/* y = h of the rows, and s, the state before them, that after them.  With `stream` y is
 * written past the caches, and `before` of its columns come before a vector's boundary;
 * otherwise columns are whole vectors, or part of one. */
INLINE void
scan_block(struct block y, struct block a, struct block x, T *s, ptrdiff_t rows,
           ptrdiff_t cols, ptrdiff_t before, const int rule, const int stream)
{
    if (cols == 1 && rule == 0) {
        scan_column(y, a, x, s, rows);
    }
    else if (cols < VL && !stream) {
        scan_narrow(y, a, x, s, rows, 0, 1, cols, rule, 0);
    }
    else if (cols > NR * VL || before > 0 || cols % VL != 0) {
        scan_wide(y, a, x, s, rows, cols, before, rule, stream);
    }
    else {
        LA_BY_TILES(cols, scan_narrow(y, a, x, s, rows, col, nr, VL, rule, stream));
    }
}

/* scan_block, with stream unless `before` is negative. */
static void
linear_block(int rule_of, struct block y, struct block a, struct block x, T *s,
             ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t before)
{
    const int given = rule_of & SCAN_COMPLEX ? SCAN_COMPLEX : rule_of; /* as factors */
    if (before >= 0) {
        before = before < cols ? before : cols;
        LA_BY_RULE(given, scan_block(y, a, x, s, rows, cols, before, rule, 1));
    }
    else {
        LA_BY_RULE(given, scan_block(y, a, x, s, rows, cols, 0, rule, 0));
    }
}

INLINE int
rule_of_scan(const struct la_head *h)
{
    return (h->log != 0 ? SCAN_LOG : 0) | (h->a.type == LA_COMPLEX ? SCAN_COMPLEX : 0);
}

/* x as it is scanned: with `reverse` the last row first.  Of one column the step to the
 * next does not matter; it may be 0 where a number stands for all. */
static void
flip_rows(const struct la_head *h, struct la_array *x)
{
    if (h->m == 1) {
        x->cs = size_of(x->type);
    }
    take_apart(x);
    if (h->reverse != 0 && h->n > 0) {
        *x = shifted(x, (h->n - 1) * x->rs);
        x->rs = -x->rs;
    }
}

/* h with its tokens in the order in which they are scanned, and the parts of complex
 * numbers as columns. */
static struct la_head
in_order(const struct la_head *h)
{
    struct la_head flipped = *h;
    flipped.m = all_columns(h);
    flip_rows(h, &flipped.a);
    flip_rows(h, &flipped.x);
    flip_rows(h, &flipped.grad_out);
    flip_rows(h, &flipped.y);
    flip_rows(h, &flipped.da);
    flip_rows(h, &flipped.dx);
    take_apart(&flipped.s0);
    take_apart(&flipped.s1);
    take_apart(&flipped.grad_s);
    take_apart(&flipped.ds0);
    return flipped;
}

/* Tokens of a block: many where a row is short and no row is copied. */
static ptrdiff_t
linear_rows(const struct la_head *h, int rule)
{
    const int in_place = lies_as_block(&h->a) && lies_as_block(&h->x) &&
                         lies_as_block(&h->y) && !h->large &&
                         rule != (SCAN_COMPLEX | SCAN_LOG);
    return in_place && h->m < VL ? LA_LINEAR_ROWS : copied_rows(h);
}

/* h: in order.  Not inlined, which is faster by some hundredths. */
static __attribute__((noinline)) int
scan_rows(const struct la_head *h, struct linear_scan_scratch r, int rule)
{
    const ptrdiff_t rows = linear_rows(h, rule);
    /* Pairs of a complex number stay together. */
    const int may_stream = h->large && !(rule & SCAN_COMPLEX);
    const ptrdiff_t before = may_stream ? columns_before_streams(&h->y) : -1;
    const int stream = before >= 0;
    ptrdiff_t until_poll = 0;
    load_part_row(r.s, &h->s0, h->m);
    for (ptrdiff_t i = 0; i < h->n; i += rows) {
        for (ptrdiff_t col = 0, cols; col < h->m; col += cols) {
            const struct span t = span(i, rows, i, h->n, NULL);
            cols = linear_cols(h, col, stream);
            const struct la_array a = parts_from(&h->a, col);
            const struct la_array x = parts_from(&h->x, col);
            const struct la_array out = parts_from(&h->y, col);
            if (give_up(h, &until_poll, t.rows * cols)) {
                return 1;
            }
            const int direct = stream || (!h->large && lies_as_block(&out));
            const struct block y = direct ? block_of(&out, t) : r.y;
            linear_block(rule, y, factors_or_copy(r.a, &a, t, cols, rule),
                         block_or_copy(r.x, &x, t, cols), r.s + col, t.rows, cols,
                         before);
            if (!direct) {
                store_parts(&out, t, cols, y, h->large);
            }
        }
    }
    if (stream) {
        end_streams();
    }
    store_part_row(&h->s1, r.s, h->m);
    return 0;
}

static int
run_linear_scan(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct la_head flipped = in_order(h);
    return scan_rows(&flipped, linear_scan_carve(h, &arena), rule_of_scan(h));
}

/* One token. */
static struct linear_scan_scratch
linear_scan_step_carve(const struct la_head *h, struct arena *arena)
{
    return linear_scan_carve(h, arena);
}

static int
run_linear_scan_step(const struct la_head *h)
{
    return run_linear_scan(h);
}

#endif
