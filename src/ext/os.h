/* os.h: what each operating system has its own words for: os_posix.c (and what only
 * Linux has), os_windows.c. */
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

/* New ones, whatever is there: what a fork leaves in the child is in any state. */
void la_mutex_init(la_mutex *mutex);
void la_condition_init(la_condition *condition);

void la_mutex_lock(la_mutex *mutex);
void la_mutex_unlock(la_mutex *mutex);

/* Locks it where it is free; whether it was. */
int la_mutex_try(la_mutex *mutex);

void la_condition_wait(la_condition *condition, la_mutex *mutex);

/* Waits for so many milliseconds, under a second, at most; whether that was all. */
int la_condition_wait_ms(la_condition *condition, la_mutex *mutex, int ms);

void la_condition_wake_all(la_condition *condition);

/* Starts threads that run `work`, for ever, until there are `count` where there are
 * `have`, or no more can be had; how many there are.  Signals are for the threads that
 * Python knows: these take none.  From one thread at a time. */
int la_threads_start(void (*work)(void), int have, int count);

/* Keeps the first `count` of them off the caller's CPU, where that helps. */
void la_threads_avoid_caller(int count);

/* Has functions called around a fork, where there are forks. */
void la_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

/* CPUs that this process may run on, or less than 1 where that is not known. */
long la_cpu_count(void);

/* Milliseconds since some moment, by a clock that is cheap to read. */
int64_t la_clock_ms(void);

void la_sleep_ms(int ms);

/* Memory from such a boundary on, a power of two; NULL where there is none. */
void *la_aligned_take(size_t alignment, size_t bytes);
void la_aligned_give(void *memory);

#endif
