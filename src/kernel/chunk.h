/* chunk.h: between the caller's arrays, of any strides, and packed row blocks.
 *
 * A block holds `rows` tokens of `cols` numbers, its row step `ld` a multiple of
 * the vector length.  Columns from cols to ld, and rows up to the next multiple
 * of MR, hold zeros (after the map: phi(0) = 1 must not leak in).  Everything
 * behind these functions works on blocks alone, so that neither the caller's
 * strides nor its alignment can change a bit of the result. */

/* Rows [first, first + rows) of a matrix.  With `ahead`, whoever touches them asks for
 * as many from `next` on. */
struct FN(span) {
    ptrdiff_t first, rows, next;
    struct la_fetch *ahead;
};

/* The chunk at i, of up to `rows` out of n, in a scan that goes on at `next`; begins
 * anew with what `ahead` asks for. */
INLINE struct FN(span) FN(span)(ptrdiff_t i, ptrdiff_t rows, ptrdiff_t next,
                                ptrdiff_t n, struct la_fetch *ahead)
{
    if (ahead != NULL) {
        la_fetch_anew(ahead);
    }
    return (struct FN(span)){i, n - i < rows ? n - i : rows, next, ahead};
}

/* `rows` rows from `first` on, and no more. */
INLINE struct FN(span) FN(rows_from)(ptrdiff_t first, ptrdiff_t rows)
{
    return (struct FN(span)){first, rows, first, NULL};
}

/* Asks for the rows of x that are wanted after t. */
INLINE void
FN(look_ahead)(const struct la_array *x, struct FN(span) t, ptrdiff_t cols)
{
    la_fetch_later(t.ahead, x->data + t.next * x->rs, x->rs, cols * x->cs, t.rows);
}

/* Rows a chunk.  The triangle costs rows (d + m) a token, reading and writing the
 * state d m / rows in memory traffic.  Of d alone: a panel of the values must be cut as
 * the whole is, or its bits would differ. */
static ptrdiff_t
FN(chunk)(ptrdiff_t d)
{
    return d <= 64 ? 16 : d <= 192 ? 32 : 64;
}

INLINE ptrdiff_t
FN(round_up)(ptrdiff_t x, ptrdiff_t step)
{
    return (x + step - 1) / step * step;
}

INLINE void
FN(clear)(T *x, ptrdiff_t count)
{
    memset(x, 0, (size_t)count * sizeof(T));
}

/* Row step of a block of `cols` columns.  Steps of 2 KiB would put the same
 * columns of all rows into the same few sets of the first-level cache. */
INLINE ptrdiff_t
FN(ld)(ptrdiff_t cols)
{
    const ptrdiff_t ld = FN(round_up)(cols, VL > MR ? VL : MR);
    return ld > 0 && ld * (ptrdiff_t)sizeof(T) % 2048 == 0 ? ld + VL : ld;
}

/* The same array of a head `step` bytes further on. */
INLINE struct la_array
FN(shifted)(const struct la_array *x, ptrdiff_t step)
{
    struct la_array y = *x;
    y.data = x->data ? x->data + step : NULL;
    return y;
}

/* dst[0:ld] = phi(src[0:cols]), 0 beyond. */
INLINE void
FN(load_row)(T *dst, ptrdiff_t ld, const char *src, ptrdiff_t cs, ptrdiff_t cols,
             vec (*phi)(vec), const enum la_type type)
{
    const ptrdiff_t size = FN(size_of)(type);
    ptrdiff_t j = 0;
    for (; cs == size && j + VL <= cols; j += VL) {
        FN(store)(&dst[j], phi(FN(read)(src + j * size, type)));
    }
    for (; j < cols; j += VL) {
        const ptrdiff_t some = cols - j < VL ? cols - j : VL;
        const ivec inside = FN(iota)() < (ivec)((ivec){0} + (INT)some);
        const vec x = FN(read_part)(src + j * cs, cs, some, type);
        FN(store)(&dst[j], FN(keep)(inside, phi(x)));
    }
    for (; j < ld; j += VL) {
        FN(store)(&dst[j], (vec){0});
    }
}

INLINE void
FN(load_typed)(T *dst, ptrdiff_t ld, const struct la_array *x, struct FN(span) t,
               ptrdiff_t cols, vec (*phi)(vec), const enum la_type type)
{
    const char *src = x->data + t.first * x->rs;
    ptrdiff_t i = 0;
    if (ld == cols && x->cs == FN(size_of)(type) && x->rs == cols * x->cs) {
        /* Rows without gaps are one long row. */
        FN(load_row)(dst, t.rows * ld, src, x->cs, t.rows * cols, phi, type);
        i = t.rows;
    }
    for (; i < t.rows; i++, src += x->rs) {
        FN(load_row)(dst + i * ld, ld, src, x->cs, cols, phi, type);
    }
    for (; i % MR != 0; i++) {
        FN(clear)(dst + i * ld, ld);
    }
}

/* A loop for each type: a test for every vector would cost as much as the vector. */
INLINE void
FN(load_rows)(T *dst, ptrdiff_t ld, const struct la_array *x, struct FN(span) t,
              ptrdiff_t cols, vec (*phi)(vec))
{
    FN(look_ahead)(x, t, cols);
#if LA_HAS_HALVES
    if (x->type == LA_HALF) {
        FN(load_typed)(dst, ld, x, t, cols, phi, LA_HALF);
        return;
    }
    if (x->type == LA_BFLOAT) {
        FN(load_typed)(dst, ld, x, t, cols, phi, LA_BFLOAT);
        return;
    }
#endif
    FN(load_typed)(dst, ld, x, t, cols, phi, LA_NATIVE);
}

/* dst = rows t of x, unchanged. */
static void
FN(load_plain)(T *dst, ptrdiff_t ld, const struct la_array *x, struct FN(span) t,
               ptrdiff_t cols)
{
    FN(load_rows)(dst, ld, x, t, cols, FN(phi_identity));
}

/* dst = phi(rows t of x). */
static void
FN(load_mapped)(T *dst, ptrdiff_t ld, const struct la_array *x, struct FN(span) t,
                ptrdiff_t cols, enum la_map map)
{
    switch (map) {
#define LA_OP(op)
#define LA_MAP(map)                                                                    \
    case LA_##map:                                                                     \
        FN(load_rows)(dst, ld, x, t, cols, FN(phi_##map));                             \
        break;
#include "ops.def"
    default:
        break;
    }
}

/* Columns [j, j + VL) of row i of x, as far as there are `cols`; zeros beyond. */
INLINE vec
FN(load_at)(const struct la_array *x, ptrdiff_t i, ptrdiff_t j, ptrdiff_t cols)
{
    const char *p = x->data + i * x->rs + j * x->cs;
    const ptrdiff_t some = cols - j < VL ? cols - j : VL;
    if (x->cs == FN(size_of)(x->type) && some == VL) {
        return FN(read)(p, x->type);
    }
    return FN(read_part)(p, x->cs, some, x->type);
}

/* grad (rows, ld) *= phi'(x), where y = phi(x): the chain rule through the map. */
INLINE void
FN(chain_with)(T *grad, const struct la_array *x, struct FN(span) t, ptrdiff_t cols,
               const T *y, ptrdiff_t ld, vec (*dphi)(vec, vec))
{
    for (ptrdiff_t i = 0; i < t.rows; i++, grad += ld, y += ld) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const vec slope =
                dphi(FN(load_at)(x, t.first + i, j, cols), FN(load)(&y[j]));
            FN(store)(&grad[j], FN(load)(&grad[j]) * slope);
        }
    }
}

static void
FN(chain)(T *grad, const struct la_array *x, struct FN(span) t, ptrdiff_t cols,
          const T *y, ptrdiff_t ld, enum la_map map)
{
    switch (map) {
#define LA_OP(op)
#define LA_MAP(map)                                                                    \
    case LA_##map:                                                                     \
        FN(chain_with)(grad, x, t, cols, y, ld, FN(dphi_##map));                       \
        break;
#include "ops.def"
    default:
        break;
    }
}

/* Rows t of x = src, whole vectors a row, each times factor[row] where given. */
static void
FN(store_rows)(const struct la_array *x, struct FN(span) t, ptrdiff_t cols,
               const T *src, ptrdiff_t ld, const T *factor)
{
    const ptrdiff_t size = FN(size_of)(x->type);
    char *dst = x->data + t.first * x->rs;
    for (ptrdiff_t i = 0; i < t.rows; i++, dst += x->rs, src += ld) {
        const vec scale = FN(set1)(factor ? factor[i] : 1);
        ptrdiff_t j = 0;
        for (; x->cs == size && j + VL <= cols; j += VL) {
            FN(write)(dst + j * size, FN(load)(&src[j]) * scale, x->type);
        }
        for (; j < cols; j += VL) {
            const ptrdiff_t some = cols - j < VL ? cols - j : VL;
            FN(write_part)(dst + j * x->cs, x->cs, some, FN(load)(&src[j]) * scale,
                           x->type);
        }
    }
}
