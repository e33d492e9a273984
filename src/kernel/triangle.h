/* triangle.h: triangles of products between the tokens of a chunk, and products of
 * their blocks on the diagonal with rows. */
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

/* y (MR, nr) += the rows t of b (k, nr) times x_it, for every i >= t or, strict, i > t;
 * x is the MR x MR block on the diagonal, along its rows. */
INLINE void
diagonal_down(vec y[][NR], const int nr, struct block x, struct block b,
              const int strict)
{
    LA_EACH(t, MR) {
        LA_UNROLL
        for (int i = t + strict; i < MR; i++) {
            LA_EACH(j, nr) {
                const vec row = vload(&b.x[t * b.ld + j * VL]);
                y[i][j] = vfma(vset1(x.x[i * x.ld + t]), row, y[i][j]);
            }
        }
    }
}

/* y (MR, nr) += the rows t of b (k, nr) times x_ti, for every i <= t or, strict,
 * i < t; x is the MR x MR block on the diagonal, down its columns. */
INLINE void
diagonal_up(vec y[][NR], const int nr, struct block x, struct block b, const int strict)
{
    LA_EACH(t, MR) {
        LA_UNROLL
        for (int i = 0; i <= t - strict; i++) {
            LA_EACH(j, nr) {
                const vec row = vload(&b.x[t * b.ld + j * VL]);
                y[i][j] = vfma(vset1(x.x[t * x.ld + i]), row, y[i][j]);
            }
        }
    }
}

/* x = tril(a b^T), (rows, rows), a and b (rows, cols); its upper half holds anything.
 */
static void
triangle(struct block x, struct block a, struct block b, ptrdiff_t rows, ptrdiff_t cols)
{
    const struct sweep c = {.rows = rows, .K = cols, .a = a, .b = b, .dots = x};
    scores(&c);
}

#endif
