/* groups.h: the groups of chunks of a gradient that is computed in stages (stages.h).
 *
 * The first pass keeps where each group begins, S^T before it, and what S^T has lost to
 * rounding.  The second one takes the same groups in reverse. */
#ifndef LA_GROUPS_H
#define LA_GROUPS_H

#include "decay_stages.h"

struct groups {
    ptrdiff_t *starts;  /* first token of each */
    T *states, *losses; /* S^T before each, and what it had lost */
    ptrdiff_t most;     /* of them */
};

/* Chunks of `rows` tokens per group such that groups and records take about as much
 * memory. */
static ptrdiff_t
chunks_of_group(const struct la_head *h, ptrdiff_t rows)
{
    const ptrdiff_t states_per_record = 8;
    return checkpoint_interval(h->n / rows / states_per_record);
}

/* There may be twice as many groups as decays leave that end no chunk. */
static struct groups
take_groups(const struct la_head *h, struct arena *arena, ptrdiff_t rows)
{
    struct groups x = {.most = 2 * (h->n / (rows * h->chunks->most) + 1)};
    x.starts = (ptrdiff_t *)take(arena, x.most, sizeof(ptrdiff_t) / sizeof(T));
    x.states = take_states(arena, x.most, h->d, h->m);
    x.losses = take_states(arena, x.most, h->d, h->m);
    return x;
}

/* Cuts a group where decays, if they are not NULL, end its chunks of up to `rows`
 * tokens.  In the second pass, cuts the group of the first pass before the current
 * one. */
static int
cut_group(const struct la_head *h, const struct groups *groups,
          const struct decay_chunk *decays, ptrdiff_t rows)
{
    struct la_chunks *x = h->chunks;
    const ptrdiff_t at = x->at;
    const int reverse = x->reverse;
    if (reverse) {
        if (at == 0) {
            return 0;
        }
        x->at = groups->starts[x->index];
    }
    else {
        x->overflows = at < h->n && x->index >= groups->most;
        if (at == h->n || x->overflows) {
            return 0;
        }
        groups->starts[x->index] = at;
    }
    x->reverse = 0; /* as in the first pass */
    const int stopped =
        decays != NULL ? cut_by_decays(h, decays, rows) : cut_evenly(h, rows);
    x->reverse = reverse;
    if (reverse) {
        x->next = x->at;
        x->at = at;
    }
    return stopped;
}

/* S^T before the current group, and what it has lost. */
INLINE T *
state_of_group(const struct la_head *h, T *states)
{
    return states + h->chunks->index * state_size(h->d, h->m);
}

#endif
