/* scores.h: the scores a_i.b_j of the rows of a chunk. */
#ifndef LA_SCORES_H
#define LA_SCORES_H

#include "amx_tiles.h"

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

/* Rows [i, i + rows) of nr vectors of scores from column `col` on. */
INLINE void
score_tile(const struct sweep *c, ptrdiff_t i, ptrdiff_t col, const int rows,
           const int nr, const enum la_products by)
{
    vec acc[2 * MR][NR];
    clear_tile(acc, rows, nr);
    la_fetch_some(c->ahead);
    tile_by(acc, rows, nr, block_at(pairs_of_a(c), i, 0), 0,
            block_at(c->pairs.keys, 0, col), lanes_of(c->K, by), by);
    LA_EACH(r, rows) {
        LA_EACH(j, nr) {
            vstore(&c->dots.x[(i + r) * c->dots.ld + col + j * VL], acc[r][j]);
        }
    }
}

/* Rows [i, i + rows) of scores from column `col` to `end`.  Eight sums at a time are
 * too few to hide how long an instruction takes. */
INLINE void
score_rows(const struct sweep *c, ptrdiff_t i, ptrdiff_t col, ptrdiff_t end,
           const int rows, const enum la_products by)
{
    for (; by == LA_NATIVE_PRODUCTS && col + VL < end; col += 2 * VL) {
        score_tile(c, i, col, rows, 2, by);
    }
    for (; col < end; col += VL) {
        score_tile(c, i, col, rows, 1, by);
    }
}

INLINE void
score_tiles(const struct sweep *c, const enum la_products by)
{
    const ptrdiff_t rows = round_up(c->rows, MR);
    for (ptrdiff_t i = 0, many; i < rows; i += many ? 2 * MR : MR) {
        many = rows - i >= 2 * MR;
        const ptrdiff_t first = c->upper ? i / VL * VL : 0;
        const ptrdiff_t end = c->upper ? rows : i + (many ? 2 * MR : MR);
        if (many) {
            score_rows(c, i, first, end, 2 * MR, by);
        }
        else {
            score_rows(c, i, first, end, MR, by);
        }
    }
}

/* Of pairs, which are summed along the columns of B^T: its lanes are the scores of a
 * row. */
static __attribute__((noinline)) void
scores_of_pairs(const struct sweep *c)
{
#if LA_HAS_AMX
    if (c->pairs.by == LA_AMX_PRODUCTS) {
        amx_score_tiles(c, LA_AMX_PRODUCTS);
        return;
    }
#endif
#if LA_HAS_HALVES
    if (by_amx(c->pairs.by)) {
        amx_score_tiles(c, LA_PLAIN_AMX_PRODUCTS);
        return;
    }
#endif
#if LA_HAS_HALVES && defined(__AVX512F__)
    if (c->pairs.by == LA_NATIVE_PRODUCTS) {
        score_tiles(c, LA_NATIVE_PRODUCTS);
        return;
    }
#endif
    score_tiles(c, LA_BFLOAT_PRODUCTS);
}

/* x_ij = a_i.b_j, at least for j <= i (upper: j >= i). */
static void
scores(const struct sweep *c)
{
    if (LA_HAS_HALVES && c->pairs.by != LA_FLOAT_PRODUCTS) {
        if (c->own.rows) {
            transpose_own_rows(c->pairs.keys, c->b, c->rows,
                               padded_lanes(c->K, c->pairs.by));
        }
        else {
            pair_rows_of_a(c);
            pair_transposed(c->pairs.keys, c->b, c->rows, c->K, c->pairs.by);
        }
        scores_of_pairs(c);
        return;
    }
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
