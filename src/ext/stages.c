/* stages.c: computes a few long sequences in stages, if there are several times as many
 * threads (split.c).
 *
 * A sequence is computed in groups of consecutive chunks.  Of each group, threads first
 * prepare what depends on the tokens alone; then carry the state from chunk to chunk;
 * then finish the results.  Every number is summed in the same order as by a single
 * thread.  Nothing is computed twice, except that causal loads keys again and, where
 * threads share groups, sums runs of chunks (runs.h) again to finish them, and that
 * gradients of mLSTM need its denominators twice.  Gradients take a second pass over
 * the groups, in reverse; what reads a sum over all tokens takes further ones.
 *
 * Two or three threads per sequence take whole groups in turn (relay.c).  More of them
 * would wait for each other's states, so they share every group: some chunks each, or
 * some rows or columns of the state (stage_list.c).  So do two of them where to carry
 * the state is nearly all of the work. */
#include "staged.h"

#include <stdint.h>
#include <stdlib.h>

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
la_stages_are_forced(void)
{
    return forced() > 0;
}

static const struct la_stages *
stages_of(const struct job *job)
{
    return &job->table->stages[job->call->signature->op];
}

/* The panels of a head if to carry them is nearly all of the work, else 0. */
static size_t
carried_panels(const struct job *job)
{
    const struct la_stages *stages = stages_of(job);
    return stages->panels != NULL ? (size_t)stages->panels(&job->head) : 0;
}

/* Whether there are stages; panels, if any, are to be shared. */
static int
has_stages(const struct job *job)
{
    const struct la_stages *stages = stages_of(job);
    return stages->run != NULL && job->by_id[LA_AT_block] == NULL &&
           (stages->panels == NULL || carried_panels(job) > 1);
}

/* Whether two or three threads per sequence gain more by a relay than by panels of
 * columns, which repeat maps and scores: to carry the state of a delta rule takes half
 * of the time, and only one thread at a time does. */
static int
is_relayed(const struct job *job)
{
    const ptrdiff_t columns = job->head.m * la_call_parts(job->call);
    return carried_panels(job) == 0 &&
           (!(job->properties & LA_PANELS) || job->properties & LA_ADDS ||
            columns <= LA_RELAY_COLUMNS);
}

/* The tokens of a head, or its keys if they are more. */
static ptrdiff_t
longest(const struct job *job)
{
    return job->head.n > job->head.s ? job->head.n : job->head.s;
}

/* Whether so many threads per unit have a chunk each, or could not take panels. */
static int
has_chunks(const struct job *job, size_t threads)
{
    return !(job->properties & LA_PANELS) ||
           (size_t)(longest(job) / stages_of(job)->rows(&job->head)) >= threads;
}

/* The most threads of a unit that take groups in turn. */
enum { RELAYING = LA_STAGED_THREADS - 1 };

/* Whether all threads share every group. */
static int
are_shared(const struct job *job, size_t units, double work, int threads)
{
    const size_t each = (size_t)threads / units;
    if (carried_panels(job) > 0) {
        return each > 1 && (forced() > 0 || work >= LA_SPLIT_WORK);
    }
    return each >= LA_STAGED_THREADS &&
           (forced() > 0 || (work >= LA_STAGED_WORK && has_chunks(job, each)));
}

int
la_is_staged(const struct job *job, size_t units, double work, int threads)
{
    if (!has_stages(job)) {
        return 0;
    }
    const size_t each = (size_t)threads / units;
    const int relays = each >= LA_RELAY_THREADS && is_relayed(job) &&
                       work >= LA_RELAY_WORK * (double)units &&
                       has_chunks(job, each < LA_STAGED_THREADS ? each : RELAYING);
    return forced() > 0 || relays || are_shared(job, units, work, threads);
}

int
la_stages_may_not_fit(const struct job *job)
{
    return stages_of(job)->reverse && stages_of(job)->panels == NULL;
}

/* The head of a sequence. */
static struct la_head
head_of(const struct job *job, size_t sequence)
{
    return la_job_head(job, la_job_unit(job, (ptrdiff_t)(job->first + sequence)));
}

int
la_cut_group(struct job *job, size_t index, ptrdiff_t group, struct la_chunks *x,
             int lane)
{
    struct la_staged *staged = job->staged;
    struct la_sequence *sequence = &staged->sequences[index];
    struct la_head h = head_of(job, index);
    const int is_first = group == 0;
    const int reverse = staged->pass > 0 && stages_of(job)->reverse;
    x->count = 0;
    x->overflows = 0;
    x->shared = sequence->shared;
    sequence->at = !is_first ? sequence->at : reverse ? h.n : 0;
    x->at = x->next = sequence->at;
    x->first = is_first ? NULL : sequence->last;
    x->last = sequence->lasts + (size_t)(group % staged->lasts) * x->record;
    x->index = reverse ? sequence->groups - 1 - group : group;
    x->pass = staged->pass;
    x->reverse = reverse;
    int stopped = 0;
    if (h.n > 0) {
        h.chunks = x;
        h.stage.kind = LA_CUT;
        stopped = la_job_compute(job, &h, lane);
    }
    else if (is_first && staged->pass == 0) {
        stopped = la_job_compute(job, &h, lane);
    }
    if (x->count > 0) {
        sequence->at = x->next;
        sequence->last = x->last;
        sequence->groups += staged->pass == 0;
    }
    if (x->overflows) {
        atomic_store(&staged->overflows, 1);
    }
    return stopped;
}

int
la_run_stage(struct job *job, size_t sequence, struct la_chunks *x,
             enum la_stage_kind kind, size_t share, size_t shares, int lane)
{
    const size_t count = (size_t)x->count;
    const size_t from = count * share / shares, to = count * (share + 1) / shares;
    if (count == 0 || (from == to && kind != LA_CARRY)) {
        return 0;
    }
    struct la_head h = head_of(job, sequence);
    h.chunks = x;
    h.stage = (struct la_stage){kind, (ptrdiff_t)from, (ptrdiff_t)to, (ptrdiff_t)share};
    return la_job_compute(job, &h, lane);
}

static enum la_status
run_pass(struct job *job, size_t bytes)
{
    struct la_staged *x = job->staged;
    const struct la_schedule *schedule = x->lanes != NULL ? &la_relay : &la_stage_list;
    schedule->begin(x);
    job->turn = schedule->turn;
    const enum la_status status =
        la_job_run(job, job->kernel, schedule->work, bytes, SIZE_MAX, x->threads);
    job->turn = NULL;
    return status;
}

/* LA_END of a sequence, whose memory is laid out as for its groups. */
static int
end_sequence(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    struct la_chunks x = job->staged->chunks[0];
    struct la_head h = head_of(job, item);
    x.shared = job->staged->sequences[item].shared;
    h.chunks = &x;
    h.stage.kind = LA_END;
    return h.n > 0 ? la_job_compute(job, &h, lane) : 0; /* la_cut_group computed it */
}

/* Sets *fits to 0 if a sequence has more chunks than were expected: then the first pass
 * has ended early.  It has written no result, but maybe to dV (delta_backward.h). */
static enum la_status
run_passes(struct job *job, size_t bytes, int *fits)
{
    struct la_staged *x = job->staged;
    enum la_status status = LA_DONE;
    for (x->pass = 0; x->pass < stages_of(job)->passes; x->pass++) {
        status = run_pass(job, bytes);
        *fits = !atomic_load(&x->overflows);
        if (status != LA_DONE || !*fits) {
            return status;
        }
    }
    return stages_of(job)->ends
               ? la_job_run(job, job->kernel, end_sequence, bytes, x->count, x->threads)
               : status;
}

/* Chunks per group: as many as fit the caches, of sequences that are long enough.  With
 * panels, chunks are long: one for each part, if there is room. */
static ptrdiff_t
chunks_per_group(const struct job *job, const struct la_staged *x, size_t record)
{
    const struct la_stages *stages = stages_of(job);
    const ptrdiff_t n = longest(job);
    const size_t threads = (size_t)x->threads, each = record > 0 ? record : 1;
    size_t room = LA_GROUP_BYTES, most = room;
    if (x->lanes == NULL) { /* gradients have fewer groups in memory, of more chunks */
        const size_t all = (size_t)stages->passes * LA_GROUP_BYTES * threads;
        most = LA_GROUPS_BYTES / (size_t)x->slots;
        room = (all < most ? all : most) / x->count;
    }
    const ptrdiff_t fit = (ptrdiff_t)(room / each);
    ptrdiff_t even = LA_EVEN_PIECES * (ptrdiff_t)x->parts;
    if (stages->panels != NULL) {
        const size_t chunks = most / x->count / each;
        even = (ptrdiff_t)(chunks < x->parts ? chunks : x->parts);
    }
    if (x->lanes != NULL) {
        const ptrdiff_t tokens = n / (LA_EVEN_PIECES * x->threads);
        even = (tokens < LA_RELAY_TOKENS ? LA_RELAY_TOKENS : tokens) /
               stages->rows(&job->head);
    }
    const ptrdiff_t least = stages->least != NULL ? stages->least(&job->head) : 1;
    ptrdiff_t wanted = (fit < even) == (x->lanes == NULL) ? even : fit;
    wanted = wanted < least ? least : wanted;
    return forced() > 0 ? forced() : wanted < n ? wanted : n;
}

/* Takes memory for all sequences: for what the groups of each share, for the states
 * after groups, and for the records of groups. */
static struct la_scratch
take_records(const struct job *job, struct la_staged *x, size_t groups)
{
    const struct la_stages *stages = stages_of(job);
    struct la_chunks group = {.parts = (ptrdiff_t)x->parts};
    struct la_head h = job->head;
    h.chunks = &group;
    const size_t record = stages->record(&h);
    group.record = record;
    group.most = chunks_per_group(job, x, record);
    const size_t shared = stages->shared(&h), lasts = (size_t)x->lasts * record;
    size_t chunks, bytes;
    struct la_scratch memory = {0};
    if (__builtin_mul_overflow(groups * (size_t)group.most, record, &chunks) ||
        __builtin_mul_overflow(x->count, shared + lasts, &bytes) ||
        __builtin_add_overflow(bytes, chunks, &bytes)) {
        return memory;
    }
    memory = la_scratch_take(bytes, 1, NULL);
    char *at = memory.memory;
    for (size_t i = 0; at != NULL && i < x->count; i++, at += shared + lasts) {
        x->sequences[i].shared = at;
        x->sequences[i].lasts = at + shared;
    }
    for (size_t i = 0; at != NULL && i < groups; i++) {
        x->chunks[i] = group;
        x->chunks[i].records = at + i * (size_t)group.most * record;
    }
    return memory;
}

/* The bytes of scratch of a stage, and of a sequence without tokens. */
static size_t
measure(const struct job *job)
{
    struct la_head h = job->head;
    const size_t staged = stages_of(job)->scratch(&h);
    h.n = 0;
    h.group = job->group;
    const size_t empty = job->kernel->scratch(&h);
    return staged > empty ? staged : empty;
}

enum la_status
la_run_staged(struct job *job, size_t units, double work, int threads, int *fits)
{
    const int relays = !are_shared(job, units, work, threads);
    const size_t most = (relays ? RELAYING : carried_panels(job)) * units;
    threads = most > 0 && (size_t)threads > most ? (int)most : threads;
    const size_t bytes = measure(job), all = (size_t)threads;
    struct la_staged x = {.count = units, .threads = threads, .parts = 1};
    if (relays) { /* groups that all threads have, and some that are handed on */
        x.lasts = threads + 2 < LA_LASTS ? threads + 2 : LA_LASTS;
    }
    else {
        x.slots = stages_of(job)->reverse ? 2 : 3;
        x.lasts = carried_panels(job) > 0 ? 1 : x.slots + 1; /* 1: it is not read */
        x.parts = (all + units - 1) / units;
        x.shares = LA_STAGE_SHARES * x.parts;
    }
    const size_t groups = relays ? all : units * (size_t)x.slots;
    x.sequences = calloc(units, sizeof(*x.sequences));
    x.chunks = calloc(groups, sizeof(*x.chunks));
    x.lanes = relays ? calloc(all, sizeof(*x.lanes)) : NULL;
    struct la_scratch records = {0};
    enum la_status status = LA_NO_MEMORY;
    job->staged = &x;
    /* Reserve first: without memory, nothing is written. */
    if (x.sequences != NULL && x.chunks != NULL && (x.lanes != NULL || !relays) &&
        la_job_reserve(job, bytes, threads) == 0) {
        records = take_records(job, &x, groups);
    }
    if (records.memory != NULL) {
        la_scratch_prepare(&records);
        status = run_passes(job, bytes, fits);
        status = la_scratch_overrun(&records) ? LA_OVERRUN : status;
    }
    if (*fits) {
        la_scratch_give(&records);
    }
    else { /* the sequence is computed again, without stages */
        la_scratch_drop(&records);
    }
    free(x.sequences);
    free(x.chunks);
    free(x.lanes);
    return status;
}
