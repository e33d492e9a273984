/* causal.h: causal linear attention, one head, in chunks.
 *
 *    s_i = s_{i-1} + phi(k_i) v_i^T,  z_i = z_{i-1} + phi(k_i)
 *    o_i = scale phi(q_i)^T s_i / (scale phi(q_i).z_i + eps)
 *                                             Katharopoulos et al. 2020, eq. 9-12
 *
 * About 4 n d m flops.  Scratch: the state, d m numbers, and a few chunks.  Rows j > i
 * never affect row i.
 *
 * A long sequence is computed as segments (sequence_split.c): the state before each
 * segment plus the segment's own sum.  A segment computed alone from that state
 * therefore has the same bits.  The separate sum costs memory traffic, about 10 % of
 * the time. */
#ifndef LA_CAUSAL_H
#define LA_CAUSAL_H

#include "../tiles/recurrence.h"

struct causal_scratch {
    ptrdiff_t rows; /* tokens per chunk */
    struct block a, b, v, dots, o;
    T *s, *lost, *z, *z_lost, *den, *lift;
    T *base, *sum, *z_base, *z_sum; /* only for segments */
};

static struct causal_scratch
causal_carve(const struct la_head *h, struct arena *arena)
{
    struct causal_scratch r = {.rows = chunk_rows(h->d)};
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
    if (h->segment > 0) {
        r.base = take_state(arena, h->d, h->m);
        r.sum = take_state(arena, h->d, h->m);
        r.z_base = take_row(arena, h->d);
        r.z_sum = take_row(arena, h->d);
    }
    return r;
}

/* z = z_base + z_sum */
static void
add_base(const struct causal_scratch *r)
{
    for (ptrdiff_t l = 0; l < r->a.ld; l += VL) {
        vstore(&r->z[l], vload(&r->z_base[l]) + vload(&r->z_sum[l]));
    }
}

/* Begins a segment of a long sequence, for s and z. */
static void
begin_causal_segment(const struct causal_scratch *r, struct sweep *c)
{
    begin_segment(c, r->base, r->sum, r->lost);
    memcpy(r->z_base, r->z, (size_t)r->a.ld * sizeof(T));
    clear(r->z_sum, r->a.ld);
    clear(r->z_lost, r->a.ld);
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
    scores(c);
    if (h->normalize) {
        score_sums(r->den, c, r->z);
    }
    sweep(c, what);
    if (factors(h, r->den, c->rows, keyless, r->lift)) {
        lift_rows(r->o, c->rows, h->m, r->lift);
    }
    store_rows(&o, t, h->m, r->o, r->den);
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
    };
    ptrdiff_t i = interleave_begin(h);
    take_up_sum(&c, r.lost, h->n, r.rows);
    if (i == 0) {
        load_state(r.s, &h->s0, h->d, h->m);
        compensate(&c, r.lost, h->n, r.rows);
        load_vector(r.z, &h->z0, h->d);
        clear(r.z_lost, r.a.ld);
    }
    else if (h->segment > 0) {
        take_up_segment(&c, r.base, r.sum, r.lost);
    }
    const int keyless = no_keys(h, r.z);
    for (; i < interleave_end(h); i += r.rows) {
        const struct span t = span(i, r.rows, i + r.rows, h->n, look);
        c.rows = t.rows;
        if (h->segment > 0 && i % h->segment == 0 &&
            i / h->segment < LA_SEGMENT_COUNT) {
            begin_causal_segment(&r, &c);
        }
        /* Chunks without keys add nothing to a segment's sum. */
        const int writes = h->segment == 0 || keys_left(h, t) > 0 ? LA_WRITE : 0;
        load_keys(h, t, r.b, r.v);
        for (ptrdiff_t g = 0; g < h->group; g++) {
            if (h->poll(h->poll_arg)) {
                return 1;
            }
            const int what = g + 1 < h->group ? LA_READ : LA_READ | writes;
            causal_outputs(h, &r, &c, t, g, what, keyless);
        }
        if (h->normalize && writes) {
            add_rows(h->segment > 0 ? r.z_sum : r.z, r.z_lost, r.b, c.rows);
            if (h->segment > 0) {
                add_base(&r);
            }
        }
    }
    if (interleave_finishes(h, i)) {
        store_states(h, r.s, r.z);
    }
    return 0;
}

#endif
