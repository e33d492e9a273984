/* interleave.c: interleaves the computation of heads whose rows are interleaved in
 * memory, as in views of (batch, tokens, heads, d): one slice of tokens of each head in
 * turn.
 *
 * Computed one head at a time, such a call reads, for example, 256 bytes of every 2 KiB
 * and returns for the next 256 after the caches have dropped them: a third slower than
 * contiguous heads.  By slices, memory is read in order: each head prefetches its share
 * of the rows of all, for their next slices.  The slices before those would evict these
 * rows from the first-level cache, so they go to the second-level one alone, unless the
 * heads' scratch fills that; those of gradients always do, as their slices take longer.
 * A head keeps its state in its own scratch and computes the same operations in the
 * same order, so no bit changes. */
#include "../kernel/vectors/fetch.h"
#include "job.h"

/* A head and its progress. */
struct interleaved {
    struct la_head head;
    struct la_interleave interleave;
};

static ptrdiff_t
distance(ptrdiff_t step)
{
    return step < 0 ? -step : step;
}

/* Whether the rows of the heads of the last axis are interleaved, short, and spread
 * over more memory than a cache holds. */
static int
is_interleaved(const struct job *job)
{
    const struct la_call *call = job->call;
    const struct la_signature *signature = call->signature;
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const struct la_slot *slot = &signature->slots[i];
        if (slot->rank != 2 || slot->dims[0] != 'n') {
            continue;
        }
        const ptrdiff_t *const core = call->x[i].core;
        const ptrdiff_t cols = la_job_dimension(call, slot->dims[1], 1);
        const ptrdiff_t row = distance(core[0]), width = distance(core[1]) * cols;
        const ptrdiff_t head = distance(call->x[i].outer[call->axes - 1]);
        if (head == 0 || head >= row || width > LA_INTERLEAVE_WIDTH ||
            row < LA_INTERLEAVE_FAR / job->head.n) {
            return 0;
        }
    }
    return 1;
}

ptrdiff_t
la_interleaved_heads(const struct job *job, int threads)
{
    const ptrdiff_t others = job->heads / job->last;
    const ptrdiff_t parts = (threads + others - 1) / others;
    const ptrdiff_t heads = (job->last + parts - 1) / parts;
    const int whole = job->group == 1 && job->panels == 1 && job->parts == 1 &&
                      job->sequences == 1 && job->head.n > 0 &&
                      job->by_id[LA_AT_block] == NULL;
    if (!(job->properties & LA_INTERLEAVE) || !whole || heads == 1 ||
        !is_interleaved(job)) {
        return 1;
    }
    return heads < LA_INTERLEAVE_HEADS ? heads : LA_INTERLEAVE_HEADS;
}

/* Computes the next slice of a head, if there is one.  A chunk that has begun in the
 * last slice may have gone past it.  A pass without tokens is a slice, too: states are
 * passed through. */
static int
run_slice(struct job *job, struct interleaved *x, int lane)
{
    struct la_interleave *slice = &x->interleave;
    slice->to += LA_INTERLEAVE_ROWS;
    return !slice->done && slice->at < slice->to && la_job_compute(job, &x->head, lane);
}

/* Computes some heads of the last axis: item = (head / last) * groups + group. */
static int
run_interleaved(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const ptrdiff_t group = (ptrdiff_t)item % job->groups * job->group;
    const ptrdiff_t first = (ptrdiff_t)item / job->groups * job->last + group;
    const ptrdiff_t left = job->last - group;
    const ptrdiff_t heads = left < job->group ? left : job->group;
    const size_t held = (size_t)heads * job->scratch.bytes;
    const int gradient = job->by_id[LA_AT_grad_out] != NULL;
    struct la_fetch ahead = {.heads = heads,
                             .second = gradient || held <= LA_INTERLEAVE_SCRATCH};
    struct interleaved heads_now[LA_INTERLEAVE_HEADS];
    for (ptrdiff_t i = 0; i < heads; i++) {
        struct la_head *h = &heads_now[i].head;
        *h = la_job_head(job, (struct piece){first + i, 0, 0, 0});
        h->group = 1;
        h->interleave = &heads_now[i].interleave;
        heads_now[i].interleave = (struct la_interleave){.ahead = &ahead};
    }
    int goes_on;
    do {
        goes_on = 0;
        for (ptrdiff_t i = 0; i < heads; i++) {
            ahead.head = i;
            if (run_slice(job, &heads_now[i], lane)) {
                return 1;
            }
            goes_on |= !heads_now[i].interleave.done;
        }
    } while (goes_on);
    return 0;
}

enum la_status
la_run_interleaved(struct job *job, ptrdiff_t heads, size_t bytes, int threads)
{
    job->group = heads;
    job->groups = (job->last + job->group - 1) / job->group;
    job->interleaved = (int)job->group;
    return la_job_run(job, job->kernel, run_interleaved, bytes,
                      (size_t)(job->heads / job->last * job->groups), threads);
}
