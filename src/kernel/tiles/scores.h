/* scores.h: the scores a_i.b_j of the rows of a chunk. */
#ifndef LA_SCORES_H
#define LA_SCORES_H

#include "micro.h"

/* Computes one block of scores, SI rows by SJ columns, one vector in total.  Products
 * of rows are summed lane by lane and lanes are added at the end, so that neither
 * operand has to be transposed. */
#define SI (VL < MR ? VL : MR)
#define SJ (VL / SI)

INLINE vec
score_part(struct block a, struct block b, ptrdiff_t K)
{
    vec acc[SI * SJ];
    LA_EACH(t, SI * SJ) {
        acc[t] = (vec){0};
    }
    for (ptrdiff_t l = 0; l < K; l += VL) {
        vec y[SJ];
        LA_EACH(j, SJ) {
            y[j] = vload(&b.x[j * b.ld + l]);
        }
        LA_EACH(i, SI) {
            const vec row = vload(&a.x[i * a.ld + l]);
            LA_EACH(j, SJ) {
                acc[i * SJ + j] = vfma(row, y[j], acc[i * SJ + j]);
            }
        }
    }
    return lane_sums(acc);
}

/* Sums in parts of KC numbers per lane, which limits the error of long rows. */
INLINE void
score_block(struct block x, struct block a, struct block b, ptrdiff_t K)
{
    _Alignas(LA_ALIGN) T sums[VL];
    vec sum = score_part(a, b, K < KC * VL ? K : KC * VL);
    for (ptrdiff_t l = KC * VL; l < K; l += KC * VL) {
        sum += score_part(block_at(a, 0, l), block_at(b, 0, l),
                          K - l < KC * VL ? K - l : KC * VL);
    }
    vstore(sums, sum);
    LA_EACH(i, SI) {
        memcpy(&x.x[i * x.ld], &sums[i * SJ], SJ * sizeof(T));
    }
}

/* x_ij = a_i.b_j, at least for j <= i (upper: j >= i). */
static void
scores(const struct sweep *c)
{
    const ptrdiff_t rows = round_up(c->rows, MR);
    for (ptrdiff_t i = 0; i < rows; i += SI) {
        const ptrdiff_t first = c->upper ? i / SJ * SJ : 0;
        const ptrdiff_t end = c->upper ? rows : i + SI;
        for (ptrdiff_t j = first; j < end; j += SJ) {
            la_fetch_some(c->ahead);
            score_block(block_at(c->dots, i, j), block_at(c->a, i, 0),
                        block_at(c->b, j, 0), c->K);
        }
    }
}

#endif
