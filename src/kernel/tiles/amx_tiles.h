/* amx_tiles.h: the tiles of micro.h by AMX: LA_AMX_ROWS rows from i (or l) on, as far
 * as they exist, of one column tile of nr vectors.
 *
 * Sums pass through an array instead of registers.  Their order follows from the
 * positions of tokens in their chunk alone. */
#ifndef LA_AMX_TILES_H
#define LA_AMX_TILES_H

#include "micro.h"

/* c += rows of X V, in pairs.  A tile register may hold no scores but those of tokens
 * before (upper: after) all of its rows; the others are multiplied as without AMX. */
INLINE void
amx_triangle(vec c[][NR], const struct sweep *s, ptrdiff_t i, const int nr,
             struct block v, struct block values, const enum la_products by)
{
    const ptrdiff_t rows = round_up(s->rows, MR), all = lanes_of(s->rows, by);
    const ptrdiff_t from = lanes_of(i, by), next = lanes_of(i + LA_AMX_ROWS, by);
    const struct block far = s->pairs.dots;
    for (ptrdiff_t r = 0; r < LA_AMX_ROWS && i + r < rows; r += MR) {
        tile_rows_of_triangle(c + r, s, i + r, MR, nr, v, values, from,
                              next < all ? next : all, one_by_one(by));
    }
    if (s->upper) {
        amx_product(c, nr, block_at(far, i, next), block_at(values, next, 0),
                    all - next, by);
    }
    else {
        amx_product(c, nr, block_at(far, i, 0), values, from, by);
    }
}

/* Rows of O = bias + X V + A S, as read_tile. */
INLINE void
amx_read_tile(const struct sweep *c, ptrdiff_t col, struct block s, struct block values,
              ptrdiff_t k, ptrdiff_t kc, ptrdiff_t i, const int nr,
              const enum la_products by)
{
    vec acc[LA_AMX_ROWS][NR];
    la_fetch_some(c->ahead);
    begin_tile(c, col, k, acc, LA_AMX_ROWS, nr);
    if (k == 0 && c->dots.x != NULL) {
        amx_triangle(acc, c, i, nr, block_at(c->v, 0, col), values, by);
    }
    amx_product(acc, nr, block_at(c->pairs.a, i, lanes_of(k, by)), s, lanes_of(kc, by),
                by);
    for (ptrdiff_t r = 0; r < LA_AMX_ROWS && i + r < c->rows; r += MR) {
        store_tile(c, col, i + r, acc + r, k > 0, MR, nr);
    }
}

/* Rows of the next S, as write_tile, up to `end`. */
INLINE void
amx_write_tile(const struct sweep *c, ptrdiff_t col, struct block values,
               struct state_tile to, ptrdiff_t l, ptrdiff_t end, const int compensated,
               const int nr, const enum la_products by)
{
    vec acc[LA_AMX_ROWS][NR];
    la_fetch_some(c->ahead);
    clear_tile(acc, LA_AMX_ROWS, nr);
    amx_product(acc, nr, block_at(c->pairs.b, l, 0), values, lanes_of(c->rows, by), by);
    for (ptrdiff_t r = 0; r < LA_AMX_ROWS && l + r < end; r += MR) {
        add_chunk(c, col, to, l + r, acc + r, compensated, MR, nr);
    }
}

/* A vector of scores of each row, from column `col` on. */
INLINE void
amx_score_tile(const struct sweep *c, ptrdiff_t i, ptrdiff_t col,
               const enum la_products by)
{
    vec acc[LA_AMX_ROWS][NR];
    clear_tile(acc, LA_AMX_ROWS, 1);
    la_fetch_some(c->ahead);
    amx_product(acc, 1, block_at(c->pairs.a, i, 0), block_at(c->pairs.keys, 0, col),
                lanes_of(c->K, by), by);
    for (ptrdiff_t r = 0; r < LA_AMX_ROWS && i + r < round_up(c->rows, MR); r++) {
        vstore(&c->dots.x[(i + r) * c->dots.ld + col], acc[r][0]);
    }
}

#endif
