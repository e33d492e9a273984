/* conv_tile.h: the products and sums of the short causal convolution, and silu.
 *
 *    p_i = start + sum_{k < taps} weight_k o x_{i + k},  y_i = p_i, or silu(p_i)
 *
 * Taps are summed from the oldest on, LA_CONV_GROUP at a time from registers.  A tile is
 * LA_CHAINS vectors of results: of as many rows, whose inputs overlap, or of one row.
 * Tiles at the ends of rows and columns overlap others instead of being narrower, and
 * write the same results again. */
#ifndef LA_CONV_TILE_H
#define LA_CONV_TILE_H

#include "recurrence.h"

/* p[i] = p[i] sigmoid(p[i]) of n vectors.  sigmoid(p) = e^p / (1 + e^p) is 1 from 40 on. */
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

/* silu'(p) = s + p s (1 - s), s = sigmoid(p) */
INLINE vec
vsilu_slope(vec p)
{
    const vec one = vset1(1), e = vexp_bounded(vminus_abs(p)), d = one / (one + e);
    const ivec left = p < (vec){0};
    const vec s = vselect(left, e, one) * d, other = vselect(left, one, e) * d;
    return vfma(p * s, other, s);
}

/* The operands of some rows: x, y by rows.  Tap k of column j is
 * weight.x[k * weight.ld + j], and start[j] the bias; with `single` one vector, the same
 * for all columns. */
struct conv {
    struct la_array y, x;
    struct block weight;
    const T *start;
    ptrdiff_t taps;
    int silu, single;
    ptrdiff_t before; /* columns before a vector's boundary in y; -1: no streaming */
};

/* p[i] += sum_{k < w} weight_k o x_{i + k} for one vector of columns. */
INLINE void
conv_add_down(vec p[], const char *x, ptrdiff_t step, struct block weight, const int w,
              const enum la_type type)
{
    vec in[LA_CHAINS + LA_CONV_GROUP - 1];
    LA_EACH(i, LA_CHAINS + w - 1) {
        in[i] = vread(x + i * step, type);
    }
    LA_EACH(t, w) {
        const vec k = vload_any((const char *)(weight.x + t * weight.ld));
        LA_EACH(i, LA_CHAINS) {
            p[i] = vfma(k, in[i + t], p[i]);
        }
    }
}

/* The same of one row, for n vectors of columns. */
INLINE void
conv_add_across(vec p[], const char *x, ptrdiff_t step, struct block weight,
                const int single, const int n, const int w, const enum la_type type)
{
    LA_EACH(t, w) {
        const T *k = weight.x + t * weight.ld;
        LA_EACH(i, n) {
            p[i] = vfma(vload_any((const char *)(k + (single ? 0 : i * VL))),
                        vread(x + t * step + i * VL * size_of(type), type), p[i]);
        }
    }
}

/* Runs `call` for all taps, with w, their number at a time, a constant. */
#define LA_BY_TAPS(taps, call)                                                         \
    do {                                                                               \
        ptrdiff_t tap = 0;                                                             \
        for (; tap + LA_CONV_GROUP <= (taps); tap += LA_CONV_GROUP) {                  \
            LA_TAPS(LA_CONV_GROUP, call)                                               \
        }                                                                              \
        switch ((taps)-tap) {                                                          \
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
        LA_BY_TYPE(c->x.type, call);                                                   \
    }

/* n vectors `step` bytes apart. */
INLINE void
conv_write(char *y, ptrdiff_t step, vec p[], const int n, int stream, enum la_type to)
{
    if (stream) {
        LA_EACH(i, n) {
            vstream((T *)(y + i * step), p[i]);
        }
        return;
    }
    LA_BY_TYPE(to, LA_EACH(i, n) { vwrite(y + i * step, p[i], type); });
}

/* LA_CHAINS rows from row i on, one vector of columns from column j on. */
INLINE void
conv_down(const struct conv *c, ptrdiff_t i, ptrdiff_t j, int stream)
{
    const char *x = c->x.data + i * c->x.rs + j * size_of(c->x.type);
    char *y = c->y.data + i * c->y.rs + j * size_of(c->y.type);
    vec p[LA_CHAINS];
    LA_EACH(r, LA_CHAINS) {
        p[r] = vload_any((const char *)(c->start + j));
    }
    LA_BY_TAPS(c->taps, conv_add_down(p, x + tap * c->x.rs, c->x.rs,
                                      block_at(c->weight, tap, j), w, type));
    if (c->silu) {
        vsilu_each(p, LA_CHAINS);
    }
    conv_write(y, c->y.rs, p, LA_CHAINS, stream, c->y.type);
}

/* Row i, n vectors of columns from column j on. */
INLINE void
conv_across(const struct conv *c, ptrdiff_t i, ptrdiff_t j, const int n,
            const int single, int stream)
{
    const char *x = c->x.data + i * c->x.rs + j * size_of(c->x.type);
    char *y = c->y.data + i * c->y.rs + j * size_of(c->y.type);
    const ptrdiff_t col = single ? 0 : j;
    vec p[LA_CHAINS];
    LA_EACH(v, n) {
        p[v] = vload_any((const char *)(c->start + (single ? 0 : j + v * VL)));
    }
    LA_BY_TAPS(c->taps,
               conv_add_across(p, x + tap * c->x.rs, c->x.rs,
                               block_at(c->weight, tap, col), single, n, w, type));
    if (c->silu) {
        vsilu_each(p, n);
    }
    conv_write(y, VL * size_of(c->y.type), p, n, stream, c->y.type);
}

/* Runs `call` with j, the first column of tiles of `width` <= cols columns, and
 * `stream`, whether they begin at a vector's boundary in y. */
#define LA_CONV_WALK(c, width, cols, call)                                             \
    do {                                                                               \
        const ptrdiff_t before_ = (c)->before, wide_ = (width);                        \
        for (ptrdiff_t at_ = before_ > 0 ? before_ - wide_ : 0; at_ < (cols);          \
             at_ += wide_) {                                                           \
            const ptrdiff_t j = at_ < 0                 ? 0                            \
                                : at_ > (cols) - wide_ ? (cols) - wide_                \
                                                       : at_;                          \
            const int stream = before_ >= 0 && j == at_;                               \
            call;                                                                      \
        }                                                                              \
    } while (0)

static void
conv_row(const struct conv *c, ptrdiff_t i, ptrdiff_t cols)
{
    if (cols < LA_CHAINS * VL) {
        LA_CONV_WALK(c, VL, cols, conv_across(c, i, j, 1, 0, stream));
    }
    else {
        LA_CONV_WALK(c, LA_CHAINS * VL, cols, conv_across(c, i, j, LA_CHAINS, 0, stream));
    }
}

/* y of `rows` rows and cols >= VL columns. */
static void
convolve(const struct conv *c, ptrdiff_t rows, ptrdiff_t cols, struct la_fetch *ahead)
{
    if (rows < LA_CHAINS) {
        for (ptrdiff_t i = 0; i < rows; i++) {
            conv_row(c, i, cols);
            la_fetch_some(ahead);
        }
        return;
    }
    for (ptrdiff_t i = 0; i < rows; i += LA_CHAINS) {
        const ptrdiff_t first = i + LA_CHAINS > rows ? rows - LA_CHAINS : i;
        LA_CONV_WALK(c, VL, cols, conv_down(c, first, j, stream); la_fetch_some(ahead));
    }
}

#endif
