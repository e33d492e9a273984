/* token_sum.h: a state that is a sum over all tokens, and the vector beside it.
 *
 * Chunks are summed in runs of LA_RUN_CHUNKS, and then the runs, compensated: within a
 * run additions are too few to need it, and what the sum of all loses is read and
 * written once per run.  A run's sum does not depend on others, so threads compute runs
 * side by side (stages.c). */
#ifndef LA_TOKEN_SUM_H
#define LA_TOKEN_SUM_H

#include "recurrence.h"

struct token_sum {
    ptrdiff_t rows;    /* tokens of a chunk */
    T *s, *lost, *run; /* s: the sum of all, or NULL if only that of a run is wanted */
    T *z, *z_lost, *z_run;
};

INLINE ptrdiff_t
tokens_of_run(ptrdiff_t rows)
{
    return LA_RUN_CHUNKS * rows;
}

static struct token_sum
take_token_sum(const struct la_head *h, struct arena *arena, ptrdiff_t rows)
{
    struct token_sum x = {.rows = rows};
    x.s = take_state(arena, h->d, h->m);
    x.lost = take_state(arena, h->d, h->m);
    x.run = take_state(arena, h->d, h->m);
    x.z = take_row(arena, h->d);
    x.z_lost = take_row(arena, h->d);
    x.z_run = take_row(arena, h->d);
    return x;
}

/* No tokens so far, of `all`. */
static void
clear_token_sum(const struct la_head *h, const struct token_sum *x, ptrdiff_t all)
{
    clear(x->s, state_size(h->d, h->m));
    clear(x->z, row_step(h->d));
    clear(x->z_lost, row_step(h->d));
    if (lost_if_long(h, x->lost, all, x->rows) != NULL) {
        clear(x->lost, state_size(h->d, h->m));
    }
}

/* Sets up a sweep for the chunk from token j on, of all tokens. */
INLINE void
place_in_sum(struct sweep *c, const struct token_sum *x, ptrdiff_t j, ptrdiff_t all)
{
    const ptrdiff_t next = j + x->rows, run = tokens_of_run(x->rows);
    c->run = x->run;
    c->begins = j % run == 0;
    c->ends = x->s != NULL && (next >= all || next % run == 0);
    c->s = c->ends ? x->s : NULL;
}

/* VL numbers of z, to which this chunk adds `more`. */
INLINE void
add_in_run(const struct token_sum *x, const struct sweep *c, ptrdiff_t l, vec more)
{
    const vec sum = c->begins ? more : vload(&x->z_run[l]) + more;
    if (c->ends) {
        add_to_sum(&x->z[l], &x->z_lost[l], sum);
    }
    else {
        vstore(&x->z_run[l], sum);
    }
}

#endif
