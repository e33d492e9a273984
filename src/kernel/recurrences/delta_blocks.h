/* delta_blocks.h: the gradients of what tokens in blocks read (token_blocks.h), of the
 * delta rules. */
#ifndef LA_DELTA_BLOCKS_H
#define LA_DELTA_BLOCKS_H

#include "delta_reverse.h"

/* dq of the block that ends with the tokens t, from S after it. */
static int
delta_block_dq(const struct la_head *h, const struct reverse_scratch *r, T *s,
               struct span t)
{
    const struct sweep c = {.K = h->m,
                            .W = round_up(h->d, VL),
                            .a = r->gn,
                            .o = r->dab,
                            .s = r->rt,
                            .ahead = t.ahead,
                            .pairs = r->pairs};
    transpose_state(r->rt, s, h->d, h->m);
    return token_block_dq(h, c, r->ab, r->scale, token_block_begin(h, t),
                          t.first + t.rows, delta_rows(h));
}

/* R after the block that ends with the tokens t, with what its queries read. */
static int
delta_block_readers(const struct la_head *h, const struct reverse_scratch *r,
                    struct span t)
{
    const ptrdiff_t rows = delta_rows(h);
    struct sweep c = {.K = h->d,
                      .W = round_up(h->m, VL),
                      .b = r->ab,
                      .v = r->gn,
                      .s = r->r,
                      .ahead = t.ahead,
                      .pairs = r->pairs};
    compensate_state(&c, h, r->lost, rows_in_block(h, rows));
    return add_token_block_readers(h, c, r->scale, token_block_begin(h, t),
                                   t.first + t.rows, rows);
}

#endif
