/* pair_scratch.h: where a sweep keeps the pairs of its operands (pairs.h), and how many
 * rows it has. */
#ifndef LA_PAIR_SCRATCH_H
#define LA_PAIR_SCRATCH_H

#include "pairs.h"
#include "panels.h"

enum { LA_PAIRED_ROWS = 64 }; /* the most rows of a sweep that takes pairs */

/* The scratch of a sweep (micro.h) for its operands. */
struct pairs {
    enum la_products by;
    int *tiles;           /* la_head's */
    struct block a, keys; /* of the rows of A and of B */
    struct block b, dots; /* of the columns of B, with AMX as rows; of the rows of X */
    struct block s;       /* with AMX: of the columns of S, by column tiles like S */
    struct panels panels; /* of products of floats */
};

/* Rows per chunk with products of operands in pairs. */
INLINE ptrdiff_t
paired_rows(const struct la_head *h)
{
    return by_amx(h->products) ? LA_AMX_CHUNK : paired_chunk_rows(h->d);
}

/* Rows per chunk of causal and gated. */
INLINE ptrdiff_t
head_rows(const struct la_head *h)
{
    return h->products == LA_FLOAT_PRODUCTS ? chunk_rows(h->d) : paired_rows(h);
}

/* Rows per chunk of causal_backward. */
INLINE ptrdiff_t
gradient_rows(const struct la_head *h)
{
    return h->products == LA_FLOAT_PRODUCTS ? causal_backward_rows(h->d)
                                            : paired_rows(h);
}

/* Rows per chunk of the delta rules. */
INLINE ptrdiff_t
delta_rows(const struct la_head *h)
{
    return delta_chunk_rows(h->d, by_amx(h->products));
}

INLINE ptrdiff_t
wider_of(ptrdiff_t d, ptrdiff_t m)
{
    return d > m ? d : m;
}

/* The same for AMX: tiles read rows and lanes past the last ones. */
static void
take_amx_pairs(struct pairs *x, struct arena *arena, ptrdiff_t rows, ptrdiff_t K,
               ptrdiff_t W)
{
    const ptrdiff_t all = round_up(rows, LA_AMX_ROWS), lanes = padded_lanes(K, x->by);
    x->a = take_block(arena, all, lanes);
    x->keys = take_block(arena, lanes, all);
    x->b = take_block(arena, round_up(K, LA_AMX_ROWS), padded_lanes(all, x->by));
    x->dots = take_block(arena, all, padded_lanes(all, x->by));
    x->s.x = take(arena, lanes, round_up(W, VL));
}

/* Scratch for the pairs or the panels of a chunk of `rows` rows, and of a state of up
 * to K rows and W columns. */
static struct pairs
take_pairs(const struct la_head *h, struct arena *arena, ptrdiff_t rows, ptrdiff_t K,
           ptrdiff_t W)
{
    struct pairs x = {.by = h->products, .tiles = h->tiles};
    if (by_amx(x.by)) {
        take_amx_pairs(&x, arena, rows, K, W);
    }
    else if (x.by != LA_FLOAT_PRODUCTS) {
        const ptrdiff_t all = round_up(rows, MR);
        x.a = take_block(arena, all, (K + 1) / 2);
        x.keys = take_block(arena, round_up((K + 1) / 2, VL), rows);
        x.b = take_block(arena, all / 2, K);
        x.dots = take_block(arena, all, all / 2);
    }
    else {
        x.panels = take_panels(arena, rows, K, W);
    }
    return x;
}

/* Scratch of sweeps that hold the pairs of their state (struct sweep). */
static const T **
take_held(const struct la_head *h, struct arena *arena, ptrdiff_t W)
{
    const size_t tiles = ((size_t)W + NR * VL - 1) / (NR * VL);
    const size_t bytes = times(tiles, sizeof(const T *));
    return by_amx(h->products) ? (const T **)take_numbers(arena, bytes / sizeof(T) + 1)
                               : NULL;
}

/* The same scratch, but for the pairs of a state (K, W): for another state. */
static struct pairs
take_state_pairs(struct pairs x, struct arena *arena, ptrdiff_t K, ptrdiff_t W)
{
    if (by_amx(x.by)) {
        x.s.x = take(arena, padded_lanes(K, x.by), round_up(W, VL));
    }
    return x;
}

/* The same scratch, but for the rows of A: for two sweeps side by side. */
static struct pairs
take_other_pairs(struct pairs x, struct arena *arena, ptrdiff_t rows, ptrdiff_t K)
{
    if (x.by != LA_FLOAT_PRODUCTS) {
        x.a = take_block(arena, round_up(rows, by_amx(x.by) ? LA_AMX_ROWS : MR),
                         padded_lanes(K, x.by));
    }
    return x;
}

#endif
