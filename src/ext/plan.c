/* plan.c: the one inner loop behind all gufuncs.
 *
 * Names the operands of a call, cuts it into heads times panels of value columns,
 * and hands the pieces to the pool, each with its own scratch.  A panel's columns
 * are computed by the same operations in the same order whatever the panel's
 * width (micro.h), so how many threads there are changes no bit. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "plan.h"

#include <fenv.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu.h"
#include "pool.h"

/* Operands of the operators, in the order of their gufuncs' signatures. */
enum operand { Q, K, V, G, SCALE, EPS, O, DQ, DK, DV, NOPERANDS };

struct job {
    const struct la_kernel *kernel;
    struct la_head head;            /* of batch index 0, scratch excepted */
    char *base[NOPERANDS];
    ptrdiff_t outer[NOPERANDS];     /* step from head to head, bytes */
    size_t itemsize;
    enum la_dtype dtype;
    ptrdiff_t panels, width;        /* column panels of v and o, columns each */
    char *scratch;
    size_t lane_bytes;
    atomic_int stop;
    struct timespec last_look;
};

/* --- Ctrl-C -------------------------------------------------------------- */

/* Looks for signals at most every LOOK_MS: taking the GIL may mean waiting. */
enum { LOOK_MS = 30 };

#if defined(CLOCK_MONOTONIC_COARSE)
#define LA_CLOCK CLOCK_MONOTONIC_COARSE
#else
#define LA_CLOCK CLOCK_MONOTONIC
#endif

static void
look_for_signals(struct job *job)
{
    const PyGILState_STATE gil = PyGILState_Ensure();
    if (PyErr_CheckSignals() != 0) {
        atomic_store(&job->stop, 1);
    }
    PyGILState_Release(gil);
}

static void
idle(void *arg)
{
    look_for_signals(arg);
}

static int
poll_worker(void *arg)
{
    return atomic_load_explicit(&((struct job *)arg)->stop, memory_order_relaxed);
}

static int
poll_caller(void *arg)
{
    struct job *job = arg;
    struct timespec now;
    clock_gettime(LA_CLOCK, &now);
    const int64_t ms = (int64_t)(now.tv_sec - job->last_look.tv_sec) * 1000 +
                       (now.tv_nsec - job->last_look.tv_nsec) / 1000000;
    if (ms >= LOOK_MS) {
        look_for_signals(job);
        clock_gettime(LA_CLOCK, &job->last_look);
    }
    return poll_worker(job);
}

/* --- operands ------------------------------------------------------------- */

static double
scalar(const struct job *job, enum operand which, size_t head)
{
    const char *p = job->base[which] + (ptrdiff_t)head * job->outer[which];
    if (job->dtype == LA_F32) {
        float x;
        memcpy(&x, p, sizeof(x));
        return x;
    }
    double x;
    memcpy(&x, p, sizeof(x));
    return x;
}

/* Reads a call's operands, in signature order, into the job. */
static void
name_operands(struct job *job, const struct la_loop *loop, char **args,
              const ptrdiff_t *dimensions, const ptrdiff_t *steps)
{
    const int backward = loop->op == LA_causal_backward ||
                         loop->op == LA_noncausal_backward;
    const int cross = loop->op == LA_noncausal || loop->op == LA_noncausal_backward;
    struct la_head *h = &job->head;
    struct la_array *const matrices[NOPERANDS] = {
        [Q] = &h->q, [K] = &h->k, [V] = &h->v, [G] = &h->g,
        [O] = &h->o, [DQ] = &h->dq, [DK] = &h->dk, [DV] = &h->dv,
    };
    enum operand order[NOPERANDS];
    int count = 0;
    order[count++] = Q, order[count++] = K, order[count++] = V;
    if (backward) {
        order[count++] = G;
    }
    order[count++] = SCALE;
    if (loop->normalize) {
        order[count++] = EPS;
    }
    if (backward) {
        order[count++] = DQ, order[count++] = DK, order[count++] = DV;
    }
    else {
        order[count++] = O;
    }

    const ptrdiff_t *core = steps + count;
    for (int i = 0; i < count; i++) {
        struct la_array *x = matrices[order[i]];
        job->base[order[i]] = args[i];
        job->outer[order[i]] = steps[i];
        if (x != NULL) {
            x->rs = *core++;
            x->cs = *core++;
        }
    }
    h->n = dimensions[1];
    h->d = dimensions[2];
    h->s = cross ? dimensions[3] : h->n;
    h->m = cross ? dimensions[4] : dimensions[3];
    h->map = loop->map;
    h->normalize = loop->normalize;
}

/* --- pieces of work ------------------------------------------------------- */

static int
run_piece(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const size_t index = item / (size_t)job->panels;
    const ptrdiff_t column = (ptrdiff_t)(item % (size_t)job->panels) * job->width;
    struct la_head h = job->head;
    struct la_array *const matrices[NOPERANDS] = {
        [Q] = &h.q, [K] = &h.k, [V] = &h.v, [G] = &h.g,
        [O] = &h.o, [DQ] = &h.dq, [DK] = &h.dk, [DV] = &h.dv,
    };
    for (int i = 0; i < NOPERANDS; i++) {
        if (matrices[i] != NULL && job->base[i] != NULL) {
            matrices[i]->data = job->base[i] + (ptrdiff_t)index * job->outer[i];
        }
    }
    if (job->panels > 1) {
        h.v.data += column * h.v.cs;
        h.o.data += column * h.o.cs;
        h.m = h.m - column < job->width ? h.m - column : job->width;
    }
    h.scale = scalar(job, SCALE, index);
    h.eps = h.normalize ? scalar(job, EPS, index) : 0;
    h.scratch = job->scratch + (size_t)lane * job->lane_bytes;
    h.poll = lane == 0 ? poll_caller : poll_worker;
    h.poll_arg = job;
    return job->kernel->run(&h);
}

/* Cuts m into panels where there are too few heads to keep the threads busy.
 * A panel repeats the maps and the scores, so it is kept two vectors wide. */
static void
cut_panels(struct job *job, size_t heads, int threads, ptrdiff_t lanes)
{
    const ptrdiff_t vectors = (job->head.m + lanes - 1) / lanes;
    const int uneven = heads < 4 * (size_t)threads && heads % (size_t)threads != 0;
    ptrdiff_t panels = uneven ? threads : 1;
    if (panels > vectors / 2) {
        panels = vectors / 2;
    }
    job->width = job->head.m;
    job->panels = 1;
    if (panels > 1) {
        job->width = (vectors + panels - 1) / panels * lanes;
        job->panels = (job->head.m + job->width - 1) / job->width;
    }
}

/* Work below this many multiply-adds is done before a thread would have woken. */
#define WORTH_THREADS 1e6

static void
raise_no_memory(void)
{
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyErr_NoMemory();
    PyGILState_Release(gil);
}

void
la_plan_loop(char **args, const ptrdiff_t *dimensions, const ptrdiff_t *steps,
             void *data)
{
    const struct la_loop *loop = data;
    const struct la_table *table = la_cpu_table();
    const size_t heads = (size_t)dimensions[0];
    struct job job = {.kernel = &table->kernels[loop->op][loop->dtype],
                      .dtype = loop->dtype,
                      .itemsize = loop->dtype == LA_F32 ? sizeof(float) : sizeof(double)};
    name_operands(&job, loop, args, dimensions, steps);
    const struct la_head *h = &job.head;

    const double work = (double)heads * (double)(h->n + h->s) * (double)(h->d + 1) *
                        (double)(h->m + 1);
    int threads = work < WORTH_THREADS ? 1 : la_pool_get_num_threads();
    job.panels = 1;
    if (loop->op == LA_causal || loop->op == LA_noncausal) {
        cut_panels(&job, heads, threads, table->vector_bytes / (ptrdiff_t)job.itemsize);
    }
    const size_t items = heads * (size_t)job.panels;
    if ((size_t)threads > items) {
        threads = (int)items;
    }
    job.lane_bytes = (job.kernel->scratch(h) + LA_ALIGN - 1) / LA_ALIGN * LA_ALIGN;
    void *memory = NULL;
    if (job.lane_bytes > SIZE_MAX / 2 / (size_t)(threads > 0 ? threads : 1) ||
        posix_memalign(&memory, LA_ALIGN, job.lane_bytes * (size_t)threads + LA_ALIGN)) {
        raise_no_memory();
        return;
    }
    job.scratch = memory;
    clock_gettime(LA_CLOCK, &job.last_look);

    /* Lanes beyond a block's edge may raise flags that no number of the result
     * shows: the call raises none. */
    fenv_t before;
    feholdexcept(&before);
    la_pool_run(run_piece, idle, &job, items, threads);
    fesetenv(&before);
    free(memory);
}
