/* block.h: a kernel's scratch, and the blocks of rows that are carved from it.
 *
 * A block holds rows of numbers.  Its row step `ld` is a multiple of the vector length,
 * unless these are rows in the caller's array (own_rows.h).  The columns past the last
 * number of a row, and the rows up to the next multiple of MR, hold zeros (after the
 * map too: phi(0) = 1 must not leak in).  With ld = 0, all rows are the same row. */
#ifndef LA_BLOCK_H
#define LA_BLOCK_H

#include <stddef.h>
#include <string.h>

#include "../table.h"
#include "../vectors/vec.h"

struct block {
    T *x;
    ptrdiff_t ld;
};

/* The block from row i and column j on. */
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

/* Row step of a block of `cols` columns.  With a multiple of LA_SET_STEP bytes, the
 * same columns of all rows would share a few sets of the first-level cache. */
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

/* Clears rows [from, to) of x: tokens that do not exist. */
static void
clear_rows(struct block x, ptrdiff_t from, ptrdiff_t to)
{
    if (from < to) {
        clear(x.x + from * x.ld, (to - from) * x.ld);
    }
}

/* Scratch while it is carved.  With base NULL, the same code measures its size. */
struct arena {
    char *base;
    size_t used;
};

/* x y, or SIZE_MAX on overflow. */
INLINE size_t
times(size_t x, size_t y)
{
    size_t product;
    return __builtin_mul_overflow(x, y, &product) ? SIZE_MAX : product;
}

/* The next `count` numbers of the scratch; with base NULL they are only counted.  On
 * overflow, `used` becomes SIZE_MAX, which no allocation can satisfy. */
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

/* One row of a block of `cols` columns. */
INLINE T *
take_row(struct arena *arena, ptrdiff_t cols)
{
    return take(arena, 1, row_step(cols));
}

#endif
