/* stages.c: computes a few long sequences in stages that all threads share, if there
 * are several times as many threads (split.c).
 *
 * A sequence is computed in groups of consecutive chunks.  Of each group, threads first
 * prepare what depends on the tokens alone, some chunks each; then carry the state from
 * chunk to chunk, some rows or columns each; then finish the results, some chunks each.
 * Every number is summed in the same order as by a single thread.  Nothing is computed
 * twice, except that causal loads keys and sums runs of chunks (runs.h) again to finish
 * them.  Gradients take a second pass over the groups, in reverse.
 *
 * A pass is one list of shares, which threads take in order, each as soon as those that
 * it depends on are done.  Stages of several groups are beside each other in the list,
 * so that threads seldom wait:
 *
 *    cut group i;  begin and carry group i - 1;  prepare i;  finish i - ahead
 *
 * Gradients finish a group just after it is carried, and need less memory. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "job.h"

/* The most groups in memory at once.  Their last states have one record more, since the
 * next group still reads that of a group whose memory is used again. */
enum { SLOTS = 3 };

struct sequence {
    struct la_chunks chunks[SLOTS];
    char *states;     /* slots + 1 records */
    ptrdiff_t groups; /* of the first pass */
};

/* The sequences of all heads, and what is run. */
struct la_staged {
    ptrdiff_t ahead, slots; /* groups between cutting and finishing one; in memory */
    struct sequence *sequences;
    size_t count;                       /* of sequences */
    size_t shares, parts;               /* of a group's chunks; of its states */
    int reverse;                        /* whether this is the second pass */
    atomic_size_t done[LA_STAGE_KINDS]; /* shares of each stage, of all groups */
    atomic_size_t ended;                /* sequences that are cut to the end */
    atomic_size_t groups; /* of the longest sequence; SIZE_MAX: not known yet */
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

/* A share of a stage of a group. */
struct share {
    enum la_stage_kind kind;
    ptrdiff_t group; /* less than 0: there is none yet */
    size_t index;
};

/* Shares of a stage of one group. */
static size_t
shares_of(const struct la_staged *x, enum la_stage_kind kind)
{
    return kind == LA_CUT || kind == LA_BEGIN ? x->count
           : kind == LA_CARRY                 ? x->count * x->parts
                                              : x->count * x->shares;
}

static struct share
share_of_item(const struct la_staged *x, size_t item)
{
    const struct {
        enum la_stage_kind kind;
        ptrdiff_t behind;
    } order[] = {{LA_CUT, 0},
                 {LA_BEGIN, 1},
                 {LA_CARRY, 1},
                 {LA_PREPARE, 0},
                 {LA_FINISH, x->ahead}};
    size_t round = 0;
    for (int i = 0; i < LA_STAGE_KINDS; i++) {
        round += shares_of(x, order[i].kind);
    }
    const ptrdiff_t now = (ptrdiff_t)(item / round);
    size_t index = item % round;
    int i = 0;
    for (; index >= shares_of(x, order[i].kind); i++) {
        index -= shares_of(x, order[i].kind);
    }
    return (struct share){order[i].kind, now - order[i].behind, index};
}

/* Whether all shares of a stage are done, of groups up to this one. */
static int
is_done(const struct la_staged *x, enum la_stage_kind kind, ptrdiff_t group)
{
    return group < 0 || atomic_load_explicit(&x->done[kind], memory_order_acquire) >=
                            (size_t)(group + 1) * shares_of(x, kind);
}

/* Shares of a stage also wait for those of the group before, or else one of a later
 * group could be taken for them in what is_done counts. */
static enum la_turn
turn(void *arg, size_t item)
{
    const struct la_staged *x = ((struct job *)arg)->staged;
    const struct share share = share_of_item(x, item);
    const ptrdiff_t group = share.group;
    int may = 0;
    switch (share.kind) {
    case LA_CUT:
        if (group >= x->ahead &&
            (size_t)(group - x->ahead) >= atomic_load(&x->groups)) {
            return LA_NEVER;
        }
        may = is_done(x, LA_CUT, group - 1) && is_done(x, LA_FINISH, group - x->slots);
        break;
    case LA_PREPARE:
        may = is_done(x, LA_CUT, group) && is_done(x, LA_PREPARE, group - 1);
        break;
    case LA_BEGIN:
        may = is_done(x, LA_CUT, group) && is_done(x, LA_CARRY, group - 1);
        break;
    case LA_CARRY:
        may = is_done(x, LA_BEGIN, group) && is_done(x, LA_PREPARE, group);
        break;
    case LA_FINISH:
        may = is_done(x, LA_CARRY, group) && is_done(x, LA_FINISH, group - 1);
    }
    return may ? LA_NOW : LA_LATER;
}

/* Notes that a sequence has no group of this number. */
static void
note_end(struct la_staged *x, struct sequence *sequence, ptrdiff_t group)
{
    if (!x->reverse) {
        sequence->groups = group;
    }
    if (atomic_fetch_add(&x->ended, 1) + 1 == x->count) {
        atomic_store(&x->groups, (size_t)group);
    }
}

/* Cuts a group of a sequence; one without tokens is computed at once. */
static int
cut(struct job *job, size_t index, ptrdiff_t group, int lane)
{
    struct la_staged *staged = job->staged;
    struct sequence *sequence = &staged->sequences[index];
    struct la_chunks *x = &sequence->chunks[group % staged->slots];
    const struct la_chunks *before =
        &sequence->chunks[(group + staged->ahead) % staged->slots];
    struct la_head h = head_of(job, index);
    const int is_first = group == 0, reverse = staged->reverse;
    x->count = 0;
    x->at = x->next = !is_first ? before->next : reverse ? h.n : 0;
    x->first = is_first ? NULL : before->last;
    x->last = sequence->states + (size_t)(group % (staged->slots + 1)) * x->record;
    x->index = reverse ? sequence->groups - 1 - group : group;
    x->reverse = reverse;
    int stopped = 0;
    if (h.n > 0) {
        h.chunks = x;
        h.stage.kind = LA_CUT;
        stopped = la_job_compute(job, &h, lane);
    }
    else if (is_first && !reverse) {
        stopped = la_job_compute(job, &h, lane);
    }
    if (x->count == 0 && (is_first || before->count > 0)) {
        note_end(staged, sequence, group);
    }
    return stopped;
}

/* One share of another stage. */
static int
run_share(struct job *job, struct share share, int lane)
{
    const struct la_staged *x = job->staged;
    const size_t shares = shares_of(x, share.kind) / x->count,
                 sequence = share.index / shares, part = share.index % shares;
    struct la_chunks *chunks = &x->sequences[sequence].chunks[share.group % x->slots];
    const size_t count = (size_t)chunks->count;
    const size_t from = count * part / shares, to = count * (part + 1) / shares;
    if (count == 0 || (from == to && share.kind != LA_CARRY)) {
        return 0;
    }
    struct la_head h = head_of(job, sequence);
    h.chunks = chunks;
    h.stage =
        (struct la_stage){share.kind, (ptrdiff_t)from, (ptrdiff_t)to, (ptrdiff_t)part};
    return la_job_compute(job, &h, lane);
}

static int
run_item(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    struct la_staged *x = job->staged;
    const struct share share = share_of_item(x, item);
    if (share.group < 0) {
        return 0;
    }
    const int stopped = share.kind == LA_CUT ? cut(job, share.index, share.group, lane)
                                             : run_share(job, share, lane);
    if (!stopped) {
        atomic_fetch_add_explicit(&x->done[share.kind], 1, memory_order_release);
    }
    return stopped;
}

static enum la_status
run_pass(struct job *job, size_t bytes, int threads, int reverse)
{
    struct la_staged *x = job->staged;
    x->reverse = reverse;
    for (int kind = 0; kind < LA_STAGE_KINDS; kind++) {
        atomic_store(&x->done[kind], 0);
    }
    atomic_store(&x->ended, 0);
    atomic_store(&x->groups, SIZE_MAX);
    job->turn = turn;
    const enum la_status status =
        la_job_run(job, job->kernel, run_item, bytes, SIZE_MAX, threads);
    job->turn = NULL;
    return status;
}

/* Whether a sequence has more chunks than were expected: then the pass has ended early.
 * It has written no result, but maybe to dV (delta_backward.h). */
static int
overflows(const struct la_staged *x)
{
    int any = 0;
    for (size_t i = 0; i < x->count; i++) {
        for (ptrdiff_t slot = 0; slot < x->slots; slot++) {
            any |= x->sequences[i].chunks[slot].overflows;
        }
    }
    return any;
}

/* Sets *fits to 0 if the first pass shows that there are too many chunks. */
static enum la_status
run_passes(struct job *job, size_t bytes, int threads, int *fits)
{
    const int passes = job->table->stages[job->call->signature->op].passes;
    enum la_status status = run_pass(job, bytes, threads, 0);
    *fits = !overflows(job->staged);
    if (status == LA_DONE && *fits && passes > 1) {
        status = run_pass(job, bytes, threads, 1);
    }
    return status;
}

/* Chunks per group: as many as fit the caches of all threads.  Gradients have fewer
 * groups in memory, of more chunks. */
static ptrdiff_t
chunks_per_group(const struct job *job, size_t record, size_t sequences, int threads)
{
    const struct la_stages *stages = &job->table->stages[job->call->signature->op];
    const size_t passes = (size_t)stages->passes;
    const size_t all = passes * LA_GROUP_BYTES * (size_t)threads,
                 most = LA_GROUPS_BYTES / (size_t)job->staged->slots;
    const size_t room = (all < most ? all : most) / sequences;
    const ptrdiff_t fit = (ptrdiff_t)(room / (record > 0 ? record : 1));
    const ptrdiff_t even = LA_EVEN_PIECES * (ptrdiff_t)job->staged->parts,
                    n = job->head.n,
                    least = stages->least != NULL ? stages->least(&job->head) : 1;
    ptrdiff_t wanted = fit < even ? even : fit;
    wanted = wanted < least ? least : wanted;
    return forced() > 0 ? forced() : wanted < n ? wanted : n;
}

/* Memory of all sequences: what their groups share, records of chunks and of states. */
static struct la_scratch
take_records(const struct job *job, struct la_staged *x, int threads)
{
    const struct la_stages *stages = &job->table->stages[job->call->signature->op];
    struct la_chunks group = {.parts = (ptrdiff_t)x->parts};
    struct la_head h = job->head;
    h.chunks = &group;
    const size_t record = stages->record(&h);
    const ptrdiff_t most = chunks_per_group(job, record, x->count, threads);
    group.most = most;
    const size_t shared = stages->shared(&h);
    const size_t slots = (size_t)x->slots, all = slots * (size_t)most + slots + 1;
    size_t bytes;
    struct la_scratch memory = {0};
    if (__builtin_mul_overflow(record, all, &bytes) ||
        __builtin_add_overflow(bytes, shared, &bytes)) {
        return memory;
    }
    memory = la_scratch_take(bytes, (int)x->count, NULL);
    for (size_t i = 0; memory.memory != NULL && i < x->count; i++) {
        char *const at = memory.memory + i * memory.lane;
        struct sequence *sequence = &x->sequences[i];
        sequence->states = at + shared;
        for (size_t slot = 0; slot < slots; slot++) {
            const size_t before = slots + 1 + slot * (size_t)most;
            sequence->chunks[slot] =
                (struct la_chunks){.shared = at,
                                   .records = at + shared + before * record,
                                   .record = record,
                                   .parts = (ptrdiff_t)x->parts,
                                   .most = most};
        }
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
        .ahead = la_stages_may_not_fit(job) ? 1 : SLOTS - 1,
        .count = units,
        .parts = per_sequence,
        .shares = LA_STAGE_SHARES * per_sequence,
    };
    struct la_scratch records = {0};
    enum la_status status = LA_NO_MEMORY;
    x.slots = x.ahead + 1;
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
    if (*fits) {
        la_scratch_give(&records);
    }
    else { /* the sequence is computed again, without stages */
        la_scratch_drop(&records);
    }
    free(x.sequences);
    return status;
}
