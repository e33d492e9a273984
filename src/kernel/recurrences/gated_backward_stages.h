/* gated_backward_stages.h: the gradients of gated.h in stages (stages.c).
 *
 * The first pass carries S^T, and keeps it before each group of chunks.  The second one
 * takes the groups in reverse: it carries S^T through the group once more, and R
 * against it. */
#ifndef LA_GATED_BACKWARD_STAGES_H
#define LA_GATED_BACKWARD_STAGES_H

#include "gated_backward.h"
#include "../decays/decay_stages.h"
#include "../decays/groups.h"

/* What all groups share. */
struct gated_memory {
    T *s_lost, *r_lost, *sum, *lost_of_sum; /* du or dD, if given */
    struct groups groups;
};

static ptrdiff_t
gated_gradient_rows(const struct la_head *h)
{
    return gated_backward_rows(h->d);
}

static ptrdiff_t
least_gated_chunks(const struct la_head *h)
{
    return chunks_of_group(h, gated_gradient_rows(h));
}

static struct gated_memory
take_gated_memory(const struct la_head *h, struct arena *arena)
{
    struct gated_memory x;
    x.s_lost = take_state(arena, h->d, h->m);
    x.r_lost = take_state(arena, h->d, h->m);
    x.sum = take(arena, 1, width_of_sum(h));
    x.lost_of_sum = take(arena, 1, width_of_sum(h));
    x.groups = take_groups(h, arena, gated_gradient_rows(h));
    return x;
}

/* The record of a chunk, which is counted from the group's first token on. */
struct gated_adjoint {
    T *s, *r, *next_r;         /* S^T before the chunk; R after it and before it */
    T *keep, *change;          /* of R, (d) */
    T *sum;                    /* what it adds to du or dD */
    struct decay_chunk decays; /* of S^T */
};

static struct gated_adjoint
take_gated_adjoint(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = gated_backward_rows(h->d);
    struct gated_adjoint x;
    x.s = take_state(arena, h->d, h->m);
    x.r = x.next_r = take_state(arena, h->d, h->m);
    x.keep = take_row(arena, h->d);
    x.change = take_row(arena, h->d);
    x.sum = take(arena, 1, width_of_sum(h));
    x.decays = take_decay_chunk(h, arena, rows);
    return x;
}

static struct gated_adjoint
gated_adjoint(const struct la_chunks *of, const struct gated_adjoint *first,
              ptrdiff_t i)
{
    const ptrdiff_t later = of->count - 1 - i;
    return (struct gated_adjoint){
        .s = of->reverse ? in_record(of, first->s, i) : field_before(of, first->s, i),
        .r = field_before(of, first->r, later),
        .next_r = field_before(of, first->r, later + 1),
        .keep = in_record(of, first->keep, i),
        .change = in_record(of, first->change, i),
        .sum = in_record(of, first->sum, i),
        .decays = decay_chunk(of, &first->decays, i),
    };
}

/* The states with which a group begins. */
static int
begin_gated_group(const struct la_head *h, const struct gated_adjoint *first,
                  const struct gated_memory *of_head)
{
    const int reverse = h->chunks->reverse;
    const size_t bytes = (size_t)state_size(h->d, h->m) * sizeof(T);
    const struct groups *groups = &of_head->groups;
    T *const kept = state_of_group(h, groups->states);
    T *const lost = state_of_group(h, groups->losses);
    if (reverse) {
        memcpy(first->s, kept, bytes);
        memcpy(of_head->s_lost, lost, bytes);
    }
    if (begins_head(h) && reverse) {
        load_state(first->r, &h->grad_s, h->d, h->m);
        clear(of_head->r_lost, state_size(h->d, h->m));
        clear(of_head->sum, width_of_sum(h));
        clear(of_head->lost_of_sum, width_of_sum(h));
    }
    if (begins_head(h) && !reverse) {
        const struct la_array s0_transposed = transposed(h->s0);
        load_state(first->s, &s0_transposed, h->m, h->d);
        clear(of_head->s_lost, state_size(h->d, h->m));
    }
    if (!reverse) {
        memcpy(kept, field_before(h->chunks, first->s, 0), bytes);
        memcpy(lost, of_head->s_lost, bytes);
    }
    return 0;
}

/* What the tokens of a chunk add to R, and to du or dD. */
static void
prepare_gated_readers(const struct la_head *h, const struct gated_backward_scratch *r,
                      const struct gated_adjoint *x, struct span t)
{
    const ptrdiff_t row = row_step(h->d), rows = round_up(t.rows, MR);
    const int before = la_is_given(&h->bonus);
    struct sweep c = {.rows = rows,
                      .K = h->d,
                      .W = round_up(h->m, VL),
                      .b = r->far_a,
                      .v = r->c,
                      .ahead = t.ahead,
                      .pairs = r->factors};
    load_gated(h, r, t);
    if (r->parts->noted != NULL) {
        r->parts->noted(h, r, t);
    }
    readers_meet(&r->decay, r->met_a, r->a, t.rows, h->d, before);
    from_start(&r->decay, r->far_a, r->met_a, rows, h->d, before);
    sum_chunk(&c, x->next_r, 1);
    memcpy(x->keep, r->decay.keep, (size_t)row * sizeof(T));
    memcpy(x->change, r->decay.change, (size_t)row * sizeof(T));
    if (r->writes.skip != NULL) {
        load_unscaled(h, &r->writes, t);
    }
    for (ptrdiff_t l = 0; l < width_of_sum(h); l += VL) {
        vstore(&x->sum[l], gradient_sum(h, r, t, l));
    }
}

/* What they add to S^T; s: where it will be after them, or NULL. */
static void
prepare_gated_writers(const struct la_head *h, const struct gated_backward_scratch *r,
                      const struct decay *decay, struct span t, T *s)
{
    struct sweep c = {.rows = t.rows,
                      .K = h->m,
                      .W = round_up(h->d, VL),
                      .b = r->v,
                      .v = r->b,
                      .ahead = t.ahead,
                      .pairs = r->factors};
    load_decay_ends(h, t, decay);
    given_to_end(decay, r->b, t.rows, h->d);
    if (s != NULL) {
        sum_chunk(&c, s, 1);
    }
}

static int
prepare_gated_backward(const struct la_head *h, const struct gated_backward_scratch *r,
                       const struct gated_adjoint *first)
{
    const int reverse = h->chunks->reverse;
    struct la_fetch ahead = eager_fetch();
    gated_constants(h, r);
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct gated_adjoint x = gated_adjoint(h->chunks, first, i);
        const struct span t = tokens_of(&x.decays, &ahead);
        if (reverse) {
            prepare_gated_readers(h, r, &x, t);
        }
        else {
            r->parts->keys(h, r, t);
        }
        prepare_gated_writers(h, r, &x.decays.decay, t,
                              reverse && i + 1 == h->chunks->count
                                  ? NULL
                                  : field_before(h->chunks, first->s, i + 1));
        fetch_all(&ahead);
    }
    return 0;
}

/* S^T; in reverse only before the chunks of the group. */
static int
carry_gated_states(const struct la_head *h, const struct gated_adjoint *first,
                   const struct gated_memory *of_head, T *copy)
{
    struct sweep c = {.K = h->m, .W = round_up(h->d, VL), .transposed = 1};
    struct gated_adjoint x = gated_adjoint(h->chunks, first, 0);
    compensate_state(&c, h, of_head->s_lost, gated_backward_rows(h->d));
    for (ptrdiff_t i = 0; i + h->chunks->reverse < h->chunks->count; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct gated_adjoint next = gated_adjoint(h->chunks, first, i + 1);
        c.from = x.s;
        c.s = next.s;
        fetch_sums(c, h, later_sums(h->chunks, first->s, i + 1));
        carry_by(&x.decays.decay, &c, h,
                 la_is_given(&h->bonus) ? LA_KEEP_READ : LA_IN_PLACE, copy);
        x = next;
    }
    return 0;
}

/* R, and du or dD. */
static int
carry_gated_gradients(const struct la_head *h, const struct gated_adjoint *first,
                      const struct gated_memory *of_head, T *copy)
{
    struct sweep c = {.K = h->d, .W = round_up(h->m, VL)};
    compensate_state(&c, h, of_head->r_lost, gated_backward_rows(h->d));
    for (ptrdiff_t i = h->chunks->count; i-- > 0;) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct gated_adjoint x = gated_adjoint(h->chunks, first, i);
        struct decay decay = x.decays.decay;
        decay.keep = x.keep;
        decay.change = x.change;
        c.from = x.r;
        c.s = x.next_r;
        fetch_sums(c, h, later_sums(h->chunks, first->r, h->chunks->count - i));
        carry_by(&decay, &c, h, la_is_given(&h->bonus) ? LA_KEEP_READ : LA_AFTERWARDS,
                 copy);
        if (h->stage.part == 0) {
            add_row(of_head->sum, of_head->lost_of_sum, x.sum, width_of_sum(h));
        }
    }
    return 0;
}

static int
carry_gated_backward(const struct la_head *h, const struct gated_backward_scratch *r,
                     const struct gated_adjoint *first,
                     const struct gated_memory *of_head)
{
    return carry_gated_states(h, first, of_head, r->rt) ||
           (h->chunks->reverse && carry_gated_gradients(h, first, of_head, r->rt));
}

/* Notes what makes the cotangents of normalized outputs, with the state before the
 * tokens at hand: the second pass needs them before it has that. */
static void
note_gated_cotangents(const struct la_head *h, const struct gated_backward_scratch *r,
                      struct span t, T *s)
{
    load_gated(h, r, t);
    gated_scores(h, r, t);
    gated_reader_products(h, r, s, t);
    r->parts->note(h, r, t, s);
}

static int
finish_gated_chunks(const struct la_head *h, const struct gated_backward_scratch *r,
                    const struct gated_adjoint *first)
{
    struct la_fetch ahead = eager_fetch();
    gated_constants(h, r);
    for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct gated_adjoint x = gated_adjoint(h->chunks, first, i);
        const struct span t = tokens_of(&x.decays, &ahead);
        if (h->chunks->reverse) {
            struct sweep dv = gated_value_sweep(h, r, x.r);
            gated_reverse(h, r, &dv, t, x.s, LA_READ);
        }
        else {
            note_gated_cotangents(h, r, t, x.s);
        }
    }
    return 0;
}

static int
finish_gated_backward(const struct la_head *h, const struct gated_backward_scratch *r,
                      const struct gated_adjoint *first,
                      const struct gated_memory *of_head)
{
    const struct la_chunks *x = h->chunks;
    if ((x->reverse || h->normalize) && finish_gated_chunks(h, r, first)) {
        return 1;
    }
    if (ends_head(h) && x->reverse) {
        store_state(&h->ds0, field_before(x, first->r, x->count), h->d, h->m);
        store_gradient_sum(h, of_head->sum);
    }
    else if (ends_head(h) && r->parts->last != NULL) {
        load_state(r->rt, &h->grad_s, h->d, h->m);
        r->parts->last(h, r, field_before(x, first->s, x->count), r->rt);
    }
    return 0;
}

/* One stage, with scratch that has been taken. */
static int
gated_backward_stage(const struct la_head *h, const struct gated_backward_scratch *r)
{
    struct arena of_records = {h->chunks->records, 0}, shared = {h->chunks->shared, 0};
    const struct gated_adjoint first = take_gated_adjoint(h, &of_records);
    const struct gated_memory of_head = take_gated_memory(h, &shared);
    switch (h->stage.kind) {
    case LA_CUT:
        return cut_group(h, &of_head.groups, &first.decays, gated_backward_rows(h->d));
    case LA_PREPARE:
        return prepare_gated_backward(h, r, &first);
    case LA_BEGIN:
        return begin_gated_group(h, &first, &of_head);
    case LA_CARRY:
        return carry_gated_backward(h, r, &first, &of_head);
    default:
        return finish_gated_backward(h, r, &first, &of_head);
    }
}

static int
stage_gated_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct gated_backward_scratch r = take_gated_gradient(h, &arena);
    return gated_backward_stage(h, &r);
}

#endif
