/* relay.c: a pass in stages in which each group of chunks has one thread.
 *
 * It cuts and prepares the group; takes the state over from the group before and
 * carries it through its own, after which the next group may do the same; and finishes
 * the results.  Where states take little of the time to carry, threads hardly wait for
 * each other, and all that is kept of a chunk stays in the cache of one core.
 *
 * Each lane has memory for a group.  If its thread stays away, as in the child of a
 * fork, others complete the group. */
#include "os.h"
#include "staged.h"

/* What a lane has: no group; one that is being cut and prepared, or carried and
 * finished; or one that is prepared, as a number of its own from 0 on. */
enum { NONE = -1, BEGUN = -2, ENDING = -3 };

/* A thread that has waited this long looks after the groups of others, whose threads
 * are asleep then.  Those that are awake have them in their caches. */
enum { PATIENCE_US = 500 };

/* Whether there is memory for the state after this group: that of the group `lasts`
 * before is free as soon as the one after that, which reads it, is finished. */
static int
has_memory(struct la_sequence *x, ptrdiff_t group, ptrdiff_t lasts)
{
    const ptrdiff_t reader = group - lasts + 1;
    return reader < 0 || atomic_load(&x->finished[reader % lasts]) == reader;
}

/* The sequence that is behind the others, of those with a group to cut, or NULL. */
static struct la_sequence *
to_cut(const struct la_staged *x)
{
    struct la_sequence *found = NULL;
    for (size_t i = 0; i < x->count; i++) {
        struct la_sequence *sequence = &x->sequences[i];
        const ptrdiff_t group = atomic_load(&sequence->cut);
        if (!atomic_load(&sequence->is_cut) && !atomic_load(&sequence->cutting) &&
            has_memory(sequence, group, x->lasts) &&
            (found == NULL || group < atomic_load(&found->cut))) {
            found = sequence;
        }
    }
    return found;
}

/* What a lane has, if it is prepared and the state before it known; or NONE. */
static ptrdiff_t
ready(const struct la_staged *x, const struct la_lane *lane)
{
    const ptrdiff_t has = atomic_load(&lane->has), count = (ptrdiff_t)x->count;
    return has >= 0 && atomic_load(&x->sequences[has % count].carried) == has / count
               ? has
               : NONE;
}

/* What the thread of this lane should complete. */
struct next {
    struct la_lane *of;
    ptrdiff_t has; /* or NONE */
};

static struct next
to_complete(const struct la_staged *x, int lane)
{
    struct la_lane *own = &x->lanes[lane];
    struct next next = {own, ready(x, own)};
    const int helps =
        next.has == NONE && own->since != 0 && la_clock_us() - own->since > PATIENCE_US;
    for (int i = 0; helps && next.has == NONE && i < x->threads; i++) {
        next = (struct next){&x->lanes[i], ready(x, &x->lanes[i])};
    }
    return next;
}

/* Whether no thread that leaves could have to come back. */
static int
is_over(const struct la_staged *x)
{
    int over = 1;
    for (size_t i = 0; i < x->count; i++) {
        over = over && atomic_load(&x->sequences[i].is_cut);
    }
    for (int i = 0; i < x->threads; i++) {
        const ptrdiff_t has = atomic_load(&x->lanes[i].has);
        over = over && (has == NONE || has == ENDING);
    }
    return over;
}

static enum la_turn
turn(void *arg, size_t item, int lane)
{
    const struct job *job = arg;
    const struct la_staged *x = job->staged;
    struct la_lane *own = &x->lanes[lane];
    (void)item;
    if (to_complete(x, lane).has != NONE ||
        (atomic_load(&own->has) == NONE && to_cut(x) != NULL)) {
        return LA_NOW;
    }
    own->since = own->since == 0 ? la_clock_us() : own->since;
    return is_over(x) ? LA_NEVER : LA_LATER;
}

static int
prepare(struct job *job, struct la_sequence *sequence, int lane)
{
    struct la_staged *x = job->staged;
    struct la_lane *own = &x->lanes[lane];
    struct la_chunks *chunks = &x->chunks[lane];
    int idle = 0;
    if (!atomic_compare_exchange_strong(&sequence->cutting, &idle, 1)) {
        return 0;
    }
    const ptrdiff_t group = atomic_load(&sequence->cut);
    if (!has_memory(sequence, group, x->lasts)) {
        atomic_store(&sequence->cutting, 0);
        return 0;
    }
    const size_t index = (size_t)(sequence - x->sequences);
    atomic_store(&own->has, BEGUN);
    if (la_cut_group(job, index, group, chunks, lane)) {
        return 1;
    }
    const int is_cut = chunks->count == 0;
    atomic_store(&sequence->is_cut, is_cut);
    atomic_store(&sequence->cut, group + 1);
    atomic_store(&sequence->cutting, 0);
    const int stopped = la_run_stage(job, index, chunks, LA_PREPARE, 0, 1, lane);
    atomic_store(&own->has,
                 is_cut ? NONE : group * (ptrdiff_t)x->count + (ptrdiff_t)index);
    return stopped;
}

static int
complete(struct job *job, struct next next, int lane)
{
    struct la_staged *x = job->staged;
    const ptrdiff_t count = (ptrdiff_t)x->count, group = next.has / count;
    const size_t index = (size_t)(next.has % count);
    if (!atomic_compare_exchange_strong(&next.of->has, &next.has, ENDING)) {
        return 0;
    }
    struct la_chunks *chunks = &x->chunks[next.of - x->lanes];
    struct la_sequence *sequence = &x->sequences[index];
    if (la_run_stage(job, index, chunks, LA_BEGIN, 0, 1, lane) ||
        la_run_stage(job, index, chunks, LA_CARRY, 0, 1, lane)) {
        return 1;
    }
    atomic_store(&sequence->carried, group + 1);
    if (la_run_stage(job, index, chunks, LA_FINISH, 0, 1, lane)) {
        return 1;
    }
    atomic_store(&sequence->finished[group % x->lasts], group);
    atomic_store(&next.of->has, NONE);
    return 0;
}

/* The next step of a group, if no other thread has taken it meanwhile. */
static int
run_item(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const struct la_staged *x = job->staged;
    const struct next next = to_complete(x, lane);
    (void)item;
    x->lanes[lane].since = 0;
    if (next.has != NONE) {
        return complete(job, next, lane);
    }
    struct la_sequence *sequence =
        atomic_load(&x->lanes[lane].has) == NONE ? to_cut(x) : NULL;
    return sequence != NULL ? prepare(job, sequence, lane) : 0;
}

static void
begin(struct la_staged *x)
{
    for (size_t i = 0; i < x->count; i++) {
        struct la_sequence *sequence = &x->sequences[i];
        atomic_store(&sequence->is_cut, 0);
        atomic_store(&sequence->cut, 0);
        atomic_store(&sequence->carried, 0);
        for (ptrdiff_t last = 0; last < x->lasts; last++) {
            atomic_store(&sequence->finished[last], -1);
        }
    }
    for (int lane = 0; lane < x->threads; lane++) {
        atomic_store(&x->lanes[lane].has, NONE);
    }
}

const struct la_schedule la_relay = {begin, turn, run_item};
