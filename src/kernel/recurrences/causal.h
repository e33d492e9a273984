/* causal.h: causal linear attention, one head, in chunks.
 *
 *    s_i = s_{i-1} + phi(k_i) v_i^T,  z_i = z_{i-1} + phi(k_i)
 *    o_i = scale phi(q_i)^T s_i / (scale phi(q_i).z_i + eps)
 *                                             Katharopoulos et al. 2020, eq. 9-12
 *
 * About 4 n d m flops; 5.5 where threads share runs in stages.  Scratch: the state, up
 * to 4 d m numbers, and a few chunks.  Rows j > i never affect row i. */
#ifndef LA_CAUSAL_H
#define LA_CAUSAL_H

#include "../tiles/own_rows.h"
#include "../tiles/runs.h"
#include "../tiles/token_blocks.h"

struct causal_scratch {
    ptrdiff_t rows; /* tokens per chunk */
    struct own own;
    struct block a, b, v, dots, o;
    struct block zs; /* of blocks: z, the same for all rows */
    struct pairs pairs;
    const T **held;
    struct runs state;
    T *z, *z_lost, *den, *lift;
    T *seen; /* with products of bfloat16: the sum of the keys of a chunk */
};

static struct causal_scratch
causal_carve(const struct la_head *h, struct arena *arena)
{
    struct causal_scratch r = {.rows = head_rows(h)};
    r.own.rows = !h->normalize && h->block == 0 && are_own_rows(h);
    r.own.values = are_operands(h, &h->v);
    r.a = take_rows_as(r.own.rows, h, arena, r.rows, h->d);
    r.b = take_rows_as(r.own.rows, h, arena, r.rows, h->d);
    r.v = take_rows_as(r.own.values, h, arena, r.rows, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.o = take_block(arena, r.rows, h->m);
    r.state = take_runs(h, arena, r.rows);
    r.z = take_row(arena, h->d);
    r.z_lost = take_row(arena, h->d);
    r.den = take(arena, 1, r.rows);
    r.lift = take(arena, 1, r.rows);
    r.pairs = take_pairs(h, arena, r.rows, h->d, h->m);
    r.held = take_held(h, arena, h->m);
    if (r.pairs.by != LA_FLOAT_PRODUCTS) {
        r.seen = take_row(arena, h->d);
    }
    return r;
}

/* o of head g of the group for the tokens t; `what`: whether the state changes, too. */
static void
causal_outputs(const struct la_head *h, const struct causal_scratch *r, struct sweep *c,
               struct span t, ptrdiff_t g, int what, int keyless)
{
    const struct la_array q = shifted(&h->q, g * h->q.step);
    const struct la_array o = shifted(&h->o, g * h->o.step);
    load_readers_as(r->own, h, &q, t, c, r->a);
    look_ahead(&o, t, h->m);
    if (c->dots.x != NULL) {
        scores(c);
    }
    if (h->normalize && r->zs.x != NULL) {
        row_dots(r->den, r->a, r->zs, c->rows, round_up(h->d, VL));
    }
    else if (h->normalize && r->seen != NULL) {
        seen_sums(r->den, r->seen, r->a, r->b, r->z, c->rows);
    }
    else if (h->normalize) {
        score_sums(r->den, c, r->z);
    }
    sweep(c, what);
    if (factors(h, r->den, c->rows, keyless, r->lift)) {
        lift_rows(r->o, c->rows, h->m, r->lift);
    }
    store_rows(&o, t, h->m, r->o, r->den);
}

/* The tokens from i to `end`; `what`: whether the last of these chunks changes the
 * state, too.  Returns where the scan continues, or -1 to stop. */
static ptrdiff_t
causal_chunks(const struct la_head *h, const struct causal_scratch *r, struct sweep *c,
              ptrdiff_t i, ptrdiff_t end, int what, int keyless)
{
    for (; i < end; i += r->rows) {
        const struct span t = span(i, r->rows, i + r->rows, h->n, c->ahead);
        const int writes = i + r->rows < end && r->state.between == NULL;
        const int all = writes ? LA_READ | LA_WRITE : what;
        place_in_run(c, h, &r->state, i, i + r->rows);
        c->rows = t.rows;
        load_keys_as(r->own, h, t, c, r->b, r->v);
        for (ptrdiff_t g = 0; g < h->group; g++) {
            if (h->poll(h->poll_arg)) {
                return -1;
            }
            causal_outputs(h, r, c, t, g, g + 1 < h->group ? LA_READ : all, keyless);
        }
        if (h->normalize && r->seen != NULL) {
            add_row(r->z, r->z_lost, r->seen, r->b.ld);
        }
        else if (h->normalize) {
            add_rows(r->z, r->z_lost, r->b, c->rows);
        }
    }
    return i;
}

/* The same, of all tokens, which are in blocks (token_blocks.h). */
static ptrdiff_t
causal_blocks(const struct la_head *h, const struct causal_scratch *r, struct sweep *c,
              int keyless)
{
    struct causal_scratch readers = *r;
    struct span t;
    readers.zs = (struct block){r->z, 0};
    without_scores(c);
    struct sweep read = *c;
    for (ptrdiff_t i = 0; i < h->n; i += t.rows) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        t = span(i, r->rows, i + r->rows, token_block_end(h, i), c->ahead);
        c->rows = t.rows;
        load_keys_as(r->own, h, t, c, r->b, r->v);
        sweep(c, LA_WRITE);
        if (h->normalize) {
            add_rows(r->z, r->z_lost, r->b, c->rows);
        }
        ptrdiff_t j = ends_token_block(h, t) ? token_block_begin(h, t) : h->n;
        for (; j < i + t.rows; j += read.rows) {
            const struct span from =
                span(j, r->rows, j + r->rows, i + t.rows, c->ahead);
            read.rows = from.rows;
            for (ptrdiff_t g = 0; g < h->group; g++) {
                if (h->poll(h->poll_arg)) {
                    return -1;
                }
                causal_outputs(h, &readers, &read, from, g, LA_READ, keyless);
            }
        }
    }
    return h->n;
}

static struct sweep
causal_sweep(const struct la_head *h, const struct causal_scratch *r,
             struct la_fetch *ahead)
{
    return (struct sweep){
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->a,
        .b = r->b,
        .v = r->v,
        .dots = r->dots,
        .o = r->o,
        .s = r->state.base, /* of blocks; runs place it */
        .ahead = ahead,
        .pairs = r->pairs,
        .own = r->own,
        .scored = 1,
        .held = r->held,
    };
}

static int
run_causal(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct causal_scratch r = causal_carve(h, &arena);
    struct la_fetch own = {0};
    struct sweep c = causal_sweep(h, &r, slice_fetch(h, &own));
    ptrdiff_t i = slice_begin(h);
    compensate_state(&c, h, r.state.lost, rows_in_block(h, r.rows));
    r.state.lost = c.lost;
    if (i == 0) {
        begin_state(h, r.state.base, r.state.lost);
        begin_vector(h, r.z, r.z_lost);
    }
    const int keyless = no_keys(h, r.z);
    forget_pairs(&c);
    i = h->block > 0 ? causal_blocks(h, &r, &c, keyless)
                     : causal_chunks(h, &r, &c, i, slice_end(h, h->n),
                                     LA_READ | LA_WRITE, keyless);
    if (i >= 0 && ends_last_pass(h, i, h->n)) {
        store_states(h, r.state.base, r.state.lost, r.z, r.z_lost);
    }
    return i < 0;
}

#endif
