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

static struct decay_chunk
decay_chunk(const struct la_chunks *of, const struct decay_chunk *first, ptrdiff_t i)
{
    const struct decay *y = &first->decay;
    return (struct decay_chunk){
        .tokens = (ptrdiff_t *)in_record(of, (T *)first->tokens, i),
        .exact = field_before(of, first->exact, i),
        .decay = {.channels = y->channels,
                  .g = block_in_record(of, y->g, i),
                  .keep = in_record(of, y->keep, i),
                  .change = in_record(of, y->change, i),
                  .pairs = block_in_record(of, y->pairs, i),
                  .start = in_record(of, y->start, i),
                  .end = in_record(of, y->end, i),
                  .up = block_in_record(of, y->up, i),
                  .down = block_in_record(of, y->down, i),
                  .first = in_record(of, y->first, i),
                  .last = in_record(of, y->last, i)},
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

/* Clears the rows of a column tile that the chunk's first decays reset, of those that
 * this part writes. */
INLINE void
forget_rows(const struct decay *decay, T *s, const struct sweep *c, ptrdiff_t width)
{
    for (ptrdiff_t l = c->first; l < c->end; l++) {
        if (decay->g.x[decay->channels ? l : 0] <= (T)EXP_MIN) {
            clear(s + l * width, width);
        }
    }
}

/* Applies the chunk's resets to this part of one column tile.  If rows read the state
 * before its decay (`before`), what they read is not changed. */
INLINE void
reset_tile(const struct decay *decay, struct sweep *c, ptrdiff_t col, ptrdiff_t width,
           int before)
{
    const ptrdiff_t at = col * round_up(c->K, MR), some = at + c->first * width;
    if (before) {
        memcpy(c->s + some, c->from + some,
               (size_t)((c->end - c->first) * width) * sizeof(T));
        c->from = c->s;
    }
    forget_rows(decay, (T *)c->from + at, c, width);
    if (c->lost != NULL) {
        forget_rows(decay, c->lost + at, c, width);
    }
}

/* This part of one column tile of the state after one chunk. */
INLINE void
carry_tile(const struct decay_chunk *x, struct sweep *c, const struct la_head *h,
           int before, ptrdiff_t col, const int nr)
{
    const ptrdiff_t tile = NR * VL, tiles = (c->W + tile - 1) / tile;
    const T *from = c->from;
    if (!share_of_tile(c, h, col / tile, tiles)) {
        return;
    }
    if (forgets(&x->decay, c->K)) {
        reset_tile(&x->decay, c, col, nr * VL, before);
    }
    sweep_tile(c, col, LA_WRITE, nr);
    c->from = from;
}

/* This part of the state after one chunk. */
static void
carry_decayed(const struct decay_chunk *x, struct sweep *c, const struct la_head *h,
              int before)
{
    c->keep = x->decay.keep;
    c->change = x->decay.change;
    c->fades = x->exact[0] != 0 && keeps_nothing(&x->decay);
    LA_BY_TILES(c->W, carry_tile(x, c, h, before, col, nr));
}

#endif
