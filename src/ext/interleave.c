/* interleave.c: interleaves the computation of heads whose rows are interleaved in
 * memory, as in views of (batch, tokens, heads, d): one slice of tokens of each head in
 * turn.
 *
 * Computed one head at a time, such a call reads, for example, 256 bytes of every 2 KiB
 * and returns for the next 256 after the caches have dropped them: a third slower than
 * contiguous heads.  By slices, memory is read in order, and the rows of all heads in a
 * slice are prefetched together.  Each head keeps its state in its own scratch and
 * computes the same operations in the same order, so no bit changes. */
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

/* Queues the rows of all heads in the slice from token `first` on for prefetching. */
static void
queue_rows(const struct job *job, struct la_head *h, ptrdiff_t heads, ptrdiff_t first,
           struct la_fetch *ahead)
{
    const struct la_call *call = job->call;
    const ptrdiff_t left = h->n - first,
                    rows = left < LA_INTERLEAVE_ROWS ? left : LA_INTERLEAVE_ROWS;
    la_fetch_anew(ahead);
    for (int i = 0; i < call->signature->nin + call->signature->nout; i++) {
        const struct la_slot *slot = &call->signature->slots[i];
        if (slot->dims[0] != 'n') {
            continue;
        }
        const struct la_array *x = la_array_of(h, slot->id);
        const ptrdiff_t next = call->x[i].outer[call->axes - 1];
        const ptrdiff_t cols =
            slot->rank < 2 ? 1 : la_job_dimension(call, slot->dims[1], 1);
        la_fetch_later(ahead, x->data + first * x->rs, x->rs,
                       (heads - 1) * next + cols * x->cs, rows);
    }
}

/* Computes one head up to token `to`, if it has tokens left or has none at all. */
static int
run_tokens(struct job *job, struct interleaved *x, ptrdiff_t to, int lane)
{
    const int first = to == LA_INTERLEAVE_ROWS;
    if (!first && x->interleave.at >= x->head.n) {
        return 0;
    }
    x->interleave.to = to < x->head.n ? to : x->head.n;
    return la_job_compute(job, &x->head, lane);
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
    struct la_fetch ahead = {.far = 1};
    struct interleaved heads_now[LA_INTERLEAVE_HEADS];
    /* At least one slice: without tokens, states are still passed through. */
    ptrdiff_t longest = 1;
    for (ptrdiff_t i = 0; i < heads; i++) {
        struct la_head *h = &heads_now[i].head;
        *h = la_job_head(job, (struct piece){first + i, 0, 0, 0});
        h->group = 1;
        h->interleave = &heads_now[i].interleave;
        heads_now[i].interleave =
            (struct la_interleave){.index = (int)i, .ahead = &ahead};
        longest = h->n > longest ? h->n : longest;
    }
    for (ptrdiff_t to = LA_INTERLEAVE_ROWS; to < longest + LA_INTERLEAVE_ROWS;
         to += LA_INTERLEAVE_ROWS) {
        queue_rows(job, &heads_now->head, heads, to, &ahead);
        for (ptrdiff_t i = 0; i < heads; i++) {
            if (run_tokens(job, &heads_now[i], to, lane)) {
                return 1;
            }
        }
    }
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
