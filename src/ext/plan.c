/* plan.c: the common entry of all operators.
 *
 * Splits a call into pieces, which job.c runs: heads (those with the same keys
 * together), packed sequences, panels of value columns and, if rows are independent,
 * ranges of rows. A panel's columns are computed by the same operations in the same
 * order for any width (micro.h), and so is a row in any range, so the number of threads
 * changes no bit. */
#include "plan.h"

#include "cpu.h"
#include "job.h"
#include "lift.h"
#include "number.h"
#include "pool.h"
#include "scratch.h"

/* Whether the heads of the last axis share all inputs except q: grouped queries, by
 * broadcasting. */
static int
same_keys(const struct job *job)
{
    const struct la_call *call = job->call;
    for (int i = 0; i < call->signature->nin; i++) {
        if (call->signature->slots[i].id != LA_AT_q &&
            call->x[i].outer[call->axes - 1] != 0) {
            return 0;
        }
    }
    return 1;
}

/* Whether the heads of the last axis share all numbers, such as scale. */
static int
same_numbers(const struct job *job)
{
    const struct la_call *call = job->call;
    for (int i = 0; i < call->signature->nin; i++) {
        if (la_is_number(call->signature->slots[i].id) &&
            call->x[i].outer[call->axes - 1] != 0) {
            return 0;
        }
    }
    return 1;
}

/* How many groups, at least, the heads of the last axis should form: one, unless there
 * are threads to keep busy.  0 if each head is a group of its own, as
 * where each has a row of a pool. */
static ptrdiff_t
least_groups(const struct job *job, int threads)
{
    const int chosen = job->call->rows != NULL && job->call->axes == 1;
    if (job->call->axes == 0 || chosen) {
        return 0;
    }
    if (job->properties & LA_RUNS && same_numbers(job)) {
        return threads > 1 ? LA_EVEN_PIECES * threads : 1;
    }
    /* A group polls only once per chunk of tokens; without tokens it would not poll at
     * all. */
    return job->properties & LA_GROUPS && job->head.n > 0 && same_keys(job) ? threads
                                                                            : 0;
}

/* Groups heads of the last axis that one call of a kernel computes. */
static void
group_heads(struct job *job, int threads)
{
    const struct la_call *call = job->call;
    job->last = call->axes > 0 ? call->extent[call->axes - 1] : 1;
    job->last = job->last > 0 ? job->last : 1;
    job->group = 1;
    const ptrdiff_t least = least_groups(job, threads);
    if (least > 0) {
        const ptrdiff_t others = job->heads / job->last;
        const ptrdiff_t parts = others > 0 ? (least + others - 1) / others : 1;
        job->group = (job->last + parts - 1) / parts;
    }
    job->groups = (job->last + job->group - 1) / job->group;
}

/* Whether the state after the tokens takes the place of the one before them.  One panel
 * must not write what another has to read. */
static int
is_in_place(const struct job *job)
{
    const struct la_operand_array *before = job->by_id[LA_AT_s0],
                                  *after = job->by_id[LA_AT_s1];
    return before != NULL && after != NULL && before->data == after->data;
}

/* Splits m into panels if there are too few pieces to keep the threads busy.  Every
 * panel repeats the maps and the scores, so panels are not made too narrow. */
static void
cut_panels(struct job *job, ptrdiff_t pieces, int threads, ptrdiff_t lanes)
{
    const ptrdiff_t vectors = (job->head.m + lanes - 1) / lanes;
    const int uneven = job->parts < threads && pieces < LA_EVEN_PIECES * threads &&
                       pieces % threads != 0;
    const int may_split = job->properties & LA_PANELS && !is_in_place(job);
    ptrdiff_t panels = may_split && uneven ? threads : 1;
    if (panels > vectors / LA_PANEL_VECTORS) {
        panels = vectors / LA_PANEL_VECTORS;
    }
    job->panels = 1;
    job->width = job->head.m;
    if (panels > 1) {
        job->width = (vectors + panels - 1) / panels * lanes;
        job->panels = (job->head.m + job->width - 1) / job->width;
    }
}

/* Whether the numbers of a token lie closer together than tokens do. */
static int
lies_by_tokens(const struct la_array *x)
{
    return (x->rs < 0 ? -x->rs : x->rs) >= (x->cs < 0 ? -x->cs : x->cs);
}

/* The rows of a part.  Of an operator with panels, too, threads share out tokens that
 * lie one after another: they then read memory in order, while a panel has a share of
 * every page. */
static ptrdiff_t
rows_of_part(const struct job *job, int threads)
{
    const ptrdiff_t most = la_operators[job->call->signature->op].rows;
    const ptrdiff_t wanted = LA_EVEN_PIECES * threads;
    const ptrdiff_t pieces = job->heads * job->sequences;
    if (most == 0 || threads == 1 || pieces >= wanted ||
        !(job->properties & LA_PANELS) || !lies_by_tokens(&job->head.x)) {
        return most;
    }
    const ptrdiff_t rows = job->head.n / wanted * job->heads;
    const ptrdiff_t even = (rows / LA_PART_STEP + 1) * LA_PART_STEP;
    return even < LA_PART_ROWS ? LA_PART_ROWS : even < most ? even : most;
}

static void
cut_rows(struct job *job, int threads)
{
    const ptrdiff_t n = job->head.n;
    /* A state that is updated has to be read before the last part writes it. */
    job->rows = is_in_place(job) ? 0 : rows_of_part(job, threads);
    /* Without rows there is one part: states are still passed through. */
    job->parts = job->rows > 0 && n > 0 ? (n + job->rows - 1) / job->rows : 1;
}

/* The work of a call in multiply-adds, or operations of about the same time. */
static double
work(const struct la_call *call)
{
    const double n = (double)la_job_dimension(call, 'n', 1);
    const double s = (double)la_job_dimension(call, 's', (ptrdiff_t)n);
    const double d = (double)la_job_dimension(call, 'd', 0);
    const double m = (double)la_job_dimension(call, 'm', 0) * la_call_parts(call) +
                     (double)la_job_dimension(call, 'g', 0) * d;
    const double f = (double)la_job_dimension(call, 'f', 0);
    const int nstate = call->signature->nstate;
    const double rows = d + (nstate > 0 ? nstate : 1);
    const double width = f > 0 ? (f + 1) * (d + m + 2) : rows * (m + 1);
    double heads = (double)la_job_dimension(call, 'h', 1);
    for (int axis = 0; axis < call->axes; axis++) {
        heads *= (double)call->extent[axis];
    }
    return la_operators[call->signature->op].properties & LA_PAIRS
               ? heads * n * (s + 1) * (d + m + 1)
               : heads * (n + s) * width;
}

int
la_is_long(const struct la_call *call)
{
    return work(call) >= LA_LONG_WORK;
}

/* Whether the sizes of a layer's token (operators.def) fit together: its channels are
 * those of whole heads of keys, which divide the heads of values. */
static int
fits_layer(const struct la_head *h)
{
    const struct la_sizes *size = &h->sizes;
    const ptrdiff_t pair = 2 * h->d, rest = size->c - h->n * h->m;
    if (h->n <= 0 || h->d <= 0 || h->m <= 0 || rest <= 0 || rest % pair != 0) {
        return 0;
    }
    return h->n % (rest / pair) == 0 && size->p >= size->t - 1;
}

/* Whether the kernel takes these sizes. */
static int
fits(const struct job *job)
{
    const ptrdiff_t gates = la_job_dimension(job->call, 'g', LA_GATES);
    return gates == LA_GATES &&
           (!(job->properties & LA_LAYER_TOKEN) || fits_layer(&job->head));
}

/* Runs one of the pieces, which are numbered by head, sequence, part and panel. */
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
    if (job->own != NULL) {
        la_job_place(job, job->own, p);
        return la_job_compute(job, job->own, lane);
    }
    struct la_head h = la_job_head(job, p);
    return la_job_compute(job, &h, lane);
}

/* The bytes of scratch that a piece of n tokens needs.  Sets the head's sizes for the
 * time of the question: a step of small heads takes as long as a few copies of it. */
static size_t
measure_piece(struct job *job, ptrdiff_t n)
{
    struct la_head *h = &job->head;
    const ptrdiff_t all_n = h->n, all_m = h->m;
    h->n = n;
    h->m = job->width;
    h->group = job->group;
    const size_t bytes = job->kernel->scratch(h);
    h->n = all_n;
    h->m = all_m;
    h->group = 0;
    return bytes;
}

/* Whether all pieces have the sizes of the job's head. */
static int
is_one_size(const struct job *job)
{
    return job->parts == 1 && job->panels == 1 && job->by_id[LA_AT_begin] == NULL &&
           job->by_id[LA_AT_end] == NULL;
}

/* Runs the pieces one after the other.  They use the job's head if none changes the
 * sizes that the next is made from. */
static enum la_status
run_alone(struct job *job, size_t bytes, size_t items)
{
    if (is_one_size(job)) {
        job->own = &job->head;
        return la_job_run(job, job->kernel, run_piece, bytes, items, 1);
    }
    struct la_head own = job->head;
    job->own = &own;
    return la_job_run(job, job->kernel, run_piece, bytes, items, 1);
}

/* Runs the job, split by heads and, if there are too few heads, within heads. */
static enum la_status
run_job(struct job *job, size_t items, int threads)
{
    const ptrdiff_t n = job->parts > 1 ? job->rows : job->head.n;
    int gaps;
    const enum la_status status = la_sequences_check(job, &gaps);
    if (status != LA_DONE) {
        return status;
    }
    if (gaps) {
        /* Reserve first: without memory, nothing is written. */
        const int lanes = items < (size_t)threads ? (int)items : threads;
        if (la_job_reserve(job, measure_piece(job, n), lanes) < 0) {
            return LA_NO_MEMORY;
        }
        if (la_sequences_clear(job)) {
            return LA_STOPPED;
        }
    }
    else if (threads > 1 && la_is_staged(job, items, work(job->call), threads)) {
        const size_t units = items / (size_t)job->panels;
        job->panels = 1;
        job->width = job->head.m;
        return la_run_staged(job, units, measure_piece(job, n), threads);
    }
    else if (job->properties & LA_BACKWARD_SPLIT && (size_t)threads >= 2 * items &&
             items > 0 && job->sequences == 1 && work(job->call) >= LA_SPLIT_WORK) {
        return la_run_backward_split(job, threads);
    }
    else if (job->properties & LA_CHANNEL_SPLIT && (size_t)threads > items &&
             items > 0 && job->sequences == 1 &&
             job->head.m > channel_group(job->head.m) &&
             work(job->call) >= LA_SPLIT_WORK) {
        return la_run_channel_split(job, threads);
    }
    const size_t bytes = measure_piece(job, n);
    if (items == 0) {
        return LA_DONE;
    }
    const ptrdiff_t heads = gaps ? 1 : la_interleaved_heads(job, threads);
    if (heads > 1) {
        return la_run_interleaved(job, heads, bytes, threads);
    }
    return threads > 1 ? la_job_run(job, job->kernel, run_piece, bytes, items, threads)
                       : run_alone(job, bytes, items);
}

/* Whether all results are empty. */
static int
writes_nothing(const struct job *job)
{
    const struct la_signature *signature = job->call->signature;
    int none = 1;
    for (int i = signature->nin; i < signature->nin + signature->nout; i++) {
        int empty = job->heads == 0;
        for (int j = 0; j < signature->slots[i].rank; j++) {
            empty = empty ||
                    la_job_dimension(job->call, signature->slots[i].dims[j], 1) == 0;
        }
        none = none && empty;
    }
    return none;
}

/* Computes a call whose heads are leading axes. */
static enum la_status
run_heads(const struct la_call *call, const struct la_watch *watch)
{
    const struct la_table *table = la_cpu_table(call->dtype);
    _Alignas(LA_ALIGN) char few[LA_FEW_BYTES];
    const int is_brief = la_pool_has_runner() && work(call) < LA_BRIEF_WORK;
    struct job job = {.call = call,
                      .few = few,
                      .watch = is_brief ? NULL : watch,
                      .is_brief = is_brief,
                      .table = table,
                      .kernel = &table->kernels[call->signature->op],
                      .interleaved = 1,
                      .properties = la_operators[call->signature->op].properties};
    la_job_read(&job);
    if (!fits(&job)) {
        return LA_BAD_SHAPE;
    }
    if (writes_nothing(&job)) { /* though there may be many heads */
        return la_job_poll(&job) ? LA_STOPPED : LA_DONE;
    }
    const int threads = la_is_long(call) ? la_pool_get_num_threads() : 1;
    group_heads(&job, threads);
    cut_rows(&job, threads);
    const ptrdiff_t pieces =
        job.heads / job.last * job.groups * job.sequences * job.parts;
    cut_panels(&job, pieces, threads,
               table->vector_bytes / la_number_size(call->dtype) / la_call_parts(call));
    const enum la_status status =
        run_job(&job, (size_t)pieces * (size_t)job.panels, threads);
    la_scratch_give(&job.scratch);
    return status;
}

enum la_status
la_run(const struct la_call *call, const struct la_watch *watch)
{
    if (la_signature_dim(call->signature, 'h') < 0) {
        return run_heads(call, watch);
    }
    struct la_lifted lifted;
    la_lift_heads(&lifted, call);
    return run_heads(&lifted.call, watch);
}
