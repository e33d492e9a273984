/* split.c: shares the units of a call (plan.c) between threads.
 *
 * Units are pieces, which job_run.c runs, as long as each thread has as many; those
 * that are left over, or are fewer than the threads, are split further: into panels of
 * value columns, or as the three other files do (job.h).  A panel's columns are
 * computed by the same operations in the same order for any width (micro.h), so the
 * number of threads changes no bit. */
#include "cpu.h"
#include "job.h"
#include "number.h"

/* Numbers in a vector of values. */
static ptrdiff_t
lanes(const struct job *job)
{
    return job->table->vector_bytes / la_number_size(job->call->dtype) /
           la_call_parts(job->call);
}

/* Vectors in a row of values. */
static ptrdiff_t
vectors(const struct job *job)
{
    return (job->head.m + lanes(job) - 1) / lanes(job);
}

/* How many panels of m let threads share so many units: 1, unless they have fewer
 * rounds of narrower pieces to run then.  Every panel repeats the maps and the scores,
 * so panels are not made too narrow. */
static ptrdiff_t
panels_for(const struct job *job, size_t units, int threads)
{
    const size_t all = (size_t)threads;
    if (threads == 1 || job->parts >= threads || units >= LA_EVEN_PIECES * all ||
        !(job->properties & LA_PANELS) || la_job_is_in_place(job)) {
        return 1;
    }
    const ptrdiff_t most = vectors(job) / LA_PANEL_VECTORS,
                    panels = most < threads ? most : threads;
    const size_t whole = (units + all - 1) / all,
                 narrow = (units * (size_t)panels + all - 1) / all;
    return narrow < whole * (size_t)panels ? panels : 1;
}

static void
cut_panels(struct job *job, ptrdiff_t panels)
{
    job->panels = 1;
    job->width = job->head.m;
    if (panels > 1) {
        job->width = (vectors(job) + panels - 1) / panels * lanes(job);
        job->panels = (job->head.m + job->width - 1) / job->width;
    }
}

/* Runs one of the pieces, which are numbered by unit and panel, from the first on. */
static int
run_piece(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const size_t panels = (size_t)job->panels;
    struct piece p = la_job_unit(job, (ptrdiff_t)(job->first + item / panels));
    p.panel = (ptrdiff_t)(item % panels);
    if (job->own != NULL) {
        la_job_place(job, job->own, p);
        return la_job_compute(job, job->own, lane);
    }
    struct la_head h = la_job_head(job, p);
    return la_job_compute(job, &h, lane);
}

/* The bytes of scratch that a piece of n tokens needs.  Sets the head's sizes for the
 * time of the question: a step of small heads takes as long as a few copies of it. */
static size_t
measure_piece(struct job *job, ptrdiff_t n)
{
    struct la_head *h = &job->head;
    const ptrdiff_t all_n = h->n, all_m = h->m;
    h->n = n;
    h->m = job->width;
    h->group = job->group;
    const size_t bytes = job->kernel->scratch(h);
    h->n = all_n;
    h->m = all_m;
    h->group = 0;
    return bytes;
}

/* Whether all pieces have the sizes of the job's head. */
static int
is_one_size(const struct job *job)
{
    return job->parts == 1 && job->panels == 1 && job->by_id[LA_AT_begin] == NULL &&
           job->by_id[LA_AT_end] == NULL;
}

/* Runs the pieces one after the other.  They use the job's head if none changes the
 * sizes that the next is made from. */
static enum la_status
run_alone(struct job *job, size_t bytes, size_t items)
{
    if (is_one_size(job)) {
        job->own = &job->head;
        return la_job_run(job, job->kernel, run_piece, bytes, items, 1);
    }
    struct la_head own = job->head;
    job->own = &own;
    return la_job_run(job, job->kernel, run_piece, bytes, items, 1);
}

/* The work of some units. */
static double
work_of(const struct job *job, size_t units)
{
    return (double)units / (double)job->units * job->work;
}

/* Whether some units are computed in stages. */
static int
is_staged(const struct job *job, size_t units, int threads)
{
    return threads > 1 && la_is_staged(job, units, work_of(job, units), threads);
}

/* Whether the channels of all units, which are fewer than the threads, may be split. */
static int
may_split_channels(const struct job *job)
{
    return job->properties & LA_CHANNEL_SPLIT && job->sequences == 1 &&
           job->work >= LA_SPLIT_WORK && job->head.m > channel_group(job->head.m);
}

/* Tokens of a piece. */
static ptrdiff_t
piece_tokens(const struct job *job)
{
    return job->parts > 1 ? job->rows : job->head.n;
}

/* Runs some units from job->first on, in panels where these share them better. */
static enum la_status
run_pieces(struct job *job, size_t units, int threads, int may_interleave)
{
    cut_panels(job, panels_for(job, units, threads));
    const size_t bytes = measure_piece(job, piece_tokens(job)),
                 items = units * (size_t)job->panels;
    const ptrdiff_t heads = may_interleave ? la_interleaved_heads(job, threads) : 1;
    if (heads > 1) {
        return la_run_interleaved(job, heads, bytes, threads);
    }
    return threads > 1 ? la_job_run(job, job->kernel, run_piece, bytes, items, threads)
                       : run_alone(job, bytes, items);
}

/* Runs them in stages, with memory at hand for pieces: without it, nothing is written.
 * Sets *fits to 0 if pieces are to follow. */
static enum la_status
run_in_stages(struct job *job, size_t units, int threads, int *fits)
{
    const int lanes = units < (size_t)threads ? (int)units : threads;
    struct la_scratch other = {0};
    if (la_stages_may_not_fit(job)) {
        other = la_scratch_take(measure_piece(job, job->head.n), lanes, NULL);
        if (other.memory == NULL) {
            return LA_NO_MEMORY;
        }
    }
    const enum la_status status =
        la_run_staged(job, units, work_of(job, units), threads, fits);
    if (!*fits && (job->scratch.bytes < other.bytes || job->scratch.lanes < lanes)) {
        const struct la_scratch staged = job->scratch;
        job->scratch = other;
        other = staged;
    }
    la_scratch_give(&other);
    return status;
}

/* The same, split in other ways if they are too few for the threads. */
static enum la_status
run_units(struct job *job, size_t units, int threads)
{
    const int is_all = units == job->units;
    cut_panels(job, 1);
    if (is_staged(job, units, threads)) {
        int fits = 1;
        const enum la_status status = run_in_stages(job, units, threads, &fits);
        if (fits || status != LA_DONE) {
            return status;
        }
    }
    if (is_all && (size_t)threads > units && may_split_channels(job)) {
        return la_run_channel_split(job, threads);
    }
    return run_pieces(job, units, threads, (ptrdiff_t)units == job->heads);
}

/* How many units are left over when each thread has computed as many, if all take as
 * long and those can be split further.  Where threads have many each, one more costs
 * less than to wait for each other again. */
static size_t
units_over(const struct job *job, int threads)
{
    const size_t all = (size_t)threads, over = job->units % all;
    if (job->units < all || over == 0 || job->sequences > 1 ||
        is_staged(job, job->units, threads)) {
        return 0;
    }
    const int can =
        is_staged(job, over, threads)
            ? job->units < LA_EVEN_ROUNDS * all
            : job->units < LA_EVEN_PIECES * all && panels_for(job, over, threads) > 1;
    return can ? over : 0;
}

/* Clears what packed sequences leave out, then runs them. */
static enum la_status
run_with_gaps(struct job *job, int threads)
{
    cut_panels(job, panels_for(job, job->units, threads));
    const size_t items = job->units * (size_t)job->panels;
    const int lanes = items < (size_t)threads ? (int)items : threads;
    /* Reserve first: without memory, nothing is written. */
    if (la_job_reserve(job, measure_piece(job, piece_tokens(job)), lanes) < 0) {
        return LA_NO_MEMORY;
    }
    if (la_sequences_clear(job)) {
        return LA_STOPPED;
    }
    return job->units > 0 ? run_pieces(job, job->units, threads, 0) : LA_DONE;
}

/* Leaves the first units of a job.  With one axis of heads, they may be interleaved. */
static void
leave(struct job *job, size_t units)
{
    job->units = units;
    job->first = 0;
    if (job->heads == job->last) {
        job->groups = (ptrdiff_t)units;
        job->heads = job->last = job->groups * job->group;
    }
}

/* Units left over come first, then the others, as many for each thread. */
enum la_status
la_run_units(struct job *job, int threads)
{
    int gaps;
    enum la_status status = la_sequences_check(job, &gaps);
    if (status != LA_DONE || gaps || job->units == 0) {
        return status == LA_DONE && gaps ? run_with_gaps(job, threads) : status;
    }
    const size_t over = units_over(job, threads);
    if (over > 0) {
        cut_panels(job, 1);
        const size_t bytes = measure_piece(job, piece_tokens(job));
        const int slices = job->properties & LA_INTERLEAVE ? LA_INTERLEAVE_HEADS : 1;
        /* Reserve for all: without memory, nothing is written. */
        if (la_job_reserve(job, bytes, threads * slices) < 0) {
            return LA_NO_MEMORY;
        }
        job->first = job->units - over;
        status = run_units(job, over, threads);
        leave(job, job->first);
    }
    return status == LA_DONE ? run_units(job, job->units, threads) : status;
}
