/* chunk.h: between the caller's arrays, of any strides, and blocks of rows.
 *
 * Everything behind these functions works on blocks alone (block.h), so that neither
 * the caller's strides nor its alignment can change a bit of the result. */
#ifndef LA_CHUNK_H
#define LA_CHUNK_H

#include "block.h"
#include "feature.h"
#include "fetch.h"
#include "half.h"
#include "table.h"

/* Rows [first, first + rows) of a matrix.  With `ahead`, whoever touches them asks for
 * as many from `next` on. */
struct span {
    ptrdiff_t first, rows, next;
    struct la_fetch *ahead;
};

/* The chunk at i, of up to `rows` out of n, in a scan that goes on at `next`; begins
 * anew with what `ahead` asks for. */
INLINE struct span
span(ptrdiff_t i, ptrdiff_t rows, ptrdiff_t next, ptrdiff_t n, struct la_fetch *ahead)
{
    if (ahead != NULL) {
        la_fetch_anew(ahead);
    }
    return (struct span){i, n - i < rows ? n - i : rows, next, ahead};
}

/* `rows` rows from `first` on, and no more. */
INLINE struct span
rows_from(ptrdiff_t first, ptrdiff_t rows)
{
    return (struct span){first, rows, first, NULL};
}

/* How a matrix lies in memory: each row's numbers one after another, or each column's,
 * or neither. */
INLINE int
by_rows(const struct la_array *x)
{
    return x->cs == size_of(x->type);
}

INLINE int
by_columns(const struct la_array *x)
{
    return x->rs == size_of(x->type) && !by_rows(x);
}

/* Asks for the rows of x that are wanted after t. */
INLINE void
look_ahead(const struct la_array *x, struct span t, ptrdiff_t cols)
{
    const char *next = x->data + t.next * x->rs;
    if (by_columns(x)) {
        la_fetch_later(t.ahead, next, x->cs, t.rows * x->rs, cols);
    }
    else {
        la_fetch_later(t.ahead, next, x->rs, cols * x->cs, t.rows);
    }
}

/* What `call` does with `type` a constant: a test for every vector would cost as much
 * as the vector. */
#define LA_BY_TYPE(type_of, call)                                                      \
    do {                                                                               \
        if (LA_HAS_HALVES && (type_of) == LA_HALF) {                                   \
            const enum la_type type = LA_HALF;                                         \
            call;                                                                      \
        }                                                                              \
        else if (LA_HAS_HALVES && (type_of) == LA_BFLOAT) {                            \
            const enum la_type type = LA_BFLOAT;                                       \
            call;                                                                      \
        }                                                                              \
        else {                                                                         \
            const enum la_type type = LA_NATIVE;                                       \
            call;                                                                      \
        }                                                                              \
    } while (0)

/* The same array of a head `step` bytes further on. */
INLINE struct la_array
shifted(const struct la_array *x, ptrdiff_t step)
{
    struct la_array y = *x;
    y.data = x->data ? x->data + step : NULL;
    return y;
}

/* dst = phi(rows t of x), x by rows: whole vectors row by row, then the columns that
 * are left, so that no loop has a branch. */
INLINE void
load_by_rows(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols,
             vec (*phi)(vec), const enum la_type type)
{
    const ptrdiff_t size = size_of(type);
    const char *src = x->data + t.first * x->rs;
    if (dst.ld == cols && x->rs == cols * size) { /* no gaps: one long row */
        cols *= t.rows;
        t.rows = 1;
    }
    const ptrdiff_t some = cols % VL, whole = cols - some;
    for (ptrdiff_t i = 0; i < t.rows && whole > 0; i++) {
        const char *from = src + i * x->rs;
        T *to = dst.x + i * dst.ld;
        for (ptrdiff_t j = 0; j < whole; j += VL) {
            vstore(&to[j], phi(vread(from + j * size, type)));
        }
    }
    for (ptrdiff_t i = 0; i < t.rows && some > 0; i++) {
        const vec y = vread_some(src + i * x->rs + whole * size, some, type);
        vstore(&dst.x[i * dst.ld + whole], vkeep(first_lanes(some), phi(y)));
    }
    for (ptrdiff_t j = round_up(cols, VL); j < dst.ld; j += VL) {
        for (ptrdiff_t i = 0; i < t.rows; i++) {
            vstore(&dst.x[i * dst.ld + j], (vec){0});
        }
    }
}

/* dst = rows t of x, x by columns: squares, transposed in registers. */
INLINE void
load_by_columns(struct block dst, const struct la_array *x, struct span t,
                ptrdiff_t cols, const enum la_type type)
{
    for (ptrdiff_t i = 0; i < t.rows; i += VL) {
        const ptrdiff_t rows = t.rows - i < VL ? t.rows - i : VL;
        for (ptrdiff_t j = 0; j < dst.ld; j += VL) {
            const char *src = x->data + (t.first + i) * x->rs + j * x->cs;
            vec y[VL];
            LA_EACH(c, VL) {
                y[c] =
                    j + c < cols ? vread_some(src + c * x->cs, rows, type) : (vec){0};
            }
            vtranspose(y);
            LA_EACH(r, VL) {
                if (r < rows) {
                    vstore(&dst.x[(i + r) * dst.ld + j], y[r]);
                }
            }
        }
    }
}

/* dst = rows t of x, x neither by rows nor by columns. */
INLINE void
load_by_numbers(struct block dst, const struct la_array *x, struct span t,
                ptrdiff_t cols, const enum la_type type)
{
    const char *src = x->data + t.first * x->rs;
    for (ptrdiff_t i = 0; i < t.rows; i++, src += x->rs) {
        for (ptrdiff_t j = 0; j < dst.ld; j += VL) {
            const ptrdiff_t left = cols - j, some = left < VL ? left : VL;
            vstore(&dst.x[i * dst.ld + j],
                   vread_part(src + j * x->cs, x->cs, some, type));
        }
    }
}

/* dst = rows t of x, x not by rows: one function for all maps. */
static __attribute__((noinline)) void
load_across(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols)
{
    if (by_columns(x)) {
        LA_BY_TYPE(x->type, load_by_columns(dst, x, t, cols, type));
        return;
    }
    LA_BY_TYPE(x->type, load_by_numbers(dst, x, t, cols, type));
}

/* dst = phi(rows t of x), and nothing of its other rows. */
INLINE void
load_some_rows(struct block dst, const struct la_array *x, struct span t,
               ptrdiff_t cols, vec (*phi)(vec))
{
    if (by_rows(x)) {
        LA_BY_TYPE(x->type, load_by_rows(dst, x, t, cols, phi, type));
        return;
    }
    load_across(dst, x, t, cols);
    if (phi != phi_identity) {
        const ptrdiff_t size = sizeof(T);
        const struct la_array here = {(char *)dst.x, dst.ld * size, size, LA_NATIVE};
        load_by_rows(dst, &here, rows_from(0, t.rows), cols, phi, LA_NATIVE);
    }
}

/* dst = phi(rows t of x), and zeros up to the next multiple of MR. */
INLINE void
load_rows(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols,
          vec (*phi)(vec))
{
    look_ahead(x, t, cols);
    load_some_rows(dst, x, t, cols, phi);
    clear_rows(dst, t.rows, round_up(t.rows, MR));
}

/* dst = rows t of x, unchanged. */
static void
load_plain(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols)
{
    load_rows(dst, x, t, cols, phi_identity);
}

/* Rows [i, i + rows) and columns [j, j + VL) of x, as far as there are `cols` of them,
 * then zeros: where they have been copied to, by rows, as x is not; rows <= VL. */
INLINE struct la_array
load_tile(T copy[], const struct la_array *x, ptrdiff_t i, ptrdiff_t rows, ptrdiff_t j,
          ptrdiff_t cols)
{
    const struct la_array part = {x->data + j * x->cs, x->rs, x->cs, x->type};
    load_across((struct block){copy, VL}, &part, rows_from(i, rows),
                cols - j < VL ? cols - j : VL);
    return (struct la_array){(char *)copy, LA_VBYTES, sizeof(T), LA_NATIVE};
}

/* Columns [j, j + VL) of row i of x, as far as there are `cols`; zeros beyond. */
INLINE vec
load_at(const struct la_array *x, ptrdiff_t i, ptrdiff_t j, ptrdiff_t cols)
{
    const char *p = x->data + i * x->rs + j * x->cs;
    const ptrdiff_t some = cols - j < VL ? cols - j : VL;
    return vread_part(p, x->cs, some, x->type);
}

/* One row of x, and zeros up to ld. */
static void
load_row(T *dst, ptrdiff_t ld, const struct la_array *x, ptrdiff_t row, ptrdiff_t cols)
{
    load_some_rows((struct block){dst, ld}, x, rows_from(row, 1), cols, phi_identity);
}

/* Rows t of x = src, each times factor[row] where given, x by rows. */
INLINE void
store_by_rows(const struct la_array *x, struct span t, ptrdiff_t cols, struct block src,
              const T *factor, const enum la_type type)
{
    const ptrdiff_t size = size_of(type), some = cols % VL, whole = cols - some;
    const ptrdiff_t rs = x->rs; /* held: stores might change it, for all gcc knows */
    char *dst = x->data + t.first * rs;
    for (ptrdiff_t i = 0; i < t.rows && whole > 0; i++) {
        const vec scale = vset1(factor ? factor[i] : 1);
        const T *from = src.x + i * src.ld;
        char *to = dst + i * rs;
        for (ptrdiff_t j = 0; j < whole; j += VL) {
            vwrite(to + j * size, vload(&from[j]) * scale, type);
        }
    }
    for (ptrdiff_t i = 0; i < t.rows && some > 0; i++) {
        const vec scale = vset1(factor ? factor[i] : 1);
        vwrite_some(dst + i * rs + whole * size, some,
                    vload(&src.x[i * src.ld + whole]) * scale, type);
    }
}

/* The same, x by columns: squares, transposed in registers. */
INLINE void
store_by_columns(const struct la_array *x, struct span t, ptrdiff_t cols,
                 struct block src, const T *factor, const enum la_type type)
{
    for (ptrdiff_t i = 0; i < t.rows; i += VL) {
        const ptrdiff_t rows = t.rows - i < VL ? t.rows - i : VL;
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            char *dst = x->data + (t.first + i) * x->rs + j * x->cs;
            vec y[VL];
            LA_EACH(r, VL) {
                y[r] = (vec){0};
                if (r < rows) {
                    const vec scale = vset1(factor ? factor[i + r] : 1);
                    y[r] = vload(&src.x[(i + r) * src.ld + j]) * scale;
                }
            }
            vtranspose(y);
            LA_EACH(c, VL) {
                if (j + c < cols) {
                    vwrite_some(dst + c * x->cs, rows, y[c], type);
                }
            }
        }
    }
}

/* The same, x neither by rows nor by columns. */
INLINE void
store_by_numbers(const struct la_array *x, struct span t, ptrdiff_t cols,
                 struct block src, const T *factor, const enum la_type type)
{
    char *dst = x->data + t.first * x->rs;
    for (ptrdiff_t i = 0; i < t.rows; i++, dst += x->rs) {
        const vec scale = vset1(factor ? factor[i] : 1);
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const ptrdiff_t some = cols - j < VL ? cols - j : VL;
            vwrite_part(dst + j * x->cs, x->cs, some,
                        vload(&src.x[i * src.ld + j]) * scale, type);
        }
    }
}

/* Rows t of x = src, whole vectors a row, each times factor[row] where given. */
static void
store_rows(const struct la_array *x, struct span t, ptrdiff_t cols, struct block src,
           const T *factor)
{
    if (by_rows(x)) {
        LA_BY_TYPE(x->type, store_by_rows(x, t, cols, src, factor, type));
    }
    else if (by_columns(x)) {
        LA_BY_TYPE(x->type, store_by_columns(x, t, cols, src, factor, type));
    }
    else {
        LA_BY_TYPE(x->type, store_by_numbers(x, t, cols, src, factor, type));
    }
}

/* The same without a factor.  Results that no cache could hold are written past it
 * where the instruction set can: a line need then not be read first. */
static void
stream_rows(const struct la_array *x, struct span t, ptrdiff_t cols, struct block src,
            int large)
{
#if defined(__SSE2__)
    const size_t step = (size_t)x->rs | (uintptr_t)x->data;
    if (large && x->type == LA_NATIVE && x->cs == (ptrdiff_t)sizeof(T) &&
        step % sizeof(T) == 0) {
        char *dst = x->data + t.first * x->rs;
        for (ptrdiff_t i = 0; i < t.rows; i++, dst += x->rs, src.x += src.ld) {
            const ptrdiff_t before =
                (ptrdiff_t)(-(uintptr_t)dst % LA_VBYTES / sizeof(T));
            ptrdiff_t j = before < cols ? before : cols;
            memcpy(dst, src.x, (size_t)j * sizeof(T));
            for (; j + VL <= cols; j += VL) {
                LA_MM(stream)((T *)dst + j, vload_any((const char *)(src.x + j)));
            }
            memcpy((T *)dst + j, src.x + j, (size_t)(cols - j) * sizeof(T));
        }
        _mm_sfence();
        return;
    }
#endif
    (void)large;
    store_rows(x, t, cols, src, NULL);
}

/* Tokens t of x, a number each, and zeros to the end of the row. */
INLINE void
load_numbers(T row[MR * LA_CHUNK_MAX], const struct la_array *x, struct span t)
{
    const struct la_array all = {x->data + t.first * x->rs, 0, x->rs, x->type};
    load_plain((struct block){row, LA_CHUNK_MAX}, &all, rows_from(0, 1), t.rows);
}

/* The same, and zeros to the end of a vector. */
INLINE void
load_token_row(T *row, const struct la_array *x, struct span t)
{
    const struct la_array all = {x->data + t.first * x->rs, 0, x->rs, x->type};
    load_row(row, round_up(t.rows, VL), &all, 0, t.rows);
}

/* Tokens t of x = src, one number each. */
static void
store_numbers(const struct la_array *x, struct span t, T *src)
{
    const struct la_array row = {x->data + t.first * x->rs, 0, x->rs, x->type};
    store_rows(&row, rows_from(0, 1), t.rows, (struct block){src, 0}, NULL);
}

#endif
