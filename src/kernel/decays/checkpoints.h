/* checkpoints.h: the chunks of a forward scan, revisited in reverse, and the states
 * before them.
 *
 * Decays may decide where a chunk begins (decay.h), so the forward scan marks the
 * beginnings, one byte per token.  It stores the state before every interval of chunks,
 * a checkpoint; the reverse scan recomputes the states of one interval at a time.
 * Memory is least with sqrt(chunks) chunks per interval.
 *
 * There may be as many chunks as tokens.  With one decay per token, the chunks are
 * counted first: of 2 sqrt(n) states, 2 sqrt(chunks) are touched.  With one decay per
 * channel, there are up to 2.5 sqrt(n) states, of which a quarter is touched unless
 * decays are strong. */
#ifndef LA_CHECKPOINTS_H
#define LA_CHECKPOINTS_H

#include "decay_factors.h"
#include "../tiles/token_blocks.h"

struct checkpoints {
    ptrdiff_t rows, interval; /* most tokens per chunk; chunks per interval */
    ptrdiff_t most;           /* checkpoints */
    T *checkpoints, *states;  /* S^T before each interval; before each chunk of one */
    unsigned char *begins;    /* (n) whether a chunk begins with this token */
};

/* A head that is shorter than the one that scratch was measured for must not need more
 * scratch, so the number of checkpoints suffices for every n up to this one.  With s =
 * ceil(sqrt(c)) chunks per interval, c / s <= s; and with c = n / 4, n / s <= 4 s. With
 * one decay per token, `interval` is the largest value that count_chunks may set. */
static struct checkpoints
take_checkpoints(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    struct checkpoints r = {.rows = rows};
    r.interval = checkpoint_interval(h->g.has_channels ? (h->n + 3) / 4 : h->n);
    r.most = h->g.has_channels ? 4 * r.interval : r.interval;
    r.checkpoints = take_states(arena, r.most, h->d, h->m);
    r.states = take_states(arena, r.interval, h->d, h->m);
    r.begins = (unsigned char *)take(arena, h->n / (ptrdiff_t)sizeof(T) + 1, 1);
    return r;
}

/* With one decay per token, counts the chunks of a head and sets `interval` from it. */
static void
count_chunks(struct checkpoints *r, const struct la_head *h, const struct decay *decay)
{
    ptrdiff_t chunks = 0;
    for (ptrdiff_t i = 0; !decay->channels && i < h->n; chunks++) {
        if (h->poll(h->poll_arg)) {
            return; /* the interval is large enough for any number of chunks */
        }
        i += load_sums(h, span(i, r->rows, i + r->rows, token_block_end(h, i), NULL),
                       decay);
    }
    if (!decay->channels) {
        r->interval = checkpoint_interval(chunks);
    }
}

/* Address of one of `states`, or of one checkpoint. */
INLINE T *
state_of(T *states, const struct la_head *h, ptrdiff_t index)
{
    return states + index * state_size(h->d, h->m);
}

/* First token of the chunk before token i. */
static ptrdiff_t
chunk_before(const struct checkpoints *r, ptrdiff_t i)
{
    while (!r->begins[--i]) {
    }
    return i;
}

/* The chunk that begins at i; a forward scan continues at its end. */
static struct span
chunk_from(const struct la_head *h, const struct checkpoints *r, ptrdiff_t i,
           struct la_fetch *ahead)
{
    ptrdiff_t end = i + 1;
    while (end < h->n && !r->begins[end]) {
        end++;
    }
    return span(i, end - i, end, h->n, ahead);
}

/* The chunk that ends before token `end`; a reverse scan continues before it. */
static struct span
chunk_until(const struct la_head *h, const struct checkpoints *r, ptrdiff_t end,
            struct la_fetch *ahead)
{
    const ptrdiff_t begin = chunk_before(r, end);
    const ptrdiff_t before = begin > 0 ? chunk_before(r, begin) : 0;
    return span(begin, end - begin, before, h->n, ahead);
}

/* First token of the chunk that lies `chunks` chunks before token i. */
static ptrdiff_t
chunks_before(const struct checkpoints *r, ptrdiff_t chunks, ptrdiff_t i)
{
    while (chunks-- > 0) {
        i = chunk_before(r, i);
    }
    return i;
}

#endif
