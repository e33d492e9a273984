/* runs.h: the state of causal.h by runs of chunks, LA_CUT_TOKENS tokens each.
 *
 *    S = base + run    base: the sum of whole runs, compensated
 *                      run: the sum of the chunks of this run so far
 *
 * What a run adds does not depend on the state before it, so threads sum runs side by
 * side (stages.c), and pass on one state per run, not one per chunk.  The sum of a run
 * may overflow where the state would not. */
#ifndef LA_RUNS_H
#define LA_RUNS_H

#include "state.h"

struct runs {
    T *base, *run;
    T *s;    /* base + run, which chunks within a run read */
    T *lost; /* what base has lost to rounding, or NULL */
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

/* Sets a sweep up for the tokens [i, next) of a run.  The last chunk of a run adds the
 * run to the base; others store their sum at s, which the next chunk reads. */
static void
place_in_run(struct sweep *c, const struct la_head *h, const struct runs *x,
             ptrdiff_t i, ptrdiff_t next)
{
    c->begins = i % LA_CUT_TOKENS == 0;
    c->ends = next % LA_CUT_TOKENS == 0 || next >= h->n;
    c->run = x->run;
    c->from = x->base;
    c->read = c->begins ? x->base : x->s;
    c->s = c->ends ? x->base : x->s;
    c->lost = c->ends ? x->lost : NULL;
}

#endif
