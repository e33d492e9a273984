/* jobs.c: the jobs of the pool that this thread has run, for tests. */
#include "pool.h"

static _Thread_local struct la_jobs jobs;

struct la_jobs
la_pool_take_jobs(void)
{
    const struct la_jobs taken = jobs;
    jobs.count = 0;
    return taken;
}

void
la_pool_note_job(size_t items, int lanes)
{
    if (jobs.count < LA_NOTED_JOBS) {
        jobs.items[jobs.count] = items;
        jobs.lanes[jobs.count++] = lanes;
    }
}
