/* noncausal_stages.h: non-causal attention and its gradients in stages (stages.c),
 * which take runs of chunks (token_sum.h) for chunks.
 *
 * A pass over the keys sums S and z; one over the queries computes their outputs, or dq
 * while it sums R; another one over the keys dk and dv. */
#ifndef LA_NONCAUSAL_STAGES_H
#define LA_NONCAUSAL_STAGES_H

#include "noncausal_backward.h"
#include "../tiles/stages.h"

/* The record of a run: the sum of all before it, and that of its own for z. */
struct noncausal_run {
    T *s, *z, *own;
};

/* What all runs share: what the sum of the pass has lost; sums of passes before. */
struct noncausal_sums {
    T *lost, *z_lost;
    T *s, *z; /* S and z; then R and the sum of w_i a_i */
    T *t;     /* of a gradient: S^T, then R^T */
};

static ptrdiff_t
noncausal_run_tokens(const struct la_head *h)
{
    return tokens_of_run(noncausal_rows(h->d));
}

static struct noncausal_run
take_noncausal_run(const struct la_head *h, struct arena *arena)
{
    struct noncausal_run x;
    x.s = take_state(arena, h->d, h->m);
    x.z = take_row(arena, h->d);
    x.own = take_row(arena, h->d);
    return x;
}

static struct noncausal_sums
take_noncausal_sums(const struct la_head *h, struct arena *arena)
{
    struct noncausal_sums x;
    x.lost = take_state(arena, h->d, h->m);
    x.z_lost = take_row(arena, h->d);
    x.s = take_state(arena, h->d, h->m);
    x.z = take_row(arena, h->d);
    x.t = la_is_given(&h->grad_out) ? take_state(arena, h->m, h->d) : NULL;
    return x;
}

static struct noncausal_run
noncausal_run(const struct la_chunks *of, const struct noncausal_run *first,
              ptrdiff_t i)
{
    return (struct noncausal_run){
        .s = field_before(of, first->s, i),
        .z = field_before(of, first->z, i),
        .own = in_record(of, first->own, i),
    };
}

/* The sum of run i alone. */
static struct token_sum
sum_of_run(const struct la_head *h, const struct noncausal_run *first, ptrdiff_t i)
{
    return (struct token_sum){.rows = noncausal_rows(h->d),
                              .run = field_before(h->chunks, first->s, i + 1),
                              .z_run = in_record(h->chunks, first->own, i)};
}

/* No tokens so far. */
static int
begin_noncausal(const struct la_head *h, const struct noncausal_run *first,
                const struct noncausal_sums *of_head)
{
    const struct token_sum sum = {.rows = noncausal_rows(h->d),
                                  .s = first->s,
                                  .lost = of_head->lost,
                                  .z = first->z,
                                  .z_lost = of_head->z_lost};
    if (begins_head(h)) {
        clear_token_sum(h, &sum, h->n);
    }
    return 0;
}

/* The sum of all runs up to each. */
static int
carry_noncausal(const struct la_head *h, const struct noncausal_run *first,
                const struct noncausal_sums *of_head)
{
    const ptrdiff_t rows = noncausal_rows(h->d);
    struct sweep c = {.K = h->d,
                      .W = round_up(h->m, VL),
                      .lost = lost_if_long(h, of_head->lost, h->n, rows)};
    struct noncausal_run x = noncausal_run(h->chunks, first, 0);
    for (ptrdiff_t i = 0; i < h->chunks->count; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct noncausal_run next = noncausal_run(h->chunks, first, i + 1);
        c.from = x.s;
        c.s = next.s;
        fetch_sums(c, h, later_sums(h->chunks, first->s, i + 1));
        carry_state(&c, h);
        if (h->stage.part == 0) {
            carry_vector(next.z, x.z, of_head->z_lost, x.own, row_step(h->d));
        }
        x = next;
    }
    return 0;
}

/* S and z where further passes read them, or R and its vector, and S^T or R^T, once all
 * runs are summed. */
static void
keep_sums(const struct la_head *h, const struct noncausal_run *first,
          const struct noncausal_sums *of_head)
{
    const struct noncausal_run all = noncausal_run(h->chunks, first, h->chunks->count);
    memcpy(of_head->s, all.s, (size_t)state_size(h->d, h->m) * sizeof(T));
    memcpy(of_head->z, all.z, (size_t)row_step(h->d) * sizeof(T));
    if (of_head->t != NULL) {
        transpose_state(of_head->t, of_head->s, h->d, h->m);
    }
}

/* --- the passes ------------------------------------------------------------------ */

/* What a stage works with. */
struct noncausal_stage {
    struct noncausal_backward_scratch scratch;
    struct noncausal_run first;
    struct noncausal_sums sums;
    struct la_fetch ahead;
};

/* Computes the tokens [from, to) of a pass, those of run i. */
typedef int noncausal_pass(const struct la_head *h, struct noncausal_stage *x,
                           ptrdiff_t i, ptrdiff_t from, ptrdiff_t to);

static int
sum_key_run(const struct la_head *h, struct noncausal_stage *x, ptrdiff_t i,
            ptrdiff_t from, ptrdiff_t to)
{
    const struct token_sum sum = sum_of_run(h, &x->first, i);
    return sum_some_keys(h, &x->scratch.forward, &sum, &x->ahead, from, to) < 0;
}

static int
output_run(const struct la_head *h, struct noncausal_stage *x, ptrdiff_t i,
           ptrdiff_t from, ptrdiff_t to)
{
    (void)i;
    return noncausal_some_outputs(h, &x->scratch.forward, x->sums.s, x->sums.z,
                                  &x->ahead, from, to) < 0;
}

static int
dq_run(const struct la_head *h, struct noncausal_stage *x, ptrdiff_t i, ptrdiff_t from,
       ptrdiff_t to)
{
    const struct token_sum sum = sum_of_run(h, &x->first, i);
    return noncausal_some_dq(h, &x->scratch, &sum, x->sums.t, x->sums.z, &x->ahead,
                             from, to) < 0;
}

static int
dkv_run(const struct la_head *h, struct noncausal_stage *x, ptrdiff_t i, ptrdiff_t from,
        ptrdiff_t to)
{
    (void)i;
    return noncausal_some_dkv(h, &x->scratch, x->sums.s, x->sums.t, x->sums.z,
                              &x->ahead, from, to) < 0;
}

/* A stage of a pass over so many tokens; `sums`: whether it sums them. */
static int
noncausal_stage(const struct la_head *h, struct noncausal_stage *x, ptrdiff_t tokens,
                noncausal_pass *run, int sums)
{
    const ptrdiff_t rows = noncausal_run_tokens(h);
    struct la_head one = *h;
    struct arena records = {h->chunks->records, 0}, shared = {h->chunks->shared, 0};
    x->first = take_noncausal_run(h, &records);
    x->sums = take_noncausal_sums(h, &shared);
    x->ahead = eager_fetch();
    one.n = tokens;
    switch (h->stage.kind) {
    case LA_CUT:
        if (sums && tokens == 0) { /* nothing follows in this pass */
            clear(x->sums.s, state_size(h->d, h->m));
            clear(x->sums.z, row_step(h->d));
        }
        if (sums && tokens == 0 && x->sums.t != NULL) {
            clear(x->sums.t, state_size(h->m, h->d));
        }
        return cut_evenly(&one, rows);
    case LA_PREPARE:
        for (ptrdiff_t i = h->stage.from; i < h->stage.to; i++) {
            const struct span t = span_of(&one, i, rows, NULL);
            if (run(h, x, i, t.first, t.first + t.rows)) {
                return 1;
            }
            fetch_all(&x->ahead);
        }
        return 0;
    case LA_BEGIN:
        return sums ? begin_noncausal(&one, &x->first, &x->sums) : 0;
    case LA_CARRY:
        return sums ? carry_noncausal(&one, &x->first, &x->sums) : 0;
    default:
        if (sums && ends_head(&one)) {
            keep_sums(h, &x->first, &x->sums);
        }
        return 0;
    }
}

static int
stage_noncausal(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct noncausal_stage x = {.scratch.forward = noncausal_carve(h, &arena)};
    return h->chunks->pass == 0 ? noncausal_stage(h, &x, h->keys, sum_key_run, 1)
                                : noncausal_stage(h, &x, h->n, output_run, 0);
}

static int
stage_noncausal_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct noncausal_stage x = {.scratch = noncausal_backward_carve(h, &arena)};
    switch (h->chunks->pass) {
    case 0:
        return noncausal_stage(h, &x, h->keys, sum_key_run, 1);
    case 1:
        return noncausal_stage(h, &x, h->n, dq_run, 1);
    default:
        return noncausal_stage(h, &x, h->s, dkv_run, 0);
    }
}

#endif
