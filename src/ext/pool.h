/* pool.h: threads that share out numbered pieces of work. */
#ifndef LA_POOL_H
#define LA_POOL_H

#include <stddef.h>

/* Runs one piece of work on lane `lane` (0: the caller's own thread).  Nonzero
 * stops the job: pieces not begun are dropped. */
typedef int (*la_work)(void *job, size_t item, int lane);

/* Runs work(job, i, lane) for i in [0, items) on up to `lanes` threads, no more than
 * there are items, the caller among them, and returns when all are done; nonzero where
 * one gave up.  While it waits for the others it calls idle(job) every few
 * milliseconds.  Where the pool is busy with another caller's job, runs all on the
 * caller. */
int la_pool_run(la_work work, void (*idle)(void *job), void *job, size_t items,
                int lanes);

/* Gets and sets how many threads a call may use. */
int la_pool_get_num_threads(void);
void la_pool_set_num_threads(int n);

/* As set_num_threads for calls of this thread alone, until 0: a framework has a number
 * of threads of its own. */
void la_pool_hold_threads(int n);

/* Lets workers wait for so many milliseconds after each piece, so that the caller is
 * done long before them; 0: no more.  For tests. */
void la_pool_delay_workers(int ms);

/* CPUs this process may run on. */
int la_pool_cpus(void);

#define LA_MAX_THREADS 1024

/* Once, at import. */
void la_pool_init(void);

#endif
