/* chunk.h: copies between the caller's arrays, of any strides, and blocks of rows.
 *
 * Kernels work on blocks (block.h), or on rows that are as in one (own_rows.h), so
 * neither strides nor alignment of the caller's arrays can change a bit of a result. */
#ifndef LA_CHUNK_H
#define LA_CHUNK_H

#include "array.h"
#include "block.h"
#include "columns.h"
#include "../vectors/feature.h"
#include "../vectors/fetch.h"
#include "../vectors/half.h"
#include "../table.h"

/* Rows [first, first + rows) of a matrix.  If `ahead` is not NULL, functions that load
 * or store these rows also queue as many rows from `next` on for prefetching. */
struct span {
    ptrdiff_t first, rows, next;
    struct la_fetch *ahead;
};

/* The chunk at i, of up to `rows` tokens out of n, in a scan that continues at `next`;
 * begins a new chunk of the queue `ahead`. */
INLINE struct span
span(ptrdiff_t i, ptrdiff_t rows, ptrdiff_t next, ptrdiff_t n, struct la_fetch *ahead)
{
    if (ahead != NULL) {
        la_fetch_anew(ahead);
    }
    return (struct span){i, n - i < rows ? n - i : rows, next, ahead};
}

/* `rows` rows from `first` on, without prefetching. */
INLINE struct span
rows_from(ptrdiff_t first, ptrdiff_t rows)
{
    return (struct span){first, rows, first, NULL};
}

/* Rows t of x, along columns, from the lowest address on. */
INLINE struct la_array
upwards(const struct la_array *x, struct span t)
{
    const ptrdiff_t lowest = x->rs < 0 ? t.first + t.rows - 1 : t.first;
    struct la_array y = shifted(x, lowest * x->rs);
    y.rs = x->rs < 0 ? -x->rs : x->rs;
    return y;
}

/* `rows` rows of a block, in the order of those of `upwards`. */
INLINE struct block
in_order_of(const struct la_array *x, struct block rows, ptrdiff_t count)
{
    return x->rs < 0 ? (struct block){rows.x + (count - 1) * rows.ld, -rows.ld} : rows;
}

/* Queues the rows of x that are needed after t for prefetching.  Of interleaved heads,
 * each queues its share of the rows of all, which lie side by side. */
INLINE void
look_ahead(const struct la_array *x, struct span t, ptrdiff_t cols)
{
    const char *next = x->data + t.next * x->rs;
    if (along_columns(x)) {
        const struct la_array rows = upwards(x, rows_from(t.next, t.rows));
        la_fetch_later(t.ahead, rows.data, x->cs, t.rows * rows.rs, cols);
    }
    else if (t.ahead == NULL || t.ahead->heads == 0 || x->step >= x->rs) {
        la_fetch_later(t.ahead, next, x->rs, cols * x->cs, t.rows);
    }
    else {
        const ptrdiff_t heads = t.ahead->heads, head = t.ahead->head;
        const ptrdiff_t first = t.rows * head / heads,
                        end = t.rows * (head + 1) / heads;
        la_fetch_later(t.ahead, next - head * x->step + first * x->rs, x->rs,
                       (heads - 1) * x->step + cols * x->cs, end - first);
    }
}

/* dst = phi(src), n vectors. */
INLINE void
load_vectors(T *dst, const char *src, void (*map)(vec[], int), const int n,
             const enum la_type type)
{
    vec x[LA_CHAINS];
    LA_EACH(i, n) {
        x[i] = vread(src + i * VL * size_of(type), type);
    }
    map(x, n);
    LA_EACH(i, n) {
        vstore(&dst[i * VL], x[i]);
    }
}

/* dst = phi(rows t of x), x by rows: first whole vectors row by row, then the remaining
 * columns, so that no loop has a branch. */
INLINE void
load_by_rows(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols,
             void (*map)(vec[], int), const enum la_type type)
{
    const ptrdiff_t size = size_of(type);
    const char *src = x->data + t.first * x->rs;
    if (t.rows > 1 && dst.ld == cols && x->rs == cols * size) { /* one long row */
        cols *= t.rows;
        t.rows = 1;
    }
    const ptrdiff_t some = cols % VL, whole = cols - some;
    for (ptrdiff_t i = 0; i < t.rows && whole > 0; i++) {
        const char *from = src + i * x->rs;
        T *to = dst.x + i * dst.ld;
        LA_TOGETHER(LA_MAPPED, whole,
                    load_vectors(&to[j], from + j * size, map, n, type));
    }
    for (ptrdiff_t i = 0; i < t.rows && some > 0; i++) {
        vec y = vread_some(src + i * x->rs + whole * size, some, type);
        map(&y, 1);
        vstore(&dst.x[i * dst.ld + whole], vkeep(first_lanes(some), y));
    }
    for (ptrdiff_t j = round_up(cols, VL); j < dst.ld; j += VL) {
        for (ptrdiff_t i = 0; i < t.rows; i++) {
            vstore(&dst.x[i * dst.ld + j], (vec){0});
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

/* dst = rows t of x, of any layout and type.  Not inlined: all maps share one copy. */
static __attribute__((noinline)) void
load_across(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols)
{
    if (by_rows(x)) {
        LA_BY_TYPE(x->type, load_by_rows(dst, x, t, cols, map_identity, type));
        return;
    }
    if (along_columns(x)) {
        const struct la_array from = upwards(x, t);
        const struct block to = in_order_of(x, dst, t.rows);
        LA_BY_TYPE(x->type, load_by_columns(to, dst.ld, &from, t.rows, cols, type));
        return;
    }
    LA_BY_TYPE(x->type, load_by_numbers(dst, x, t, cols, type));
}

/* dst = phi(rows t of x); the other rows of dst are not touched. */
INLINE void
load_some_rows(struct block dst, const struct la_array *x, struct span t,
               ptrdiff_t cols, void (*map)(vec[], int))
{
    const struct la_array here = block_array(dst);
    if (!by_rows(x) || x->type != LA_NATIVE) {
        load_across(dst, x, t, cols);
        x = &here;
        t = rows_from(0, t.rows);
    }
    if (x != &here || map != map_identity) {
        load_by_rows(dst, x, t, cols, map, LA_NATIVE);
    }
}

/* dst = phi(rows t of x), and zeros up to the next multiple of MR. */
INLINE void
load_rows(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols,
          void (*map)(vec[], int))
{
    look_ahead(x, t, cols);
    load_some_rows(dst, x, t, cols, map);
    clear_rows(dst, t.rows, round_up(t.rows, MR));
}

/* dst = rows t of x, unchanged. */
static void
load_plain(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols)
{
    load_rows(dst, x, t, cols, map_identity);
}

/* Copies rows [i, i + rows) and columns [j, j + VL) of x, which is not by rows, into
 * `copy`, by rows, with zeros past `cols`; rows <= VL.  Returns `copy` as an array. */
INLINE struct la_array
load_tile(T copy[], const struct la_array *x, ptrdiff_t i, ptrdiff_t rows, ptrdiff_t j,
          ptrdiff_t cols)
{
    const struct la_array part = shifted(x, j * x->cs);
    load_across((struct block){copy, VL}, &part, rows_from(i, rows),
                cols - j < VL ? cols - j : VL);
    return block_array((struct block){copy, VL});
}

/* Columns [j, j + VL) of row i of x, with zeros past `cols`. */
INLINE vec
load_at(const struct la_array *x, ptrdiff_t i, ptrdiff_t j, ptrdiff_t cols)
{
    const char *p = x->data + i * x->rs + j * x->cs;
    const ptrdiff_t some = cols - j < VL ? cols - j : VL;
    return vread_part(p, x->cs, some, x->type);
}

/* One row of x, with zeros up to ld. */
static void
load_row(T *dst, ptrdiff_t ld, const struct la_array *x, ptrdiff_t row, ptrdiff_t cols)
{
    load_some_rows((struct block){dst, ld}, x, rows_from(row, 1), cols, map_identity);
}

/* Rows t of x = src, each times factor[row] if given, x by rows. */
INLINE void
store_by_rows(const struct la_array *x, struct span t, ptrdiff_t cols, struct block src,
              const T *factor, const enum la_type type)
{
    const ptrdiff_t size = size_of(type), some = cols % VL, whole = cols - some;
    const ptrdiff_t rs = x->rs; /* in a local: gcc assumes that stores change x->rs */
    char *dst = x->data + t.first * rs;
    for (ptrdiff_t i = 0; i < t.rows && whole > 0; i++) {
        const vec scale = vset1(factor ? factor[i] : 1);
        const T *from = src.x + i * src.ld;
        char *to = dst + i * rs;
        ptrdiff_t j = 0;
        for (; type == LA_BFLOAT && j + 4 * VL <= whole; j += 4 * VL) {
            vec x[4];
            LA_EACH(l, 4) {
                x[l] = vload(&from[j + l * VL]) * scale;
            }
            vwrite_each(to + j * size, VL * size, x, 4, type);
        }
        for (; j < whole; j += VL) {
            vwrite(to + j * size, vload(&from[j]) * scale, type);
        }
    }
    for (ptrdiff_t i = 0; i < t.rows && some > 0; i++) {
        const vec scale = vset1(factor ? factor[i] : 1);
        vwrite_some(dst + i * rs + whole * size, some,
                    vload(&src.x[i * src.ld + whole]) * scale, type);
    }
}

/* The first `count` rows of x, by columns, = src, each times its factor, if given:
 * square blocks, transposed in registers. */
INLINE void
store_by_columns(const struct la_array *x, ptrdiff_t count, ptrdiff_t cols,
                 struct block src, struct block factor, const enum la_type type)
{
    for (ptrdiff_t i = 0; i < count; i += VL) {
        const ptrdiff_t rows = count - i < VL ? count - i : VL;
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            char *dst = x->data + i * x->rs + j * x->cs;
            vec y[VL];
            LA_EACH(r, VL) {
                y[r] = (vec){0};
                if (r < rows) {
                    const vec scale =
                        vset1(factor.x ? factor.x[(i + r) * factor.ld] : 1);
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

/* store_by_rows for x neither by rows nor by columns. */
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

/* Rows t of x = src, whose rows are whole vectors, each times factor[row] if given. */
static void
store_rows(const struct la_array *x, struct span t, ptrdiff_t cols, struct block src,
           const T *factor)
{
    if (by_rows(x)) {
        LA_BY_TYPE(x->type, store_by_rows(x, t, cols, src, factor, type));
    }
    else if (along_columns(x)) {
        const struct la_array to = upwards(x, t);
        const struct block from = in_order_of(x, src, t.rows);
        struct block by = {(T *)factor, 1};
        by = factor != NULL ? in_order_of(x, by, t.rows) : by;
        LA_BY_TYPE(x->type, store_by_columns(&to, t.rows, cols, from, by, type));
    }
    else {
        LA_BY_TYPE(x->type, store_by_numbers(x, t, cols, src, factor, type));
    }
}

/* Writes a vector to one of its boundaries, past the caches if the instruction set can.
 */
INLINE void
vstream(T *x, vec y)
{
#if defined(__SSE2__)
    LA_MM(stream)(x, y);
#else
    vstore(x, y);
#endif
}

/* After such writes, before other threads read them. */
INLINE void
end_streams(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* Columns of x before a vector's boundary, the same in every row; -1 if rows differ. */
INLINE ptrdiff_t
columns_before_streams(const struct la_array *x)
{
    const size_t step = (size_t)x->rs % LA_VBYTES | (uintptr_t)x->data % sizeof(T);
    if (x->type != LA_NATIVE || x->cs != (ptrdiff_t)sizeof(T) || step != 0) {
        return -1;
    }
    return (ptrdiff_t)(-(uintptr_t)x->data % LA_VBYTES / sizeof(T));
}

/* store_rows without a factor.  Results larger than the caches are written past them if
 * the instruction set can, since then lines need not be read first. */
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
                vstream((T *)dst + j, vload_any((const char *)(src.x + j)));
            }
            memcpy((T *)dst + j, src.x + j, (size_t)(cols - j) * sizeof(T));
        }
        end_streams();
        return;
    }
#endif
    (void)large;
    store_rows(x, t, cols, src, NULL);
}

/* row = tokens t of x, one number each, with zeros to the end of the row. */
INLINE void
load_numbers(T row[MR * LA_CHUNK_MAX], const struct la_array *x, struct span t)
{
    const struct la_array all = transposed(shifted(x, t.first * x->rs));
    load_plain((struct block){row, LA_CHUNK_MAX}, &all, rows_from(0, 1), t.rows);
}

/* The same, and zeros to the end of a vector. */
INLINE void
load_token_row(T *row, const struct la_array *x, struct span t)
{
    const struct la_array all = transposed(shifted(x, t.first * x->rs));
    load_row(row, round_up(t.rows, VL), &all, 0, t.rows);
}

/* Tokens t of x = src, one number each. */
static void
store_numbers(const struct la_array *x, struct span t, T *src)
{
    const struct la_array row = transposed(shifted(x, t.first * x->rs));
    store_rows(&row, rows_from(0, 1), t.rows, (struct block){src, 0}, NULL);
}

#endif
