/* ssd_step.h: one token of ssd.h on a state.
 *
 *    s <- exp(g) s + w k v^T,  o = scale s^T q + D o v
 *
 * This is gated_step.h with w v in place of v. */
#ifndef LA_SSD_STEP_H
#define LA_SSD_STEP_H

#include "gated_step.h"

static struct gated_step_scratch
ssd_step_carve(const struct la_head *h, struct arena *arena)
{
    return gated_step_carve(h, arena);
}

/* v <- w v */
static void
scale_value(const struct la_head *h, T *v)
{
    const vec w = vset1(load_token_number(&h->strength));
    for (ptrdiff_t j = 0; j < h->m; j += VL) {
        vstore(&v[j], w * vload(&v[j]));
    }
}

/* o <- scale o + D o v; v and skip: memory for these. */
static void
skip_token(const struct la_head *h, T *o, T *v, T *skip)
{
    const vec scale = vset1((T)h->scale);
    load_token_plain(v, &h->v, h->m);
    load_token_plain(skip, &h->D, h->m);
    for (ptrdiff_t j = 0; j < h->m; j += VL) {
        vstore(&o[j], vfma(vload(&skip[j]), vload(&v[j]), scale * vload(&o[j])));
    }
}

INLINE int
ssd_step_head(const struct la_head *h, void *scratch, ptrdiff_t *until_poll)
{
    const struct gated_step_scratch *const r = scratch;
    const struct step_scratch *const rows = &r->step;
    load_step_rows(h, rows);
    scale_value(h, rows->v);
    const int resets = load_decay(h, r);
    clear(rows->o, row_step(h->m));
    if (decay_state(h, rows, until_poll, resets)) {
        return 1;
    }
    rows->den[0] = (T)h->scale;
    if (la_is_given(&h->D)) {
        skip_token(h, rows->o, rows->rotated_v, rows->rotated_o);
        rows->den[0] = 1;
    }
    store_token(&h->o, h->m, rows->o, rows->den);
    return 0;
}

static int
run_ssd_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct gated_step_scratch r = ssd_step_carve(h, &arena);
    return run_heads(h, &r, ssd_step_head);
}

#endif
