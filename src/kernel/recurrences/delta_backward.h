/* delta_backward.h: gradients of the delta rule, one head, chunks in reverse.
 *
 * The reverse scan processes chunks as in delta_reverse.h.  It needs the state before
 * each chunk, last chunk first.  A forward scan stores E of every row in dV, which is
 * written later, and the state before every interval of about sqrt(chunks) chunks, a
 * checkpoint, and what it has lost to rounding.  When the reverse scan reaches an
 * interval, the states in it are recomputed from the checkpoint with U = beta o E; they
 * have the bits of the forward scan, wherever the checkpoints are.  About 18 n d m
 * flops.  Scratch: 3 sqrt(n / chunk) + 5 states, a few chunks, and E if dV has only 16
 * bits. */
#ifndef LA_DELTA_BACKWARD_H
#define LA_DELTA_BACKWARD_H

#include "delta_blocks.h"

struct delta_backward_scratch {
    ptrdiff_t rows, interval; /* tokens per chunk, chunks per interval */
    struct reverse_scratch reverse;
    struct block v;
    T *s, *lost;             /* lost: what s has lost to rounding */
    T *checkpoints, *states; /* S^T before each interval; before each chunk of one */
    T *losses;               /* of each checkpoint */
    struct la_array errors;  /* E, (n,m) */
};

/* Where the forward scan stores E, or U: in dV or, if that has 16 bits, in memory of
 * its own. */
static struct la_array
take_errors(const struct la_head *h, struct arena *arena)
{
    if (h->dv.type == LA_NATIVE) {
        return h->dv;
    }
    return block_array((struct block){take(arena, h->n, h->m), h->m});
}

static struct delta_backward_scratch
delta_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct delta_backward_scratch r = {.rows = delta_rows(h)};
    const ptrdiff_t chunks = chunk_count(h, r.rows);
    r.interval = checkpoint_interval(chunks);
    const ptrdiff_t checkpoints = (chunks + r.interval - 1) / r.interval;
    r.v = take_block(arena, r.rows, h->m);
    r.s = take_state(arena, h->d, h->m);
    r.lost = take_state(arena, h->d, h->m);
    r.checkpoints = take_states(arena, checkpoints, h->d, h->m);
    r.losses = take_states(arena, checkpoints, h->d, h->m);
    r.states = take_states(arena, r.interval, h->d, h->m);
    take_reverse_record(h, r.rows, arena, 0, &r.reverse);
    take_reverse_tiles(h, r.rows, arena, 0, &r.reverse);
    take_gradient_of_state(h, arena, &r.reverse);
    r.errors = take_errors(h, arena);
    return r;
}

/* The forward scan: E of every row, and S^T before every interval. */
static int
delta_errors(const struct la_head *h, const struct delta_backward_scratch *r)
{
    const struct reverse_scratch *chunk = &r->reverse;
    const ptrdiff_t size = state_size(h->d, h->m);
    struct la_fetch ahead = {0};
    const struct sweep state = {.K = h->d,
                                .W = round_up(h->m, VL),
                                .s = r->s,
                                .ahead = &ahead,
                                .pairs = chunk->pairs};
    struct delta_chunk c = {
        .read = state,
        .write = state,
        .l = chunk->l,
        .u = chunk->u,
        .e = chunk->e,
        .beta = chunk->beta,
    };
    const struct delta_scratch x = {
        .ba = chunk->ab, .v = r->v, .l = chunk->l, .beta = chunk->beta};
    c.read.a = c.write.b = chunk->ab;
    c.read.o = chunk->du;
    c.write.v = chunk->u;
    struct span t;
    load_state(r->s, &h->s0, h->d, h->m);
    compensate(&c.write, h, r->lost, rows_in_block(h, r->rows));
    for (ptrdiff_t i = 0, count = 0; i < h->n; i += t.rows, count++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        if (count % r->interval == 0) {
            const ptrdiff_t at = count / r->interval * size;
            transpose_state(r->checkpoints + at, r->s, h->d, h->m);
            if (c.write.lost != NULL) {
                transpose_state(r->losses + at, r->lost, h->d, h->m);
            }
        }
        t = span(i, r->rows, i + r->rows, token_block_end(h, i), &ahead);
        c.read.rows = round_up(t.rows, MR);
        load_delta(h, &x, &c, t);
        delta_columns(&c);
        store_rows(&r->errors, t, h->m, chunk->e, NULL);
        if (ends_token_block(h, t) && delta_block_dq(h, chunk, r->s, t)) {
            return 1;
        }
    }
    return 0;
}

/* Chunk i, in a scan that goes on with chunk `next`. */
static struct span
delta_span(const struct la_head *h, const struct delta_backward_scratch *r, ptrdiff_t i,
           ptrdiff_t next, struct la_fetch *ahead)
{
    const ptrdiff_t begin = chunk_begin(h, r->rows, i);
    return span(begin, r->rows, chunk_begin(h, r->rows, next),
                token_block_end(h, begin), ahead);
}

/* Recomputes S^T before each of the `count` chunks of an interval, from `first` on. */
static int
delta_states(const struct la_head *h, const struct delta_backward_scratch *r,
             ptrdiff_t first, ptrdiff_t count)
{
    const ptrdiff_t size = state_size(h->d, h->m);
    const ptrdiff_t at = first / r->interval * size;
    struct la_fetch ahead = {0};
    struct sweep c = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .b = r->reverse.u,
        .v = r->reverse.ab,
        .s = r->states,
        .ahead = &ahead,
        .pairs = r->reverse.pairs,
    };
    compensate_state(&c, h, r->losses + at, rows_in_block(h, r->rows));
    memcpy(c.s, r->checkpoints + at, (size_t)size * sizeof(T));
    for (ptrdiff_t i = first; i < first + count - 1; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        c.from = c.s;
        c.s += size;
        const struct span t = delta_span(h, r, i, i + 1, &ahead);
        c.rows = t.rows;
        load_features(h, t, r->reverse.ab);
        load_errors(h, &r->reverse, &r->errors, t);
        sweep(&c, LA_WRITE);
    }
    return 0;
}

static int
run_delta_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct delta_backward_scratch r = delta_backward_carve(h, &arena);
    const ptrdiff_t chunks = chunk_count(h, r.rows);
    struct la_fetch ahead = {0};
    reverse_constants(h, &r.reverse, r.rows);
    if (delta_errors(h, &r)) {
        return 1;
    }
    reverse_begin(h, &r.reverse);
    for (ptrdiff_t chunk = chunks - 1; chunk >= 0; chunk--) {
        const ptrdiff_t place = chunk % r.interval;
        const int begins = chunk == chunks - 1 || place == r.interval - 1;
        const struct span t =
            delta_span(h, &r, chunk, chunk > 0 ? chunk - 1 : 0, &ahead);
        if (h->poll(h->poll_arg) ||
            (begins && delta_states(h, &r, chunk - place, place + 1)) ||
            (ends_token_block(h, t) && delta_block_readers(h, &r.reverse, t))) {
            return 1;
        }
        delta_reverse(h, &r.reverse, &r.errors, t,
                      r.states + place * state_size(h->d, h->m));
    }
    store_state(&h->ds0, r.reverse.r, h->d, h->m);
    return 0;
}

#endif
