/* columns.h: loads rows of a matrix whose columns are contiguous: transposed in
 * registers.
 */
#ifndef LA_COLUMNS_H
#define LA_COLUMNS_H

#include "array.h"
#include "block.h"
#include "../vectors/half.h"
#include "../table.h"
#include "../vectors/zip.h"

/* The n rows of VL columns at p, one column after another without gaps. */
INLINE void
read_dense_columns(vec rows[], const char *p, const int n, const enum la_type type)
{
    vec columns[LA_ZIP_MAX];
    LA_EACH(i, n) {
        columns[i] = vread(p + i * VL * size_of(type), type);
    }
    vrows(rows, columns, n);
}

/* dst = the first `rows` rows of x, x by columns without gaps. */
INLINE void
load_dense_columns(struct block dst, const struct la_array *x, ptrdiff_t cols,
                   const int rows, const enum la_type type)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        vec y[LA_ZIP_MAX];
        read_dense_columns(y, x->data + j * x->cs, rows, type);
        LA_EACH(r, rows) {
            vstore(&dst.x[r * dst.ld + j], y[r]);
        }
    }
}

/* dst = the first `count` rows of x, x by columns: square blocks, transposed in
 * registers; `padded` columns of dst, with zeros past `cols`. */
INLINE void
load_square_blocks(struct block dst, ptrdiff_t padded, const struct la_array *x,
                   ptrdiff_t count, ptrdiff_t cols, const enum la_type type)
{
    for (ptrdiff_t i = 0; i < count; i += VL) {
        const ptrdiff_t rows = count - i < VL ? count - i : VL;
        for (ptrdiff_t j = 0; j < padded; j += VL) {
            const char *src = x->data + i * x->rs + j * x->cs;
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

/* The same.  Two or four rows whose columns lie without gaps take fewer instructions.
 */
INLINE void
load_by_columns(struct block dst, ptrdiff_t padded, const struct la_array *x,
                ptrdiff_t rows, ptrdiff_t cols, const enum la_type type)
{
    ptrdiff_t whole = 0;
    if (x->cs == rows * size_of(type) && (rows == 2 || rows == 4)) {
        whole = cols / VL * VL;
        if (rows == 2) {
            load_dense_columns(dst, x, whole, 2, type);
        }
        else {
            load_dense_columns(dst, x, whole, 4, type);
        }
    }
    const struct la_array rest = shifted(x, whole * x->cs);
    load_square_blocks((struct block){dst.x + whole, dst.ld}, padded - whole, &rest,
                       rows, cols - whole, type);
}

#endif
