/* stage_list.c: a pass in stages in which all threads share every group of chunks.
 *
 * It is one list of shares, which threads take in order, each as soon as those that it
 * depends on are done.  Stages of several groups are beside each other in the list, so
 * that threads seldom wait:
 *
 *    cut group i;  begin and carry group i - 1;  prepare i;  finish i - slots + 1
 *
 * Gradients finish a group just after it is carried, and need less memory. */
#include "staged.h"

#include <stdint.h>

/* A share of a stage of a group. */
struct share {
    enum la_stage_kind kind;
    ptrdiff_t group; /* less than 0: there is none yet */
    size_t index;
};

/* Shares of a stage of one group. */
static size_t
shares_of(const struct la_staged *x, enum la_stage_kind kind)
{
    return kind == LA_CUT || kind == LA_BEGIN ? x->count
           : kind == LA_CARRY                 ? x->count * x->parts
                                              : x->count * x->shares;
}

static struct share
share_of_item(const struct la_staged *x, size_t item)
{
    const struct {
        enum la_stage_kind kind;
        ptrdiff_t behind;
    } order[] = {{LA_CUT, 0},
                 {LA_BEGIN, 1},
                 {LA_CARRY, 1},
                 {LA_PREPARE, 0},
                 {LA_FINISH, x->slots - 1}};
    size_t round = 0;
    for (int i = 0; i < LA_STAGE_KINDS; i++) {
        round += shares_of(x, order[i].kind);
    }
    const ptrdiff_t now = (ptrdiff_t)(item / round);
    size_t index = item % round;
    int i = 0;
    for (; index >= shares_of(x, order[i].kind); i++) {
        index -= shares_of(x, order[i].kind);
    }
    return (struct share){order[i].kind, now - order[i].behind, index};
}

/* Whether all shares of a stage are done, of groups up to this one. */
static int
is_done(const struct la_staged *x, enum la_stage_kind kind, ptrdiff_t group)
{
    return group < 0 || atomic_load_explicit(&x->done[kind], memory_order_acquire) >=
                            (size_t)(group + 1) * shares_of(x, kind);
}

/* Shares of a stage also wait for those of the group before, or else one of a later
 * group could be taken for them in what is_done counts. */
static enum la_turn
turn(void *arg, size_t item, int lane)
{
    const struct la_staged *x = ((struct job *)arg)->staged;
    (void)lane;
    const struct share share = share_of_item(x, item);
    const ptrdiff_t group = share.group;
    int may = 0;
    switch (share.kind) {
    case LA_CUT:
        if (group >= x->slots - 1 &&
            (size_t)(group - x->slots + 1) >= atomic_load(&x->groups)) {
            return LA_NEVER;
        }
        may = is_done(x, LA_CUT, group - 1) && is_done(x, LA_FINISH, group - x->slots);
        break;
    case LA_PREPARE:
        may = is_done(x, LA_CUT, group) && is_done(x, LA_PREPARE, group - 1);
        break;
    case LA_BEGIN:
        may = is_done(x, LA_CUT, group) && is_done(x, LA_CARRY, group - 1);
        break;
    case LA_CARRY:
        may = is_done(x, LA_BEGIN, group) && is_done(x, LA_PREPARE, group);
        break;
    default: /* LA_FINISH */
        may = is_done(x, LA_CARRY, group) && is_done(x, LA_FINISH, group - 1);
    }
    return may ? LA_NOW : LA_LATER;
}

/* A group of a sequence, in memory. */
static struct la_chunks *
chunks_of(const struct la_staged *x, size_t sequence, ptrdiff_t group)
{
    return &x->chunks[sequence * (size_t)x->slots + (size_t)(group % x->slots)];
}

/* Cuts a group, and notes that a sequence has no group of this number. */
static int
cut(struct job *job, size_t sequence, ptrdiff_t group, int lane)
{
    struct la_staged *x = job->staged;
    struct la_chunks *chunks = chunks_of(x, sequence, group);
    const ptrdiff_t before = x->sequences[sequence].cut;
    if (la_cut_group(job, sequence, group, chunks, lane)) {
        return 1;
    }
    x->sequences[sequence].cut = before + (chunks->count > 0);
    if (chunks->count == 0 && before == group &&
        atomic_fetch_add(&x->ended, 1) + 1 == x->count) {
        atomic_store(&x->groups, (size_t)group);
    }
    return 0;
}

/* One share of another stage. */
static int
run_share(struct job *job, struct share share, int lane)
{
    const struct la_staged *x = job->staged;
    const size_t shares = shares_of(x, share.kind) / x->count,
                 sequence = share.index / shares;
    return la_run_stage(job, sequence, chunks_of(x, sequence, share.group), share.kind,
                        share.index % shares, shares, lane);
}

static int
run_item(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    struct la_staged *x = job->staged;
    const struct share share = share_of_item(x, item);
    if (share.group < 0) {
        return 0;
    }
    const int stopped = share.kind == LA_CUT ? cut(job, share.index, share.group, lane)
                                             : run_share(job, share, lane);
    if (!stopped) {
        atomic_fetch_add_explicit(&x->done[share.kind], 1, memory_order_release);
    }
    return stopped;
}

static void
begin(struct la_staged *x)
{
    for (int kind = 0; kind < LA_STAGE_KINDS; kind++) {
        atomic_store(&x->done[kind], 0);
    }
    for (size_t i = 0; i < x->count; i++) {
        atomic_store(&x->sequences[i].cut, 0);
    }
    atomic_store(&x->ended, 0);
    atomic_store(&x->groups, SIZE_MAX);
}

const struct la_schedule la_stage_list = {begin, turn, run_item};
