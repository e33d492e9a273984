/* momentum_backward_stages.h: the gradients of the delta rule with momentum in stages
 * (stages.c).
 *
 * A chunk is a block of tokens.  Columns of the state never interact, so threads carry
 * some panels of it each: the first pass leaves checkpoints, the second one sweeps the
 * blocks in reverse.  Each panel has sums of its own; then they are added, in order. */
#ifndef LA_MOMENTUM_BACKWARD_STAGES_H
#define LA_MOMENTUM_BACKWARD_STAGES_H

#include "momentum_delta_backward.h"
#include "../tiles/stages.h"

static ptrdiff_t
momentum_block_rows(const struct la_head *h)
{
    return scan_interval(h->n);
}

static ptrdiff_t
momentum_panels(const struct la_head *h)
{
    return (h->m + LA_MOMENTUM_COLS - 1) / LA_MOMENTUM_COLS;
}

static struct momentum_block
take_momentum_record(const struct la_head *h, struct arena *arena)
{
    return take_momentum_block(h, arena, momentum_panels(h));
}

/* Chunk i of the group takes the place of the block; returns its tokens. */
INLINE struct span
momentum_chunk(const struct la_head *h, struct momentum_backward_scratch *r,
               ptrdiff_t i, struct la_fetch *ahead)
{
    struct arena arena = {h->chunks->records + (size_t)i * h->chunks->record, 0};
    r->block = take_momentum_record(h, &arena);
    return span_of(h, i, r->interval, ahead);
}

/* Whether this share of the state has the panel from column `col` on. */
INLINE int
has_panel(const struct la_head *h, ptrdiff_t col)
{
    const ptrdiff_t panel = col / LA_MOMENTUM_COLS;
    return panel * h->chunks->parts / momentum_panels(h) == h->stage.part;
}

INLINE T *
sums_of_panel(const struct la_head *h, const struct momentum_block *block,
              ptrdiff_t panel)
{
    return block->sums + panel * momentum_sums_size(h);
}

static int
prepare_momentum(const struct la_head *h, struct momentum_backward_scratch *r)
{
    struct la_fetch ahead = eager_fetch();
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = momentum_chunk(h, r, i, &ahead);
        if (h->chunks->reverse) {
            load_momentum_block(h, r, t);
        }
        else if (t.next < h->n) {
            load_momentum_rows(h, &r->block.rows, t);
        }
        fetch_all(&ahead);
    }
    return 0;
}

/* A panel of this share, through the tokens t.  Nonzero: stop. */
INLINE int
carry_momentum_panel(const struct la_head *h, const struct momentum_backward_scratch *r,
                     struct span t, ptrdiff_t col, const int nr, ptrdiff_t *until_poll)
{
    T *const sums = sums_of_panel(h, &r->block, col / LA_MOMENTUM_COLS);
    if (!h->chunks->reverse) {
        return momentum_scan(h, r, t, col, nr, until_poll);
    }
    clear(sums, momentum_sums_size(h));
    return momentum_panel_back(h, r, sums, t, col, nr, until_poll);
}

/* This share of S and M or, in reverse, of R and N. */
static int
carry_momentum(const struct la_head *h, struct momentum_backward_scratch *r)
{
    const int reverse = h->chunks->reverse;
    T *const x = reverse ? r->all.grad : r->all.state;
    const struct la_array *const s = reverse ? &h->grad_s : &h->s0;
    const struct la_array *const z = reverse ? &h->grad_z : &h->z0;
    ptrdiff_t until_poll = 0;
    if (begins_head(h)) {
        LA_BY_PANELS(
            h->m, if (has_panel(h, col)) {
                load_momentum(momentum_at(x, h, col), h, s, z, col, nr);
            });
    }
    for (ptrdiff_t i = 0; i < h->chunks->count; i++) {
        const struct span t = momentum_chunk(h, r, i, NULL);
        int stop = 0;
        LA_BY_PANELS(
            h->m, if (has_panel(h, col)) {
                stop = stop || carry_momentum_panel(h, r, t, col, nr, &until_poll);
            });
        if (stop) {
            return 1;
        }
    }
    if (reverse && h->chunks->next == 0) {
        LA_BY_PANELS(
            h->m, if (has_panel(h, col)) {
                store_momentum(&h->ds0, &h->dz0, momentum_at(x, h, col), h, col, nr);
            });
    }
    return 0;
}

static int
finish_momentum(const struct la_head *h, struct momentum_backward_scratch *r)
{
    const ptrdiff_t size = momentum_sums_size(h);
    for (ptrdiff_t i = h->stage.from; h->chunks->reverse && i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = momentum_chunk(h, r, i, NULL);
        for (ptrdiff_t panel = 1; panel < momentum_panels(h); panel++) {
            const T *const more = sums_of_panel(h, &r->block, panel);
            for (ptrdiff_t l = 0; l < size; l += VL) {
                vstore(&r->block.sums[l], vload(&r->block.sums[l]) + vload(&more[l]));
            }
        }
        store_momentum_gradients(h, r, t);
    }
    return 0;
}

static int
stage_momentum_delta_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0}, shared = {h->chunks->shared, 0};
    struct momentum_backward_scratch r = take_momentum_gradient(h, &arena);
    r.all = take_momentum_memory(h, &shared);
    fill_scale(r.scale, h, r.interval);
    switch (h->stage.kind) {
    case LA_CUT:
        return cut_evenly(h, r.interval);
    case LA_PREPARE:
        return prepare_momentum(h, &r);
    case LA_CARRY:
        return carry_momentum(h, &r);
    case LA_FINISH:
        return finish_momentum(h, &r);
    default: /* LA_BEGIN: each share of the state begins by itself */
        return 0;
    }
}

#endif
