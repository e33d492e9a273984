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

/* The chunk at i, of up to `rows` out of n, in a scan that goes on at `next`. */
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

INLINE vec
FN(load_any)(const char *p)
{
    return (vec) * (const FN(vec_any) *)p;
}

/* The first `count` < VL numbers at p, then zeros. */
INLINE vec
FN(load_part)(const char *p, ptrdiff_t count)
{
    _Alignas(LA_ALIGN) T lanes[VL];
    FN(store)(lanes, (vec){0});
    for (ptrdiff_t i = 0; i < count; i++) {
        memcpy(&lanes[i], p + i * (ptrdiff_t)sizeof(T), sizeof(T));
    }
    return FN(load)(lanes);
}

/* dst[0:cols] = numbers of any type, cs bytes apart. */
static void
FN(gather_row)(T *dst, const char *src, ptrdiff_t cs, ptrdiff_t cols, enum la_type type)
{
    if (type != LA_NATIVE) { /* only ever with T = float */
        la_widen((float *)dst, src, cs, cols, type);
        return;
    }
    for (ptrdiff_t i = 0; i < cols; i++) {
        memcpy(&dst[i], src + i * cs, sizeof(T));
    }
}

/* dst[0:ld] = phi(src[0:cols]), 0 beyond. */
INLINE void
FN(load_row)(T *dst, ptrdiff_t ld, const char *src, ptrdiff_t cs, enum la_type type,
             ptrdiff_t cols, vec (*phi)(vec))
{
    const char *raw = src;
    ptrdiff_t j = 0;
    if (cs != (ptrdiff_t)sizeof(T) || type != LA_NATIVE) {
        FN(gather_row)(dst, src, cs, cols, type);
        raw = (const char *)dst;
    }
    for (; j + VL <= cols; j += VL) {
        const char *p = raw + j * (ptrdiff_t)sizeof(T);
        FN(store)(&dst[j], phi(FN(load_any)(p)));
    }
    if (j < cols) {
        const vec x = FN(load_part)(raw + j * (ptrdiff_t)sizeof(T), cols - j);
        const ivec inside = FN(iota)() < (ivec)((ivec){0} + (INT)(cols - j));
        FN(store)(&dst[j], FN(keep)(inside, phi(x)));
        j += VL;
    }
    for (; j < ld; j += VL) {
        FN(store)(&dst[j], (vec){0});
    }
}

INLINE void
FN(load_rows)(T *dst, ptrdiff_t ld, const struct la_array *x, struct FN(span) t,
              ptrdiff_t cols, vec (*phi)(vec))
{
    const char *src = x->data + t.first * x->rs;
    ptrdiff_t i = 0;
    FN(look_ahead)(x, t, cols);
    if (ld == cols && x->type == LA_NATIVE && x->cs == (ptrdiff_t)sizeof(T) &&
        x->rs == cols * x->cs) {
        /* Rows without gaps are one long row. */
        FN(load_row)(dst, t.rows * ld, src, x->cs, x->type, t.rows * cols, phi);
        i = t.rows;
    }
    for (; i < t.rows; i++, src += x->rs) {
        FN(load_row)(dst + i * ld, ld, src, x->cs, x->type, cols, phi);
    }
    for (; i % MR != 0; i++) {
        FN(clear)(dst + i * ld, ld);
    }
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
    if (x->cs == (ptrdiff_t)sizeof(T) && x->type == LA_NATIVE) {
        return some == VL ? FN(load_any)(p) : FN(load_part)(p, some);
    }
    _Alignas(LA_ALIGN) T lanes[VL];
    FN(store)(lanes, (vec){0});
    FN(gather_row)(lanes, p, x->cs, some, x->type);
    return FN(load)(lanes);
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

/* Rows t of x = src, each row times factor[row] where given. */
static void
FN(store_rows)(const struct la_array *x, struct FN(span) t, ptrdiff_t cols,
               const T *src, ptrdiff_t ld, const T *factor)
{
    char *dst = x->data + t.first * x->rs;
    for (ptrdiff_t i = 0; i < t.rows; i++, dst += x->rs, src += ld) {
        const T scalar = factor ? factor[i] : 1;
        const vec scale = FN(set1)(scalar);
        ptrdiff_t j = 0;
        if (x->type != LA_NATIVE) {
            la_narrow(dst, x->cs, (const float *)src, cols, (float)scalar, x->type);
            continue;
        }
        if (x->cs == (ptrdiff_t)sizeof(T)) {
            for (; j + VL <= cols; j += VL) {
                char *p = dst + j * (ptrdiff_t)sizeof(T);
                *(FN(vec_any) *)p = (FN(vec_any))(FN(load)(&src[j]) * scale);
            }
        }
        for (; j < cols; j++) {
            const T y = src[j] * scalar;
            memcpy(dst + j * x->cs, &y, sizeof(T));
        }
    }
}
