/* num_threads.c: the number of threads of a call, and that of CPUs (pool.h). */
#include <stdatomic.h>

#include "os.h"
#include "pool.h"

static atomic_int num_threads = 1;
static _Thread_local int held_threads; /* for calls of this thread; 0: num_threads */

int
la_pool_get_num_threads(void)
{
    return held_threads > 0 ? held_threads : atomic_load(&num_threads);
}

void
la_pool_set_num_threads(int n)
{
    atomic_store(&num_threads, n);
}

long
la_pool_hold_threads(long n)
{
    const long before = held_threads;
    held_threads = n < 0 ? 0 : n > LA_MAX_THREADS ? LA_MAX_THREADS : (int)n;
    return before;
}

int
la_pool_cpus(void)
{
    const long count = la_cpu_count();
    return count < 1 ? 1 : count > LA_MAX_THREADS ? LA_MAX_THREADS : (int)count;
}
