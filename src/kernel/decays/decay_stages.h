/* decay_stages.h: the stages (stages.h) of recurrences whose state decays. */
#ifndef LA_DECAY_STAGES_H
#define LA_DECAY_STAGES_H

#include "decay.h"
#include "../tiles/stages.h"

/* What a record holds of the decays of a chunk. */
struct decay_chunk {
    ptrdiff_t *tokens; /* the first token and their number */
    T *exact;          /* as a field of the state: whether it has lost nothing */
    struct decay decay;
};

static struct decay_chunk
take_decay_chunk(const struct la_head *h, struct arena *arena, ptrdiff_t rows)
{
    struct decay_chunk x;
    x.exact = take(arena, 1, 1);
    x.tokens = (ptrdiff_t *)take(arena, 2, sizeof(ptrdiff_t) / sizeof(T));
    x.decay = take_decay(arena, h, rows);
    return x;
}

static struct decay
decay_in_record(const struct la_chunks *of, const struct decay *first, ptrdiff_t i)
{
    return (struct decay){.channels = first->channels,
                          .g = block_in_record(of, first->g, i),
                          .keep = in_record(of, first->keep, i),
                          .change = in_record(of, first->change, i),
                          .pairs = block_in_record(of, first->pairs, i),
                          .start = in_record(of, first->start, i),
                          .end = in_record(of, first->end, i),
                          .up = block_in_record(of, first->up, i),
                          .down = block_in_record(of, first->down, i),
                          .first = in_record(of, first->first, i),
                          .last = in_record(of, first->last, i)};
}

static struct decay_chunk
decay_chunk(const struct la_chunks *of, const struct decay_chunk *first, ptrdiff_t i)
{
    return (struct decay_chunk){
        .tokens = (ptrdiff_t *)in_record(of, (T *)first->tokens, i),
        .exact = field_before(of, first->exact, i),
        .decay = decay_in_record(of, &first->decay, i),
    };
}

/* The tokens of a chunk. */
INLINE struct span
tokens_of(const struct decay_chunk *x, struct la_fetch *ahead)
{
    const ptrdiff_t first = x->tokens[0], rows = x->tokens[1];
    return span(first, rows, first + rows, first + rows, ahead);
}

/* Cuts the group where decays end its chunks, of up to `rows` tokens. */
static int
cut_by_decays(const struct la_head *h, const struct decay_chunk *first, ptrdiff_t rows)
{
    struct la_chunks *x = h->chunks;
    struct la_fetch ahead = eager_fetch();
    x->next = x->at;
    while (x->next < h->n && x->count < x->most) {
        const struct decay_chunk c = decay_chunk(x, first, x->count);
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        c.tokens[0] = x->next;
        c.tokens[1] = load_sums(
            h, span(x->next, up_to_cut(h, x->next, rows), x->next + rows, h->n, &ahead),
            &c.decay);
        fetch_all(&ahead);
        x->next += c.tokens[1];
        x->count++;
    }
    return 0;
}

/* The factors of chunk i, and whether the state after it has lost nothing. */
static void
prepare_decays(const struct la_head *h, const struct decay_chunk *first,
               const struct decay_chunk *x, ptrdiff_t i)
{
    all_factors(h, &x->decay, x->tokens[1]);
    field_before(h->chunks, first->exact, i + 1)[0] = keeps_nothing(&x->decay);
}

/* Clears what the chunk's first decays reset, of the rows of a column tile that this
 * part writes: whole rows or, of a transposed state, columns. */
INLINE void
forget_rows(const struct decay *decay, T *s, const struct sweep *c, ptrdiff_t col,
            ptrdiff_t width)
{
    const int by_column = decay->channels && c->transposed;
    for (ptrdiff_t l = c->first; l < round_up(c->end, MR); l++) {
        const vec row = vset1(decay->g.x[decay->channels && !by_column ? l : 0]);
        for (ptrdiff_t j = 0; j < width; j += VL) {
            const vec g = by_column ? vload(&decay->g.x[col + j]) : row;
            T *x = &s[l * width + j];
            vstore(x, vkeep(~is_reset(g), vload(x)));
        }
    }
}

/* When the chunk's first decays reset the state: before it is written, in place or, if
 * rows read it before its decay, in a copy; afterwards; or not at all. */
enum reset { LA_IN_PLACE, LA_KEEP_READ, LA_AFTERWARDS, LA_NEVER };

/* Resets c->from and `lost`, or `copy`, made from c->from, in this part of one column
 * tile. */
INLINE void
reset_tile(const struct decay *decay, struct sweep *c, ptrdiff_t col, ptrdiff_t width,
           enum reset reset, T *copy)
{
    const ptrdiff_t at = col * round_up(c->K, MR), some = at + c->first * width;
    if (reset == LA_KEEP_READ) {
        const ptrdiff_t rows = round_up(c->end, MR) - c->first;
        memcpy(copy + some, c->from + some, (size_t)(rows * width) * sizeof(T));
        c->from = copy;
    }
    if (reset == LA_AFTERWARDS) {
        c->from = c->s;
    }
    forget_rows(decay, (T *)c->from + at, c, col, width);
    if (c->lost != NULL) {
        forget_rows(decay, c->lost + at, c, col, width);
    }
}

/* This part of one column tile of the state after one chunk. */
INLINE void
carry_decayed_tile(const struct decay *decay, struct sweep *c, const struct la_head *h,
                   enum reset reset, T *copy, ptrdiff_t col, const int nr)
{
    const ptrdiff_t tile = NR * VL, tiles = (c->W + tile - 1) / tile;
    const T *from = c->from;
    if (!share_of_tile(c, h, col / tile, tiles)) {
        return;
    }
    const int any = reset != LA_NEVER && forgets(decay, c->transposed ? c->W : c->K);
    if (any && reset != LA_AFTERWARDS) {
        reset_tile(decay, c, col, nr * VL, reset, copy);
    }
    carry_tile(c, col, nr);
    if (any && reset == LA_AFTERWARDS) {
        reset_tile(decay, c, col, nr * VL, reset, copy);
    }
    c->from = from;
}

/* This part of the state after one chunk, from its sums; `copy`: memory for a state, if
 * it may be copied. */
static void
carry_by(const struct decay *decay, struct sweep *c, const struct la_head *h,
         enum reset reset, T *copy)
{
    c->keep = decay->keep;
    c->change = decay->change;
    LA_BY_TILES(c->W, carry_decayed_tile(decay, c, h, reset, copy, col, nr));
}

/* The same, where the state knows whether it has lost anything. */
static void
carry_decayed(const struct decay_chunk *x, struct sweep *c, const struct la_head *h,
              int before, T *copy)
{
    c->fades = x->exact[0] != 0 && keeps_nothing(&x->decay);
    carry_by(&x->decay, c, h, before ? LA_KEEP_READ : LA_IN_PLACE, copy);
}

#endif
