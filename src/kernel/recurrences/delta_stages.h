/* delta_stages.h: the delta rules (delta.h, gated_delta.h) in stages (stages.h).
 *
 * The state is carried by panels of its columns, which never interact: each thread
 * computes the product with the state, the substitution and the sum added to the state,
 * and outputs as well if there is a panel for every thread.  Otherwise records keep the
 * states, and outputs are finished by chunks. */
#ifndef LA_DELTA_STAGES_H
#define LA_DELTA_STAGES_H

#include "delta_records.h"

/* What carrying the state and finishing chunks need. */
struct delta_results {
    struct block o, far;
    T *scale;
    struct pairs pairs;
};

static struct delta_results
take_delta_results(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = delta_rows(h);
    struct delta_results r;
    r.o = take_block(arena, rows, h->m);
    r.far = take_block(arena, rows, h->m);
    r.scale = take(arena, 1, rows);
    r.pairs = take_pairs(h, arena, 2 * rows, h->d, h->m);
    return r;
}

/* A chunk as a panel of columns passes through it. */
static struct delta_chunk
delta_panel(const struct la_head *h, const struct delta_record *x, struct span t,
            struct panel p, const struct delta_results *r)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    const int dplr = x->rule == LA_DPLR;
    const struct sweep state = {
        .K = h->d, .W = p.width, .s = x->s + p.at, .pairs = r->pairs};
    struct delta_chunk c = {
        .read = state,
        .write = state,
        .rows = rows,
        .keys = keys_left(h, t),
        .l = x->l,
        .lk = x->lk,
        .p = x->p,
        .pk = x->pk,
        .beta = {block_at(x->beta.rows, 0, p.col * x->beta.step), x->beta.step},
    };
    c.write.rows = (1 + dplr) * rows;
    c.write.b = x->b;
    c.write.v = block_at(x->vuo, 0, p.col);
    c.u = c.read.o = block_at(c.write.v, dplr ? rows : 0, 0);
    c.read.rows = rows;
    c.read.a = x->ea;
    take_record_rows(h, x, &c, block_at(r->far, 0, p.col));
    c.write.scored = 0; /* by another thread */
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

/* Prefetches what a panel of the next chunk takes; `own`: of rows in pairs. */
static void
fetch_panel(const struct la_head *h, const struct delta_record *x, struct panel p,
            int own, struct la_fetch *ahead)
{
    const ptrdiff_t rows = delta_rows(h), dplr = x->rule == LA_DPLR;
    const int reads = panels_read(x);
    fetch_block(ahead, x->ea, (1 + reads) * rows, own ? (h->d + 1) / 2 : h->d);
    fetch_block(ahead, x->l, rows, rows);
    if (x->b.x != x->ea.x) {
        fetch_block(ahead, x->b, (1 + dplr) * rows, h->d);
    }
    if (reads) {
        fetch_block(ahead, x->p, rows, rows);
    }
    fetch_block(ahead, block_at(dplr ? x->vuo : x->v, 0, p.col), rows, p.width);
    fetch_to_write(block_at(x->vuo, dplr * rows, p.col), (1 + reads) * rows, p.width);
}

/* The state of a panel after the chunks of a group, and its outputs if records do not
 * keep the state. */
static int
carry_delta(const struct la_head *h, const struct delta_record *first,
            const struct delta_results *r)
{
    const struct panel p = panel(h, h->stage.part);
    struct la_fetch ahead = eager_fetch();
    struct delta_record x = delta_record(h->chunks, first, 0);
    factors(h, r->scale, delta_rows(h), 0, NULL);
    for (ptrdiff_t i = 0; p.width > 0 && i < h->chunks->count; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_record next = delta_record(h->chunks, first, i + 1);
        const struct span t = delta_tokens(h, &x, i, NULL);
        struct delta_chunk c = delta_panel(h, &x, t, p, r);
        compensate_state(&c.write, h, (T *)h->chunks->shared + p.at, delta_rows(h));
        c.write.from = c.write.s;
        c.write.s = next.s + p.at;
        if (panels_read(&x)) {
            c.read.rows = 2 * c.rows;
            c.o = block_at(c.u, c.rows, 0);
        }
        else {
            c.p.x = NULL;
        }
        c.read.ahead = c.write.ahead = &ahead;
        la_fetch_anew(&ahead);
        if (i + 1 < h->chunks->count) {
            fetch_panel(h, &next, p, c.read.own.rows, &ahead);
        }
        if (x.keeps && i + 1 < h->chunks->count) {
            const struct block s = {field_before(h->chunks, first->s, i + 2) + p.at,
                                    p.width};
            fetch_to_write(s, h->d, p.width);
        }
        if (x.rule != LA_DELTA) {
            decay_panel(&x.decays, &c.write, x.rule == LA_DPLR);
        }
        delta_columns(&c);
        if (c.p.x != NULL) {
            const struct la_array o = columns_of(&h->o, p);
            store_rows(&o, t, numbers_of(h, p), c.o, r->scale);
        }
        x = next;
    }
    return 0;
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
              const struct delta_results *r, struct span t, struct la_fetch *ahead)
{
    for (ptrdiff_t i = 0; panel(h, i).width > 0; i++) {
        const struct panel p = panel(h, i);
        struct delta_chunk c = delta_panel(h, x, t, p, r);
        c.o = c.read.o = block_at(r->o, 0, p.col);
        c.read.a = block_at(x->ea, c.rows, 0);
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
finish_delta(const struct la_head *h, const struct delta_record *first,
             const struct delta_results *r)
{
    struct la_fetch ahead = eager_fetch();
    factors(h, r->scale, delta_rows(h), 0, NULL);
    for (ptrdiff_t i = h->stage.from; first->keeps && i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_record x = delta_record(h->chunks, first, i);
        const struct span t = delta_tokens(h, &x, i, &ahead);
        look_ahead(&h->o, t, h->m);
        finish_panels(h, &x, r, t, &ahead);
        store_rows(&h->o, t, h->m, r->o, r->scale);
    }
    if (ends_head(h)) {
        const struct la_array lost = lost_of(&h->s1);
        store_panels(h, delta_record(h->chunks, first, h->chunks->count).s, &h->s1);
        store_panels(h, (T *)h->chunks->shared, &lost);
    }
    return 0;
}

static int
stage_delta_rule(const struct la_head *h, enum delta_rule rule)
{
    struct arena arena = {h->chunks->records, 0}, shared = {h->chunks->shared, 0},
                 scratch = {h->scratch, 0};
    struct delta_record first = take_record_of(h, &arena, rule, 1);
    first.s = first.keeps ? first.s : take_delta_shared(h, &shared).s;
    const struct delta_results r = take_delta_results(h, &scratch);
    const ptrdiff_t rows = delta_rows(h);
    switch (h->stage.kind) {
    case LA_CUT:
        return rule == LA_DELTA ? cut_evenly(h, rows)
                                : cut_by_decays(h, &first.decays, rows);
    case LA_PREPARE:
        return prepare_delta(h, &first, &r.pairs);
    case LA_BEGIN:
        return begin_delta(h, &first);
    case LA_CARRY:
        return carry_delta(h, &first, &r);
    default:
        return finish_delta(h, &first, &r);
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
        take_record_of(h, arena, rule, 1);                                             \
    }
LA_DELTA_STAGES(delta, LA_DELTA)
LA_DELTA_STAGES(gated_delta, LA_GATED_DELTA)
LA_DELTA_STAGES(dplr, LA_DPLR)
#undef LA_DELTA_STAGES

#endif
