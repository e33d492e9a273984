/* channel_split.c: shares the channels of a backward operator between threads if there
 * are fewer heads than threads.
 *
 * Gradients that are sums over channels are sums over groups of them, whose number
 * depends on the channels alone, in the order of the groups.  A first pass leaves the
 * sums of each group, a second one adds them up, as a single pass does: the number of
 * threads changes no bit. */
#include "job.h"
#include "number.h"

/* Sums of the groups of all heads. */
struct la_channel_split {
    const struct la_scratch *sums; /* one lane per head */
    size_t bytes;                  /* of a group */
    ptrdiff_t groups;              /* in a panel */
};

/* Some channels: item = head * panels + panel. */
static int
run_channels(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const struct la_channel_split *split = job->channel_split;
    const size_t panels = (size_t)job->panels;
    const struct piece p = {(ptrdiff_t)(item / panels), 0, (ptrdiff_t)(item % panels),
                            0};
    struct la_head h = la_job_head(job, p);
    h.pass = LA_PASS_CHANNELS;
    h.rates = split->sums->memory + item / panels * split->sums->lane +
              (size_t)(p.panel * split->groups) * split->bytes;
    return la_job_compute(job, &h, lane);
}

/* The sums of a head. */
static int
run_sums(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    struct la_head h = la_job_head(job, (struct piece){(ptrdiff_t)item, 0, 0, 0});
    h.m = job->head.m;
    h.pass = LA_PASS_SUMS;
    h.rates = job->channel_split->sums->memory + item * job->channel_split->sums->lane;
    return la_job_compute(job, &h, lane);
}

/* Panels of whole groups, about as many as there are threads for each head. */
static ptrdiff_t
cut_groups(struct job *job, int threads)
{
    const ptrdiff_t width = channel_group(job->head.m);
    const ptrdiff_t groups = (job->head.m + width - 1) / width;
    const ptrdiff_t panels = (threads + job->heads - 1) / job->heads;
    const ptrdiff_t each = (groups + panels - 1) / panels;
    job->width = each * width;
    job->panels = (groups + each - 1) / each;
    return each;
}

enum la_status
la_run_channel_split(struct job *job, int threads)
{
    const size_t row = 2 * (size_t)job->head.f * la_number_size(job->call->dtype);
    const size_t heads = (size_t)job->heads;
    struct la_channel_split split = {.groups = cut_groups(job, threads)};
    size_t all;
    if (__builtin_mul_overflow(row, (size_t)job->head.n, &split.bytes) ||
        __builtin_mul_overflow(split.bytes, (size_t)LA_CHANNEL_GROUPS, &all)) {
        return LA_NO_MEMORY;
    }
    struct la_scratch sums = la_scratch_take(all, (int)heads, NULL);
    if (sums.memory == NULL) {
        return LA_NO_MEMORY;
    }
    la_scratch_prepare(&sums);
    split.sums = &sums;
    job->channel_split = &split;
    const size_t scratch = job->kernel->scratch(&job->head);
    enum la_status status = la_job_run(job, job->kernel, run_channels, scratch,
                                       heads * (size_t)job->panels, threads);
    if (status == LA_DONE) {
        status = la_job_run(job, job->kernel, run_sums, scratch, heads, threads);
    }
    const int overrun = la_scratch_overrun(&sums);
    la_scratch_give(&sums);
    return overrun ? LA_OVERRUN : status;
}
