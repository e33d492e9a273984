/* staged.h: sequences that several threads compute in stages (stages.c). */
#ifndef LA_STAGED_H
#define LA_STAGED_H

#include "job.h"

/* The most states after groups in memory, of each sequence. */
enum { LA_LASTS = 16 };

struct la_sequence {
    char *shared;       /* what all groups share */
    char *lasts, *last; /* states after groups; that after the group cut last */
    ptrdiff_t at;       /* where the next group begins (la_chunks) */
    ptrdiff_t groups;   /* of the first pass */
    /* For relay.c: whether a thread cuts a group; whether all are cut; how many are
     * cut, and carried; and which one finished last, by its state in `lasts`. */
    atomic_int cutting, is_cut;
    _Atomic ptrdiff_t cut, carried, finished[LA_LASTS];
};

/* The group that a lane has in relay.c. */
struct la_lane {
    _Atomic ptrdiff_t has;
    int64_t since; /* when its thread began to wait, in microseconds; 0: it does not */
};

struct la_staged {
    struct la_sequence *sequences;
    size_t count;             /* of sequences */
    struct la_chunks *chunks; /* groups in memory */
    struct la_lane *lanes;    /* one per thread */
    int threads;
    ptrdiff_t lasts;      /* states after groups in memory, of each sequence */
    int pass;             /* over all groups, from 0 on */
    atomic_int overflows; /* a group had more chunks than were expected */
    /* For stage_list.c: groups in memory, of each sequence; shares of a group's chunks,
     * and of its states; how many are done of each stage, of all groups; how many
     * sequences are cut to the end; groups of the longest one, or SIZE_MAX. */
    ptrdiff_t slots;
    size_t shares, parts;
    atomic_size_t done[LA_STAGE_KINDS], ended, groups;
};

/* Cuts group `group` of a sequence, the next one; one without tokens is computed at
 * once.  x->count is 0 if there is none.  As all functions here: nonzero to stop. */
int la_cut_group(struct job *job, size_t sequence, ptrdiff_t group, struct la_chunks *x,
                 int lane);

/* Runs one of the shares of another stage of a group. */
int la_run_stage(struct job *job, size_t sequence, struct la_chunks *x,
                 enum la_stage_kind kind, size_t share, size_t shares, int lane);

/* How threads share a pass over all groups: what is set before it, and what the pool
 * asks and runs. */
struct la_schedule {
    void (*begin)(struct la_staged *x);
    la_turns turn;
    la_work work;
};

extern const struct la_schedule la_relay;      /* each group by one thread */
extern const struct la_schedule la_stage_list; /* every group by all threads */

#endif
