/* rotation.h: the rows of a state, cut into vectors that begin where vectors in memory
 * do.
 *
 * NumPy aligns arrays to 16 bytes, so that most vectors of a state of contiguous rows
 * lie in two lines of the cache each, and loads and stores of them take twice as long.
 * A step then processes the columns rotated by `shift`, so that every full vector
 * begins a line: the first `shift` columns come last.  The last vector of a row, the
 * seam, also holds the first `shift` columns of the next row, whose lanes have that
 * row's factors.  The first columns of the first row and the last ones of the last row
 * are parts of vectors. Every column keeps its lane in all rows, and the operations on
 * it keep their order, so that no bit depends on where the state lies.
 *
 *    columns, m = 8, VL = 4, shift = 3:    row 0:  [. 0 1 2]  [3 4 5 6]
 *                                          row 1:  [7 0 1 2]  [3 4 5 6]
 *                                                  [7 . . .]
 */
#ifndef LA_ROTATION_H
#define LA_ROTATION_H

#include "chunk.h"

/* Vectors of 32 bytes, and of 16-bit numbers, cross a line half as often, and smaller
 * ones do not. */
#define LA_ROTATES (LA_VBYTES > 32)

/* By how many columns the rows of a state are rotated. */
struct rotation {
    ptrdiff_t shift; /* 0: not at all */
    unsigned next;   /* the lanes of the seam that hold the next row, as bits */
};

/* A tile of a step: nr vectors of columns from j on, of which the last has `some`
 * columns or is a seam.  All but j and, if less than VL, `some` are constants. */
struct step_tile {
    ptrdiff_t j;
    int nr;
    ptrdiff_t some;
    int seam;
    int rule, resets;  /* what the step does, in its own terms */
    enum la_type type; /* of the state's numbers */
};

/* Whether the vectors of a row are rounded in pairs, to 16 bits, rather than written as
 * they are computed, which is faster in the dtype of the computation. */
INLINE int
writes_pairs(const struct step_tile tile)
{
    return tile.type != LA_NATIVE && tile.some == VL;
}

/* Whether a tile ends with a seam. */
INLINE int
ends_in_seam(const struct step_tile tile, const struct rotation *by, ptrdiff_t m)
{
    return LA_ROTATES && tile.type == LA_NATIVE && by->shift > 0 &&
           tile.j + tile.nr * VL == m;
}

#if LA_ROTATES
INLINE struct rotation
rotation_of(const struct la_array *from, const struct la_array *to, ptrdiff_t d,
            ptrdiff_t m)
{
    const ptrdiff_t size = sizeof(T), row = m * size;
    const int native = from->type == LA_NATIVE && to->type == LA_NATIVE;
    const ptrdiff_t past = (ptrdiff_t)((uintptr_t)to->data % LA_VBYTES);
    const int whole = native && d > 0 && m > 0 && by_rows(to) && by_rows(from) &&
                      m % VL == 0 && from->rs == row && to->rs == row;
    struct rotation by = {0};
    if (whole && past % size == 0) {
        by.shift = past > 0 ? (LA_VBYTES - past) / size : 0;
        by.next = (1u << VL) - (1u << (VL - by.shift));
    }
    return by;
}

/* y in the lanes of the seam that hold the next row, else x. */
INLINE vec
vseam(const struct rotation *by, vec x, vec y)
{
    return (vec)LA_MM(mask_blend)(by->next, x, y);
}

/* Lane j of the result is lane j + by of x and y, one after the other. */
INLINE vec
vshift(vec x, vec y, ptrdiff_t by)
{
    const ivec lanes = viota() + (ivec)((ivec){0} + (INT)by);
    return (vec)LA_MM(permutex2var)(x, (__m512i)lanes, y);
}

/* y_j = x_(j + by), modulo m, for m numbers, a multiple of VL.  Whole vectors are read,
 * as they were written: any others would wait for the stores. */
INLINE void
rotate_row(T *y, const T *x, ptrdiff_t m, ptrdiff_t by)
{
    ptrdiff_t at = by / VL * VL;
    for (ptrdiff_t j = 0; j < m; j += VL) {
        const ptrdiff_t next = at + VL < m ? at + VL : 0;
        vstore(&y[j], vshift(vload(&x[at]), vload(&x[next]), by % VL));
        at = next;
    }
}

/* The part of the seam before the first row of a tile that holds that row's first
 * columns, in their lanes; `in` is the tile's address in the row before it. */
INLINE vec
vload_first(const char *in, const int nr, const struct rotation *by)
{
    const char *p = in + nr * LA_VBYTES - by->shift * (ptrdiff_t)sizeof(T);
    const vec x = vload_part(p, by->shift);
    return vshift(x, x, by->shift);
}

INLINE void
vstore_first(char *out, const int nr, const struct rotation *by, vec x)
{
    char *p = out + nr * LA_VBYTES - by->shift * (ptrdiff_t)sizeof(T);
    vstore_part(p, by->shift, vshift(x, x, VL - by->shift));
}
#else
INLINE struct rotation
rotation_of(const struct la_array *from, const struct la_array *to, ptrdiff_t d,
            ptrdiff_t m)
{
    (void)from, (void)to, (void)d, (void)m;
    return (struct rotation){0};
}

INLINE vec
vseam(const struct rotation *by, vec x, vec y)
{
    (void)by, (void)y;
    return x;
}

INLINE vec
vload_first(const char *in, const int nr, const struct rotation *by)
{
    (void)in, (void)nr, (void)by;
    return (vec){0};
}

INLINE void
vstore_first(char *out, const int nr, const struct rotation *by, vec x)
{
    (void)out, (void)nr, (void)by, (void)x;
}

INLINE void
rotate_row(T *y, const T *x, ptrdiff_t m, ptrdiff_t by)
{
    (void)y, (void)x, (void)m, (void)by;
}
#endif

#endif
