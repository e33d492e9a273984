/* step_columns.h: square blocks of a state whose columns are contiguous.
 *
 * A step computes such a state in vectors along its columns, whose numbers it updates
 * independently, and transposes VL columns at a time in registers for what the query
 * reads: the sum of each column then takes its rows in the order of a walk by rows, so
 * that no bit depends on the layout. */
#ifndef LA_STEP_COLUMNS_H
#define LA_STEP_COLUMNS_H

#include "token.h"

/* Whether states are walked by vectors along their columns. */
INLINE int
both_by_columns(const struct la_array *from, const struct la_array *to)
{
    return by_columns(from) && by_columns(to);
}

/* `rows` rows of `cols` columns from row i and column j on: VL of both if it is
 * `whole`, else up to so many.  For whole squares, all three are constants. */
struct square {
    ptrdiff_t i, j, rows, cols;
    int whole;
};

/* Runs `call` for a square `at`: with constants if it is whole. */
#define LA_BY_SQUARE(i, j, rows, cols, call)                                           \
    do {                                                                               \
        const ptrdiff_t some_rows = (rows), some_cols = (cols);                        \
        if (some_rows >= VL && some_cols >= VL) {                                      \
            const struct square at = {i, j, VL, VL, 1};                                \
            call;                                                                      \
        }                                                                              \
        else {                                                                         \
            const struct square at = {i, j, some_rows < VL ? some_rows : VL,           \
                                      some_cols < VL ? some_cols : VL, 0};             \
            call;                                                                      \
        }                                                                              \
    } while (0)

/* Runs `call` for each column c of a square: unrolled if it is whole.  Others are rare,
 * and their parts of vectors are much code. */
#define LA_EACH_COLUMN(at, call)                                                       \
    do {                                                                               \
        if ((at).whole) {                                                              \
            LA_EACH(c, VL) {                                                           \
                call;                                                                  \
            }                                                                          \
        }                                                                              \
        else {                                                                         \
            for (ptrdiff_t c = 0; c < (at).cols; c++) {                                \
                call;                                                                  \
            }                                                                          \
        }                                                                              \
    } while (0)

/* Column c of a square of x. */
INLINE char *
square_column(const struct la_array *x, const struct square at, ptrdiff_t c)
{
    return x->data + (at.j + c) * x->cs + at.i * x->rs;
}

#endif
