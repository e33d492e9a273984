/* delta_backward_stages.h: the gradients of the delta rules in stages (stages.c).
 *
 * The first pass is that of delta_stages.h, with E (DPLR: U) in place of outputs.  The
 * second one takes the groups in reverse: it carries S^T through the group once more,
 * from E, and R against it, by panels of the values' columns. */
#ifndef LA_DELTA_BACKWARD_STAGES_H
#define LA_DELTA_BACKWARD_STAGES_H

#include "delta_adjoint.h"

/* --- the first pass ------------------------------------------------------- */

/* Keeps the state before the group. */
static int
begin_errors(const struct la_head *h, const struct delta_record *first,
             const struct delta_memory *memory)
{
    const struct groups *groups = &memory->groups;
    begin_delta(h, first);
    transpose_panels(h, state_of_group(h, groups->states), first->s);
    transpose_panels(h, state_of_group(h, groups->losses), memory->first.lost);
    return 0;
}

static int
store_errors(const struct la_head *h, const struct delta_record *first,
             const struct delta_memory *memory)
{
    struct la_fetch ahead = eager_fetch();
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_record x = delta_record(h->chunks, first, i);
        const struct span t = delta_tokens(h, &x, i, &ahead);
        const ptrdiff_t rows = round_up(t.rows, MR);
        store_rows(&memory->errors, t, h->m,
                   x.rule == LA_DPLR ? block_at(x.vuo, rows, 0) : x.errors, NULL);
    }
    return 0;
}

/* --- the second pass ------------------------------------------------------ */

static int
begin_adjoint(const struct la_head *h, const struct delta_adjoint *first,
              const struct delta_memory *memory)
{
    const struct groups *groups = &memory->groups;
    const size_t bytes = (size_t)state_size(h->d, h->m) * sizeof(T);
    memcpy(first->s, state_of_group(h, groups->states), bytes);
    memcpy(memory->s_lost, state_of_group(h, groups->losses), bytes);
    if (begins_head(h)) {
        load_panels(h, first->r, &h->grad_s);
        clear(memory->r_lost, state_size(h->d, h->m));
    }
    return 0;
}

/* What a chunk adds to S^T; s: where it will be after the chunk. */
static void
sum_adjoint(const struct la_head *h, const struct reverse *c,
            const struct gated_delta_reverse *x, enum delta_rule rule, T *s,
            struct la_fetch *ahead)
{
    struct sweep sums = {.rows = (1 + x->dplr) * c->rows,
                         .K = h->m,
                         .W = round_up(h->d, VL),
                         .b = x->base.u,
                         .v = rule == LA_DELTA ? c->b : x->written,
                         .ahead = ahead,
                         .pairs = x->base.pairs};
    sum_chunk(&sums, s, 1);
}

static int
prepare_adjoint(const struct la_head *h, const struct delta_adjoint *first,
                const struct gated_delta_reverse *stage,
                const struct delta_memory *memory, enum delta_rule rule)
{
    struct la_fetch ahead = eager_fetch();
    reverse_constants(h, &stage->base, delta_rows(h));
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_adjoint x = delta_adjoint(h->chunks, first, stage, i);
        const struct span t = adjoint_tokens(h, first, rule, i, &ahead);
        const struct reverse c = gated_reverse_chunk(h, &x.chunk, t);
        if (rule == LA_DELTA) {
            load_reverse(h, &c, &memory->errors, t);
        }
        else {
            load_gated_delta_reverse(h, &c, &x.chunk, &memory->errors, t);
        }
        if (i + 1 < h->chunks->count) {
            sum_adjoint(h, &c, &x.chunk, rule, in_record(h->chunks, first->s, i + 1),
                        &ahead);
        }
        fetch_all(&ahead);
    }
    return 0;
}

/* S^T before the chunks of the group. */
static int
carry_delta_states(const struct la_head *h, const struct delta_adjoint *first,
                   const struct delta_memory *memory, enum delta_rule rule)
{
    const struct la_chunks *of = h->chunks;
    const struct gated_delta_reverse *x = &first->chunk;
    struct sweep c = {.K = h->m, .W = round_up(h->d, VL), .transposed = 1};
    compensate_state(&c, h, memory->s_lost, delta_rows(h));
    for (ptrdiff_t i = 0; i + 1 < of->count; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        c.from = in_record(of, first->s, i);
        c.s = in_record(of, first->s, i + 1);
        fetch_sums(c, h, later_sums(of, first->s, i + 1));
        if (rule == LA_DELTA) {
            carry_state(&c, h);
            continue;
        }
        const struct decay decay = decay_in_record(of, &x->decay, i);
        carry_by(&decay, &c, h, x->dplr ? LA_NEVER : LA_IN_PLACE, NULL);
    }
    return 0;
}

/* The blocks of a chunk from the columns of a panel on. */
static struct gated_delta_reverse
panel_blocks(const struct delta_adjoint *x, struct panel p, T *lost)
{
    struct gated_delta_reverse r = x->chunk;
    struct block *const values[] = {&r.base.gn, &r.base.e, &r.base.du, &r.base.dv,
                                    &r.base.dbeta};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        *values[i] = block_at(*values[i], 0, p.col);
    }
    r.base.beta.rows = block_at(r.base.beta.rows, 0, p.col * r.base.beta.step);
    r.base.after = x->after + p.at;
    r.base.r = x->r + p.at;
    r.base.lost = lost + p.at;
    return r;
}

/* Prefetches what a panel of the next chunk takes. */
static void
fetch_adjoint(const struct la_head *h, const struct delta_adjoint *x, struct panel p,
              struct la_fetch *ahead)
{
    const ptrdiff_t rows = delta_rows(h);
    const struct reverse_scratch *r = &x->chunk.base;
    const int dplr = r->e.x == r->du.x, gates = x->chunk.written.x != NULL;
    const struct block panels[] = {r->gn, r->u, r->e};
    if (gates) {
        fetch_block(ahead, x->chunk.written, (1 + dplr) * rows, h->d);
        fetch_block(ahead, x->chunk.ends, 2 * rows, h->d);
    }
    else {
        fetch_block(ahead, r->ab, 2 * rows, h->d);
    }
    fetch_block(ahead, r->l, rows, rows);
    fetch_block(ahead, r->p, rows, rows);
    for (int i = 0; i < 3 - dplr; i++) {
        fetch_block(ahead, block_at(panels[i], 0, p.col), rows, p.width);
    }
    fetch_to_write((struct block){x->r + p.at, p.width}, h->d, p.width);
    fetch_to_write(block_at(r->du, 0, p.col), rows, p.width);
}

/* dU, N and R. */
static int
carry_delta_gradients(const struct la_head *h, const struct delta_adjoint *first,
                      const struct gated_delta_reverse *stage,
                      const struct delta_memory *memory, enum delta_rule rule)
{
    const struct panel p = panel(h, h->stage.part);
    struct la_fetch ahead = eager_fetch();
    for (ptrdiff_t i = h->chunks->count; p.width > 0 && i-- > 0;) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_adjoint x = delta_adjoint(h->chunks, first, stage, i);
        const struct gated_delta_reverse r = panel_blocks(&x, p, memory->r_lost);
        struct reverse c =
            gated_reverse_chunk(h, &r, adjoint_tokens(h, first, rule, i, NULL));
        la_fetch_anew(&ahead);
        if (i > 0) {
            const struct delta_adjoint next =
                delta_adjoint(h->chunks, first, stage, i - 1);
            fetch_adjoint(h, &next, p, &ahead);
        }
        if (rule == LA_DELTA) {
            delta_values_back(h, &c, p.width, &ahead);
            continue;
        }
        gated_values_back(h, &c, &r, p.width, &ahead);
        c.write.first = 0;
        c.write.end = h->d;
        if (rule == LA_GATED_DELTA && forgets(&r.decay, h->d)) {
            LA_BY_TILES(p.width, reset_tile(&r.decay, &c.write, col, nr * VL,
                                            LA_AFTERWARDS, NULL));
        }
    }
    return 0;
}

static int
finish_adjoint(const struct la_head *h, const struct delta_adjoint *first,
               const struct gated_delta_reverse *stage, enum delta_rule rule)
{
    struct la_fetch ahead = eager_fetch();
    reverse_constants(h, &stage->base, delta_rows(h));
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct delta_adjoint x = delta_adjoint(h->chunks, first, stage, i);
        const struct span t = adjoint_tokens(h, first, rule, i, &ahead);
        struct reverse c = gated_reverse_chunk(h, &x.chunk, t);
        transpose_panels(h, stage->base.rt, x.after);
        if (rule == LA_DELTA) {
            delta_features_back(h, &c, t, x.s);
        }
        else {
            gated_features_back(h, &c, &x.chunk, t, x.s);
        }
    }
    if (ends_head(h)) {
        store_panels(h, field_before(h->chunks, first->r, h->chunks->count), &h->ds0);
    }
    return 0;
}

/* --- both ----------------------------------------------------------------- */

static int
stage_delta_gradient(const struct la_head *h, enum delta_rule rule)
{
    struct arena of_records = {h->chunks->records, 0}, shared = {h->chunks->shared, 0},
                 scratch = {h->scratch, 0};
    struct delta_adjoint first = take_adjoint_of(h, &of_records, rule);
    const struct delta_memory memory = take_memory_of(h, &shared);
    const struct gated_delta_reverse stage = take_gradient_of(h, &scratch, rule);
    const struct delta_results errors = {.scale = stage.base.scale,
                                         .pairs = stage.base.pairs};
    const int reverse = h->chunks->reverse;
    const struct decay_chunk *decays = reverse ? &first.decays : &first.forward.decays;
    first.forward.s = memory.first.s;
    switch (h->stage.kind) {
    case LA_CUT:
        return cut_group(h, &memory.groups, rule == LA_DELTA ? NULL : decays,
                         delta_rows(h));
    case LA_PREPARE:
        return reverse ? prepare_adjoint(h, &first, &stage, &memory, rule)
                       : prepare_delta(h, &first.forward, &errors.pairs);
    case LA_BEGIN:
        return reverse ? begin_adjoint(h, &first, &memory)
                       : begin_errors(h, &first.forward, &memory);
    case LA_CARRY:
        return reverse ? carry_delta_states(h, &first, &memory, rule) ||
                             carry_delta_gradients(h, &first, &stage, &memory, rule)
                       : carry_delta(h, &first.forward, &errors);
    default:
        return reverse ? finish_adjoint(h, &first, &stage, rule)
                       : store_errors(h, &first.forward, &memory);
    }
}

/* One set of functions for each operator (table.h). */
#define LA_DELTA_GRADIENT_STAGES(op, rule)                                             \
    static int stage_##op##_backward(const struct la_head *h)                          \
    {                                                                                  \
        return stage_delta_gradient(h, rule);                                          \
    }                                                                                  \
    static void take_##op##_adjoint(const struct la_head *h, struct arena *arena)      \
    {                                                                                  \
        take_adjoint_of(h, arena, rule);                                               \
    }                                                                                  \
    static void take_##op##_gradient(const struct la_head *h, struct arena *arena)     \
    {                                                                                  \
        take_gradient_of(h, arena, rule);                                              \
    }                                                                                  \
    static void take_##op##_memory(const struct la_head *h, struct arena *arena)       \
    {                                                                                  \
        take_memory_of(h, arena);                                                      \
    }
LA_DELTA_GRADIENT_STAGES(delta, LA_DELTA)
LA_DELTA_GRADIENT_STAGES(gated_delta, LA_GATED_DELTA)
LA_DELTA_GRADIENT_STAGES(dplr, LA_DPLR)
#undef LA_DELTA_GRADIENT_STAGES

#endif
