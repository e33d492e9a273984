/* pool.c: a small thread pool.
 *
 * Workers start with the first call that needs them.  After a job they stay awake for
 * some tens of microseconds, as long as it takes to wake them, and then sleep on a
 * condition variable.  One job runs at a time; a second caller computes alone.
 *
 * A fork waits until the workers have finished their current items, so that in the
 * child, which has no workers, no item is half done.  A caller that forks during its
 * own job, in a signal handler that runs when it polls, continues alone in the child;
 * any other child starts with an empty pool. */
#include "pool.h"

#include <stdatomic.h>

#include "modes.h"
#include "os.h"
#include "shares.h"

static struct {
    la_mutex owner; /* held by the caller of the current job */
    la_mutex lock;  /* guards the plain fields below */
    la_condition wake, done;
    int workers;        /* threads started */
    atomic_int wanted;  /* workers that may still join the current job */
    atomic_int running; /* workers in the current job */
    int cpus;           /* that this process may use */
    atomic_int spins;   /* whether there is a CPU for each lane of the current job */
    struct la_list list;
    int next_lane, helpers; /* lanes: 0 is the caller's, helpers have the next ones */
    atomic_size_t next;
    atomic_int stop;  /* take no further item: a piece of work asked to stop */
    atomic_int pause; /* workers take no further item: a fork waits */
} pool;

/* Whether this thread is the caller of the current job. */
static _Thread_local int is_owner;

static atomic_int delay_ms; /* sleep of workers after each piece */

static _Atomic la_runner runner;

void
la_pool_set_runner(la_runner new)
{
    atomic_store(&runner, new);
}

int
la_pool_has_runner(void)
{
    /* Who delays workers wants to see what happens meanwhile. */
    return atomic_load_explicit(&runner, memory_order_relaxed) != NULL &&
           atomic_load_explicit(&delay_ms, memory_order_relaxed) == 0;
}

static void
reset(void)
{
    la_mutex_init(&pool.owner);
    la_mutex_init(&pool.lock);
    la_condition_init(&pool.wake);
    la_condition_init(&pool.done);
    pool.workers = 0;
    atomic_store(&pool.wanted, 0);
    atomic_store(&pool.running, 0);
    atomic_store(&pool.pause, 0);
    la_pool_set_runner(NULL);
}

static void
before_fork(void)
{
    la_mutex_lock(&pool.lock);
    atomic_store(&pool.pause, 1);
    pool.wanted = 0;
    while (pool.running > 0) {
        la_condition_wait(&pool.done, &pool.lock);
    }
}

/* Lets the workers back in if their job is not done. */
static void
after_fork_in_parent(void)
{
    atomic_store(&pool.pause, 0);
    pool.next_lane = 1;
    pool.wanted = pool.helpers < pool.workers ? pool.helpers : pool.workers;
    la_condition_wake_all(&pool.wake);
    la_mutex_unlock(&pool.lock);
}

static void
after_fork_in_child(void)
{
    reset();
    if (is_owner) {
        la_mutex_lock(&pool.owner);
    }
}

void
la_pool_init(void)
{
    reset();
    pool.cpus = la_pool_cpus();
    la_at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void
la_pool_delay_workers(int ms)
{
    atomic_store(&delay_ms, ms);
}

/* What spin() tests between a few pauses: nearly all of the time is spent in them. */
enum { PAUSES = 16 };

/* How often a caller that waits calls idle. */
enum { IDLE_MS = 20 };

static _Atomic long spin_us;

long
la_pool_spin(long us)
{
    return us < 0 ? atomic_load(&spin_us)
                  : atomic_exchange(&spin_us, us > LA_MAX_SPIN ? LA_MAX_SPIN : us);
}

/* Whether no other thread has taken this thread's CPU since it last asked.  Where CPUs
 * are scarce, threads that wait awake only take time from those that have work. */
static int
is_calm(void)
{
    static _Thread_local long preemptions;
    const long before = preemptions;
    preemptions = la_preemptions();
    return preemptions == before;
}

/* Stays awake for a short time until the number is zero, or not. */
static void
spin(const atomic_int *number, int until_zero)
{
    const long us = atomic_load_explicit(&spin_us, memory_order_relaxed);
    if (us == 0 || !atomic_load_explicit(&pool.spins, memory_order_relaxed)) {
        return;
    }
    const int64_t end = la_clock_us() + us;
    while ((atomic_load_explicit(number, memory_order_relaxed) == 0) != until_zero &&
           la_clock_us() < end) {
        for (int i = 0; i < PAUSES; i++) {
            la_pause();
        }
    }
}

/* A thread that waits for the turn of an item. */
struct wait {
    size_t item;
    int64_t since, asked, idle; /* when this began, is_calm() and idle() were called */
    int awake;
};

/* Waits a little: awake at first, longer than after a job, as the thread that it waits
 * for has work and sleeps overrun by the time of several turns; then such that threads
 * with work get the CPU. */
static void
wait_for_turn(const struct la_list *list, size_t item, int lane, struct wait *x)
{
    enum { SLEEP_US = 50, LONGER = 10 };
    const int64_t now = la_clock_us();
    const long us = atomic_load_explicit(&spin_us, memory_order_relaxed);
    if (x->since == 0 || x->item != item) {
        x->item = item;
        x->since = x->asked = now;
        x->idle = x->idle == 0 ? now : x->idle;
        x->awake = us > 0 && atomic_load_explicit(&pool.spins, memory_order_relaxed) &&
                   is_calm();
    }
    else if (now - x->asked >= us) {
        x->asked = now;
        x->awake = x->awake && now - x->since < LONGER * us && is_calm();
    }
    if (x->awake) {
        for (int i = 0; i < PAUSES; i++) {
            la_pause();
        }
    }
    else {
        la_sleep_us(SLEEP_US);
    }
    if (lane == 0 && now - x->idle > 1000 * IDLE_MS) {
        list->idle(list->job);
        x->idle = now;
    }
}

/* The next item, as soon as it may begin; or a number past the last one. */
static size_t
next_item(const struct la_list *list, int lane)
{
    struct wait wait = {0};
    if (list->turn == NULL) {
        const int stops =
            atomic_load(&pool.stop) || (lane > 0 && atomic_load(&pool.pause));
        const size_t own = stops ? SIZE_MAX : la_shares_next(lane == 0);
        atomic_fetch_add_explicit(&pool.next, own != SIZE_MAX, memory_order_relaxed);
        return own;
    }
    size_t item = atomic_load(&pool.next);
    while (!atomic_load(&pool.stop) && !(lane > 0 && atomic_load(&pool.pause)) &&
           item < list->items) {
        const enum la_turn turn = list->turn(list->job, item, lane);
        if (turn == LA_NEVER) {
            break;
        }
        if (turn == LA_LATER) {
            wait_for_turn(list, item, lane, &wait);
            item = atomic_load(&pool.next);
        }
        else if (atomic_compare_exchange_weak(&pool.next, &item, item + 1)) {
            return item;
        }
    }
    return SIZE_MAX;
}

static void
share(const struct la_list *list, int lane)
{
    size_t item;
    while ((item = next_item(list, lane)) < list->items) {
        if (list->work(list->job, item, lane)) {
            atomic_store(&pool.stop, 1);
        }
        const int delay = atomic_load_explicit(&delay_ms, memory_order_relaxed);
        if (lane > 0 && delay > 0) {
            la_sleep_us(1000L * delay);
        }
    }
}

static void
worker(void)
{
    for (;;) {
        if (is_calm()) {
            spin(&pool.wanted, 0);
        }
        la_mutex_lock(&pool.lock);
        while (pool.wanted == 0) {
            la_condition_wait(&pool.wake, &pool.lock);
        }
        pool.wanted--;
        pool.running++;
        const int lane = pool.next_lane++;
        const struct la_list list = pool.list;
        la_mutex_unlock(&pool.lock);
        share(&list, lane);
        la_mutex_lock(&pool.lock);
        if (--pool.running == 0) {
            la_condition_wake_all(&pool.done); /* the caller, or a thread that forks */
        }
        la_mutex_unlock(&pool.lock);
    }
}

static void
wait_for_workers(const struct la_list *list)
{
    la_mutex_lock(&pool.lock);
    pool.helpers = pool.wanted = 0; /* workers that arrive later find no items */
    if (is_calm()) {
        la_mutex_unlock(&pool.lock);
        spin(&pool.running, 1);
        la_mutex_lock(&pool.lock);
    }
    while (pool.running > 0) {
        if (la_condition_wait_ms(&pool.done, &pool.lock, IDLE_MS)) {
            la_mutex_unlock(&pool.lock);
            list->idle(list->job);
            la_mutex_lock(&pool.lock);
        }
    }
    la_mutex_unlock(&pool.lock);
}

static int
run_alone(const struct la_list *list)
{
    for (size_t i = 0; i < list->items; i++) {
        if (list->turn != NULL && list->turn(list->job, i, 0) == LA_NEVER) {
            return 0;
        }
        if (list->work(list->job, i, 0)) {
            return 1;
        }
    }
    return 0;
}

/* A job on the runner's threads. */
struct lent {
    const struct la_list *list;
    atomic_int next_lane;
    int64_t done; /* when the caller found no further item */
};

/* The pool waits only for the threads that came to a job, the runner for all.  If they
 * come late, since other programs need the CPUs, the next jobs are the pool's.  A short
 * job takes less than SOON_US by itself. */
enum { LATE_US = 200, SOON_US = 40, JOBS_AFTER_LATE = 1000 };

static atomic_int not_lent; /* the next jobs, as threads came late */

static void
lend(void *arg)
{
    struct lent *x = arg;
    const la_modes modes = la_modes_get();
    share(x->list, is_owner ? 0 : atomic_fetch_add(&x->next_lane, 1));
    if (is_owner) {
        x->done = la_clock_us();
    }
    la_modes_set(modes);
}

static void
run_lent(la_runner run, const struct la_list *list, int lanes, enum la_length length)
{
    struct lent x = {.list = list, .next_lane = 1};
    atomic_store(&pool.spins, lanes <= pool.cpus);
    run(lend, &x, (unsigned)lanes, 0);
    if (la_clock_us() - x.done > (length == LA_SHORT ? SOON_US : LATE_US)) {
        atomic_store(&not_lent, JOBS_AFTER_LATE);
    }
}

int
la_pool_lends(void)
{
    return la_pool_has_runner() &&
           (atomic_load(&not_lent) <= 0 || atomic_fetch_sub(&not_lent, 1) <= 1);
}

/* The runner, if it may run a job. */
static la_runner
runner_of(enum la_length length)
{
    return length != LA_LONG && la_pool_lends() ? atomic_load(&runner) : NULL;
}

static void
run_own(const struct la_list *list, int lanes)
{
    const int helpers = lanes - 1;
    la_mutex_lock(&pool.lock);
    pool.workers = la_threads_start(worker, pool.workers, helpers);
    la_threads_avoid_caller(pool.workers);
    pool.list = *list;
    pool.next_lane = 1;
    pool.helpers = helpers;
    pool.wanted = helpers < pool.workers ? helpers : pool.workers;
    atomic_store(&pool.spins, lanes <= pool.cpus);
    la_condition_wake_all(&pool.wake);
    la_mutex_unlock(&pool.lock);
    share(list, 0);
    wait_for_workers(list);
}

int
la_pool_run(const struct la_list *list, int lanes, enum la_length length)
{
    if (lanes <= 1 || !la_mutex_try(&pool.owner)) {
        return run_alone(list);
    }
    const la_runner run = runner_of(length);
    atomic_store(&pool.next, 0);
    atomic_store(&pool.stop, 0);
    la_shares_set(list->items, lanes);
    is_owner = 1;
    if (run != NULL) {
        run_lent(run, list, lanes, length);
    }
    else {
        run_own(list, lanes);
    }
    is_owner = 0;
    la_pool_note_job(atomic_load(&pool.next), lanes);
    const int stopped = atomic_load(&pool.stop);
    la_mutex_unlock(&pool.owner);
    return stopped;
}
