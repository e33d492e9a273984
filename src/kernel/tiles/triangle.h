/* triangle.h: triangles of products between the tokens of a chunk, and products of
 * their diagonal blocks with rows. */
#ifndef LA_TRIANGLE_H
#define LA_TRIANGLE_H

#include "recurrence.h"

INLINE void
tile_load(vec c[][NR], const int nr, struct block x)
{
    LA_EACH(i, MR) {
        LA_EACH(j, nr) {
            c[i][j] = vload(&x.x[i * x.ld + j * VL]);
        }
    }
}

INLINE void
tile_store(struct block x, vec c[][NR], const int nr)
{
    LA_EACH(i, MR) {
        LA_EACH(j, nr) {
            vstore(&x.x[i * x.ld + j * VL], c[i][j]);
        }
    }
}

/* Whether row i sees row t: it comes later or, unless `strict`, is the same. */
INLINE int
sees(int i, int t, int strict)
{
    return i > t || (i == t && !strict);
}

/* c_i += x_it b_t for rows t of b (MR, nr) and every i >= t or, if strict, i > t.  x is
 * the MR x MR diagonal block. */
INLINE void
diagonal_down(vec c[][NR], const int nr, struct block x, struct block b, int strict)
{
    tile_diagonal(c, MR, nr, x, 0, b, 0, strict, LA_FLOAT_PRODUCTS);
}

/* c_i += x_ti b_t for every i <= t or, if strict, i < t. */
INLINE void
diagonal_up(vec c[][NR], const int nr, struct block x, struct block b, int strict)
{
    tile_diagonal(c, MR, nr, x, 1, b, 1, strict, LA_FLOAT_PRODUCTS);
}

/* x = tril(a b^T), (rows, rows), with a and b (rows, cols); the upper half of x is
 * unspecified. */
static void
triangle(struct block x, struct block a, struct block b, ptrdiff_t rows, ptrdiff_t cols)
{
    const struct sweep c = {.rows = rows, .K = cols, .a = a, .b = b, .dots = x};
    scores(&c);
}

#endif
