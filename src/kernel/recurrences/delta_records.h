/* delta_records.h: what the stages of the delta rules (delta_stages.h) keep of a chunk.
 *
 * All that depends on its tokens alone is prepared as a single thread does it. */
#ifndef LA_DELTA_RECORDS_H
#define LA_DELTA_RECORDS_H

#include "delta_panels.h"
#include "gated_delta.h"
#include "../decays/decay_stages.h"

enum delta_rule { LA_DELTA, LA_GATED_DELTA, LA_DPLR };

/* The record of a chunk: [E; A] and B, unless it is E; their triangles; V, if it is not
 * read in place; [V; U; O], of which only DPLR has V; and the state before the chunk,
 * by panels. */
struct delta_record {
    enum delta_rule rule;
    int outputs; /* whether they are wanted */
    int keeps;   /* whether each record has a state, since panels compute no outputs */
    T *s;
    struct block ea, b, l, lk, p, pk; /* p and pk: if outputs are wanted */
    struct block v, vuo;
    struct block errors; /* of gradients: E, which is not that of the keys */
    struct beta beta;
    struct decay_chunk decays;
};

/* Whether panels compute outputs. */
INLINE int
panels_read(const struct delta_record *x)
{
    return x->outputs && !x->keeps;
}

/* Panels compute outputs as well if every thread has one: then states need not be
 * passed on to other threads. */
static struct delta_record
take_record_of(const struct la_head *h, struct arena *arena, enum delta_rule rule,
               int outputs)
{
    const ptrdiff_t rows = delta_rows(h), dplr = rule == LA_DPLR;
    struct delta_record x = {.rule = rule, .outputs = outputs};
    x.keeps =
        outputs && (h->chunks->parts == 1 || panel(h, h->chunks->parts - 1).width <= 0);
    x.s = x.keeps ? take_state(arena, h->d, h->m) : NULL;
    x.ea = x.b = take_own_block(h, arena, (1 + outputs) * rows, h->d);
    x.l = take_block(arena, rows, rows);
    x.vuo = take_block(arena, (1 + dplr + panels_read(&x)) * rows, h->m);
    if (outputs) {
        x.p = take_block(arena, rows, rows);
    }
    if (rule != LA_DELTA) {
        x.decays = take_decay_chunk(h, arena, rows);
    }
    if (rule != LA_DELTA && !(outputs && writers_are_keys(h, &x.decays.decay, dplr))) {
        x.b = take_block(arena, (1 + dplr) * rows, h->d);
    }
    if (dplr) {
        x.lk = take_block(arena, rows, rows);
        x.pk = take_block(arena, rows, rows);
    }
    else {
        x.v = take_block(arena, rows, h->m);
        x.beta = take_beta(arena, h, rows);
    }
    return x;
}

/* What all groups share: what the state has lost and, if records do not keep it, the
 * state. */
struct delta_shared {
    T *lost, *s;
};

static struct delta_shared
take_delta_shared(const struct la_head *h, struct arena *arena)
{
    struct delta_shared x;
    x.lost = take_state(arena, h->d, h->m);
    x.s = take_state(arena, h->d, h->m);
    return x;
}

static struct delta_record
delta_record(const struct la_chunks *of, const struct delta_record *first, ptrdiff_t i)
{
    return (struct delta_record){
        .rule = first->rule,
        .outputs = first->outputs,
        .keeps = first->keeps,
        .s = first->keeps ? field_before(of, first->s, i) : first->s,
        .ea = block_in_record(of, first->ea, i),
        .b = block_in_record(of, first->b, i),
        .l = block_in_record(of, first->l, i),
        .lk = block_in_record(of, first->lk, i),
        .p = block_in_record(of, first->p, i),
        .pk = block_in_record(of, first->pk, i),
        .v = block_in_record(of, first->v, i),
        .vuo = block_in_record(of, first->vuo, i),
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
    return x->rule == LA_DELTA ? span_of(h, i, delta_rows(h), ahead)
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
    load_panels(h, delta_record(h->chunks, first, 0).s, &h->s0);
    clear((T *)h->chunks->shared, state_size(h->d, h->m));
    load_panels(h, (T *)h->chunks->shared, &lost);
    if (first->rule != LA_DELTA) {
        first->decays.exact[0] = !carries_lost(h);
    }
    return 0;
}

/* Sets up how a chunk takes the rows of its record, as a single thread does. */
static void
take_record_rows(const struct la_head *h, const struct delta_record *x,
                 struct delta_chunk *c, struct block far)
{
    if (x->rule == LA_DELTA) {
        take_own_pairs(h, c, x->ea);
    }
    else {
        scale_products(h, c, &x->decays.decay, x->rule == LA_DPLR, x->ea, far);
    }
}

/* Loads the tokens of a chunk, as a single thread does. */
static void
load_record(const struct la_head *h, const struct delta_record *x, struct span t,
            const struct pairs *pairs)
{
    struct delta_chunk c = {.read.pairs = *pairs,
                            .rows = round_up(t.rows, MR),
                            .keys = keys_left(h, t),
                            .p = x->p,
                            .pk = x->pk};
    take_record_rows(h, x, &c, (struct block){0});
    if (x->rule == LA_DELTA) {
        const struct delta_scratch r = {
            .ba = x->ea, .v = x->v, .l = x->l, .beta = x->beta};
        load_delta(h, &r, &c, t);
        return;
    }
    const struct gated_delta_scratch r = {.ea = x->ea,
                                          .b = x->b,
                                          .v = x->v,
                                          .vuo = x->vuo,
                                          .l = x->l,
                                          .lk = x->lk,
                                          .decay = x->decays.decay,
                                          .beta = x->beta};
    load_gated_delta(h, &r, x->rule == LA_DPLR, &c, t);
}

static int
prepare_delta(const struct la_head *h, const struct delta_record *first,
              const struct pairs *pairs)
{
    struct la_fetch ahead = eager_fetch();
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_record x = delta_record(h->chunks, first, i);
        const struct span t = delta_tokens(h, &x, i, &ahead);
        if (x.rule != LA_DELTA) {
            prepare_decays(h, &first->decays, &x.decays, i);
        }
        load_record(h, &x, t, pairs);
        fetch_all(&ahead);
    }
    return 0;
}

#endif
