/* token_blocks.h: tokens in blocks of h->block, which all read the state after the last
 * token of their block; h->block is 0 if each token reads the state after itself.
 *
 * A block ends its last chunk.  Its tokens first write, chunk by chunk, as they do
 * without blocks.  Then they read; with S the state after the block, A = phi(Q) and C =
 * scale times the cotangent,
 *
 *    O = scale A S
 *    dA = C S^T
 *    R <- R + A^T C
 *
 * where R is the gradient of that state, before the reverse scan goes on to what the
 * block wrote.
 *
 * So no later block is ever multiplied with, and nothing has to be masked. */
#ifndef LA_TOKEN_BLOCKS_H
#define LA_TOKEN_BLOCKS_H

#include "recurrence.h"

/* One past the last token of the block of token i; of all tokens without blocks. */
INLINE ptrdiff_t
token_block_end(const struct la_head *h, ptrdiff_t i)
{
    const ptrdiff_t left = h->block > 0 ? h->block - i % h->block : h->n;
    return left < h->n - i ? i + left : h->n;
}

/* Whether the tokens t are the last ones of their block. */
INLINE int
ends_token_block(const struct la_head *h, struct span t)
{
    return h->block > 0 && t.first + t.rows == token_block_end(h, t.first);
}

/* Within a chunk no query reads: a sweep takes no scores, nor pairs that they made. */
INLINE void
without_scores(struct sweep *c)
{
    c->dots.x = NULL;
    c->scored = 0;
}

/* The first token of the block that ends with the tokens t. */
INLINE ptrdiff_t
token_block_begin(const struct la_head *h, struct span t)
{
    return t.first - t.first % h->block;
}

/* Most tokens of a chunk, where it has `rows` without blocks. */
INLINE ptrdiff_t
rows_in_block(const struct la_head *h, ptrdiff_t rows)
{
    return h->block > 0 && h->block < rows ? h->block : rows;
}

/* --- chunks that no decay shortens --------------------------------------------- */

INLINE ptrdiff_t
chunks_of(ptrdiff_t tokens, ptrdiff_t rows)
{
    return tokens > 0 ? (tokens - 1) / rows + 1 : 0;
}

/* The number of chunks of the head. */
static ptrdiff_t
chunk_count(const struct la_head *h, ptrdiff_t rows)
{
    if (h->block == 0) {
        return chunks_of(h->n, rows);
    }
    return h->n / h->block * chunks_of(h->block, rows) +
           chunks_of(h->n % h->block, rows);
}

/* The first token of a chunk. */
static ptrdiff_t
chunk_begin(const struct la_head *h, ptrdiff_t rows, ptrdiff_t chunk)
{
    if (h->block == 0) {
        return chunk * rows;
    }
    const ptrdiff_t each = chunks_of(h->block, rows), before = chunk / each;
    return before * h->block + chunk % each * rows;
}

/* --- what tokens read, of operators without a normaliser ----------------------- */

/* The outputs of the tokens from i to `end`, from the state of the sweep. */
static int
read_token_block(const struct la_head *h, struct sweep c, const T *scale, ptrdiff_t i,
                 ptrdiff_t end, ptrdiff_t rows)
{
    c.dots.x = NULL;
    for (; i < end; i += rows) {
        const struct span t = span(i, rows, i + rows, end, c.ahead);
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        c.rows = t.rows;
        load_mapped(c.a, &h->q, t, h->d, h->map);
        look_ahead(&h->o, t, h->m);
        sweep(&c, LA_READ);
        store_rows(&h->o, t, h->m, c.o, scale);
    }
    return 0;
}

/* C of the tokens t. */
static void
load_scaled_cotangents(const struct la_head *h, struct block c, const T *scale,
                       struct span t)
{
    load_plain(c, &h->grad_out, t, h->m);
    if (h->scale != 1) {
        scale_rows(c, t.rows, scale);
    }
}

/* dq of the tokens from i to `end`, from S^T, the state of the sweep; a is scratch. */
static int
token_block_dq(const struct la_head *h, struct sweep c, struct block a, const T *scale,
               ptrdiff_t i, ptrdiff_t end, ptrdiff_t rows)
{
    for (; i < end; i += rows) {
        const struct span t = span(i, rows, i + rows, end, c.ahead);
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        c.rows = t.rows;
        load_scaled_cotangents(h, c.a, scale, t);
        look_ahead(&h->dq, t, h->d);
        sweep(&c, LA_READ);
        if (h->map != LA_MAP_identity) { /* phi' is 1 */
            load_mapped(a, &h->q, t, h->d, h->map);
            chain(c.o, &h->q, t, h->d, a, h->map);
        }
        store_rows(&h->dq, t, h->d, c.o, NULL);
    }
    return 0;
}

/* R after the block, with what the tokens from i to `end` read; R is the state of the
 * sweep. */
static int
add_token_block_readers(const struct la_head *h, struct sweep c, const T *scale,
                        ptrdiff_t i, ptrdiff_t end, ptrdiff_t rows)
{
    c.keep = c.change = NULL;
    for (; i < end; i += rows) {
        const struct span t = span(i, rows, i + rows, end, c.ahead);
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        c.rows = t.rows;
        load_mapped(c.b, &h->q, t, h->d, h->map);
        load_scaled_cotangents(h, c.v, scale, t);
        sweep(&c, LA_WRITE);
    }
    return 0;
}

#endif
