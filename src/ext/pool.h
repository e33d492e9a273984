/* pool.h: threads that share numbered pieces of work. */
#ifndef LA_POOL_H
#define LA_POOL_H

#include <stddef.h>

/* Runs one piece of work on lane `lane` (0: the caller's thread).  A nonzero result
 * stops the job: pieces that have not begun are dropped. */
typedef int (*la_work)(void *job, size_t item, int lane);

/* Whether a thread, of lane `lane`, may begin a piece of work, the next one in order:
 * later; now; or never, as there is none of this number.  A piece may wait for earlier
 * pieces only. */
enum la_turn { LA_LATER, LA_NOW, LA_NEVER };
typedef enum la_turn (*la_turns)(void *job, size_t item, int lane);

/* Numbered pieces of work.  They begin in order if they have turns, else as shares.h
 * has it. */
struct la_list {
    la_work work;
    la_turns turn; /* NULL: all may begin at once */
    void (*idle)(void *job);
    void *job;
    size_t items; /* SIZE_MAX: turn says when there are no more */
};

/* Runs work(job, i, lane) for i in [0, items) on up to `lanes` threads, the caller
 * among them, but no more threads than items.  Returns when all are done; nonzero if
 * any piece returned nonzero.  While the caller waits for the others, it calls
 * idle(job) every few milliseconds.  If the pool is busy with another caller's job, the
 * caller runs everything itself.  A brief job runs on the runner's threads, if there is
 * a runner, and one that is shorter yet unless they kept such a job waiting. */
enum la_length { LA_LONG, LA_BRIEF, LA_SHORT };
int la_pool_run(const struct la_list *list, int lanes, enum la_length length);

/* Runs work(arg) on that many threads, the caller among them, and returns when all are
 * done.  It is OpenMP's GOMP_parallel, whose threads may still be awake, on the CPUs
 * that the pool's own need, when another library has just used them. */
typedef void (*la_runner)(void (*work)(void *), void *arg, unsigned threads,
                          unsigned flags);

/* Sets the runner; NULL ends it.  A child of a fork has none, as OpenMP's threads do
 * not survive it. */
void la_pool_set_runner(la_runner runner);
int la_pool_has_runner(void);

/* Whether a brief job runs on its threads.  Those that ask count as the jobs that do
 * not while threads come late. */
int la_pool_lends(void);

/* The number of threads that a call may use. */
int la_pool_get_num_threads(void);
void la_pool_set_num_threads(int n);

/* la_pool_set_num_threads for calls of this thread only, for callers with their own
 * number of threads; 0 ends it.  Returns what was held before. */
long la_pool_hold_threads(long n);

/* Lets threads that wait for others stay awake for so many microseconds before they
 * sleep, unless CPUs are scarce.  Returns what it was; a
 * negative number changes nothing. */
long la_pool_spin(long us);
#define LA_MAX_SPIN 100000 /* us */

/* Makes workers sleep this long after each piece, so that the caller finishes long
 * before them; 0 ends it.  For tests. */
void la_pool_delay_workers(int ms);

/* The jobs of this thread on several lanes since it last took them, the first ones.
 * For tests. */
enum { LA_NOTED_JOBS = 64 };
struct la_jobs {
    int count, lanes[LA_NOTED_JOBS];
    size_t items[LA_NOTED_JOBS];
};
struct la_jobs la_pool_take_jobs(void);
void la_pool_note_job(size_t items, int lanes);

/* The number of CPUs that this process may use. */
int la_pool_cpus(void);

#define LA_MAX_THREADS 1024

/* Called once, at import. */
void la_pool_init(void);

#endif
