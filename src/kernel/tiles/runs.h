/* runs.h: the state of causal.h by runs of chunks, LA_CUT_TOKENS tokens each.
 *
 *    S <- S + sum,  run <- run + sum    sum: what a chunk adds
 *    base <- base + run                 at the end of a run; there S begins as base
 *
 * What a run adds does not depend on the state before it, so threads sum runs side by
 * side (stages.c), and pass on one state per run, not one per chunk.  The base alone is
 * compensated.  The sum of a run may overflow where the state would not.
 *
 * A thread that has whole runs to itself keeps what their chunks add, one state for
 * each but the last, and makes the states between them from that. */
#ifndef LA_RUNS_H
#define LA_RUNS_H

#include "state.h"

struct runs {
    T *base;
    T *run;           /* NULL: not wanted, as the base is not written */
    T *s;             /* S after a chunk that does not end its run */
    T *lost;          /* what base has lost to rounding, or NULL */
    const T *between; /* all S of the run, if they are there already, or NULL */
};

/* For chunks of `rows` tokens.  A run of one chunk is added to the base at once. */
static struct runs
take_runs(const struct la_head *h, struct arena *arena, ptrdiff_t rows)
{
    struct runs x = {0};
    x.base = take_state(arena, h->d, h->m);
    x.lost = take_state(arena, h->d, h->m);
    if (rows < LA_CUT_TOKENS && rows < h->n) {
        x.run = take_state(arena, h->d, h->m);
        x.s = take_state(arena, h->d, h->m);
    }
    return x;
}

/* Sets a sweep up for the tokens [i, next), a chunk of a run. */
static void
place_in_run(struct sweep *c, const struct la_head *h, const struct runs *x,
             ptrdiff_t i, ptrdiff_t next)
{
    c->begins = i % LA_CUT_TOKENS == 0;
    c->ends = next % LA_CUT_TOKENS == 0 || next >= h->n;
    c->run = x->run;
    c->read = c->begins ? x->base : x->s;
    if (!c->begins && x->between != NULL) {
        const ptrdiff_t chunk = i % LA_CUT_TOKENS / (next - i);
        c->read = x->between + (chunk - 1) * state_size(h->d, h->m);
    }
    c->from = c->ends ? x->base : c->read;
    c->s = c->ends ? x->base : x->s;
    c->lost = c->ends ? x->lost : NULL;
}

/* What is kept of a run, for chunks of `rows` tokens: how many states. */
INLINE ptrdiff_t
states_between(ptrdiff_t rows)
{
    return LA_CUT_TOKENS / rows - 1;
}

/* sum = what so many chunks, at least one, add. */
static void
sum_chunks(const struct la_head *h, T *sum, const T *between, ptrdiff_t chunks)
{
    const ptrdiff_t step = state_size(h->d, h->m), count = numbers_in_tiles(h->d, h->m);
    for (ptrdiff_t l = 0; l < count; l += VL) {
        vec x = vload(&between[l]);
        for (ptrdiff_t j = 1; j < chunks; j++) {
            x += vload(&between[j * step + l]);
        }
        vstore(&sum[l], x);
    }
}

/* The states after these chunks, in place of what they add. */
static void
make_between(const struct la_head *h, T *between, const T *base, ptrdiff_t chunks)
{
    const ptrdiff_t step = state_size(h->d, h->m), count = numbers_in_tiles(h->d, h->m);
    for (ptrdiff_t l = 0; l < count; l += VL) {
        vec x = vload(&base[l]);
        for (ptrdiff_t j = 0; j < chunks; j++) {
            x += vload(&between[j * step + l]);
            vstore(&between[j * step + l], x);
        }
    }
}

#endif
