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

#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "interrupt.h"
#include "modes.h"
#include "pool.h"
#include "scratch.h"

struct job {
    const struct la_kernel *kernel;
    const struct la_form *form;
    struct la_head head; /* what all pieces share; no data yet */
    char *base[LA_NOPERANDS];
    ptrdiff_t outer[LA_NOPERANDS]; /* step from head to head, bytes */
    ptrdiff_t inner[LA_NOPERANDS]; /* step from sequence to sequence, bytes */
    enum la_dtype dtype;
    ptrdiff_t heads, sequences;
    ptrdiff_t group;         /* heads a piece */
    ptrdiff_t panels, width; /* column panels of the values, columns each */
    char *scratch;
    size_t lane_bytes;
    struct la_interrupt interrupt;
    la_modes modes; /* the caller's */
};

static void
idle(void *arg)
{
    la_interrupt_look(&((struct job *)arg)->interrupt);
}

/* --- operands ------------------------------------------------------------- */

static ptrdiff_t
dimension(const struct la_form *form, const ptrdiff_t *dimensions, char letter,
          ptrdiff_t otherwise)
{
    const int i = la_form_dim(form, letter);
    return i < 0 ? otherwise : dimensions[1 + i];
}

/* Row and column step of an operand, from those of its core dimensions.  A number a
 * token is a matrix of equal columns. */
static void
set_steps(struct la_array *x, const struct la_slot *slot, const ptrdiff_t *core)
{
    const int rank = slot->rank, by_sequence = slot->dims[0] == 'r';
    x->rs = rank - by_sequence > 1 ? core[rank - 2] : 0;
    x->cs = rank > 0 ? core[rank - 1] : 0;
    if (rank == 1 && slot->dims[0] == 'n') {
        x->rs = x->cs;
        x->cs = 0;
    }
}

/* Reads sizes and steps of a call, in the order of its form, into the job. */
static void
name_operands(struct job *job, const struct la_loop *loop, char **args,
              const ptrdiff_t *dimensions, const ptrdiff_t *steps)
{
    const struct la_form *form = loop->form;
    struct la_head *h = &job->head;
    const int count = form->nin + form->nout;
    const ptrdiff_t *core = steps + count;
    for (int i = 0; i < count; i++) {
        const struct la_slot *slot = &form->slots[i];
        const int by_sequence = slot->dims[0] == 'r';
        struct la_array *x = la_operand_in(h, slot->id);
        job->base[slot->id] = args[i];
        job->outer[slot->id] = steps[i];
        job->inner[slot->id] = by_sequence ? core[0] : 0;
        if (x != NULL) {
            set_steps(x, slot, core);
            x->type = la_operand_kind(slot->id) == LA_TOKENS ? loop->type : LA_NATIVE;
        }
        if (slot->id == LA_BETA) {
            h->channels = slot->rank > 0 && slot->dims[slot->rank - 1] == 'm';
        }
        core += slot->rank;
    }
    job->form = form;
    job->sequences = dimension(form, dimensions, 'r', 1);
    h->n = dimension(form, dimensions, 'n', 1);
    h->s = dimension(form, dimensions, 's', h->n);
    h->d = dimension(form, dimensions, 'd', 0);
    h->m = dimension(form, dimensions, 'm', 0);
    job->width = h->m;
}

/* --- pieces of work ------------------------------------------------------- */

/* The first of some heads with the same keys, one of their sequences, one panel of
 * value columns. */
struct piece {
    ptrdiff_t head, sequence, panel;
};

static char *
at(const struct job *job, enum la_operand id, struct piece p)
{
    return job->base[id] + p.head * job->outer[id] + p.sequence * job->inner[id];
}

static double
number(const struct job *job, enum la_operand id, struct piece p, double otherwise)
{
    float single;
    double x;
    if (job->base[id] == NULL) {
        return otherwise;
    }
    if (job->dtype == LA_F32) {
        memcpy(&single, at(job, id, p), sizeof(single));
        return single;
    }
    memcpy(&x, at(job, id, p), sizeof(x));
    return x;
}

/* An index operand, forced into [low, high]: a gufunc takes any numbers, and none of
 * them may lead out of the arrays. */
static ptrdiff_t
limit(const struct job *job, enum la_operand id, struct piece p, ptrdiff_t low,
      ptrdiff_t high, ptrdiff_t otherwise)
{
    ptrdiff_t x = otherwise;
    if (job->base[id] != NULL) {
        memcpy(&x, at(job, id, p), sizeof(x));
    }
    return x < low ? low : x > high ? high : x;
}

/* Points the arrays of h at one piece. */
static void
place(const struct job *job, struct la_head *h, struct piece p)
{
    const struct la_form *form = job->form;
    const ptrdiff_t begin = limit(job, LA_BEGIN, p, 0, h->n, 0);
    const ptrdiff_t column = p.panel * job->width;
    for (int i = 0; i < form->nin + form->nout; i++) {
        const struct la_slot *slot = &form->slots[i];
        struct la_array *x = la_operand_in(h, slot->id);
        if (x == NULL) {
            continue;
        }
        x->data = at(job, slot->id, p);
        if (slot->dims[0] == 'n') {
            x->data += begin * x->rs;
        }
        if (slot->rank > 0 && slot->dims[slot->rank - 1] == 'm') {
            x->data += column * x->cs;
        }
    }
    if (p.panel > 0) {
        h->z1.data = NULL; /* the same in all panels: the first one's to write */
    }
    if (job->base[LA_BEGIN] != NULL) {
        h->n = limit(job, LA_END, p, begin, h->n, h->n) - begin;
        h->s = h->n;
    }
    h->group = job->heads - p.head < job->group ? job->heads - p.head : job->group;
    h->q_step = job->outer[LA_Q];
    h->o_step = job->outer[LA_O];
    h->s1_step = job->outer[LA_S];
    h->z1_step = job->outer[LA_Z];
    h->keys = limit(job, LA_KEYS, p, 0, h->s, h->s);
    h->m = h->m - column < job->width ? h->m - column : job->width;
}

/* Whether the sequences of a head cover its tokens one after another. */
static int
covered(const struct job *job, ptrdiff_t head)
{
    ptrdiff_t next = 0;
    for (ptrdiff_t r = 0; r < job->sequences; r++) {
        const struct piece p = {head, r, 0};
        const ptrdiff_t begin = limit(job, LA_BEGIN, p, 0, job->head.n, 0);
        if (begin != next) {
            return 0;
        }
        next = limit(job, LA_END, p, begin, job->head.n, job->head.n);
    }
    return next == job->head.n;
}

/* Zeros for the tokens of no sequence: a result never shows what memory held. */
static void
clear_uncovered(const struct job *job)
{
    const struct la_form *form = job->form;
    for (ptrdiff_t head = 0; head < job->heads; head++) {
        if (covered(job, head)) {
            continue;
        }
        for (int i = form->nin; i < form->nin + form->nout; i++) {
            const struct la_slot *slot = &form->slots[i];
            const struct la_array x =
                *la_operand_in((struct la_head *)&job->head, slot->id);
            const size_t size = x.type != LA_NATIVE ? 2 : job->dtype == LA_F32 ? 4 : 8;
            const ptrdiff_t cols = slot->rank < 2         ? 1
                                   : slot->dims[1] == 'd' ? job->head.d
                                                          : job->head.m;
            const struct piece p = {head, 0, 0};
            for (ptrdiff_t t = 0; slot->dims[0] == 'n' && t < job->head.n * cols; t++) {
                memset(at(job, slot->id, p) + t / cols * x.rs + t % cols * x.cs, 0,
                       size);
            }
        }
    }
}

static int
run_piece(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const ptrdiff_t rest = (ptrdiff_t)item / job->panels;
    const struct piece p = {rest / job->sequences * job->group, rest % job->sequences,
                            (ptrdiff_t)item % job->panels};
    struct la_head h = job->head;
    place(job, &h, p);
    h.scale = number(job, LA_SCALE, p, 1);
    h.eps = number(job, LA_EPS, p, 0);
    h.scratch = job->scratch + (size_t)lane * job->lane_bytes;
    h.poll = lane == 0 ? la_interrupt_caller : la_interrupt_worker;
    h.poll_arg = &job->interrupt;
    if (lane > 0) {
        la_modes_set(job->modes);
    }
    return job->kernel->run(&h);
}

/* Whether all heads of this call have the same keys, values and numbers: grouped
 * queries, as broadcasting gives them. */
static int
same_keys(const struct job *job)
{
    static const enum la_operand shared[] = {
        LA_K, LA_V, LA_SCALE, LA_EPS, LA_BEGIN, LA_END, LA_KEYS, LA_S0, LA_Z0};
    for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++) {
        if (job->base[shared[i]] != NULL && job->outer[shared[i]] != 0) {
            return 0;
        }
    }
    return 1;
}

/* Heads a piece: those with the same keys go together, in as many pieces as threads. */
static void
group_heads(struct job *job, int threads)
{
    if (same_keys(job)) {
        job->group = (job->heads + threads - 1) / threads;
    }
}

/* Whether each column of the values is computed by itself. */
static int
by_panels(enum la_op op)
{
    return op == LA_causal || op == LA_noncausal || op == LA_state || op == LA_delta;
}

/* Cuts m into panels where there are too few pieces to keep the threads busy.
 * A panel repeats the maps and the scores, so it is kept two vectors wide. */
static void
cut_panels(struct job *job, ptrdiff_t pieces, int threads, ptrdiff_t lanes)
{
    const ptrdiff_t vectors = (job->head.m + lanes - 1) / lanes;
    const int uneven = pieces < 4 * threads && pieces % threads != 0;
    ptrdiff_t panels = uneven ? threads : 1;
    if (panels > vectors / 2) {
        panels = vectors / 2;
    }
    if (panels > 1) {
        job->width = (vectors + panels - 1) / panels * lanes;
        job->panels = (job->head.m + job->width - 1) / job->width;
    }
}

/* Work below this many multiply-adds is done before a thread would have woken. */
#define WORTH_THREADS 1e6

void
la_plan_loop(char **args, const ptrdiff_t *dimensions, const ptrdiff_t *steps,
             void *data)
{
    const struct la_loop *loop = data;
    const struct la_table *table = la_cpu_table(loop->dtype);
    struct job job = {.kernel = &table->kernels[loop->op],
                      .dtype = loop->dtype,
                      .heads = dimensions[0],
                      .group = 1,
                      .panels = 1};
    struct la_head *h = &job.head;
    name_operands(&job, loop, args, dimensions, steps);
    h->map = loop->map;
    h->normalize = loop->normalize;

    const double work = (double)job.heads * (double)(h->n + h->s) * (double)(h->d + 1) *
                        (double)(h->m + 1);
    const ptrdiff_t itemsize = loop->dtype == LA_F32 ? sizeof(float) : sizeof(double);
    int threads = work < WORTH_THREADS ? 1 : la_pool_get_num_threads();
    if (loop->op == LA_causal || loop->op == LA_noncausal) {
        group_heads(&job, threads);
    }
    const ptrdiff_t pieces = (job.heads + job.group - 1) / job.group * job.sequences;
    if (by_panels(loop->op)) {
        cut_panels(&job, pieces, threads, table->vector_bytes / itemsize);
    }
    const size_t items = (size_t)pieces * (size_t)job.panels;
    if (la_interrupt_pending()) {
        return;
    }
    if (job.base[LA_BEGIN] != NULL) {
        clear_uncovered(&job);
    }
    if (items == 0) {
        return;
    }
    if ((size_t)threads > items) {
        threads = (int)items;
    }
    job.scratch =
        la_scratch_take(job.kernel->scratch(&job.head), threads, &job.lane_bytes);
    if (job.scratch == NULL) {
        la_interrupt_no_memory();
        return;
    }
    la_interrupt_start(&job.interrupt);

    /* Lanes beyond a block's edge may raise flags that no number of the result
     * shows: the call raises none. */
    job.modes = la_modes_get();
    la_pool_run(run_piece, idle, &job, items, threads);
    la_modes_set(job.modes);
    free(job.scratch);
}
