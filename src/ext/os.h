/* os.h: functions that differ between operating systems: os_posix.c (with a part for
 * Linux only), os_windows.c. */
#ifndef LA_OS_H
#define LA_OS_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
typedef SRWLOCK la_mutex;
typedef CONDITION_VARIABLE la_condition;
#else
#include <pthread.h>
typedef pthread_mutex_t la_mutex;
typedef pthread_cond_t la_condition;
#endif

/* Initialise, whatever the memory holds: after a fork, the child's copies may be in any
 * state. */
void la_mutex_init(la_mutex *mutex);
void la_condition_init(la_condition *condition);

void la_mutex_lock(la_mutex *mutex);
void la_mutex_unlock(la_mutex *mutex);

/* Locks the mutex if it is free; returns whether it did. */
int la_mutex_try(la_mutex *mutex);

void la_condition_wait(la_condition *condition, la_mutex *mutex);

/* Waits for at most `ms` milliseconds, less than a second; returns whether the time ran
 * out. */
int la_condition_wait_ms(la_condition *condition, la_mutex *mutex, int ms);

void la_condition_wake_all(la_condition *condition);

/* Starts threads that run `work` forever, until there are `count` (there are `have`) or
 * no more can be created; returns how many there are.  They block all signals, which
 * Python's own threads handle.  Only one thread may call this at a time. */
int la_threads_start(void (*work)(void), int have, int count);

/* Keeps the first `count` threads off the caller's CPU, if that helps. */
void la_threads_avoid_caller(int count);

/* Registers functions to call around a fork, if the system has one. */
void la_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

/* The number of CPUs that this process may use, or less than 1 if unknown. */
long la_cpu_count(void);

/* Asks the system to keep the tile registers of AMX for each thread of this process;
 * returns whether it does. */
int la_permit_amx(void);

/* Milliseconds since an arbitrary time, from a clock that is cheap to read. */
int64_t la_clock_ms(void);

/* Sleeps for some microseconds.  Where the system's sleep takes milliseconds, a shorter
 * one only lets another thread have this CPU. */
void la_sleep_us(long us);

/* Microseconds since an arbitrary time. */
int64_t la_clock_us(void);

/* How often another thread took this thread's CPU; always 0 where that is unknown. */
long la_preemptions(void);

/* Tells the CPU that this thread waits for another one to write. */
static inline void
la_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Memory with this alignment, a power of two; NULL if there is none. */
void *la_aligned_take(size_t alignment, size_t bytes);
void la_aligned_give(void *memory);

#endif
