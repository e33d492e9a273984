/* causal_stages.h: causal linear attention (causal.h) in stages (stages.c), which take
 * runs of chunks (runs.h) for chunks. */
#ifndef LA_CAUSAL_STAGES_H
#define LA_CAUSAL_STAGES_H

#include "causal.h"
#include "../tiles/stages.h"

/* The record of a run: the state before it; z before it and what z has lost; the sum of
 * the keys of each chunk; and what each chunk adds, then the states between them,
 * unless several threads share a group. */
struct causal_record {
    T *s, *z, *z_lost, *sums, *between;
};

static ptrdiff_t
run_tokens(const struct la_head *h)
{
    (void)h;
    return LA_CUT_TOKENS;
}

static struct causal_record
take_causal_record(const struct la_head *h, struct arena *arena)
{
    struct causal_record x;
    x.s = take_state(arena, h->d, h->m);
    x.z = take_row(arena, h->d);
    x.z_lost = take_row(arena, h->d);
    x.sums = take_block(arena, LA_CUT_TOKENS / head_rows(h), h->d).x;
    x.between = NULL;
    if (h->chunks->parts == 1 && states_between(head_rows(h)) > 0) {
        x.between = take_states(arena, states_between(head_rows(h)), h->d, h->m);
    }
    return x;
}

static struct causal_record
causal_record(const struct la_chunks *of, const struct causal_record *first,
              ptrdiff_t i)
{
    return (struct causal_record){
        .s = field_before(of, first->s, i),
        .z = field_before(of, first->z, i),
        .z_lost = field_before(of, first->z_lost, i),
        .sums = in_record(of, first->sums, i),
        .between = in_record(of, first->between, i),
    };
}

/* The state before the first token. */
static int
begin_causal(const struct la_head *h, const struct causal_record *first)
{
    if (begins_head(h)) {
        begin_state(h, first->s, (T *)h->chunks->shared);
        begin_vector(h, first->z, first->z_lost);
    }
    return 0;
}

/* How many chunks of a run of `tokens` tokens have a state after them within it. */
static ptrdiff_t
chunks_between(const struct la_head *h, ptrdiff_t tokens)
{
    return (tokens - 1) / head_rows(h);
}

/* What the chunk of a run from its token j on adds to the state, and to the run. */
static void
sum_into_run(const struct la_head *h, struct sweep *c, const struct causal_record *x,
             T *run, ptrdiff_t j, ptrdiff_t tokens)
{
    const ptrdiff_t i = j / head_rows(h);
    if (x->between != NULL && i < chunks_between(h, tokens)) {
        sum_chunk(c, x->between + i * state_size(h->d, h->m), 1);
        return;
    }
    if (x->between != NULL && i > 0) {
        sum_chunks(h, run, x->between, i);
    }
    sum_chunk(c, run, i == 0);
}

static int
prepare_causal(const struct la_head *h, const struct causal_record *first)
{
    struct arena arena = {h->scratch, 0};
    const struct causal_scratch r = causal_carve(h, &arena);
    const ptrdiff_t step = row_step(h->d);
    struct la_fetch ahead = eager_fetch();
    struct sweep c = {.K = h->d,
                      .W = round_up(h->m, VL),
                      .b = r.b,
                      .v = r.v,
                      .ahead = &ahead,
                      .pairs = r.pairs,
                      .own = r.own};
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        const struct span t = span_of(h, i, LA_CUT_TOKENS, NULL);
        const struct causal_record x = causal_record(h->chunks, first, i);
        T *const run = field_before(h->chunks, first->s, i + 1);
        T *sums = x.sums;
        for (ptrdiff_t j = 0; j < t.rows; j += r.rows, sums += step) {
            if (h->poll(h->poll_arg)) {
                return 1;
            }
            const struct span some = span(t.first + j, r.rows, t.first + j + r.rows,
                                          t.first + t.rows, &ahead);
            load_keys_as(r.own, h, some, &c, r.b, r.v);
            c.rows = some.rows;
            sum_into_run(h, &c, &x, run, j, t.rows);
            if (h->normalize) {
                sum_rows(sums, r.b, some.rows);
            }
            fetch_all(&ahead);
        }
    }
    return 0;
}

/* z after a run, from that before it and the sums of the run's chunks. */
static void
carry_z(const struct la_head *h, const struct causal_record *x,
        const struct causal_record *next, ptrdiff_t tokens)
{
    const ptrdiff_t step = row_step(h->d), rows = head_rows(h);
    const T *z = x->z;
    memcpy(next->z_lost, x->z_lost, (size_t)step * sizeof(T));
    for (ptrdiff_t j = 0; j * rows < tokens; j++, z = next->z) {
        carry_vector(next->z, z, next->z_lost, x->sums + j * step, step);
    }
}

static int
carry_causal(const struct la_head *h, const struct causal_record *first)
{
    struct sweep c = {.K = h->d, .W = round_up(h->m, VL)};
    struct causal_record x = causal_record(h->chunks, first, 0);
    compensate_state(&c, h, (T *)h->chunks->shared, head_rows(h));
    for (ptrdiff_t i = 0; i < h->chunks->count; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct causal_record next = causal_record(h->chunks, first, i + 1);
        c.from = x.s;
        c.s = next.s;
        fetch_sums(c, h, later_sums(h->chunks, first->s, i + 1));
        carry_state(&c, h);
        if (h->normalize && h->stage.part == 0) {
            carry_z(h, &x, &next, span_of(h, i, LA_CUT_TOKENS, NULL).rows);
        }
        x = next;
    }
    return 0;
}

/* The outputs of runs, each from the state before it. */
static int
finish_causal(const struct la_head *h, const struct causal_record *first)
{
    struct arena arena = {h->scratch, 0};
    struct causal_scratch r = causal_carve(h, &arena);
    struct la_fetch ahead = eager_fetch();
    struct sweep c = causal_sweep(h, &r, &ahead);
    forget_pairs(&c);
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        const struct span t = span_of(h, i, LA_CUT_TOKENS, NULL);
        const struct causal_record x = causal_record(h->chunks, first, i);
        const size_t bytes = (size_t)row_step(h->d) * sizeof(T);
        const int keyless = h->keys == 0 && all_zero(x.z, h->d) &&
                            all_zero(x.s, numbers_in_tiles(h->d, h->m));
        r.state.base = x.s; /* read alone, so neither `lost` nor `run` is needed */
        r.state.run = NULL;
        r.state.between = x.between;
        if (x.between != NULL) {
            make_between(h, x.between, x.s, chunks_between(h, t.rows));
        }
        memcpy(r.z, x.z, bytes);
        memcpy(r.z_lost, x.z_lost, bytes);
        if (causal_chunks(h, &r, &c, t.first, t.first + t.rows, LA_READ, keyless) < 0) {
            return 1;
        }
    }
    if (ends_head(h)) {
        const struct causal_record last =
            causal_record(h->chunks, first, h->chunks->count);
        store_states(h, last.s, (T *)h->chunks->shared, last.z, last.z_lost);
    }
    return 0;
}

static int
stage_causal(const struct la_head *h)
{
    struct arena arena = {h->chunks->records, 0};
    const struct causal_record first = take_causal_record(h, &arena);
    switch (h->stage.kind) {
    case LA_CUT:
        return cut_evenly(h, LA_CUT_TOKENS);
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
