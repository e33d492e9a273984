/* stages.h: what the stages of a group of chunks (table.h) share.
 *
 * Each chunk, or run of chunks (runs.h), has a record of what the stages keep of it,
 * the state before it among them.  A reverse pass counts chunks from the last token on:
 * "before" a chunk and "first" are those of the pass. */
#ifndef LA_STAGES_H
#define LA_STAGES_H

#include "recurrence.h"

/* Cuts the group into chunks of `rows` tokens. */
static int
cut_evenly(const struct la_head *h, ptrdiff_t rows)
{
    struct la_chunks *x = h->chunks;
    const ptrdiff_t left = ((x->reverse ? x->at : h->n - x->at) + rows - 1) / rows;
    x->count = left < x->most ? left : x->most;
    if (x->reverse) {
        x->next = (left - x->count) * rows;
        return 0;
    }
    const ptrdiff_t next = x->at + x->count * rows;
    x->next = next < h->n ? next : h->n;
    return 0;
}

/* Tokens of chunk i of a group that is cut evenly. */
INLINE struct span
span_of(const struct la_head *h, ptrdiff_t i, ptrdiff_t rows, struct la_fetch *ahead)
{
    const struct la_chunks *x = h->chunks;
    const ptrdiff_t step = x->reverse ? -rows : rows;
    const ptrdiff_t from = x->reverse ? (x->at - 1) / rows * rows : x->at;
    const ptrdiff_t first = from + i * step;
    return span(first, rows, first + step, h->n, ahead);
}

/* A queue for prefetching that does not have to find out first how much is needed: a
 * stage may compute only a few chunks. */
INLINE struct la_fetch
eager_fetch(void)
{
    return (struct la_fetch){.lines = LA_LINES_MAX / 2};
}

/* An array in the record of chunk i, from that in the first, if there is one. */
INLINE T *
in_record(const struct la_chunks *x, T *first, ptrdiff_t i)
{
    return first != NULL ? (T *)((char *)first + (size_t)i * x->record) : NULL;
}

INLINE struct block
block_in_record(const struct la_chunks *x, struct block first, ptrdiff_t i)
{
    return (struct block){in_record(x, first.x, i), first.ld};
}

/* A field of the state before chunk i.  That after the last chunk is in a record of its
 * own, which the next group reads while others reuse the memory of this one. */
INLINE T *
field_before(const struct la_chunks *x, T *first, ptrdiff_t i)
{
    char *const shared = i == 0 ? x->first : i == x->count ? x->last : NULL;
    return first != NULL && shared != NULL
               ? (T *)(shared + ((char *)first - x->records))
               : in_record(x, first, i);
}

/* Whether this group is the first of the head. */
INLINE int
begins_head(const struct la_head *h)
{
    return h->chunks->first == NULL;
}

/* Whether the chunks of this stage are the last of the head. */
INLINE int
ends_head(const struct la_head *h)
{
    const struct la_chunks *x = h->chunks;
    return x->next == (x->reverse ? 0 : h->n) && h->stage.to == x->count;
}

/* What the state has lost to rounding, for all groups. */
static T *
take_lost(const struct la_head *h, struct arena *arena)
{
    return take_state(arena, h->d, h->m);
}

/* Prefetches all rows in the queue, where no tile would. */
static void
fetch_all(struct la_fetch *ahead)
{
    while (ahead->count > 0) {
        la_fetch_some(ahead);
    }
}

/* sum = the sum of the rows of b. */
static void
sum_rows(T *sum, struct block b, ptrdiff_t rows)
{
    for (ptrdiff_t l = 0; l < b.ld; l += VL) {
        vstore(&sum[l], sum_of_columns(b, rows, l));
    }
}

/* to = from + sum, compensated with `lost` */
static void
carry_vector(T *to, const T *from, T *lost, const T *sum, ptrdiff_t count)
{
    for (ptrdiff_t l = 0; l < count; l += VL) {
        vstore(&to[l], vload(&from[l])); /* they may be the same */
        add_to_sum(&to[l], &lost[l], vload(&sum[l]));
    }
}

/* Sets the rows of a column tile of the state that this part writes: all rows of all
 * tiles are dealt out evenly, LA_TR at a time.  Returns whether there are any. */
INLINE int
share_of_tile(struct sweep *c, const struct la_head *h, ptrdiff_t tile, ptrdiff_t tiles)
{
    const ptrdiff_t each = (c->K + LA_TR - 1) / LA_TR, all = tiles * each;
    ptrdiff_t first = all * h->stage.part / h->chunks->parts - tile * each,
              end = all * (h->stage.part + 1) / h->chunks->parts - tile * each;
    first = first < 0 ? 0 : first;
    end = end > each ? each : end;
    c->first = first * LA_TR;
    c->end = end * LA_TR < c->K ? end * LA_TR : c->K;
    return first < end;
}

/* Prefetches a block for a later chunk, which another thread has prepared. */
INLINE void
fetch_block(struct la_fetch *ahead, struct block x, ptrdiff_t rows, ptrdiff_t cols)
{
    la_fetch_later(ahead, (const char *)x.x, x.ld * (ptrdiff_t)sizeof(T),
                   cols * (ptrdiff_t)sizeof(T), rows);
}

/* Prefetches rows of numbers that this thread will overwrite. */
INLINE void
fetch_to_write(struct block x, ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j < cols; j += LA_LINE / (ptrdiff_t)sizeof(T)) {
            la_fetch_to_write(&x.x[i * x.ld + j]);
        }
    }
}

/* The sums LA_CARRY_AHEAD chunks after those before chunk i, or NULL. */
INLINE T *
later_sums(const struct la_chunks *x, T *first, ptrdiff_t i)
{
    return i + LA_CARRY_AHEAD <= x->count ? field_before(x, first, i + LA_CARRY_AHEAD)
                                          : NULL;
}

/* Prefetches this part of one column tile of a state. */
INLINE void
fetch_tile(struct sweep c, const struct la_head *h, T *s, ptrdiff_t col, const int nr)
{
    const ptrdiff_t width = NR * VL, tiles = (c.W + width - 1) / width;
    const struct block tile = {s + col * round_up(c.K, MR), nr * VL};
    if (share_of_tile(&c, h, col / width, tiles)) {
        fetch_to_write(block_at(tile, c.first, 0), c.end - c.first, nr * VL);
    }
}

/* Prefetches this part of the sums of a later chunk, unless this thread has made them
 * all; NULL: there is none. */
static void
fetch_sums(struct sweep c, const struct la_head *h, T *sums)
{
    if (sums != NULL && h->chunks->parts > 1) {
        LA_BY_TILES(c.W, fetch_tile(c, h, sums, col, nr));
    }
}

/* sums = what a chunk adds to the state or, if it does not begin its run, sums += that.
 * They are where the state after the chunk, or after the run, will be. */
static void
sum_chunk(struct sweep *c, T *sums, int begins)
{
    c->run = sums;
    c->begins = begins;
    sweep(c, LA_WRITE);
}

/* This part of the state after one chunk, from its sums. */
static void
carry_state(struct sweep *c, const struct la_head *h)
{
    const ptrdiff_t width = NR * VL, tiles = (c->W + width - 1) / width;
    LA_BY_TILES(
        c->W, if (share_of_tile(c, h, col / width, tiles)) { carry_tile(c, col, nr); });
}

#endif
