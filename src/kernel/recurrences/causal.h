/* causal.h: causal linear attention, one head, in chunks.
 *
 *    s_i = s_{i-1} + phi(k_i) v_i^T,  z_i = z_{i-1} + phi(k_i)
 *    o_i = scale phi(q_i)^T s_i / (scale phi(q_i).z_i + eps)
 *                                             Katharopoulos et al. 2020, eq. 9-12
 *
 * About 4 n d m flops.  Scratch: the state, d m numbers, and a few chunks.  Rows j > i
 * never affect row i. */
#ifndef LA_CAUSAL_H
#define LA_CAUSAL_H

#include "../tiles/stages.h"
#include "../tiles/token_blocks.h"

struct causal_scratch {
    ptrdiff_t rows; /* tokens per chunk */
    struct block a, b, v, dots, o;
    struct block zs; /* with products of bfloat16: z after each row */
    struct pairs pairs;
    T *s, *lost, *z, *z_lost, *den, *lift;
};

static struct causal_scratch
causal_carve(const struct la_head *h, struct arena *arena)
{
    struct causal_scratch r = {.rows = head_rows(h)};
    r.a = take_block(arena, r.rows, h->d);
    r.b = take_block(arena, r.rows, h->d);
    r.v = take_block(arena, r.rows, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.o = take_block(arena, r.rows, h->m);
    r.s = take_state(arena, h->d, h->m);
    r.lost = take_state(arena, h->d, h->m);
    r.z = take_row(arena, h->d);
    r.z_lost = take_row(arena, h->d);
    r.den = take(arena, 1, r.rows);
    r.lift = take(arena, 1, r.rows);
    r.pairs = take_pairs(h, arena, r.rows, h->d);
    if (r.pairs.by != LA_FLOAT_PRODUCTS) {
        r.zs = take_block(arena, r.rows, h->d);
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
    load_mapped(r->a, &q, t, h->d, h->map);
    look_ahead(&o, t, h->m);
    if (c->dots.x != NULL) {
        scores(c);
    }
    if (h->normalize && r->zs.x != NULL) {
        row_dots(r->den, r->a, r->zs, c->rows, round_up(h->d, VL));
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

/* The tokens from i on.  Returns where the scan continues, or -1 to stop. */
static ptrdiff_t
causal_chunks(const struct la_head *h, const struct causal_scratch *r, struct sweep *c,
              ptrdiff_t i, struct la_fetch *look, int keyless)
{
    for (; i < interleave_end(h); i += r->rows) {
        const struct span t = span(i, r->rows, i + r->rows, h->n, look);
        c->rows = t.rows;
        load_keys(h, t, r->b, r->v);
        if (h->normalize && r->zs.x != NULL) {
            running_sums(r->zs, r->z, r->z_lost, r->b, c->rows);
        }
        for (ptrdiff_t g = 0; g < h->group; g++) {
            if (h->poll(h->poll_arg)) {
                return -1;
            }
            const int what = g + 1 < h->group ? LA_READ : LA_READ | LA_WRITE;
            causal_outputs(h, r, c, t, g, what, keyless);
        }
        if (h->normalize && r->zs.x == NULL) {
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
    struct sweep read = *c;
    struct span t;
    readers.zs = (struct block){r->z, 0}; /* the same for all rows */
    read.dots.x = NULL;
    read.scored = 0;
    for (ptrdiff_t i = 0; i < h->n; i += t.rows) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        t = span(i, r->rows, i + r->rows, token_block_end(h, i), c->ahead);
        c->rows = t.rows;
        load_keys(h, t, r->b, r->v);
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

static int
run_causal(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct causal_scratch r = causal_carve(h, &arena);
    struct la_fetch own = {0}, *look = interleave_look(h, &own);
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r.a,
        .b = r.b,
        .v = r.v,
        .dots = r.dots,
        .o = r.o,
        .s = r.s,
        .ahead = interleave_fetch(h, &own),
        .pairs = r.pairs,
        .scored = 1,
    };
    ptrdiff_t i = interleave_begin(h);
    compensate_state(&c, h, r.lost, rows_in_block(h, r.rows));
    if (i == 0) {
        begin_state(h, r.s, c.lost);
        begin_vector(h, r.z, r.z_lost);
    }
    const int keyless = no_keys(h, r.z);
    i = h->block > 0 ? causal_blocks(h, &r, &c, keyless)
                     : causal_chunks(h, &r, &c, i, look, keyless);
    if (i >= 0 && interleave_finishes(h, i)) {
        store_states(h, r.s, r.lost, r.z, r.z_lost);
    }
    return i < 0;
}

/* --- in stages (stages.c) ------------------------------------------------- */

/* The record of a chunk: its keys, with their sum, and the state before it. */
struct causal_chunk {
    T *s, *z, *sum;
    struct block b, v;
};

static struct causal_chunk
take_causal_chunk(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = head_rows(h);
    struct causal_chunk x;
    x.s = take_state(arena, h->d, h->m);
    x.z = take_row(arena, h->d);
    x.sum = take_row(arena, h->d);
    x.b = take_block(arena, rows, h->d);
    x.v = take_block(arena, rows, h->m);
    return x;
}

static struct causal_chunk
causal_chunk(const struct la_chunks *of, const struct causal_chunk *first, ptrdiff_t i)
{
    return (struct causal_chunk){
        .s = field_before(of, first->s, i),
        .z = field_before(of, first->z, i),
        .sum = in_record(of, first->sum, i),
        .b = block_in_record(of, first->b, i),
        .v = block_in_record(of, first->v, i),
    };
}

/* What all groups share: what the state has lost to rounding. */
struct causal_lost {
    T *s, *z;
};

static struct causal_lost
take_causal_lost(const struct la_head *h, struct arena *arena)
{
    struct causal_lost x;
    x.s = take_state(arena, h->d, h->m);
    x.z = take_row(arena, h->d);
    return x;
}

static struct causal_lost
causal_lost(const struct la_head *h)
{
    struct arena arena = {h->chunks->shared, 0};
    return take_causal_lost(h, &arena);
}

/* The state before the first token. */
static int
begin_causal(const struct la_head *h, const struct causal_chunk *first)
{
    const struct causal_lost lost = causal_lost(h);
    if (begins_head(h)) {
        begin_state(h, first->s, lost.s);
        begin_vector(h, first->z, lost.z);
    }
    return 0;
}

static int
prepare_causal(const struct la_head *h, const struct causal_chunk *first)
{
    const ptrdiff_t rows = head_rows(h);
    struct arena arena = {h->scratch, 0};
    struct la_fetch ahead = eager_fetch();
    struct sweep c = {.K = h->d,
                      .W = round_up(h->m, VL),
                      .ahead = &ahead,
                      .pairs = causal_carve(h, &arena).pairs};
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span_of(h, i, rows, &ahead);
        const struct causal_chunk x = causal_chunk(h->chunks, first, i);
        load_keys(h, t, x.b, x.v);
        c.rows = t.rows;
        c.b = x.b;
        c.v = x.v;
        c.s = field_before(h->chunks, first->s, i + 1);
        sum_chunk(&c);
        if (h->normalize) {
            sum_rows(x.sum, x.b, t.rows);
        }
        fetch_all(&ahead);
    }
    return 0;
}

static int
carry_causal(const struct la_head *h, const struct causal_chunk *first)
{
    const struct causal_lost lost = causal_lost(h);
    struct sweep c = {.K = h->d, .W = round_up(h->m, VL)};
    struct causal_chunk x = causal_chunk(h->chunks, first, 0);
    compensate_state(&c, h, lost.s, head_rows(h));
    for (ptrdiff_t i = 0; i < h->chunks->count; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct causal_chunk next = causal_chunk(h->chunks, first, i + 1);
        c.from = x.s;
        c.s = next.s;
        fetch_sums(c, h, later_sums(h->chunks, first->s, i + 1));
        carry_state(&c, h);
        if (h->normalize && h->stage.part == 0) {
            carry_vector(next.z, x.z, lost.z, x.sum, x.b.ld);
        }
        x = next;
    }
    return 0;
}

static int
finish_causal(const struct la_head *h, const struct causal_chunk *first)
{
    const ptrdiff_t rows = head_rows(h);
    struct arena arena = {h->scratch, 0};
    struct causal_scratch r = causal_carve(h, &arena);
    struct la_fetch ahead = eager_fetch();
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r.a,
        .dots = r.dots,
        .o = r.o,
        .ahead = &ahead,
        .pairs = r.pairs,
        .scored = 1,
    };
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        const struct span t = span_of(h, i, rows, &ahead);
        const struct causal_chunk x = causal_chunk(h->chunks, first, i);
        c.rows = t.rows;
        c.b = x.b;
        c.v = x.v;
        c.s = x.s;
        if (h->normalize && r.zs.x != NULL) {
            memcpy(r.z, x.z, (size_t)x.b.ld * sizeof(T));
            clear(r.z_lost, x.b.ld);
            running_sums(r.zs, r.z, r.z_lost, x.b, t.rows);
        }
        else {
            r.z = x.z;
        }
        const int keyless = h->keys == 0 && all_zero(x.z, h->d) &&
                            all_zero(x.s, round_up(c.K, MR) * c.W);
        for (ptrdiff_t g = 0; g < h->group; g++) {
            if (h->poll(h->poll_arg)) {
                return 1;
            }
            causal_outputs(h, &r, &c, t, g, LA_READ, keyless);
        }
    }
    if (ends_head(h)) {
        const struct causal_chunk last =
            causal_chunk(h->chunks, first, h->chunks->count);
        const struct causal_lost lost = causal_lost(h);
        store_states(h, last.s, lost.s, last.z, lost.z);
    }
    return 0;
}

static int
stage_causal(const struct la_head *h)
{
    struct arena arena = {h->chunks->records, 0};
    const struct causal_chunk first = take_causal_chunk(h, &arena);
    switch (h->stage.kind) {
    case LA_CUT:
        return cut_evenly(h, head_rows(h));
    case LA_PREPARE:
        return prepare_causal(h, &first);
    case LA_BEGIN:
        return begin_causal(h, &first);
    case LA_CARRY:
        return carry_causal(h, &first);
    default:
        return finish_causal(h, &first);
    }
}

#endif
