/* job_run.c: runs the pieces of a job (job.h): the pool computes them, each with the
 * scratch of its thread. */
#include "../kernel/vectors/fetch.h"
#include "cpu.h"
#include "job.h"
#include "pool.h"

static int
poll_worker(void *arg)
{
    struct job *job = arg;
    return atomic_load_explicit(&job->stop, memory_order_relaxed);
}

static int
poll_caller(void *arg)
{
    struct job *job = arg;
    if (!poll_worker(job) && job->watch != NULL && job->watch->poll(job->watch->arg)) {
        atomic_store(&job->stop, 1);
    }
    return poll_worker(job);
}

static void
idle(void *arg)
{
    poll_caller(arg);
}

int
la_job_poll(struct job *job)
{
    return poll_caller(job);
}

int
la_job_compute(struct job *job, struct la_head *h, int lane)
{
    const struct la_scratch *scratch = &job->scratch;
    const ptrdiff_t at = h->interleave != NULL ? h->interleave->ahead->head : 0;
    h->scratch =
        scratch->memory + (size_t)(lane * job->interleaved + at) * scratch->lane;
    h->poll = lane == 0 ? poll_caller : poll_worker;
    h->poll_arg = job;
    h->tiles = la_cpu_tiles();
    if (lane > 0) {
        la_modes_set(job->modes);
    }
    const struct la_stages *stages = &job->table->stages[job->call->signature->op];
    const int is_stage = h->chunks != NULL;
    if (scratch->poison != 0 &&
        (is_stage ? stages->scratch : job->kernel->scratch)(h) > scratch->bytes) {
        atomic_store(&job->overrun, 1);
        return 1;
    }
    const int stopped = h->poll(job) || (is_stage ? stages->run : job->kernel->run)(h);
    la_cpu_release_tiles();
    return stopped;
}

int
la_job_reserve(struct job *job, size_t bytes, int lanes)
{
    if (job->scratch.lanes < lanes || job->scratch.bytes < bytes) {
        la_scratch_give(&job->scratch);
        job->scratch = la_scratch_take(bytes, lanes, job->few);
    }
    return job->scratch.memory == NULL ? -1 : 0;
}

static enum la_length
length_of(const struct job *job)
{
    return !job->is_brief ? LA_LONG : job->work < LA_LONG_WORK ? LA_SHORT : LA_BRIEF;
}

enum la_status
la_job_run(struct job *job, const struct la_kernel *kernel,
           int (*piece)(void *job, size_t item, int lane), size_t bytes, size_t items,
           int threads)
{
    if ((size_t)threads > items) {
        threads = (int)items;
    }
    job->kernel = kernel;
    if (la_job_reserve(job, bytes, threads * job->interleaved) < 0) {
        return LA_NO_MEMORY;
    }
    la_scratch_prepare(&job->scratch);
    /* Padding lanes may raise floating-point flags that have nothing to do with the
     * result, so the call raises none. */
    const la_modes callers = la_modes_get();
    const int flushes = job->properties & LA_FLUSHES;
    job->modes = flushes ? la_modes_flushing(callers) : callers;
    la_modes_set(job->modes);
    const struct la_list list = {piece, job->turn, idle, job, items};
    const int gave_up = la_pool_run(&list, threads, length_of(job));
    la_modes_set(callers);
    const int overrun = atomic_load(&job->overrun) || la_scratch_overrun(&job->scratch);
    /* The watch may have stopped the job after the last piece polled. */
    const int stopped = gave_up || poll_worker(job);
    return overrun ? LA_OVERRUN : stopped ? LA_STOPPED : LA_DONE;
}
