/* conv_tile.h: the products and sums of the short causal convolution, and silu.
 *
 *    p_i = start + sum_{k < taps} weight_k o x_{i + k},  y_i = p_i, or silu(p_i)
 *
 * Taps are summed from the oldest on, LA_CONV_GROUP at a time from registers.  A tile
 * is LA_CHAINS vectors of results: of as many rows, whose inputs overlap, or of one
 * row. Tiles at the ends of rows and columns overlap others instead of being narrower,
 * and write the same results again.
 *
 * Past the caches, tiles of as many rows write whole lines, of several vectors: as each
 * half of a line was computed and written in turn, a convolution took up to 1.5 times
 * as long. */
#ifndef LA_CONV_TILE_H
#define LA_CONV_TILE_H

#include "../tiles/recurrence.h"

enum { LA_LINE_VECTORS = LA_VBYTES < LA_LINE ? LA_LINE / LA_VBYTES : 1 };

/* p[i] = p[i] sigmoid(p[i]) of n vectors.  sigmoid(p) = e^p / (1 + e^p) is 1 from 40
 * on. */
INLINE void
vsilu_each(vec p[], const int n)
{
    vec e[LA_CHAINS];
    LA_EACH(i, n) {
        e[i] = vmin(vset1(40), p[i]);
    }
    vexp_each(e, n);
    LA_EACH(i, n) {
        e[i] /= e[i] + vset1(1);
    }
    LA_EACH(i, n) {
        p[i] *= e[i];
    }
}

INLINE vec
vsilu(vec p)
{
    vsilu_each(&p, 1);
    return p;
}

/* p[i] = silu'(p[i]) = s + p[i] s (1 - s) with s = sigmoid(p[i]), of n vectors. */
INLINE void
vsilu_slope_each(vec p[], const int n)
{
    const vec one = vset1(1);
    vec e[LA_CHAINS];
    LA_EACH(i, n) {
        e[i] = vminus_abs(p[i]);
    }
    vexp_each(e, n);
    LA_EACH(i, n) {
        const vec d = one / (one + e[i]);
        const ivec left = p[i] < (vec){0};
        const vec s = vselect(left, e[i], one) * d,
                  other = vselect(left, one, e[i]) * d;
        p[i] = vfma(p[i] * s, other, s);
    }
}

/* The operands of some rows: x and y by rows, of one type.  The weight of tap k at
 * column j is weight.x[k * weight.ld + j], and start[j] is the bias; with `single`, one
 * vector of them holds for all columns. */
struct conv {
    struct la_array y, x;
    struct block weight;
    const T *start;
    ptrdiff_t taps;
    int silu, single;
    int far;          /* more than the caches hold: x is prefetched */
    int stream;       /* past the caches, at least where all rows have the same lines: y
                         is aligned to vectors from column `before` on */
    ptrdiff_t before; /* columns of y before the first whole tile */
};

/* LA_CHAINS or 1 vectors of results: the pointers are to the first tap of each. */
struct conv_tile {
    char *y;
    const char *x;
    const T *weight, *start;
};

/* Runs `call` for all taps, with w, their number at a time, a constant. */
#define LA_BY_TAPS(taps, call)                                                         \
    do {                                                                               \
        ptrdiff_t tap = 0;                                                             \
        for (; tap + LA_CONV_GROUP <= (taps); tap += LA_CONV_GROUP) {                  \
            LA_TAPS(LA_CONV_GROUP, call)                                               \
        }                                                                              \
        switch ((taps) - tap) {                                                        \
        case 3:                                                                        \
            LA_TAPS(3, call)                                                           \
            break;                                                                     \
        case 2:                                                                        \
            LA_TAPS(2, call)                                                           \
            break;                                                                     \
        case 1:                                                                        \
            LA_TAPS(1, call)                                                           \
            break;                                                                     \
        default:                                                                       \
            break;                                                                     \
        }                                                                              \
    } while (0)
#define LA_TAPS(count, call)                                                           \
    {                                                                                  \
        enum { w = (count) };                                                          \
        call;                                                                          \
    }

/* p[i] += sum_{k < w} weight_k o x_{i + k} for one vector of columns. */
INLINE void
conv_add_down(vec p[], const char *x, ptrdiff_t rs, const T *weight, ptrdiff_t ld,
              const int w, const enum la_type type)
{
    vec in[LA_CHAINS + LA_CONV_GROUP - 1];
    LA_EACH(i, LA_CHAINS + w - 1) {
        in[i] = vread(x + i * rs, type);
    }
    LA_EACH(t, w) {
        const vec k = vload_any((const char *)(weight + t * ld));
        LA_EACH(i, LA_CHAINS) {
            p[i] = vfma(k, in[i + t], p[i]);
        }
    }
}

/* The same of one row, for n vectors of columns. */
INLINE void
conv_add_across(vec p[], const char *x, ptrdiff_t rs, const T *weight, ptrdiff_t ld,
                const int n, const int single, const int w, const enum la_type type)
{
    LA_EACH(t, w) {
        LA_EACH(i, n) {
            const T *k = weight + t * ld + (single ? 0 : i * VL);
            p[i] = vfma(vload_any((const char *)k),
                        vread(x + t * rs + i * VL * size_of(type), type), p[i]);
        }
    }
}

/* The tile v vectors further on, of rows of native numbers. */
INLINE struct conv_tile
conv_tile_beside(struct conv_tile t, ptrdiff_t v)
{
    return (struct conv_tile){t.y + v * LA_VBYTES, t.x + v * LA_VBYTES,
                              t.weight + v * VL, t.start + v * VL};
}

/* p = LA_CHAINS rows of one vector of columns.  Prefetches the next rows, once per
 * line. */
INLINE void
conv_results(const struct conv *c, struct conv_tile t, vec p[], const enum la_type type)
{
    if (c->far && (uintptr_t)t.x % LA_LINE < (size_t)(VL * size_of(type))) {
        LA_EACH(i, LA_CHAINS) {
            __builtin_prefetch(t.x + (c->taps - 1 + LA_CHAINS + i) * c->x.rs);
        }
    }
    LA_EACH(i, LA_CHAINS) {
        p[i] = vload_any((const char *)t.start);
    }
    LA_BY_TAPS(c->taps,
               conv_add_down(p, t.x + tap * c->x.rs, c->x.rs,
                             t.weight + tap * c->weight.ld, c->weight.ld, w, type));
    if (c->silu) {
        vsilu_each(p, LA_CHAINS);
    }
}

/* LA_CHAINS rows of one vector of columns. */
INLINE void
conv_down(const struct conv *c, struct conv_tile t, const enum la_type type)
{
    vec p[LA_CHAINS];
    conv_results(c, t, p, type);
    vwrite_each(t.y, c->y.rs, p, LA_CHAINS, type);
}

/* LA_CHAINS rows of a line of y, past the caches. */
INLINE void
conv_line_down(const struct conv *c, struct conv_tile t)
{
    vec p[LA_LINE_VECTORS][LA_CHAINS];
    for (int v = 0; v < LA_LINE_VECTORS; v++) {
        conv_results(c, conv_tile_beside(t, v), p[v], LA_NATIVE);
    }
    LA_EACH(i, LA_CHAINS) {
        LA_EACH(v, LA_LINE_VECTORS) {
            vstream((T *)(t.y + i * c->y.rs) + v * VL, p[v][i]);
        }
    }
}

/* n vectors of columns of one row. */
INLINE void
conv_across(const struct conv *c, struct conv_tile t, const int n, const int single,
            int stream, const enum la_type type)
{
    vec p[LA_CHAINS];
    LA_EACH(i, n) {
        p[i] = vload_any((const char *)(t.start + (single ? 0 : i * VL)));
    }
    LA_BY_TAPS(c->taps, conv_add_across(p, t.x + tap * c->x.rs, c->x.rs,
                                        t.weight + tap * c->weight.ld, c->weight.ld, n,
                                        single, w, type));
    if (c->silu) {
        vsilu_each(p, n);
    }
    if (type == LA_NATIVE && stream) {
        LA_EACH(i, n) {
            vstream((T *)t.y + i * VL, p[i]);
        }
    }
    else {
        vwrite_each(t.y, VL * size_of(type), p, n, type);
    }
}

/* Columns of y before a boundary between vectors, the same in all rows; 0 if rows
 * differ.  Writes across two cache lines take twice as long. */
INLINE ptrdiff_t
columns_before_boundary(const struct la_array *y)
{
    const ptrdiff_t size = size_of(y->type), bytes = VL * size;
    const size_t step =
        (size_t)y->rs % (size_t)bytes | (uintptr_t)y->data % (size_t)size;
    return step ? 0 : (ptrdiff_t)(-(uintptr_t)y->data % (size_t)bytes) / size;
}

/* The tile at row i and column j. */
INLINE struct conv_tile
conv_tile_at(const struct conv *c, ptrdiff_t i, ptrdiff_t j)
{
    const ptrdiff_t size = size_of(c->x.type), col = c->single ? 0 : j;
    return (struct conv_tile){c->y.data + i * c->y.rs + j * size,
                              c->x.data + i * c->x.rs + j * size, c->weight.x + col,
                              c->start + col};
}

/* One vector of columns of some rows, where tiles do not fit. */
static __attribute__((noinline)) void
conv_narrow(const struct conv *c, ptrdiff_t i, ptrdiff_t rows, ptrdiff_t j)
{
    for (const ptrdiff_t end = i + rows; i < end; i++) {
        const struct conv_tile at = conv_tile_at(c, i, j);
        LA_BY_TYPE(c->x.type, conv_across(c, at, 1, 0, 0, type));
    }
}

/* Whether, in all rows, a line of y begins here and is written past the caches. */
INLINE int
is_line_to_stream(const struct conv *c, const char *y, ptrdiff_t cols)
{
    return c->stream && ((uintptr_t)y | (size_t)c->y.rs) % LA_LINE == 0 &&
           cols >= LA_LINE_VECTORS * VL;
}

/* LA_CHAINS rows from row i on. */
INLINE void
conv_rows(const struct conv *c, ptrdiff_t i, ptrdiff_t cols, struct la_fetch *ahead,
          const enum la_type type)
{
    const struct conv own = *c; /* which no write to y can change */
    ptrdiff_t j = own.before;
    if (j > 0) {
        conv_narrow(c, i, LA_CHAINS, 0);
    }
    while (j + VL <= cols) {
        const struct conv_tile at = conv_tile_at(&own, i, j);
        if (type == LA_NATIVE && is_line_to_stream(&own, at.y, cols - j)) {
            conv_line_down(&own, at);
            j += LA_LINE_VECTORS * VL;
        }
        else {
            conv_down(&own, at, type);
            j += VL;
        }
        if (ahead != NULL) {
            la_fetch_some(ahead);
        }
    }
    if (j < cols) {
        conv_narrow(c, i, LA_CHAINS, cols - VL);
    }
}

/* Row i. */
INLINE void
conv_row(const struct conv *c, ptrdiff_t i, ptrdiff_t cols, const int single,
         const enum la_type type)
{
    ptrdiff_t j = c->before;
    if (j > 0) {
        conv_narrow(c, i, 1, 0);
    }
    for (; j + LA_CHAINS * VL <= cols; j += LA_CHAINS * VL) {
        conv_across(c, conv_tile_at(c, i, j), LA_CHAINS, single, c->stream, type);
    }
    for (; j < cols; j += VL) {
        conv_narrow(c, i, 1, j + VL <= cols ? j : cols - VL);
    }
}

INLINE void
convolve_typed(const struct conv *c, ptrdiff_t rows, ptrdiff_t cols,
               struct la_fetch *ahead, const enum la_type type)
{
    for (ptrdiff_t i = 0; i < rows && rows >= LA_CHAINS; i += LA_CHAINS) {
        conv_rows(c, i + LA_CHAINS > rows ? rows - LA_CHAINS : i, cols, ahead, type);
    }
    for (ptrdiff_t i = 0; i < rows && rows < LA_CHAINS; i++) {
        conv_row(c, i, cols, 0, type);
        la_fetch_some(ahead);
    }
}

/* y of `rows` rows and cols >= VL columns. */
static void
convolve(const struct conv *c, ptrdiff_t rows, ptrdiff_t cols, struct la_fetch *ahead)
{
    LA_BY_TYPE(c->x.type, convolve_typed(c, rows, cols, ahead, type));
}

/* y of one row, whose weights are the same for all columns. */
static void
convolve_row(const struct conv *c, ptrdiff_t cols)
{
    LA_BY_TYPE(c->x.type, conv_row(c, 0, cols, 1, type));
}

#endif
