/* gated_stages.h: gated linear attention (gated.h) in stages (stages.c). */
#ifndef LA_GATED_STAGES_H
#define LA_GATED_STAGES_H

#include "gated.h"
#include "../decays/decay_stages.h"

/* The record of a chunk: its keys, its decays, and the state before it. */
struct gated_chunk {
    T *s;
    struct block b, v;
    struct decay_chunk decays;
};

static struct gated_chunk
take_gated_chunk(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = head_rows(h);
    const struct own own = gated_own(h);
    struct gated_chunk x;
    x.s = take_state(arena, h->d, h->m);
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
    }
    return 0;
}

static int
prepare_gated(const struct la_head *h, const struct gated_chunk *first)
{
    struct arena arena = {h->scratch, 0};
    const struct gated_scratch r = gated_carve(h, &arena);
    struct la_fetch ahead = eager_fetch();
    struct sweep c = {.K = h->d,
                      .W = round_up(h->m, VL),
                      .b = r.b,
                      .ahead = &ahead,
                      .pairs = r.pairs};
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct gated_chunk x = gated_chunk(h->chunks, first, i);
        const struct decay *decay = &x.decays.decay;
        const struct span t = tokens_of(&x.decays, &ahead);
        load_gated_keys(h, &r, t, &c, x.b, x.v);
        prepare_decays(h, &first->decays, &x.decays, i);
        take_gated_rows(&r, decay, &c);
        if (!r.own.rows) {
            writers_meet(decay, r.b, x.b, t.rows, h->d);
            to_end(decay, r.b, r.b, t.rows, h->d);
            c.b = r.b;
        }
        c.rows = t.rows;
        sum_chunk(&c, field_before(h->chunks, first->s, i + 1), 1);
        fetch_all(&ahead);
    }
    return 0;
}

static int
carry_gated(const struct la_head *h, const struct gated_chunk *first)
{
    struct gated_chunk x = gated_chunk(h->chunks, first, 0);
    struct arena arena = {h->scratch, 0};
    T *const copy = gated_carve(h, &arena).s;
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
        carry_decayed(&x.decays, &c, h, la_is_given(&h->bonus), copy);
        x = next;
    }
    return 0;
}

static int
finish_gated(const struct la_head *h, const struct gated_chunk *first)
{
    struct arena arena = {h->scratch, 0};
    struct gated_scratch r = gated_carve(h, &arena);
    struct la_fetch ahead = eager_fetch();
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r.a,
        .dots = r.dots,
        .o = r.o,
        .ahead = &ahead,
        .pairs = r.pairs,
    };
    factors(h, r.scale, r.rows, 0, NULL);
    if (la_is_given(&h->bonus)) {
        load_vector(r.bonus, &h->bonus, h->d);
    }
    load_skip(h, &r.writes);
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct gated_chunk x = gated_chunk(h->chunks, first, i);
        const struct span t = tokens_of(&x.decays, &ahead);
        r.decay = x.decays.decay;
        c.rows = t.rows;
        c.s = x.s;
        take_keys_as(r.own, h, t, &c, x.b, x.v);
        load_strengths(h, &r.writes, t);
        take_gated_rows(&r, &r.decay, &c);
        load_readers_as(r.own, h, &h->q, t, &c, r.a);
        look_ahead(&h->o, t, h->m);
        gated_queries(h, &r, c.a, c.b, &ahead, t.rows);
        sweep(&c, LA_READ);
        store_outputs(h, &r.writes, t, r.o, r.scale);
    }
    if (ends_head(h)) {
        end_state(&h->s1, field_before(h->chunks, first->s, h->chunks->count),
                  (T *)h->chunks->shared, h->d, h->m);
    }
    return 0;
}

static int
stage_gated(const struct la_head *h)
{
    struct arena arena = {h->chunks->records, 0};
    const struct gated_chunk first = take_gated_chunk(h, &arena);
    switch (h->stage.kind) {
    case LA_CUT:
        return cut_by_decays(h, &first.decays, head_rows(h));
    case LA_PREPARE:
        return prepare_gated(h, &first);
    case LA_BEGIN:
        return begin_gated(h, &first);
    case LA_CARRY:
        return carry_gated(h, &first);
    default:
        return finish_gated(h, &first);
    }
}

#endif
