/* job.h: a call while it runs: the data shared by its pieces, where each piece lies in
 * memory, and how pieces are run.  plan.c makes units, split.c pieces of them, and so
 * do the three files that split units in other ways (interleave.c, stages.c,
 * channel_split.c). */
#ifndef LA_JOB_H
#define LA_JOB_H

#include <stdatomic.h>
#include <stddef.h>

#include "modes.h"
#include "plan.h"
#include "pool.h"
#include "scratch.h"

struct job {
    const struct la_call *call;
    const struct la_watch *watch;
    const struct la_table *table;
    const struct la_kernel *kernel;
    int properties;
    double work;         /* of the call (tuning.h) */
    int is_brief;        /* and not watched, as another library's threads share it */
    struct la_head head; /* common to all pieces; data of the first one */
    struct la_head *own; /* a copy that all pieces of a single thread use, or NULL */
    /* By operand; NULL if the call does not have it. */
    const struct la_operand_array *by_id[LA_NOPERANDS];
    ptrdiff_t inner[LA_NOPERANDS]; /* step between sequences, in bytes */
    ptrdiff_t heads, sequences;
    ptrdiff_t last, group, groups; /* heads of the last axis, per group; groups */
    size_t units, first;     /* pieces but for panels; the first one that is run */
    ptrdiff_t panels, width; /* column panels of the values, columns per panel */
    ptrdiff_t rows, parts;   /* rows per part; parts of n */
    struct la_scratch scratch;
    char *few;                              /* memory for it (scratch.h) */
    la_modes modes;                         /* of the kernels */
    struct la_staged *staged;               /* set by stages.c */
    struct la_channel_split *channel_split; /* set by channel_split.c */
    int interleaved; /* heads that each thread interleaves (interleave.c), or 1 */
    la_turns turn;   /* of pieces that wait for others, or NULL */
    atomic_int stop;
    atomic_int overrun; /* a piece needed more scratch than was measured */
};

/* One piece of work: the first head of a group with the same keys, one sequence, one
 * panel of value columns, one range of rows. */
struct piece {
    ptrdiff_t head, sequence, panel, part;
};

/* Reads sizes and steps of the call into the job. */
void la_job_read(struct job *job);

/* Size of the dimension with that letter, or `otherwise`. */
ptrdiff_t la_job_dimension(const struct la_call *call, char letter,
                           ptrdiff_t otherwise);

/* Address of operand `id` for a piece. */
char *la_job_at(const struct job *job, int id, struct piece p);

/* The value of an index operand, clamped to [low, high]: a gufunc accepts any numbers,
 * and none of them may lead outside the arrays. */
ptrdiff_t la_job_index(const struct job *job, enum la_operand id, struct piece p,
                       ptrdiff_t low, ptrdiff_t high, ptrdiff_t otherwise);

/* The whole unit of that number, counted by head, sequence and part. */
struct piece la_job_unit(const struct job *job, ptrdiff_t unit);

/* Points the arrays of h, a copy of job->head, at one piece, and sets its numbers.  h
 * may hold another piece of the same job. */
void la_job_place(const struct job *job, struct la_head *h, struct piece p);

/* Such a copy, at one piece. */
struct la_head la_job_head(const struct job *job, struct piece p);

/* Whether the state after the tokens takes the place of the one before them: one piece
 * must not write what another has to read. */
int la_job_is_in_place(const struct job *job);

/* Makes sure that the job has scratch of `bytes` bytes for `lanes` pieces at once; 0,
 * or -1 if there is no memory. */
int la_job_reserve(struct job *job, size_t bytes, int lanes);

/* Runs the pieces [0, items) of a job on `threads` threads, each with `bytes` bytes of
 * scratch. */
enum la_status la_job_run(struct job *job, const struct la_kernel *kernel,
                          int (*piece)(void *job, size_t item, int lane), size_t bytes,
                          size_t items, int threads);

/* Computes a piece, with the scratch and the poll function of its lane; nonzero:
 * stop. */
int la_job_compute(struct job *job, struct la_head *h, int lane);

/* Asks the watch whether to stop; only for the caller's thread. */
int la_job_poll(struct job *job);

/* Sets *gaps to whether the packed sequences, if any, leave out tokens.  Returns
 * LA_OVERLAP if they share tokens (sequences.c). */
enum la_status la_sequences_check(struct job *job, int *gaps);

/* Clears all rows of the results if sequences do not cover all of them, so that a
 * result never shows uninitialised memory.  Nonzero: stop. */
int la_sequences_clear(struct job *job);

/* Runs all units of a job (split.c). */
enum la_status la_run_units(struct job *job, int threads);

/* Whether so many units of so much work, with several threads, are computed in stages
 * (stages.c). */
int la_is_staged(const struct job *job, size_t units, double work, int threads);

/* Whether they may have to be computed in another way, since there are more chunks than
 * expected. */
int la_stages_may_not_fit(const struct job *job);

/* Computes them, from job->first on.  Sets *fits to 0 if there are too many chunks. */
enum la_status la_run_staged(struct job *job, size_t units, double work, int threads,
                             int *fits);

/* Computes every call in stages for which an operator has them, in groups of so many
 * chunks; 0 ends it.  Returns the previous number.  For tests. */
ptrdiff_t la_stages_force(ptrdiff_t chunks);
int la_stages_are_forced(void);

/* The number of heads that each thread interleaves, few enough to keep all threads
 * busy; 1: no interleaving (interleave.c). */
ptrdiff_t la_interleaved_heads(const struct job *job, int threads);

/* Runs a job with `heads` heads interleaved, each with `bytes` bytes of scratch. */
enum la_status la_run_interleaved(struct job *job, ptrdiff_t heads, size_t bytes,
                                  int threads);

/* Computes panels of each head's channels in parallel (channel_split.c). */
enum la_status la_run_channel_split(struct job *job, int threads);

#endif
