/* delta_adjoint.h: what the gradients of the delta rules keep of a group of chunks, and
 * of a head, while they are computed in stages (delta_backward_stages.h). */
#ifndef LA_DELTA_ADJOINT_H
#define LA_DELTA_ADJOINT_H

#include "delta_backward.h"
#include "delta_stages.h"
#include "gated_delta_backward.h"
#include "../decays/groups.h"

/* What all groups share. */
struct delta_memory {
    struct delta_shared first; /* S, in the first pass */
    T *s_lost, *r_lost;        /* what S^T and R have lost, in the second */
    struct groups groups;
    struct la_array errors; /* E or U, (n,m) */
};

static ptrdiff_t
least_delta_chunks(const struct la_head *h)
{
    return chunks_of_group(h, delta_rows(h));
}

static struct delta_memory
take_memory_of(const struct la_head *h, struct arena *arena)
{
    struct delta_memory x;
    x.first = take_delta_shared(h, arena); /* where delta_stages.h expects it */
    x.s_lost = take_state(arena, h->d, h->m);
    x.r_lost = take_state(arena, h->d, h->m);
    x.groups = take_groups(h, arena, delta_rows(h));
    x.errors = take_errors(h, arena);
    return x;
}

/* The record of a chunk, which is counted from the group's first token on: that of the
 * first pass, and in its place that of the second. */
struct delta_adjoint {
    struct delta_record forward;
    T *s, *after, *r; /* S^T before the chunk; R after it and before it, by panels */
    struct gated_delta_reverse chunk;
    struct decay_chunk decays;
};

static struct delta_adjoint
take_adjoint_of(const struct la_head *h, struct arena *arena, enum delta_rule rule)
{
    const ptrdiff_t rows = delta_rows(h);
    const int dplr = rule == LA_DPLR;
    struct arena second = *arena;
    struct delta_adjoint x = {.forward = take_record_of(h, arena, rule, 0)};
    if (!dplr) {
        x.forward.errors = take_block(arena, rows, h->m);
    }
    x.s = take_state(&second, h->d, h->m);
    x.after = x.r = take_state(&second, h->d, h->m);
    if (rule == LA_DELTA) {
        take_reverse_record(h, rows, &second, 0, &x.chunk.base);
    }
    else {
        x.decays = take_decay_chunk(h, &second, rows);
        x.chunk = take_gated_reverse_record(h, rows, &second, dplr, x.decays.decay);
    }
    arena->used = arena->used < second.used ? second.used : arena->used;
    return x;
}

/* What a stage of the second pass computes with. */
static struct gated_delta_reverse
take_gradient_of(const struct la_head *h, struct arena *arena, enum delta_rule rule)
{
    const ptrdiff_t rows = delta_rows(h);
    struct gated_delta_reverse r = {.dplr = rule == LA_DPLR};
    if (rule == LA_DELTA) {
        take_reverse_tiles(h, rows, arena, 0, &r.base);
    }
    else {
        take_gated_reverse_tiles(h, rows, arena, &r);
    }
    return r;
}

/* The blocks of chunk i that its record keeps, and those of a stage. */
static struct gated_delta_reverse
adjoint_blocks(const struct la_chunks *of, const struct gated_delta_reverse *first,
               const struct gated_delta_reverse *stage, ptrdiff_t i)
{
    struct gated_delta_reverse r = *stage;
    struct reverse_scratch *x = &r.base;
    const struct reverse_scratch *y = &first->base;
    const struct {
        struct block *to, from;
    } kept[] = {
        {&x->ab, y->ab},
        {&x->gn, y->gn},
        {&x->u, y->u},
        {&x->e, y->e},
        {&x->du, y->du},
        {&x->l, y->l},
        {&x->p, y->p},
        {&x->dv, y->dv},
        {&x->dbeta, y->dbeta},
        {&x->beta.rows, y->beta.rows},
        {&r.ends, first->ends},
        {&r.b, first->b},
        {&r.written, first->written},
        {&r.lk, first->lk},
        {&r.pk, first->pk},
    };
    for (size_t k = 0; k < sizeof(kept) / sizeof(kept[0]); k++) {
        *kept[k].to = block_in_record(of, kept[k].from, i);
    }
    x->beta.step = y->beta.step;
    r.decay = decay_in_record(of, &first->decay, i);
    return r;
}

static struct delta_adjoint
delta_adjoint(const struct la_chunks *of, const struct delta_adjoint *first,
              const struct gated_delta_reverse *stage, ptrdiff_t i)
{
    const ptrdiff_t later = of->count - 1 - i;
    return (struct delta_adjoint){
        .s = in_record(of, first->s, i),
        .after = field_before(of, first->after, later),
        .r = field_before(of, first->r, later + 1),
        .chunk = adjoint_blocks(of, &first->chunk, stage, i),
    };
}

/* The tokens of chunk i. */
static struct span
adjoint_tokens(const struct la_head *h, const struct delta_adjoint *first,
               enum delta_rule rule, ptrdiff_t i, struct la_fetch *ahead)
{
    const ptrdiff_t rows = delta_rows(h), begin = h->chunks->next + i * rows;
    if (rule == LA_DELTA) {
        return span(begin, rows, begin + rows, h->n, ahead);
    }
    const struct decay_chunk x = {
        .tokens = (ptrdiff_t *)in_record(h->chunks, (T *)first->decays.tokens, i)};
    return tokens_of(&x, ahead);
}

#endif
