/* pool.c: a small thread pool.
 *
 * Workers start with the first call that needs them and sleep on a condition
 * variable in between: they never spin next to a BLAS.  One job runs at a time;
 * a second caller computes alone.
 *
 * A fork waits for the workers' present items: in the child, where they are gone,
 * nothing is half done.  A caller that forks in the middle of its job, in a signal
 * handler that it polled for, goes on there alone; elsewhere the child begins with an
 * empty pool. */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

static struct {
    pthread_mutex_t owner; /* held by the caller whose job runs */
    pthread_mutex_t lock;  /* guards the plain fields below */
    pthread_cond_t wake, done;
    pthread_t threads[LA_MAX_THREADS];
    int workers; /* threads started */
    int wanted;  /* workers that the present job still takes in */
    int running; /* workers inside the present job */
#if defined(__linux__)
    cpu_set_t cpus; /* where the process may run */
    int avoided;    /* the CPU of them that the workers keep off, or -1 */
#endif
    la_work work;
    void *job;
    size_t items;
    int next_lane, helpers; /* lanes: the caller's is 0, then one for each helper */
    atomic_size_t next;
    atomic_int stop;  /* no further item: a piece of work said so */
    atomic_int pause; /* no further item for workers: a fork waits */
} pool;

/* Whether this thread is the caller whose job runs. */
static _Thread_local int is_owner;

static atomic_int num_threads = 1;
static _Thread_local int held_threads; /* of this thread's calls; 0: num_threads */

static void
reset(void)
{
    pthread_mutex_init(&pool.owner, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.workers = pool.wanted = pool.running = 0;
    atomic_store(&pool.pause, 0);
}

static void
before_fork(void)
{
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.pause, 1);
    pool.wanted = 0;
    while (pool.running > 0) {
        pthread_cond_wait(&pool.done, &pool.lock);
    }
}

/* Lets the workers in again where their job is not done. */
static void
after_fork_in_parent(void)
{
    atomic_store(&pool.pause, 0);
    pool.next_lane = 1;
    pool.wanted = pool.helpers < pool.workers ? pool.helpers : pool.workers;
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
}

static void
after_fork_in_child(void)
{
    reset();
    if (is_owner) {
        pthread_mutex_lock(&pool.owner);
    }
}

void
la_pool_init(void)
{
    reset();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

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

void
la_pool_hold_threads(int n)
{
    held_threads = n;
}

int
la_pool_cpus(void)
{
    long count = 0;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        count = CPU_COUNT(&set);
    }
#endif
    if (count < 1) {
        count = sysconf(_SC_NPROCESSORS_ONLN);
    }
    return count < 1 ? 1 : count > LA_MAX_THREADS ? LA_MAX_THREADS : (int)count;
}

static void
share(la_work work, void *job, size_t items, int lane)
{
    size_t item;
    while (!atomic_load(&pool.stop) && !(lane > 0 && atomic_load(&pool.pause)) &&
           (item = atomic_fetch_add(&pool.next, 1)) < items) {
        if (work(job, item, lane)) {
            atomic_store(&pool.stop, 1);
        }
    }
}

static void *
worker(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.wanted == 0) {
            pthread_cond_wait(&pool.wake, &pool.lock);
        }
        pool.wanted--;
        pool.running++;
        const int lane = pool.next_lane++;
        const la_work work = pool.work;
        void *const job = pool.job;
        const size_t items = pool.items;
        pthread_mutex_unlock(&pool.lock);
        share(work, job, items, lane);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0) {
            pthread_cond_broadcast(&pool.done); /* the caller, and whoever forks */
        }
    }
    return NULL;
}

/* Starts workers until there are `count`, or no more can be had.  Signals are for
 * the threads that Python knows. */
static void
start_workers(int count)
{
    sigset_t all, before;
    if (pool.workers >= count) {
        return;
    }
#if defined(__linux__)
    if (sched_getaffinity(0, sizeof(pool.cpus), &pool.cpus) != 0) {
        CPU_ZERO(&pool.cpus);
    }
    pool.avoided = -1;
#endif
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.workers < count) {
        pthread_t *thread = &pool.threads[pool.workers];
        if (pthread_create(thread, NULL, worker, NULL) != 0) {
            break;
        }
        pthread_detach(*thread);
        pool.workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Keeps the workers off the caller's CPU.  Linux wakes a thread on the CPU of whoever
 * wakes it where it takes the others to be busy, and in a virtual machine an idle CPU
 * looks so: it is halted, and the host runs something else on it.  The two would then
 * share one CPU until the load is balanced, up to 4 ms later. */
static void
avoid_caller_cpu(void)
{
#if defined(__linux__)
    const int here = sched_getcpu();
    cpu_set_t others = pool.cpus;
    if (here < 0 || here == pool.avoided || !CPU_ISSET(here, &others)) {
        return;
    }
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == 0) {
        return;
    }
    for (int i = 0; i < pool.workers; i++) {
        pthread_setaffinity_np(pool.threads[i], sizeof(others), &others);
    }
    pool.avoided = here;
#endif
}

static void
wait_for_workers(void (*idle)(void *), void *job)
{
    pthread_mutex_lock(&pool.lock);
    pool.helpers = pool.wanted = 0; /* who comes late finds nothing left to do */
    while (pool.running > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 20 * 1000 * 1000;
        if (until.tv_nsec >= 1000 * 1000 * 1000) {
            until.tv_nsec -= 1000 * 1000 * 1000;
            until.tv_sec++;
        }
        if (pthread_cond_timedwait(&pool.done, &pool.lock, &until) == ETIMEDOUT) {
            pthread_mutex_unlock(&pool.lock);
            idle(job);
            pthread_mutex_lock(&pool.lock);
        }
    }
    pthread_mutex_unlock(&pool.lock);
}

static int
run_alone(la_work work, void *job, size_t items)
{
    for (size_t i = 0; i < items; i++) {
        if (work(job, i, 0)) {
            return 1;
        }
    }
    return 0;
}

int
la_pool_run(la_work work, void (*idle)(void *), void *job, size_t items, int lanes)
{
    if (lanes <= 1 || items <= 1 || pthread_mutex_trylock(&pool.owner) != 0) {
        return run_alone(work, job, items);
    }
    const int helpers = (size_t)lanes < items ? lanes - 1 : (int)items - 1;
    pthread_mutex_lock(&pool.lock);
    start_workers(helpers);
    avoid_caller_cpu();
    pool.work = work;
    pool.job = job;
    pool.items = items;
    pool.next_lane = 1;
    pool.helpers = helpers;
    pool.wanted = helpers < pool.workers ? helpers : pool.workers;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.stop, 0);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);

    is_owner = 1;
    share(work, job, items, 0);
    wait_for_workers(idle, job);
    is_owner = 0;
    const int stopped = atomic_load(&pool.stop);
    pthread_mutex_unlock(&pool.owner);
    return stopped;
}
