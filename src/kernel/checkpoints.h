/* checkpoints.h: the chunks of a forward scan, found again on the way back, and the
 * states before them.
 *
 * Gates may decide where a chunk begins (gate.h), which the forward scan marks, a byte
 * a token.  It leaves the state before every interval of chunks, a checkpoint; the
 * states of one interval at a time are summed up again.  About as many chunks an
 * interval as there are intervals, sqrt(chunks), take the least memory.  There may be
 * as many chunks as tokens: one gate a token, they are counted beforehand, and of 2
 * sqrt(n) states 2 sqrt(chunks) are touched; one a channel, up to 2.5 sqrt(n), of which
 * without strong gates a fourth is touched. */
#ifndef LA_CHECKPOINTS_H
#define LA_CHECKPOINTS_H

#include "gate_factors.h"

struct checkpoints {
    ptrdiff_t rows, interval; /* tokens a chunk, at most; chunks an interval */
    T *checkpoints,
        *states;           /* S^T before each interval, and before each chunk of one */
    unsigned char *begins; /* whether a chunk begins with this token; (n) */
};

/* A head that is shorter than the one that scratch was taken for must need no more of
 * it: so many checkpoints as are enough for any n up to this one.  With s =
 * ceil(sqrt(c)) chunks an interval, c / s <= s; and with c = n / 4, n / s <= 4 s.  One
 * gate a token, `interval` is the most that count_chunks may make of it. */
static struct checkpoints
take_checkpoints(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    struct checkpoints r = {.rows = rows};
    r.interval = checkpoint_interval(h->channels[LA_AT_g] ? (h->n + 3) / 4 : h->n);
    r.checkpoints = take_states(
        arena, h->channels[LA_AT_g] ? 4 * r.interval : r.interval, h->d, h->m);
    r.states = take_states(arena, r.interval, h->d, h->m);
    r.begins = (unsigned char *)take(arena, h->n / (ptrdiff_t)sizeof(T) + 1, 1);
    return r;
}

/* Counts the chunks of a head with one gate a token, for its intervals. */
static void
count_chunks(struct checkpoints *r, const struct la_head *h, const struct gate *gate)
{
    ptrdiff_t chunks = 0;
    for (ptrdiff_t i = 0; !gate->channels && i < h->n; chunks++) {
        if (h->poll(h->poll_arg)) {
            return; /* it is enough for any number of chunks */
        }
        i += load_sums(h, span(i, r->rows, i + r->rows, h->n, NULL), gate);
    }
    if (!gate->channels) {
        r->interval = checkpoint_interval(chunks);
    }
}

/* Where a state lies among `states`, or checkpoints. */
INLINE T *
state_of(T *states, const struct la_head *h, ptrdiff_t index)
{
    return states + index * state_size(h->d, h->m);
}

/* Where the chunk before token i begins. */
static ptrdiff_t
chunk_before(const struct checkpoints *r, ptrdiff_t i)
{
    while (!r->begins[--i]) {
    }
    return i;
}

/* The chunk that begins at i, in a scan that goes on at its end. */
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

/* The chunk that ends before token `end`, in a scan that goes on before it. */
static struct span
chunk_until(const struct la_head *h, const struct checkpoints *r, ptrdiff_t end,
            struct la_fetch *ahead)
{
    const ptrdiff_t begin = chunk_before(r, end);
    const ptrdiff_t before = begin > 0 ? chunk_before(r, begin) : 0;
    return span(begin, end - begin, before, h->n, ahead);
}

/* Where so many chunks before token i begin. */
static ptrdiff_t
chunks_before(const struct checkpoints *r, ptrdiff_t chunks, ptrdiff_t i)
{
    while (chunks-- > 0) {
        i = chunk_before(r, i);
    }
    return i;
}

#endif
