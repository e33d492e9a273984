/* os_posix.c: os.h for Linux, macOS and other systems with POSIX threads. */
#if !defined(_WIN32)
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include "pool.h"

static pthread_t threads[LA_MAX_THREADS];

/* --- AMX, on Linux only ------------------------------------------------------ */

int
la_permit_amx(void)
{
#if defined(__linux__) && defined(__x86_64__)
    enum {
        REQUEST = 0x1023,
        TILE_DATA = 18
    }; /* ARCH_REQ_XCOMP_PERM, from Linux 5.16 */
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return 0;
#endif
}

/* --- affinity, on Linux only ------------------------------------------------- */

#if defined(__linux__)
static cpu_set_t cpus; /* CPUs that the process may use */
static int avoided;    /* the one that the threads avoid, or -1 */

static void
read_affinity(void)
{
    if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) {
        CPU_ZERO(&cpus);
    }
    avoided = -1;
}

/* Linux wakes a thread on the CPU of its waker if it considers the other CPUs busy.  In
 * a virtual machine an idle CPU looks busy: it is halted, and the host runs something
 * else on it.  Waker and thread would then share one CPU until the load is balanced, up
 * to 4 ms later. */
void
la_threads_avoid_caller(int count)
{
    const int here = sched_getcpu();
    cpu_set_t others = cpus;
    if (here < 0 || here == avoided || !CPU_ISSET(here, &others)) {
        return;
    }
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == 0) {
        return;
    }
    for (int i = 0; i < count; i++) {
        pthread_setaffinity_np(threads[i], sizeof(others), &others);
    }
    avoided = here;
}

static long
affinity_count(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

#else
static void
read_affinity(void)
{
}

void
la_threads_avoid_caller(int count)
{
    (void)count;
}

static long
affinity_count(void)
{
    return 0;
}
#endif

long
la_cpu_count(void)
{
    const long count = affinity_count();
    return count < 1 ? sysconf(_SC_NPROCESSORS_ONLN) : count;
}

/* --- threads --------------------------------------------------------------- */

void
la_mutex_init(la_mutex *mutex)
{
    pthread_mutex_init(mutex, NULL);
}

void
la_condition_init(la_condition *condition)
{
    pthread_cond_init(condition, NULL);
}

void
la_mutex_lock(la_mutex *mutex)
{
    pthread_mutex_lock(mutex);
}

void
la_mutex_unlock(la_mutex *mutex)
{
    pthread_mutex_unlock(mutex);
}

int
la_mutex_try(la_mutex *mutex)
{
    return pthread_mutex_trylock(mutex) == 0;
}

void
la_condition_wait(la_condition *condition, la_mutex *mutex)
{
    pthread_cond_wait(condition, mutex);
}

int
la_condition_wait_ms(la_condition *condition, la_mutex *mutex, int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ms * 1000 * 1000;
    if (until.tv_nsec >= 1000 * 1000 * 1000) {
        until.tv_nsec -= 1000 * 1000 * 1000;
        until.tv_sec++;
    }
    return pthread_cond_timedwait(condition, mutex, &until) == ETIMEDOUT;
}

void
la_condition_wake_all(la_condition *condition)
{
    pthread_cond_broadcast(condition);
}

static void *
run(void *work)
{
    ((void (*)(void))work)();
    return NULL;
}

int
la_threads_start(void (*work)(void), int have, int count)
{
    sigset_t all, before;
    if (have >= count) {
        return have;
    }
    read_affinity();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (have < count &&
           pthread_create(&threads[have], NULL, run, (void *)work) == 0) {
        pthread_detach(threads[have++]);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return have;
}

void
la_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
    pthread_atfork(before, in_parent, in_child);
}

/* --- time and memory ------------------------------------------------------- */

#if defined(CLOCK_MONOTONIC_COARSE)
#define CHEAP_CLOCK CLOCK_MONOTONIC_COARSE
#else
#define CHEAP_CLOCK CLOCK_MONOTONIC
#endif

int64_t
la_clock_ms(void)
{
    struct timespec now;
    clock_gettime(CHEAP_CLOCK, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t
la_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

long
la_preemptions(void)
{
#ifdef RUSAGE_THREAD
    struct rusage used;
    return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nivcsw : 0;
#else
    return 0;
#endif
}

void
la_sleep_us(long us)
{
    const struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

void *
la_aligned_take(size_t alignment, size_t bytes)
{
    void *memory;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

void
la_aligned_give(void *memory)
{
    free(memory);
}

#endif
