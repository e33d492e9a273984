/* array.h: the caller's arrays: how they lie in memory, how their numbers are stored,
 * and parts of them. */
#ifndef LA_ARRAY_H
#define LA_ARRAY_H

#include "../vectors/half.h"
#include "block.h"

/* Layout of a matrix: contiguous numbers within rows (by_rows), within columns
 * (by_columns), or neither. */
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

/* The same, where the rows of a column may also follow one another backwards. */
INLINE int
along_columns(const struct la_array *x)
{
    return by_columns(x) || (x->rs == -size_of(x->type) && !by_rows(x));
}

/* Runs `call` with `type` a compile-time constant: a test for every vector would cost
 * as much as the vector. */
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

/* The same for 16-bit types alone. */
#define LA_BY_HALF(type_of, call)                                                      \
    do {                                                                               \
        if ((type_of) == LA_HALF) {                                                    \
            const enum la_type type = LA_HALF;                                         \
            call;                                                                      \
        }                                                                              \
        else {                                                                         \
            const enum la_type type = LA_BFLOAT;                                       \
            call;                                                                      \
        }                                                                              \
    } while (0)

/* x moved by `step` bytes: the array of another head, or its rows or columns from
 * another one on. */
INLINE struct la_array
shifted(const struct la_array *x, ptrdiff_t step)
{
    struct la_array y = *x;
    y.data = x->data ? x->data + step : NULL;
    return y;
}

/* x^T; of one number per token, their row. */
INLINE struct la_array
transposed(struct la_array x)
{
    const ptrdiff_t rs = x.rs;
    x.rs = x.cs;
    x.cs = rs;
    return x;
}

/* A block as an array. */
INLINE struct la_array
block_array(struct block x)
{
    return (struct la_array){.data = (char *)x.x,
                             .rs = x.ld * (ptrdiff_t)sizeof(T),
                             .cs = sizeof(T),
                             .type = LA_NATIVE};
}

/* How many columns the panel from `col` on has, if most panels have `most`. */
INLINE ptrdiff_t
panel_cols(const struct la_head *h, ptrdiff_t col, ptrdiff_t most)
{
    return h->m - col < most ? h->m - col : most;
}

#endif
