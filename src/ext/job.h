/* job.h: a call on its way: what its pieces share, where each of them lies, and how
 * they are run.  plan.c and the three files that cut a call further (interleave.c,
 * sequence_split.c, backward_split.c) make the pieces. */
#ifndef LA_JOB_H
#define LA_JOB_H

#include <stdatomic.h>
#include <stddef.h>

#include "modes.h"
#include "plan.h"
#include "scratch.h"

struct job {
    const struct la_call *call;
    const struct la_watch *watch;
    const struct la_table *table;
    const struct la_kernel *kernel;
    int properties;
    struct la_head head; /* what all pieces share; data of the first one */
    const struct la_operand_array
        *by_id[LA_NOPERANDS];      /* NULL where the call has none */
    ptrdiff_t inner[LA_NOPERANDS]; /* step from sequence to sequence, bytes */
    ptrdiff_t heads, sequences;
    ptrdiff_t last, group,
        groups;              /* heads of the last axis, in a group; groups of it */
    ptrdiff_t panels, width; /* column panels of the values, columns each */
    ptrdiff_t rows, parts;   /* rows a part, parts of n */
    struct la_scratch scratch;
    la_modes modes;                           /* the caller's */
    struct la_state_sums *sums;               /* of sequence_split.c */
    struct la_backward_split *backward_split; /* of backward_split.c */
    int interleaved; /* heads that a thread interleaves (interleave.c), or 1 */
    atomic_int stop;
    atomic_int overrun; /* a piece wanted more scratch than was measured */
};

/* The first of some heads with the same keys, one of their sequences, one panel of
 * value columns, one stretch of rows. */
struct piece {
    ptrdiff_t head, sequence, panel, part;
};

/* Reads sizes and steps of the call, in the order of its signature, into the job. */
void la_job_read(struct job *job);

/* Size of a dimension by its letter. */
ptrdiff_t la_job_dimension(const struct la_call *call, char letter,
                           ptrdiff_t otherwise);

/* Where operand id of a piece begins. */
char *la_job_at(const struct job *job, int id, struct piece p);

/* An index operand, forced into [low, high]: a gufunc takes any numbers, and none of
 * them may lead out of the arrays. */
ptrdiff_t la_job_index(const struct job *job, enum la_operand id, struct piece p,
                       ptrdiff_t low, ptrdiff_t high, ptrdiff_t otherwise);

/* Points the arrays of h, a copy of job->head, at one piece, and sets its numbers. */
void la_job_place(const struct job *job, struct la_head *h, struct piece p);

/* Tokens a segment of a sequence of n, or 0 where it is not cut. */
ptrdiff_t la_job_segment(const struct job *job, ptrdiff_t n);

/* Sets from how many tokens on a sequence is cut, LA_LONG at first; what it was before.
 * For tests. */
ptrdiff_t la_job_set_long(ptrdiff_t tokens);

/* Scratch of `bytes` for so many pieces at once, where the job has less; 0, or -1 where
 * there is no memory. */
int la_job_reserve(struct job *job, size_t bytes, int lanes);

/* Runs the pieces [0, items) of a job on `threads`, with so many bytes of scratch each.
 */
enum la_status la_job_run(struct job *job, const struct la_kernel *kernel,
                          int (*piece)(void *job, size_t item, int lane), size_t bytes,
                          size_t items, int threads);

/* Computes a piece, with the scratch and the poll of its lane; nonzero: give up. */
int la_job_compute(struct job *job, struct la_head *h, int lane);

/* Asks the watch whether to give up; for the caller's thread. */
int la_job_poll(struct job *job);

/* Whether the packed sequences, if there are any, leave tokens out; LA_OVERLAP where
 * they have tokens in common (sequences.c). */
enum la_status la_sequences_check(struct job *job, int *gaps);

/* Zeros for all rows of the results, of which sequences are not to cover all: a result
 * never shows what memory held.  Nonzero: give up. */
int la_sequences_clear(struct job *job);

/* The segments of the one sequence of each head, in parallel (sequence_split.c). */
enum la_status la_run_sequence_split(struct job *job, int threads);

/* How many heads a thread interleaves, no more than leaves each thread some; 1: none
 * (interleave.c). */
ptrdiff_t la_interleaved_heads(const struct job *job, int threads);

/* Interleaves so many heads, each with so many bytes of scratch. */
enum la_status la_run_interleaved(struct job *job, ptrdiff_t heads, size_t bytes,
                                  int threads);

/* The passes of the one sequence of each head, in parallel (backward_split.c). */
enum la_status la_run_backward_split(struct job *job, int threads);

#endif
