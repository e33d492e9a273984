/* gated_stages.h: gated linear attention (gated.h) in stages (stages.c). */
#ifndef LA_GATED_STAGES_H
#define LA_GATED_STAGES_H

#include "gated.h"
#include "../decays/decay_stages.h"

/* The record of a chunk: its keys, its decays, and the state before it; if outputs are
 * normalized, z before it and the sum of its keys, too. */
struct gated_chunk {
    T *s, *keys;
    struct decayed_sum sum;
    struct block b, v;
    struct decay_chunk decays;
};

static struct gated_chunk
take_gated_chunk(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = head_rows(h);
    const struct own own = gated_own(h);
    struct gated_chunk x = {.s = take_state(arena, h->d, h->m)};
    if (h->normalize) {
        x.sum = take_decayed_sum(h, arena);
        x.keys = take_row(arena, h->d);
    }
    x.b = take_rows_as(own.rows, h, arena, rows, h->d);
    x.v = take_rows_as(own.values, h, arena, rows, h->m);
    x.decays = take_decay_chunk(h, arena, rows);
    return x;
}

static struct gated_chunk
gated_chunk(const struct la_chunks *of, const struct gated_chunk *first, ptrdiff_t i)
{
    return (struct gated_chunk){
        .s = field_before(of, first->s, i),
        .keys = in_record(of, first->keys, i),
        .sum = {field_before(of, first->sum.z, i),
                field_before(of, first->sum.lost, i)},
        .b = block_in_record(of, first->b, i),
        .v = block_in_record(of, first->v, i),
        .decays = decay_chunk(of, &first->decays, i),
    };
}

/* The state before the first token. */
static int
begin_gated(const struct la_head *h, const struct gated_chunk *first)
{
    if (begins_head(h)) {
        begin_state(h, first->s, (T *)h->chunks->shared);
        first->decays.exact[0] = !carries_lost(h);
        if (h->normalize) {
            begin_vector(h, first->sum.z, first->sum.lost);
        }
    }
    return 0;
}

static int
prepare_gated(const struct la_head *h, const struct gated_scratch *r,
              const struct gated_chunk *first)
{
    struct la_fetch ahead = eager_fetch();
    struct sweep c = {.K = h->d,
                      .W = round_up(h->m, VL),
                      .b = r->b,
                      .ahead = &ahead,
                      .pairs = r->pairs};
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct gated_chunk x = gated_chunk(h->chunks, first, i);
        const struct decay *decay = &x.decays.decay;
        const struct span t = tokens_of(&x.decays, &ahead);
        load_gated_keys(h, r, t, &c, x.b, x.v);
        prepare_decays(h, &first->decays, &x.decays, i);
        take_gated_rows(r, decay, &c);
        if (!r->own.rows) {
            writers_meet(decay, r->b, x.b, t.rows, h->d);
            to_end(decay, r->b, r->b, t.rows, h->d);
            c.b = r->b;
        }
        if (h->normalize) {
            sum_rows(x.keys, c.b, t.rows);
        }
        c.rows = t.rows;
        sum_chunk(&c, field_before(h->chunks, first->s, i + 1), 1);
        fetch_all(&ahead);
    }
    return 0;
}

/* z after a chunk, from the sum of its keys. */
static void
carry_sums(const struct la_head *h, const struct gated_chunk *x,
           const struct gated_chunk *next)
{
    forget_sum(&x->decays.decay, x->sum, h->d);
    fade_sum(h, &x->decays.decay, x->sum, next->sum);
    add_row(next->sum.z, next->sum.lost, x->keys, row_step(h->d));
}

static int
carry_gated(const struct la_head *h, const struct gated_scratch *r,
            const struct gated_chunk *first)
{
    struct gated_chunk x = gated_chunk(h->chunks, first, 0);
    struct sweep c = {.K = h->d, .W = round_up(h->m, VL)};
    compensate_state(&c, h, (T *)h->chunks->shared, head_rows(h));
    for (ptrdiff_t i = 0; i < h->chunks->count; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct gated_chunk next = gated_chunk(h->chunks, first, i + 1);
        c.from = x.s;
        c.s = next.s;
        fetch_sums(c, h, later_sums(h->chunks, first->s, i + 1));
        carry_decayed(&x.decays, &c, h, la_is_given(&h->bonus), r->s);
        if (h->normalize && h->stage.part == 0) {
            carry_sums(h, &x, &next);
        }
        x = next;
    }
    return 0;
}

static int
finish_gated(const struct la_head *h, struct gated_scratch *r,
             const struct gated_chunk *first)
{
    struct la_fetch ahead = eager_fetch();
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->a,
        .dots = r->dots,
        .o = r->o,
        .ahead = &ahead,
        .pairs = r->pairs,
    };
    gated_numbers(h, r);
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct gated_chunk x = gated_chunk(h->chunks, first, i);
        const struct span t = tokens_of(&x.decays, &ahead);
        r->decay = x.decays.decay;
        c.rows = t.rows;
        c.s = x.s;
        take_keys_as(r->own, h, t, &c, x.b, x.v);
        load_strengths(h, &r->writes, t);
        take_gated_rows(r, &r->decay, &c);
        load_readers_as(r->own, h, &h->q, t, &c, r->a);
        look_ahead(&h->o, t, h->m);
        gated_queries(h, r, c.a, c.b, &ahead, t.rows);
        if (h->normalize) {
            score_sums(r->scale, &c, x.sum.z);
        }
        sweep(&c, LA_READ);
        store_gated_outputs(h, r, t);
    }
    if (ends_head(h)) {
        const struct gated_chunk last = gated_chunk(h->chunks, first, h->chunks->count);
        end_state(&h->s1, last.s, (T *)h->chunks->shared, h->d, h->m);
        if (h->normalize) {
            end_vector(&h->z1, last.sum.z, last.sum.lost, h->d);
        }
    }
    return 0;
}

/* One stage, with scratch that has been taken. */
static int
gated_stage(const struct la_head *h, struct gated_scratch *r)
{
    struct arena arena = {h->chunks->records, 0};
    const struct gated_chunk first = take_gated_chunk(h, &arena);
    switch (h->stage.kind) {
    case LA_CUT:
        return cut_by_decays(h, &first.decays, head_rows(h));
    case LA_PREPARE:
        return prepare_gated(h, r, &first);
    case LA_BEGIN:
        return begin_gated(h, &first);
    case LA_CARRY:
        return carry_gated(h, r, &first);
    default:
        return finish_gated(h, r, &first);
    }
}

static int
stage_gated(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct gated_scratch r = gated_carve(h, &arena);
    return gated_stage(h, &r);
}

#endif
