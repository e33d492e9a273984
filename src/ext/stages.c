/* stages.c: computes a few long sequences in stages that all threads share, if there
 * are several times as many threads (split.c).  With fewer threads, panels are about
 * as fast where there are any: stages write and read the state of every chunk.
 *
 * A sequence is computed in groups of consecutive chunks.  Of each group, threads first
 * prepare what depends on the tokens alone, some chunks each; then carry the state from
 * chunk to chunk, some rows or columns each; then finish the results, some chunks each.
 * Nothing is computed twice, and every number is summed in the same order as by a
 * single thread.  Gradients take a second pass over the groups, in reverse.
 *
 * Threads meet twice per group: while they carry the state, one of them cuts the next
 * group into chunks, and while some finish a group, others prepare the next. */
#include <stdatomic.h>
#include <stdlib.h>

#include "job.h"

/* A sequence, with the group that is computed and the one before or after it. */
struct sequence {
    struct la_chunks chunks[2];
};

/* The sequences of all heads, and what is run. */
struct la_staged {
    struct sequence *sequences;
    size_t count;         /* of sequences */
    size_t shares, parts; /* of a group's chunks; of its states */
    int now;              /* index of the group that is computed */
    int reverse;          /* whether this is the second pass */
};

static _Atomic ptrdiff_t forced_chunks;

ptrdiff_t
la_stages_force(ptrdiff_t chunks)
{
    return atomic_exchange(&forced_chunks, chunks < 0 ? 0 : chunks);
}

static ptrdiff_t
forced(void)
{
    return atomic_load_explicit(&forced_chunks, memory_order_relaxed);
}

int
la_is_staged(const struct job *job, size_t units, double work, int threads)
{
    if (job->table->stages[job->call->signature->op].run == NULL ||
        job->by_id[LA_AT_block] != NULL) {
        return 0;
    }
    const size_t each =
        job->properties & LA_PANELS ? LA_STAGED_THREADS : LA_STAGED_ALONE;
    return forced() > 0 || (each * units <= (size_t)threads && work >= LA_STAGED_WORK);
}

int
la_stages_may_not_fit(const struct job *job)
{
    return job->table->stages[job->call->signature->op].passes > 1;
}

/* The head of a sequence. */
static struct la_head
head_of(const struct job *job, size_t sequence)
{
    return la_job_head(job, la_job_unit(job, (ptrdiff_t)(job->first + sequence)));
}

/* Cuts the group after the current one; an empty sequence is computed at once. */
static int
cut(struct job *job, size_t sequence, int lane)
{
    struct la_chunks *chunks = job->staged->sequences[sequence].chunks;
    struct la_chunks *before = &chunks[job->staged->now],
                     *x = &chunks[!job->staged->now];
    struct la_head h = head_of(job, sequence);
    const int is_first = before->next < 0, reverse = job->staged->reverse;
    x->count = 0;
    x->at = x->next = !is_first ? before->next : reverse ? h.n : 0;
    x->before = is_first ? NULL : before;
    x->reverse = reverse;
    if (h.n == 0) {
        return is_first && !reverse && la_job_compute(job, &h, lane);
    }
    h.chunks = x;
    h.stage.kind = LA_CUT;
    return la_job_compute(job, &h, lane);
}

/* One share of a stage of group `index` of a sequence. */
static int
run_share(struct job *job, enum la_stage_kind kind, int index, size_t item, int lane)
{
    const struct la_staged *x = job->staged;
    const size_t shares = kind == LA_CARRY ? x->parts : x->shares,
                 share = item % shares;
    struct la_chunks *chunks = &x->sequences[item / shares].chunks[index];
    const size_t count = (size_t)chunks->count;
    const size_t from = count * share / shares, to = count * (share + 1) / shares;
    if (count == 0 || (kind != LA_CARRY && from == to)) {
        return 0;
    }
    struct la_head h = head_of(job, item / shares);
    h.chunks = chunks;
    h.stage = (struct la_stage){kind, (ptrdiff_t)from, (ptrdiff_t)to, (ptrdiff_t)share};
    return la_job_compute(job, &h, lane);
}

/* Carries the states of the current groups, and cuts the next ones. */
static int
carry_and_cut(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const size_t cuts = job->staged->count;
    return item < cuts ? cut(job, item, lane)
                       : run_share(job, LA_CARRY, job->staged->now, item - cuts, lane);
}

/* Finishes the current groups, and prepares the next ones. */
static int
finish_and_prepare(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const size_t finishes = job->staged->count * job->staged->shares;
    return item < finishes
               ? run_share(job, LA_FINISH, job->staged->now, item, lane)
               : run_share(job, LA_PREPARE, !job->staged->now, item - finishes, lane);
}

/* Whether no sequence has a further group. */
static int
is_finished(const struct la_staged *x)
{
    for (size_t i = 0; i < x->count; i++) {
        if (x->sequences[i].chunks[x->now].count > 0) {
            return 0;
        }
    }
    return 1;
}

/* The first groups are cut and prepared beside empty ones, which end before the first
 * token. */
static enum la_status
run_pass(struct job *job, size_t bytes, int threads)
{
    struct la_staged *x = job->staged;
    enum la_status status;
    for (size_t i = 0; i < x->count; i++) {
        x->sequences[i].chunks[x->now].count = 0;
        x->sequences[i].chunks[x->now].next = -1;
    }
    do {
        status = la_job_run(job, job->kernel, carry_and_cut, bytes,
                            x->count * (1 + x->parts), threads);
        if (status == LA_DONE) {
            status = la_job_run(job, job->kernel, finish_and_prepare, bytes,
                                2 * x->count * x->shares, threads);
        }
        x->now = !x->now;
    } while (status == LA_DONE && !is_finished(x));
    return status;
}

/* Whether a sequence has more chunks than were expected: then the pass has ended early.
 * It has written no result, but maybe to dV (delta_backward.h). */
static int
overflows(const struct la_staged *x)
{
    int any = 0;
    for (size_t i = 0; i < x->count; i++) {
        any |=
            x->sequences[i].chunks[0].overflows | x->sequences[i].chunks[1].overflows;
    }
    return any;
}

/* Sets *fits to 0 if the first pass shows that there are too many chunks. */
static enum la_status
run_passes(struct job *job, size_t bytes, int threads, int *fits)
{
    const int passes = job->table->stages[job->call->signature->op].passes;
    enum la_status status = run_pass(job, bytes, threads);
    *fits = !overflows(job->staged);
    if (status == LA_DONE && *fits && passes > 1) {
        job->staged->reverse = 1;
        status = run_pass(job, bytes, threads);
    }
    return status;
}

/* Chunks per group: as many as fit the caches of all threads.  Gradients gain from
 * more, as their threads meet in both passes. */
static ptrdiff_t
chunks_per_group(const struct job *job, size_t record, size_t sequences, int threads)
{
    const struct la_stages *stages = &job->table->stages[job->call->signature->op];
    const size_t passes = (size_t)stages->passes;
    const size_t room = passes * LA_GROUP_BYTES * (size_t)threads / sequences;
    const ptrdiff_t fit = (ptrdiff_t)(room / (record > 0 ? record : 1));
    const ptrdiff_t even = LA_EVEN_PIECES * threads, n = job->head.n,
                    least = stages->least != NULL ? stages->least(&job->head) : 1;
    ptrdiff_t wanted = fit < even ? even : fit;
    wanted = wanted < least ? least : wanted;
    return forced() > 0 ? forced() : wanted < n ? wanted : n;
}

/* Memory of all sequences: what their groups share, and the records of two groups. */
static struct la_scratch
take_records(const struct job *job, struct la_staged *x, int threads)
{
    const struct la_stages *stages = &job->table->stages[job->call->signature->op];
    const size_t record = stages->record(&job->head);
    const ptrdiff_t most = chunks_per_group(job, record, x->count, threads);
    struct la_chunks group = {.most = most};
    struct la_head h = job->head;
    h.chunks = &group;
    const size_t shared = stages->shared(&h);
    size_t records, bytes;
    struct la_scratch memory = {0};
    if (__builtin_mul_overflow(record, (size_t)most + 1, &records) ||
        __builtin_mul_overflow(records, 2, &bytes) ||
        __builtin_add_overflow(bytes, shared, &bytes)) {
        return memory;
    }
    memory = la_scratch_take(bytes, (int)x->count, NULL);
    for (size_t i = 0; memory.memory != NULL && i < 2 * x->count; i++) {
        char *at = memory.memory + i / 2 * memory.lane;
        x->sequences[i / 2].chunks[i % 2] =
            (struct la_chunks){.shared = at,
                               .records = at + shared + i % 2 * records,
                               .record = record,
                               .parts = (ptrdiff_t)x->parts,
                               .most = most};
    }
    return memory;
}

/* The bytes of scratch of a stage, and of a sequence without tokens. */
static size_t
measure(const struct job *job)
{
    struct la_head h = job->head;
    const size_t staged = job->table->stages[job->call->signature->op].scratch(&h);
    h.n = 0;
    h.group = job->group;
    const size_t empty = job->kernel->scratch(&h);
    return staged > empty ? staged : empty;
}

enum la_status
la_run_staged(struct job *job, size_t units, int threads, int *fits)
{
    const size_t bytes = measure(job);
    const size_t per_sequence = ((size_t)threads + units - 1) / units;
    struct la_staged x = {
        .sequences = calloc(units, sizeof(*x.sequences)),
        .count = units,
        .parts = per_sequence,
        .shares = LA_STAGE_SHARES * per_sequence,
    };
    struct la_scratch records = {0};
    enum la_status status = LA_NO_MEMORY;
    job->staged = &x;
    /* Reserve first: without memory, nothing is written. */
    if (x.sequences != NULL && la_job_reserve(job, bytes, threads) == 0) {
        records = take_records(job, &x, threads);
    }
    if (records.memory != NULL) {
        la_scratch_prepare(&records);
        status = run_passes(job, bytes, threads, fits);
        status = la_scratch_overrun(&records) ? LA_OVERRUN : status;
    }
    la_scratch_give(&records);
    free(x.sequences);
    return status;
}
