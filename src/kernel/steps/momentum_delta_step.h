/* momentum_delta_step.h: one token of the delta rule with momentum, on a state.
 *
 *    e = v - s^T p,  z <- exp(mu) z - eta k e^T,  s <- exp(g) s - beta z
 *    o = scale s^T q                                        (momentum_delta.h)
 *
 * The bits are those of the whole sequence's kernel.  The state is updated where it
 * lies, or else passes through scratch, one panel of columns at a time.  12 d m flops;
 * one pass over s reads it, a second one, which finds it in a cache, updates both. */
#ifndef LA_MOMENTUM_DELTA_STEP_H
#define LA_MOMENTUM_DELTA_STEP_H

#include "token.h"
#include "../recurrences/momentum_delta.h"
#include "../scans/scan.h"

struct momentum_step_scratch {
    struct momentum_rows rows;
    T *panel;
};

static struct momentum_step_scratch
momentum_delta_step_carve(const struct la_head *h, struct arena *arena)
{
    return (struct momentum_step_scratch){
        .rows = take_momentum_rows(h, arena, MR),
        .panel = take(arena, 1, momentum_size(h, LA_MOMENTUM_NR)),
    };
}

/* Columns of a state through scratch.  Nonzero: stop. */
INLINE int
momentum_step_panel(const struct la_head *h, const struct momentum_step_scratch *r,
                    ptrdiff_t col, const int nr, ptrdiff_t *until_poll)
{
    if (give_up(h, until_poll, 16 * h->d * nr * VL)) {
        return 1;
    }
    load_momentum(r->panel, h, &h->s0, &h->z0, col, nr);
    momentum_outputs(h, &r->rows, 1, 1, col, r->panel, nr, NULL);
    store_momentum(&h->s1, &h->z1, r->panel, h, col, nr);
    return 0;
}

/* Columns of a state whose rows are contiguous. */
INLINE struct momentum_panel
momentum_here(const struct la_array *s, const struct la_array *m, ptrdiff_t col)
{
    const ptrdiff_t size = sizeof(T);
    return (struct momentum_panel){(T *)s->data + col, (T *)m->data + col,
                                   s->rs / size};
}

/* Such columns where they lie.  Nonzero: stop. */
INLINE int
momentum_step_tile(const struct la_head *h, const struct momentum_step_scratch *r,
                   ptrdiff_t col, const int nr, ptrdiff_t *until_poll)
{
    const struct momentum_panel from = momentum_here(&h->s0, &h->z0, col);
    const struct momentum_panel to = momentum_here(&h->s1, &h->z1, col);
    vec e[LA_STEP_NR], o[LA_STEP_NR];
    if (give_up(h, until_poll, 8 * h->d * nr * VL)) {
        return 1;
    }
    read_panel(e, from.s, from.ld, r->rows.p.x, h->d, nr);
    LA_EACH(j, nr) {
        e[j] = vload(&r->rows.v.x[col + j * VL]) - e[j];
    }
    momentum_write(&r->rows, 0, from, to, h->d, e, o, NULL, nr);
    LA_EACH(j, nr) {
        vstore(&r->rows.o.x[col + j * VL], o[j]);
    }
    return 0;
}

/* Whether s and m lie as panels do: whole vectors, with the same row step. */
INLINE int
lie_as_panels(const struct la_array *s, const struct la_array *m, ptrdiff_t cols)
{
    return lies_as_block(s) && lies_as_block(m) && s->rs == m->rs && cols % VL == 0;
}

static int
run_momentum_delta_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct momentum_step_scratch r = momentum_delta_step_carve(h, &arena);
    const T scale = (T)h->scale;
    ptrdiff_t until_poll = LA_POLL; /* the caller has just polled */
    int stop = 0;
    load_momentum_rows(h, &r.rows, rows_from(0, 1));
    if (lie_as_panels(&h->s0, &h->z0, h->m) && lie_as_panels(&h->s1, &h->z1, h->m)) {
        LA_BY_STEP_TILES(h->m, (void)some;
                         stop =
                             stop || momentum_step_tile(h, &r, col, nr, &until_poll));
    }
    else {
        LA_BY_PANELS(h->m,
                     stop = stop || momentum_step_panel(h, &r, col, nr, &until_poll));
    }
    if (stop) {
        return 1;
    }
    store_rows(&h->o, rows_from(0, 1), h->m, r.rows.o, &scale);
    return 0;
}

#endif
