/* head_start.c: computes a long head by two or three threads, each a range of its
 * tokens.
 *
 * The state at a range comes from all tokens before it.  Instead of waiting for their
 * outputs, the thread first carries the state over them itself, from keys and values
 * alone, which takes about LA_CARRY_SHARE per cent of the time of a token.  Two ranges
 * end together if the first one has 64 per cent of the tokens; two panels of columns
 * (split.c) would both need all maps and scores.  Every thread sums the state in the
 * same order, and a range begins where a run does (runs.h), or where the chunk ends
 * that holds its first token, so no bit changes. */
#include "job.h"

/* Threads that share a head: 1, or up to LA_START_THREADS. */
static size_t
ranges_for(size_t units, int threads)
{
    const size_t each = units > 0 ? (size_t)threads / units : 1;
    return each < LA_START_THREADS ? each : LA_START_THREADS;
}

int
la_has_head_start(const struct job *job, size_t units, double work, int threads)
{
    const ptrdiff_t parts = la_call_parts(job->call);
    return job->properties & LA_HEAD_START && ranges_for(units, threads) > 1 &&
           job->head.m * parts <= LA_START_COLUMNS && job->by_id[LA_AT_block] == NULL &&
           !la_job_is_in_place(job) && work >= LA_START_WORK * (double)units;
}

/* The first token of range i of `ranges`.  With the share c that carrying takes, each
 * range has 1 - c times the tokens of the one before. */
static ptrdiff_t
range_begin(ptrdiff_t n, size_t i, size_t ranges)
{
    double before = 0, all = 0, part = 1;
    for (size_t j = 0; j < ranges; j++) {
        before += j < i ? part : 0;
        all += part;
        part *= 1 - LA_CARRY_SHARE / 100.0;
    }
    const double share = before / all;
    const ptrdiff_t runs = (ptrdiff_t)(share * (double)n / LA_CUT_TOKENS + 0.5);
    const ptrdiff_t begin = runs * LA_CUT_TOKENS;
    return i == ranges || begin > n ? n : begin;
}

/* Computes a range of one head, numbered by unit and range. */
static int
run_range(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const size_t ranges = job->ranges, unit = item / ranges, i = item % ranges;
    struct la_head h =
        la_job_head(job, la_job_unit(job, (ptrdiff_t)(job->first + unit)));
    const struct la_tokens wanted = {range_begin(h.n, i, ranges),
                                     range_begin(h.n, i + 1, ranges)};
    if (wanted.from == wanted.to && (i > 0 || h.n > 0)) {
        return 0; /* a head without tokens hands its state through once */
    }
    h.wanted = &wanted;
    return la_job_compute(job, &h, lane);
}

enum la_status
la_run_head_starts(struct job *job, size_t units, size_t bytes, int threads)
{
    job->ranges = ranges_for(units, threads);
    return la_job_run(job, job->kernel, run_range, bytes, units * job->ranges, threads);
}
