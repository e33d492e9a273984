/* causal_backward_stages.h: the gradients of causal.h in stages (stages.c). */
#ifndef LA_CAUSAL_BACKWARD_STAGES_H
#define LA_CAUSAL_BACKWARD_STAGES_H

#include "causal_backward.h"
#include "../tiles/stages.h"

/* The record of a chunk, with the state before it.  In the first pass: S^T, z, the keys
 * and their sum; in reverse R, the sum of w_i a_i, a, r g and the sum of w_i a_i of the
 * chunk. */
struct causal_chunk {
    T *s, *z, *sum;
    struct block b, v;
};

static struct causal_chunk
take_causal_chunk(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = gradient_rows(h);
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

/* The state before the first chunk of the pass. */
static int
begin_causal_gradient(const struct la_head *h, const struct causal_chunk *first,
                      const struct causal_rates *rates)
{
    const struct la_array s0_transposed = transposed(h->s0);
    if (!begins_head(h)) {
        return 0;
    }
    if (h->chunks->reverse) {
        load_state(first->s, &h->grad_s, h->d, h->m);
        load_vector(first->z, &h->grad_z, h->d);
    }
    else {
        load_state(first->s, &s0_transposed, h->m, h->d);
        load_vector(first->z, &h->z0, h->d);
    }
    clear(rates->lost, state_size(h->d, h->m));
    clear(rates->z_lost, first->b.ld);
    return 0;
}

static int
prepare_causal_gradient(const struct la_head *h, const struct causal_chunk *first,
                        const struct causal_rates *rates)
{
    const int reverse = h->chunks->reverse;
    struct arena arena = {h->scratch, 0};
    struct la_fetch ahead = eager_fetch();
    struct sweep c = {.K = reverse ? h->d : h->m,
                      .W = round_up(reverse ? h->m : h->d, VL),
                      .ahead = &ahead,
                      .pairs = take_causal_gradient(h, &arena).pairs};
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span_of(h, i, gradient_rows(h), &ahead);
        const struct causal_chunk x = causal_chunk(h->chunks, first, i);
        if (reverse) {
            load_causal_readers(h, rates, x.b, x.v, t);
        }
        else {
            load_keys(h, t, x.b, x.v);
        }
        c.rows = t.rows;
        c.b = reverse ? x.b : x.v;
        c.v = reverse ? x.v : x.b;
        sum_chunk(&c, field_before(h->chunks, first->s, i + 1), 1);
        for (ptrdiff_t l = 0; h->normalize && l < x.b.ld; l += VL) {
            vstore(&x.sum[l], reverse ? weighted_sum(x.b, rates->w + t.first, t.rows, l)
                                      : sum_of_columns(x.b, t.rows, l));
        }
        fetch_all(&ahead);
    }
    return 0;
}

static int
carry_causal_gradient(const struct la_head *h, const struct causal_chunk *first,
                      const struct causal_rates *rates)
{
    const int reverse = h->chunks->reverse;
    struct sweep c = {.K = reverse ? h->d : h->m,
                      .W = round_up(reverse ? h->m : h->d, VL)};
    struct causal_chunk x = causal_chunk(h->chunks, first, 0);
    compensate_state(&c, h, rates->lost, gradient_rows(h));
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
            carry_vector(next.z, x.z, rates->z_lost, x.sum, x.b.ld);
        }
        x = next;
    }
    return 0;
}

static int
finish_queries_of(const struct la_head *h, const struct causal_chunk *first,
                  const struct causal_rates *rates)
{
    struct arena arena = {h->scratch, 0};
    const struct causal_gradient r = take_causal_gradient(h, &arena);
    struct la_fetch ahead = eager_fetch();
    struct sweep c = sweep_of_queries(h, &r, &ahead);
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct causal_chunk x = causal_chunk(h->chunks, first, i);
        c.b = x.v;
        c.v = x.b;
        c.s = x.s;
        memcpy(r.z, x.z, (size_t)x.b.ld * sizeof(T));
        clear(r.z_lost, x.b.ld);
        const struct span t = span_of(h, i, r.rows, &ahead);
        causal_queries(h, &r, rates, t.first, &c, t, LA_READ, no_keys(h, x.z));
    }
    return 0;
}

static int
finish_keys_of(const struct la_head *h, const struct causal_chunk *first,
               const struct causal_rates *rates)
{
    struct arena arena = {h->scratch, 0};
    struct causal_gradient r = take_causal_gradient(h, &arena);
    struct la_fetch ahead = eager_fetch();
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct causal_chunk x = causal_chunk(h->chunks, first, i);
        const struct span t = span_of(h, i, r.rows, &ahead);
        r.a = x.b;
        r.grad_out = x.v;
        struct sweep dv = sweep_of_values(h, &r, &ahead),
                     db = sweep_of_keys(h, &r, &ahead);
        dv.s = x.s;
        db.bias = h->normalize ? x.z : NULL;
        load_keys(h, t, r.b, r.v);
        causal_values(h, &r, &dv, t, LA_READ);
        transpose_state(r.t, x.s, h->d, h->m);
        causal_keys(h, &r, rates, &db, t);
    }
    if (ends_head(h)) {
        const struct causal_chunk last =
            causal_chunk(h->chunks, first, h->chunks->count);
        store_state(&h->ds0, last.s, h->d, h->m);
        store_vector(&h->dz0, last.z, h->d);
    }
    return 0;
}

static int
stage_causal_backward(const struct la_head *h)
{
    struct arena of_records = {h->chunks->records, 0}, of_head = {h->chunks->shared, 0};
    const struct causal_chunk first = take_causal_chunk(h, &of_records);
    const struct causal_rates rates = take_causal_rates(h, &of_head);
    switch (h->stage.kind) {
    case LA_CUT:
        return cut_evenly(h, gradient_rows(h));
    case LA_PREPARE:
        return prepare_causal_gradient(h, &first, &rates);
    case LA_BEGIN:
        return begin_causal_gradient(h, &first, &rates);
    case LA_CARRY:
        return carry_causal_gradient(h, &first, &rates);
    default:
        return h->chunks->reverse ? finish_keys_of(h, &first, &rates)
                                  : finish_queries_of(h, &first, &rates);
    }
}

#endif
