/* plan.c: the common entry of all operators.
 *
 * Splits a call into units, between which split.c shares the threads: heads (those with
 * the same keys together), packed sequences and, if rows are independent, ranges of
 * rows.  A row is computed by the same operations in any range. */
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
    if (job->properties & LA_LAYER_TOKEN && most > 0 && threads > 1) {
        /* Rows are heads, which all take as long. */
        const ptrdiff_t share = (job->head.n * pieces + threads - 1) / threads;
        return share < most ? share : most;
    }
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
    job->rows = la_job_is_in_place(job) ? 0 : rows_of_part(job, threads);
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

/* Of a thread that is awake: about 3 us of multiply-adds. */
enum { SHARE_WORK = 60000 };

/* How many threads share the work.  Those of the runner are awake and come to shorter
 * calls too. */
static int
threads_for(const struct job *job)
{
    const int threads = la_pool_get_num_threads();
    if (job->work >= LA_LONG_WORK || la_stages_are_forced()) {
        return threads;
    }
    const int few =
        job->is_brief && la_pool_lends() ? (int)(job->work / SHARE_WORK) : 1;
    return few < 1 ? 1 : few < threads ? few : threads;
}

/* Computes a call whose heads are leading axes. */
static enum la_status
run_heads(const struct la_call *call, const struct la_watch *watch)
{
    const struct la_table *table = la_cpu_table(call->dtype);
    _Alignas(LA_ALIGN) char few[LA_FEW_BYTES];
    const double all = work(call);
    const int is_brief = la_pool_has_runner() && all < LA_BRIEF_WORK;
    struct job job = {.call = call,
                      .few = few,
                      .watch = is_brief ? NULL : watch,
                      .is_brief = is_brief,
                      .work = all,
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
    const int threads = threads_for(&job);
    group_heads(&job, threads);
    cut_rows(&job, threads);
    job.units = (size_t)(job.heads / job.last * job.groups * job.sequences * job.parts);
    const enum la_status status = la_run_units(&job, threads);
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
