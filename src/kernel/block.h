/* block.h: a kernel's scratch, and the blocks of rows that it is cut into.
 *
 * A block holds rows of numbers, its row step `ld` a multiple of the vector length: the
 * columns past the last number of a row, and the rows up to the next multiple of MR,
 * hold zeros (after the map too: phi(0) = 1 must not leak in).  With ld = 0 one row
 * stands for all. */
#ifndef LA_BLOCK_H
#define LA_BLOCK_H

#include <stddef.h>
#include <string.h>

#include "table.h"
#include "vec.h"

struct block {
    T *x;
    ptrdiff_t ld;
};

/* What of a block lies from row i and column j on. */
INLINE struct block
block_at(struct block b, ptrdiff_t i, ptrdiff_t j)
{
    return (struct block){b.x + i * b.ld + j, b.ld};
}

INLINE ptrdiff_t
round_up(ptrdiff_t x, ptrdiff_t step)
{
    return (x + step - 1) / step * step;
}

/* Row step of a block of `cols` columns.  Steps of LA_SET_STEP would put the
 * same columns of all rows into the same few sets of the first-level cache. */
INLINE ptrdiff_t
row_step(ptrdiff_t cols)
{
    const ptrdiff_t ld = round_up(cols, VL > MR ? VL : MR);
    return ld > 0 && ld % (LA_SET_STEP / (ptrdiff_t)sizeof(T)) == 0 ? ld + VL : ld;
}

INLINE void
clear(T *x, ptrdiff_t count)
{
    memset(x, 0, (size_t)count * sizeof(T));
}

/* Rows [from, to) of x = 0: tokens that do not exist. */
static void
clear_rows(struct block x, ptrdiff_t from, ptrdiff_t to)
{
    if (from < to) {
        clear(x.x + from * x.ld, (to - from) * x.ld);
    }
}

/* A kernel's scratch while it is cut up, or measured, which is the same with no base.
 */
struct arena {
    char *base;
    size_t used;
};

/* x y, or SIZE_MAX where that is less. */
INLINE size_t
times(size_t x, size_t y)
{
    size_t product;
    return __builtin_mul_overflow(x, y, &product) ? SIZE_MAX : product;
}

/* The next `count` numbers of the scratch; with base NULL they are only counted.  What
 * no memory could hold leaves `used` at SIZE_MAX, for which there is none. */
static T *
take_numbers(struct arena *arena, size_t count)
{
    T *p = arena->base ? (T *)(arena->base + arena->used) : NULL;
    size_t end;
    if (__builtin_add_overflow(times(count, sizeof(T)), arena->used, &end) ||
        end > SIZE_MAX - LA_ALIGN) {
        arena->used = SIZE_MAX;
        return p;
    }
    arena->used = (end + LA_ALIGN - 1) / LA_ALIGN * LA_ALIGN;
    return p;
}

/* The next rows times cols numbers of the scratch. */
INLINE T *
take(struct arena *arena, ptrdiff_t rows, ptrdiff_t cols)
{
    return take_numbers(arena, times((size_t)rows, (size_t)cols));
}

INLINE struct block
take_block(struct arena *arena, ptrdiff_t rows, ptrdiff_t cols)
{
    const ptrdiff_t ld = row_step(cols);
    return (struct block){take(arena, rows, ld), ld};
}

/* One row of such a block. */
INLINE T *
take_row(struct arena *arena, ptrdiff_t cols)
{
    return take(arena, 1, row_step(cols));
}

#endif
