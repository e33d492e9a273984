/* plan.c: the one loop behind all operators.
 *
 * Cuts a call into pieces and hands them to the pool, each with its own scratch: heads
 * (those with the same keys together), packed sequences, panels of value columns, and,
 * where rows are independent, stretches of them.  A panel's columns are computed by the
 * same operations in the same order whatever its width (micro.h), and a row whatever
 * stretch it is in, so how many threads there are changes no bit. */
#define _GNU_SOURCE
#include "plan.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "modes.h"
#include "pool.h"
#include "scratch.h"

struct job {
    const struct la_call *call;
    const struct la_watch *watch;
    const struct la_kernel *kernel;
    int properties;
    struct la_head head; /* what all pieces share; no data yet */
    const struct la_operand_array
        *by_id[LA_NOPERANDS];      /* NULL where the call has none */
    ptrdiff_t inner[LA_NOPERANDS]; /* step from sequence to sequence, bytes */
    ptrdiff_t heads, sequences;
    ptrdiff_t last, group,
        groups;              /* heads of the last axis, in a group; groups of it */
    ptrdiff_t panels, width; /* column panels of the values, columns each */
    ptrdiff_t rows, parts;   /* rows a part, parts of n */
    char *scratch;
    size_t lane_bytes;
    la_modes modes; /* the caller's */
    atomic_int stop;
};

/* --- operands ------------------------------------------------------------- */

static ptrdiff_t
dimension(const struct la_call *call, char letter, ptrdiff_t otherwise)
{
    const int i = la_form_dim(call->form, letter);
    return i < 0 ? otherwise : call->dims[i];
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

/* Numbers of the first result, of all heads: 16 MiB in float32 no caller finds in its
 * cache. */
enum { LARGE = 1 << 22 };

static double
results(const struct la_call *call)
{
    const struct la_slot *slot = &call->form->slots[call->form->nin];
    double count = 1;
    for (int axis = 0; axis < call->axes; axis++) {
        count *= (double)call->extent[axis];
    }
    for (int i = 0; i < slot->rank; i++) {
        count *= (double)dimension(call, slot->dims[i], 1);
    }
    return count;
}

/* Reads sizes and steps of a call, in the order of its form, into the job. */
static void
name_operands(struct job *job)
{
    const struct la_call *call = job->call;
    const struct la_form *form = call->form;
    struct la_head *h = &job->head;
    for (int i = 0; i < form->nin + form->nout; i++) {
        const struct la_slot *slot = &form->slots[i];
        job->by_id[slot->id] = &call->x[i];
        job->inner[slot->id] = slot->dims[0] == 'r' ? call->x[i].core[0] : 0;
        if (slot->id < LA_NARRAYS) {
            struct la_array *x = &h->arrays[slot->id];
            set_steps(x, slot, call->x[i].core);
            x->type = la_is_tokens(slot->id) ? call->type : LA_NATIVE;
        }
    }
    h->n = dimension(call, 'n', 1);
    h->s = dimension(call, 's', h->n);
    h->d = dimension(call, 'd', 0);
    h->m = dimension(call, 'm', 0);
    h->f = dimension(call, 'f', 0);
    h->map = call->map;
    h->large = results(call) >= LARGE;
    h->normalize = (form->variant & LA_NORMALIZER) != 0;
    h->channels = (form->variant & LA_CHANNELS) != 0;
    job->sequences = dimension(call, 'r', 1);
    job->heads = 1;
    for (int axis = 0; axis < call->axes; axis++) {
        job->heads *= call->extent[axis];
    }
}

/* --- pieces of work ------------------------------------------------------- */

/* The first of some heads with the same keys, one of their sequences, one panel of
 * value columns, one stretch of rows. */
struct piece {
    ptrdiff_t head, sequence, panel, part;
};

static char *
at(const struct job *job, int id, struct piece p)
{
    const struct la_call *call = job->call;
    char *data = job->by_id[id]->data + p.sequence * job->inner[id];
    for (int axis = call->axes - 1; axis >= 0; axis--) {
        data += p.head % call->extent[axis] * job->by_id[id]->outer[axis];
        p.head /= call->extent[axis];
    }
    return data;
}

static double
number(const struct job *job, int id, struct piece p)
{
    float single;
    double x;
    if (job->call->dtype == LA_F32) {
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
    if (job->by_id[id] != NULL) {
        memcpy(&x, at(job, id, p), sizeof(x));
    }
    return x < low ? low : x > high ? high : x;
}

/* Step from one head of the last axis to the next. */
static ptrdiff_t
last_step(const struct job *job, enum la_operand id)
{
    const struct la_call *call = job->call;
    return job->by_id[id] != NULL && call->axes > 0
               ? job->by_id[id]->outer[call->axes - 1]
               : 0;
}

/* Points the arrays of h at one piece, and sets its numbers. */
static void
place(const struct job *job, struct la_head *h, struct piece p)
{
    const struct la_form *form = job->call->form;
    const ptrdiff_t start = limit(job, LA_AT_begin, p, 0, h->n, 0);
    const ptrdiff_t end = limit(job, LA_AT_end, p, start, h->n, h->n);
    const ptrdiff_t first = p.part * job->rows, begin = start + first;
    const ptrdiff_t column = p.panel * job->width;
    for (int i = 0; i < form->nin + form->nout; i++) {
        const struct la_slot *slot = &form->slots[i];
        if (la_is_number(slot->id)) {
            h->numbers[slot->id - LA_NARRAYS] = number(job, slot->id, p);
        }
        if (slot->id >= LA_NARRAYS) {
            continue;
        }
        struct la_array *x = &h->arrays[slot->id];
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
    if (job->by_id[LA_AT_begin] != NULL) {
        h->s = end - start;
    }
    h->n = end - start;
    if (job->parts > 1) {
        const ptrdiff_t left = h->n - first;
        h->first = first;
        h->n = left < 0 ? 0 : left < job->rows ? left : job->rows;
    }
    const ptrdiff_t left = job->last - p.head % job->last;
    h->group = left < job->group ? left : job->group;
    h->q_step = last_step(job, LA_AT_q);
    h->o_step = last_step(job, LA_AT_o);
    h->s1_step = last_step(job, LA_AT_s1);
    h->z1_step = last_step(job, LA_AT_z1);
    h->keys = limit(job, LA_AT_keys, p, 0, h->s, h->s);
    h->m = h->m - column < job->width ? h->m - column : job->width;
}

/* --- running them --------------------------------------------------------- */

static int
poll_worker(void *arg)
{
    struct job *job = arg;
    return atomic_load_explicit(&job->stop, memory_order_relaxed);
}

static int
poll_caller(void *arg)
{
    struct job *job = arg;
    if (!poll_worker(job) && job->watch != NULL && job->watch->poll(job->watch->arg)) {
        atomic_store(&job->stop, 1);
    }
    return poll_worker(job);
}

static void
idle(void *arg)
{
    poll_caller(arg);
}

static int
run_piece(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const ptrdiff_t panel = (ptrdiff_t)item % job->panels;
    ptrdiff_t rest = (ptrdiff_t)item / job->panels;
    const ptrdiff_t part = rest % job->parts;
    rest /= job->parts;
    const ptrdiff_t group = rest / job->sequences;
    const struct piece p = {group / job->groups * job->last +
                                group % job->groups * job->group,
                            rest % job->sequences, panel, part};
    struct la_head h = job->head;
    place(job, &h, p);
    h.scratch = job->scratch + (size_t)lane * job->lane_bytes;
    h.poll = lane == 0 ? poll_caller : poll_worker;
    h.poll_arg = job;
    if (lane > 0) {
        la_modes_set(job->modes);
    }
    return h.poll(job) || job->kernel->run(&h);
}

/* --- tokens of no sequence ------------------------------------------------ */

/* Whether the sequences of a head cover its tokens one after another. */
static int
covered(const struct job *job, ptrdiff_t head)
{
    ptrdiff_t next = 0;
    for (ptrdiff_t r = 0; r < job->sequences; r++) {
        const struct piece p = {head, r, 0, 0};
        const ptrdiff_t begin = limit(job, LA_AT_begin, p, 0, job->head.n, 0);
        if (begin != next) {
            return 0;
        }
        next = limit(job, LA_AT_end, p, begin, job->head.n, job->head.n);
    }
    return next == job->head.n;
}

static int
clear_rows(struct job *job, const struct la_array *x, char *data, ptrdiff_t cols)
{
    const ptrdiff_t size = x->type != LA_NATIVE         ? 2
                           : job->call->dtype == LA_F32 ? (ptrdiff_t)sizeof(float)
                                                        : (ptrdiff_t)sizeof(double);
    for (ptrdiff_t t = 0; t < job->head.n; t++, data += x->rs) {
        if (t % 256 == 0 && poll_caller(job)) { /* a few us of work */
            return 1;
        }
        if (x->cs == size) {
            memset(data, 0, (size_t)(cols * size));
            continue;
        }
        for (ptrdiff_t j = 0; j < cols; j++) {
            memset(data + j * x->cs, 0, (size_t)size);
        }
    }
    return 0;
}

/* Zeros for the tokens of no sequence: a result never shows what memory held. */
static int
clear_uncovered(struct job *job)
{
    const struct la_form *form = job->call->form;
    for (ptrdiff_t head = 0; head < job->heads; head++) {
        if (covered(job, head)) {
            continue;
        }
        for (int i = form->nin; i < form->nin + form->nout; i++) {
            const struct la_slot *slot = &form->slots[i];
            const struct piece p = {head, 0, 0, 0};
            const ptrdiff_t cols =
                slot->rank < 2 ? 1 : dimension(job->call, slot->dims[1], 0);
            if (slot->dims[0] == 'n' && clear_rows(job, &job->head.arrays[slot->id],
                                                   at(job, slot->id, p), cols)) {
                return 1;
            }
        }
    }
    return 0;
}

/* --- cutting -------------------------------------------------------------- */

/* Whether the heads of the last axis have all inputs but q in common: grouped queries,
 * as broadcasting gives them. */
static int
same_keys(const struct job *job)
{
    const struct la_call *call = job->call;
    for (int i = 0; i < call->form->nin; i++) {
        if (call->form->slots[i].id != LA_AT_q &&
            call->x[i].outer[call->axes - 1] != 0) {
            return 0;
        }
    }
    return 1;
}

/* Heads with the same keys go together, in no more groups than threads want. */
static void
group_heads(struct job *job, int threads)
{
    const struct la_call *call = job->call;
    job->last = call->axes > 0 ? call->extent[call->axes - 1] : 1;
    job->last = job->last > 0 ? job->last : 1;
    job->group = 1;
    if (job->properties & LA_GROUPS && call->axes > 0 && same_keys(job)) {
        const ptrdiff_t others = job->heads / job->last;
        const ptrdiff_t parts = others > 0 ? (threads + others - 1) / others : 1;
        job->group = (job->last + parts - 1) / parts;
    }
    job->groups = (job->last + job->group - 1) / job->group;
}

/* Cuts m into panels where there are too few pieces to keep the threads busy: with four
 * pieces a thread an uneven share costs little.  A panel repeats the maps and the
 * scores, so it is kept two vectors wide. */
static void
cut_panels(struct job *job, ptrdiff_t pieces, int threads, ptrdiff_t lanes)
{
    const ptrdiff_t vectors = (job->head.m + lanes - 1) / lanes;
    const int uneven = pieces < 4 * threads && pieces % threads != 0;
    ptrdiff_t panels = job->properties & LA_PANELS && uneven ? threads : 1;
    if (panels > vectors / 2) {
        panels = vectors / 2;
    }
    job->panels = 1;
    job->width = job->head.m;
    if (panels > 1) {
        job->width = (vectors + panels - 1) / panels * lanes;
        job->panels = (job->head.m + job->width - 1) / job->width;
    }
}

static void
cut_rows(struct job *job)
{
    const ptrdiff_t n = job->head.n;
    job->rows = la_operators[job->call->form->op].rows;
    /* No rows are one part: there may be a state to hand through. */
    job->parts = job->rows > 0 && n > 0 ? (n + job->rows - 1) / job->rows : 1;
}

/* Multiply-adds, or what takes about as long. */
static double
work(const struct la_call *call)
{
    const double n = (double)dimension(call, 'n', 1);
    const double s = (double)dimension(call, 's', (ptrdiff_t)n);
    const double d = (double)dimension(call, 'd', 0),
                 m = (double)dimension(call, 'm', 0);
    const double f = (double)dimension(call, 'f', 0);
    double heads = 1;
    for (int axis = 0; axis < call->axes; axis++) {
        heads *= (double)call->extent[axis];
    }
    return la_operators[call->form->op].properties & LA_PAIRS
               ? heads * n * (s + 1) * (d + m + 1)
               : heads * (n + s) * (d + 1) * (m + 1) * (f + 1);
}

int
la_is_long(const struct la_call *call)
{
    return work(call) >= 1e6; /* 50 us or so; a thread wakes in 10 to 50 */
}

enum la_status
la_run(const struct la_call *call, const struct la_watch *watch)
{
    const struct la_table *table = la_cpu_table(call->dtype);
    struct job job = {.call = call,
                      .watch = watch,
                      .kernel = &table->kernels[call->form->op],
                      .properties = la_operators[call->form->op].properties};
    const ptrdiff_t itemsize = call->dtype == LA_F32 ? sizeof(float) : sizeof(double);
    name_operands(&job);
    int threads = la_is_long(call) ? la_pool_get_num_threads() : 1;
    group_heads(&job, threads);
    cut_rows(&job);
    const ptrdiff_t pieces =
        job.heads / job.last * job.groups * job.sequences * job.parts;
    cut_panels(&job, pieces, threads, table->vector_bytes / itemsize);
    const size_t items = (size_t)pieces * (size_t)job.panels;
    if (job.by_id[LA_AT_begin] != NULL && clear_uncovered(&job)) {
        return LA_STOPPED;
    }
    if (items == 0) {
        return LA_DONE;
    }
    if ((size_t)threads > items) {
        threads = (int)items;
    }
    struct la_head whole = job.head;
    whole.n = job.parts > 1 ? job.rows : whole.n;
    whole.group = 1;
    whole.m = job.width;
    job.scratch =
        la_scratch_take(job.kernel->scratch(&whole), threads, &job.lane_bytes);
    if (job.scratch == NULL) {
        return LA_NO_MEMORY;
    }
    /* Lanes past a block's edge may raise flags that no number of the result shows: the
     * call raises none. */
    job.modes = la_modes_get();
    const int stopped = la_pool_run(run_piece, idle, &job, items, threads);
    la_modes_set(job.modes);
    free(job.scratch);
    return stopped ? LA_STOPPED : LA_DONE;
}
