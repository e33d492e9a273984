/* delta_stages.h: the delta rules (delta.h, gated_delta.h) in stages (stages.h).
 *
 * The state is carried by panels of its columns, which never interact: each thread
 * computes the product with the state, the substitution and the sum added to the state.
 * Triangles and decays are prepared, and the products with queries finished, by
 * chunks. */
#ifndef LA_DELTA_STAGES_H
#define LA_DELTA_STAGES_H

#include "delta_panels.h"
#include "gated_delta.h"
#include "../decays/decay_stages.h"

enum delta_rule { LA_DELTA, LA_GATED_DELTA, LA_DPLR };

/* The record of a chunk: E, B and far B, which are one without decays; L, and for DPLR
 * that of its given keys; V, if it is not read in place; [V; U], without V but for
 * DPLR; and the state before it, by panels. */
struct delta_record {
    enum delta_rule rule;
    T *s;
    struct block e, b, far_b, l, lk, v, vu;
    struct block errors; /* of gradients: E, which is not that of the keys */
    struct beta beta;
    struct decay_chunk decays;
};

static struct delta_record
take_record_of(const struct la_head *h, struct arena *arena, enum delta_rule rule)
{
    const ptrdiff_t rows = delta_chunk_rows(h->d), dplr = rule == LA_DPLR;
    struct delta_record x = {.rule = rule};
    x.s = take_state(arena, h->d, h->m);
    x.e = x.b = x.far_b = take_block(arena, rows, h->d);
    x.l = take_block(arena, rows, rows);
    x.vu = take_block(arena, (1 + dplr) * rows, h->m);
    if (rule != LA_DELTA) {
        x.b = take_block(arena, (1 + dplr) * rows, h->d);
        x.far_b = take_block(arena, (1 + dplr) * rows, h->d);
        x.decays = take_decay_chunk(h, arena, rows);
    }
    if (dplr) {
        x.lk = take_block(arena, rows, rows);
    }
    else {
        x.v = take_block(arena, rows, h->m);
        x.beta = take_beta(arena, h, rows);
    }
    return x;
}

static struct delta_record
delta_record(const struct la_chunks *of, const struct delta_record *first, ptrdiff_t i)
{
    return (struct delta_record){
        .rule = first->rule,
        .s = field_before(of, first->s, i),
        .e = block_in_record(of, first->e, i),
        .b = block_in_record(of, first->b, i),
        .far_b = block_in_record(of, first->far_b, i),
        .l = block_in_record(of, first->l, i),
        .lk = block_in_record(of, first->lk, i),
        .v = block_in_record(of, first->v, i),
        .vu = block_in_record(of, first->vu, i),
        .errors = block_in_record(of, first->errors, i),
        .beta = {block_in_record(of, first->beta.rows, i), first->beta.step},
        .decays = decay_chunk(of, &first->decays, i),
    };
}

/* The tokens of chunk i. */
INLINE struct span
delta_tokens(const struct la_head *h, const struct delta_record *x, ptrdiff_t i,
             struct la_fetch *ahead)
{
    return x->rule == LA_DELTA ? span_of(h, i, delta_chunk_rows(h->d), ahead)
                               : tokens_of(&x->decays, ahead);
}

/* The state before the first token. */
static int
begin_delta(const struct la_head *h, const struct delta_record *first)
{
    const struct la_array lost = lost_of(&h->s0);
    if (!begins_head(h)) {
        return 0;
    }
    load_panels(h, first->s, &h->s0);
    clear((T *)h->chunks->shared, state_size(h->d, h->m));
    load_panels(h, (T *)h->chunks->shared, &lost);
    if (first->rule != LA_DELTA) {
        first->decays.exact[0] = !carries_lost(h);
    }
    return 0;
}

/* E and B of a chunk, scaled for products with each other, and B for the state after
 * it. */
static void
prepare_keys(const struct la_head *h, const struct delta_record *x, struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    const int dplr = x->rule == LA_DPLR;
    const struct gated_rows y = {
        .e = x->e, .b = x->b, .decay = &x->decays.decay, .dplr = dplr};
    const struct block b = block_at(x->b, dplr ? rows : 0, 0);
    load_rows_of_keys(h, &y, t);
    gated_triangle_of(y.decay, x->l, x->e, b, rows, h->d, dplr);
    if (dplr) {
        gated_triangle_of(y.decay, x->lk, x->e, x->b, rows, h->d, 1);
    }
    writers_to_end(&y, x->far_b, rows, h->d);
    from_start(y.decay, x->e, x->e, rows, h->d, dplr);
}

static void
prepare_values(const struct la_head *h, const struct delta_record *x, struct span t)
{
    if (x->rule == LA_DPLR) {
        load_values(h, t, x->vu);
        return;
    }
    values(h, t, x->v);
    load_beta(h, t, &x->beta);
}

static int
prepare_delta(const struct la_head *h, const struct delta_record *first)
{
    struct la_fetch ahead = eager_fetch();
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_record x = delta_record(h->chunks, first, i);
        const struct span t = delta_tokens(h, &x, i, &ahead);
        if (x.rule == LA_DELTA) {
            load_features(h, t, x.b);
            triangle(x.l, x.b, x.b, round_up(t.rows, MR), h->d);
        }
        else {
            prepare_decays(h, &first->decays, &x.decays, i);
            prepare_keys(h, &x, t);
        }
        prepare_values(h, &x, t);
        fetch_all(&ahead);
    }
    return 0;
}

/* A chunk as a panel of columns passes through it: without outputs. */
static struct delta_chunk
delta_panel(const struct la_head *h, const struct delta_record *x, struct span t,
            struct panel p, struct pairs pairs)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    const int dplr = x->rule == LA_DPLR;
    const struct sweep state = {
        .K = h->d, .W = p.width, .s = x->s + p.at, .pairs = pairs};
    struct delta_chunk c = {
        .read = state,
        .write = state,
        .rows = rows,
        .keys = keys_left(h, t),
        .l = x->l,
        .lk = x->lk,
        .beta = {block_at(x->beta.rows, 0, p.col * x->beta.step), x->beta.step},
    };
    c.write.rows = (1 + dplr) * rows;
    c.write.v = block_at(x->vu, 0, p.col);
    c.u = block_at(c.write.v, dplr ? rows : 0, 0);
    if (dplr) {
        c.given = c.write.v;
    }
    else {
        const struct la_array v = values_at(h, t, x->v);
        c.v = shifted(&v, p.col * (ptrdiff_t)sizeof(T));
    }
    if (x->errors.x != NULL) {
        c.e = block_at(x->errors, 0, p.col);
    }
    return c;
}

/* Sets the decays of the state after the chunk, and clears what they reset. */
static void
decay_panel(const struct decay_chunk *x, struct sweep *c, int dplr)
{
    c->keep = x->decay.keep;
    c->change = x->decay.change;
    c->fades = x->exact[0] != 0 && keeps_nothing(&x->decay);
    c->first = 0;
    c->end = c->K;
    if (!dplr && forgets(&x->decay, c->K)) {
        LA_BY_TILES(c->W, reset_tile(&x->decay, c, col, nr * VL, LA_IN_PLACE, NULL));
    }
}

/* What finishing a chunk needs: A, O, P and, for DPLR, that of its given keys. */
struct delta_finish {
    struct block a, o, p, pk;
    T *scale;
    struct pairs pairs; /* of carrying the state, too */
};

static struct delta_finish
take_delta_finish(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = delta_chunk_rows(h->d);
    struct delta_finish r;
    r.a = take_block(arena, rows, h->d);
    r.o = take_block(arena, rows, h->m);
    r.p = take_block(arena, rows, rows);
    r.pk = take_block(arena, rows, rows);
    r.scale = take(arena, 1, rows);
    r.pairs = take_pairs(h, arena, 2 * rows, h->d, h->m);
    return r;
}

/* Prefetches what a panel of the next chunk takes. */
static void
fetch_panel(const struct la_head *h, const struct delta_record *x, struct panel p,
            struct la_fetch *ahead)
{
    const ptrdiff_t rows = delta_chunk_rows(h->d);
    fetch_block(ahead, x->e, rows, h->d);
    fetch_block(ahead, x->l, rows, rows);
    if (x->rule != LA_DELTA) {
        fetch_block(ahead, x->far_b, (1 + (x->rule == LA_DPLR)) * rows, h->d);
    }
    fetch_block(ahead, block_at(x->rule == LA_DPLR ? x->vu : x->v, 0, p.col), rows,
                p.width);
    fetch_to_write(block_at(x->vu, x->rule == LA_DPLR ? rows : 0, p.col), rows,
                   p.width);
}

static int
carry_delta(const struct la_head *h, const struct delta_record *first,
            struct pairs pairs)
{
    const struct panel p = panel(h, h->stage.part);
    struct la_fetch ahead = eager_fetch();
    struct delta_record x = delta_record(h->chunks, first, 0);
    for (ptrdiff_t i = 0; p.width > 0 && i < h->chunks->count; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_record next = delta_record(h->chunks, first, i + 1);
        struct delta_chunk c =
            delta_panel(h, &x, delta_tokens(h, &x, i, NULL), p, pairs);
        compensate_state(&c.write, h, (T *)h->chunks->shared + p.at,
                         delta_chunk_rows(h->d));
        c.read.rows = c.rows;
        c.read.a = x.e;
        c.read.o = c.u;
        c.write.b = x.far_b;
        c.write.from = c.write.s;
        c.write.s = next.s + p.at;
        c.read.ahead = c.write.ahead = &ahead;
        la_fetch_anew(&ahead);
        if (i + 1 < h->chunks->count) {
            fetch_panel(h, &next, p, &ahead);
            const struct block s = {field_before(h->chunks, first->s, i + 2) + p.at,
                                    p.width};
            fetch_to_write(s, h->d, p.width);
        }
        if (x.rule != LA_DELTA) {
            decay_panel(&x.decays, &c.write, x.rule == LA_DPLR);
        }
        delta_columns(&c);
        x = next;
    }
    return 0;
}

/* A, scaled for the product with the state, and P. */
static void
finish_queries(const struct la_head *h, const struct delta_record *x,
               const struct delta_finish *r, struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    const int dplr = x->rule == LA_DPLR;
    const struct gated_rows y = {.a = r->a, .decay = &x->decays.decay, .dplr = dplr};
    if (x->rule == LA_DELTA) {
        load_mapped(r->a, &h->q, t, h->d, h->map);
        triangle(r->p, r->a, x->b, rows, h->d);
        return;
    }
    load_readers(h, &y, t);
    gated_triangle_of(y.decay, r->p, r->a, block_at(x->b, dplr ? rows : 0, 0), rows,
                      h->d, 0);
    if (dplr) {
        gated_triangle_of(y.decay, r->pk, r->a, x->b, rows, h->d, 0);
    }
    from_start(y.decay, r->a, r->a, rows, h->d, 0);
}

INLINE void
finish_tile(const struct delta_chunk *c, ptrdiff_t col, const int nr, const int dplr)
{
    sweep_tile(&c->read, col, LA_READ, nr);
    attend(c, col, nr, dplr);
}

/* O of a chunk. */
static void
finish_panels(const struct la_head *h, const struct delta_record *x,
              const struct delta_finish *r, struct span t, struct la_fetch *ahead)
{
    for (ptrdiff_t i = 0; panel(h, i).width > 0; i++) {
        const struct panel p = panel(h, i);
        struct delta_chunk c = delta_panel(h, x, t, p, r->pairs);
        c.p = r->p;
        c.pk = r->pk;
        c.o = c.read.o = block_at(r->o, 0, p.col);
        c.read.a = r->a;
        c.read.rows = c.rows;
        c.read.ahead = ahead;
        if (i == 0) { /* A is the same for all panels */
            pair_operands(&c.read, LA_READ);
        }
        if (x->rule == LA_DPLR) {
            LA_BY_TILES(p.width, finish_tile(&c, col, nr, 1));
        }
        else {
            LA_BY_TILES(p.width, finish_tile(&c, col, nr, 0));
        }
    }
}

static int
finish_delta(const struct la_head *h, const struct delta_record *first)
{
    struct arena arena = {h->scratch, 0};
    const struct delta_finish r = take_delta_finish(h, &arena);
    struct la_fetch ahead = eager_fetch();
    factors(h, r.scale, delta_chunk_rows(h->d), 0, NULL);
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_record x = delta_record(h->chunks, first, i);
        const struct span t = delta_tokens(h, &x, i, &ahead);
        finish_queries(h, &x, &r, t);
        look_ahead(&h->o, t, h->m);
        finish_panels(h, &x, &r, t, &ahead);
        store_rows(&h->o, t, h->m, r.o, r.scale);
    }
    if (ends_head(h)) {
        const struct la_array lost = lost_of(&h->s1);
        store_panels(h, field_before(h->chunks, first->s, h->chunks->count), &h->s1);
        store_panels(h, (T *)h->chunks->shared, &lost);
    }
    return 0;
}

static int
stage_delta_rule(const struct la_head *h, enum delta_rule rule)
{
    struct arena arena = {h->chunks->records, 0}, scratch = {h->scratch, 0};
    const struct delta_record first = take_record_of(h, &arena, rule);
    const ptrdiff_t rows = delta_chunk_rows(h->d);
    switch (h->stage.kind) {
    case LA_CUT:
        return rule == LA_DELTA ? cut_evenly(h, rows)
                                : cut_by_decays(h, &first.decays, rows);
    case LA_PREPARE:
        return prepare_delta(h, &first);
    case LA_BEGIN:
        return begin_delta(h, &first);
    case LA_CARRY:
        return carry_delta(h, &first, take_delta_finish(h, &scratch).pairs);
    default:
        return finish_delta(h, &first);
    }
}

/* One set of functions for each operator (table.h). */
#define LA_DELTA_STAGES(op, rule)                                                      \
    static int stage_##op(const struct la_head *h)                                     \
    {                                                                                  \
        return stage_delta_rule(h, rule);                                              \
    }                                                                                  \
    static void take_##op##_record(const struct la_head *h, struct arena *arena)       \
    {                                                                                  \
        take_record_of(h, arena, rule);                                                \
    }
LA_DELTA_STAGES(delta, LA_DELTA)
LA_DELTA_STAGES(gated_delta, LA_GATED_DELTA)
LA_DELTA_STAGES(dplr, LA_DPLR)
#undef LA_DELTA_STAGES

#endif
