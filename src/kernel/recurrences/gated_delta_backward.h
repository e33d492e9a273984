/* gated_delta_backward.h: gradients of the gated delta rule and of DPLR, one head,
 * chunks in reverse.
 *
 * As in delta_backward.h, a forward scan stores E (DPLR: U) of every row in dV; states
 * are recomputed as in checkpoints.h, from what the forward scan computed with.  About
 * 20 n d m flops (DPLR: 28 n d m).  Scratch: the states of checkpoints.h, as many
 * losses as checkpoints and 5 states more, a few chunks, and E if dV has only 16
 * bits. */
#ifndef LA_GATED_DELTA_BACKWARD_H
#define LA_GATED_DELTA_BACKWARD_H

#include "delta_backward.h"
#include "gated_delta_reverse.h"
#include "../decays/checkpoints.h"

struct gated_delta_backward_scratch {
    struct checkpoints chunks;
    struct gated_delta_reverse reverse;
    struct block v;
    T *s, *lost;            /* lost: what s has lost to rounding */
    T *losses;              /* of each checkpoint */
    struct la_array errors; /* E or U, (n,m) */
};

static struct gated_delta_backward_scratch
carve_gated_delta_backward(const struct la_head *h, struct arena *arena, int dplr)
{
    const ptrdiff_t rows = delta_rows(h);
    struct gated_delta_backward_scratch r;
    r.v = take_block(arena, rows, h->m);
    r.s = take_state(arena, h->d, h->m);
    r.lost = take_state(arena, h->d, h->m);
    r.reverse =
        take_gated_reverse_record(h, rows, arena, dplr, take_decay(arena, h, rows));
    take_gated_reverse_tiles(h, rows, arena, &r.reverse);
    take_gradient_of_state(h, arena, &r.reverse.base);
    r.chunks = take_checkpoints(arena, h, rows);
    r.losses = take_states(arena, r.chunks.most, h->d, h->m);
    r.errors = take_errors(h, arena);
    return r;
}

static struct gated_delta_backward_scratch
gated_delta_backward_carve(const struct la_head *h, struct arena *arena)
{
    return carve_gated_delta_backward(h, arena, 0);
}

static struct gated_delta_backward_scratch
dplr_backward_carve(const struct la_head *h, struct arena *arena)
{
    return carve_gated_delta_backward(h, arena, 1);
}

/* E, or U, of one chunk, and the state after it. */
static void
chunk_errors(const struct la_head *h, const struct gated_delta_backward_scratch *r,
             struct delta_chunk *c, struct span t)
{
    const struct gated_delta_reverse *chunk = &r->reverse;
    const struct reverse_scratch *base = &chunk->base;
    const struct gated_delta_scratch x = {.ea = base->ab,
                                          .b = chunk->written,
                                          .v = r->v,
                                          .vuo = base->u,
                                          .l = base->l,
                                          .lk = chunk->lk,
                                          .decay = chunk->decay,
                                          .beta = base->beta};
    load_gated_delta(h, &x, chunk->dplr, c, t);
    if (!chunk->dplr) {
        forget_state(&x.decay, &c->write);
    }
    delta_columns(c);
    store_rows(&r->errors, t, h->m, chunk->dplr ? c->u : base->e, NULL);
}

/* The forward scan: E, or U, of every row, and S^T before every interval.  Returns the
 * number of chunks, or -1 to stop. */
static ptrdiff_t
gated_delta_errors(const struct la_head *h,
                   const struct gated_delta_backward_scratch *r)
{
    const struct gated_delta_reverse *chunk = &r->reverse;
    const struct reverse_scratch *base = &chunk->base;
    const int dplr = chunk->dplr;
    const struct checkpoints *x = &r->chunks;
    struct la_fetch ahead = {0};
    const struct sweep state = {.K = h->d,
                                .W = round_up(h->m, VL),
                                .s = r->s,
                                .ahead = &ahead,
                                .pairs = base->pairs};
    struct delta_chunk c = {.read = state,
                            .write = state,
                            .l = base->l,
                            .lk = chunk->lk,
                            .beta = base->beta};
    ptrdiff_t chunks = 0;
    c.read.a = base->ab;
    c.write.b = chunk->written;
    c.write.v = base->u;
    c.write.keep = chunk->decay.keep;
    c.write.change = chunk->decay.change;
    if (dplr) {
        c.given = base->u;
    }
    else {
        c.e = base->e;
    }
    load_state(r->s, &h->s0, h->d, h->m);
    compensate(&c.write, h, r->lost, rows_in_block(h, x->rows));
    memset(x->begins, 0, (size_t)h->n);
    for (ptrdiff_t i = 0; i < h->n; chunks++) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        if (chunks % x->interval == 0) {
            const ptrdiff_t interval = chunks / x->interval;
            transpose_state(state_of(x->checkpoints, h, interval), r->s, h->d, h->m);
            if (c.write.lost != NULL) {
                transpose_state(state_of(r->losses, h, interval), r->lost, h->d, h->m);
            }
        }
        struct span t = span(i, x->rows, i + x->rows, token_block_end(h, i), &ahead);
        t.rows = load_decays(h, t, &chunk->decay);
        x->begins[i] = 1;
        t.next = i += t.rows;
        c.rows = c.read.rows = round_up(t.rows, MR);
        c.write.rows = (1 + dplr) * c.rows;
        c.keys = keys_left(h, t);
        c.read.o = c.u = second(base->u, c.rows, dplr);
        chunk_errors(h, r, &c, t);
        if (ends_token_block(h, t) && delta_block_dq(h, base, r->s, t)) {
            return -1;
        }
    }
    return chunks;
}

/* The writers of the tokens t, scaled for the state after the chunk by the steps of the
 * forward scan (writers_to_end). */
static void
load_written_keys(const struct la_head *h, const struct gated_delta_reverse *r,
                  struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    load_writers(h, r->written, t, r->dplr);
    for (int i = 0; i <= r->dplr; i++) {
        const struct block b = block_at(r->written, i * rows, 0);
        writers_meet(&r->decay, b, b, t.rows, h->d);
        to_end(&r->decay, b, b, rows, h->d);
    }
}

/* S^T before each of the `chunks` chunks of the interval that begins at token i. */
static int
gated_delta_states(const struct la_head *h,
                   const struct gated_delta_backward_scratch *r, ptrdiff_t interval,
                   ptrdiff_t chunks, ptrdiff_t i)
{
    const struct gated_delta_reverse *chunk = &r->reverse;
    const struct checkpoints *x = &r->chunks;
    const size_t bytes = (size_t)state_size(h->d, h->m) * sizeof(T);
    struct la_fetch ahead = {0};
    struct sweep c = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .b = chunk->base.u,
        .v = chunk->written,
        .s = x->states,
        .keep = chunk->decay.keep,
        .change = chunk->decay.change,
        .transposed = 1,
        .ahead = &ahead,
        .pairs = chunk->base.pairs,
    };
    compensate_state(&c, h, state_of(r->losses, h, interval),
                     rows_in_block(h, x->rows));
    memcpy(c.s, state_of(x->checkpoints, h, interval), bytes);
    for (ptrdiff_t place = 1; place < chunks; place++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = chunk_from(h, x, i, &ahead);
        const ptrdiff_t rows = round_up(t.rows, MR);
        c.from = state_of(x->states, h, place - 1);
        c.s = state_of(x->states, h, place);
        c.rows = (1 + chunk->dplr) * rows;
        load_decays(h, t, &chunk->decay);
        load_written_keys(h, chunk, t);
        load_written(h, chunk, &r->errors, t);
        if (!chunk->dplr) {
            forget_state(&chunk->decay, &c);
        }
        sweep(&c, LA_WRITE);
        i = t.next;
    }
    return 0;
}

static int
compute_gated_delta_backward(const struct la_head *h, int dplr)
{
    struct arena arena = {h->scratch, 0};
    struct gated_delta_backward_scratch r = carve_gated_delta_backward(h, &arena, dplr);
    const struct checkpoints *x = &r.chunks;
    struct la_fetch ahead = {0};
    count_chunks(&r.chunks, h, &r.reverse.decay);
    reverse_constants(h, &r.reverse.base, x->rows);
    const ptrdiff_t chunks = gated_delta_errors(h, &r);
    struct span t = {.first = h->n};
    reverse_begin(h, &r.reverse.base);
    for (ptrdiff_t chunk = chunks - 1; chunk >= 0; chunk--) {
        const ptrdiff_t place = chunk % x->interval;
        const int begins = chunk == chunks - 1 || place == x->interval - 1;
        t = chunk_until(h, x, t.first, &ahead);
        if (h->poll(h->poll_arg) ||
            (begins && gated_delta_states(h, &r, chunk / x->interval, place + 1,
                                          chunks_before(x, place, t.first))) ||
            (ends_token_block(h, t) && delta_block_readers(h, &r.reverse.base, t))) {
            return 1;
        }
        gated_delta_reverse(h, &r.reverse, &r.errors, t, state_of(x->states, h, place));
    }
    store_state(&h->ds0, r.reverse.base.r, h->d, h->m);
    return chunks < 0;
}

static int
run_gated_delta_backward(const struct la_head *h)
{
    return compute_gated_delta_backward(h, 0);
}

static int
run_dplr_backward(const struct la_head *h)
{
    return compute_gated_delta_backward(h, 1);
}

#endif
