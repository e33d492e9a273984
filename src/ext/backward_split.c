/* backward_split.c: computes a backward operator in passes if there are fewer heads
 * than threads.
 *
 * dq, with its rates per token, and dv run at the same time; then dk, by columns of the
 * keys.  Every number is summed as in a single pass, so that the number of threads
 * changes no bit.  The total arithmetic grows by a fifth. */
#include "job.h"
#include "number.h"

/* The rates of all heads, and how the last pass splits the columns of the keys. */
struct la_backward_split {
    const struct la_scratch *rates; /* one lane per head */
    ptrdiff_t panels, width;
};

/* Head `at`, prepared for a pass. */
static struct la_head
head_of_pass(const struct job *job, size_t at, enum la_pass pass)
{
    struct la_head h = la_job_head(job, (struct piece){(ptrdiff_t)at, 0, 0, 0});
    h.pass = pass;
    h.rates =
        job->backward_split->rates->memory + at * job->backward_split->rates->lane;
    return h;
}

/* dv, or dq and the rates: item = 2 head + which. */
static int
run_rows(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const enum la_pass pass = item % 2 ? LA_PASS_QUERIES : LA_PASS_VALUES;
    struct la_head h = head_of_pass(job, item / 2, pass);
    return la_job_compute(job, &h, lane);
}

/* dk of some columns: item = head * panels + panel. */
static int
run_columns(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const struct la_backward_split *p = job->backward_split;
    struct la_head h = head_of_pass(job, item / (size_t)p->panels, LA_PASS_KEYS);
    const ptrdiff_t column = (ptrdiff_t)(item % (size_t)p->panels) * p->width;
    struct la_array *const by_column[] = {&h.q, &h.k, &h.dk, &h.grad_z, &h.dz0};
    for (size_t i = 0; i < sizeof(by_column) / sizeof(by_column[0]); i++) {
        by_column[i]->data += by_column[i]->data ? column * by_column[i]->cs : 0;
    }
    h.grad_s.data += h.grad_s.data ? column * h.grad_s.rs : 0;
    h.d = h.d - column < p->width ? h.d - column : p->width;
    return la_job_compute(job, &h, lane);
}

/* Splits the keys' columns into panels of at least two vectors, unless the map needs
 * whole rows. */
static void
cut_columns(const struct job *job, struct la_backward_split *split, ptrdiff_t itemsize,
            int threads)
{
    const ptrdiff_t lanes = job->table->vector_bytes / itemsize, d = job->head.d;
    const ptrdiff_t vectors = (d + lanes - 1) / lanes;
    ptrdiff_t panels = la_maps[job->head.map].of_rows ? 1 : threads / job->heads;
    panels = panels < vectors / LA_PANEL_VECTORS ? panels : vectors / LA_PANEL_VECTORS;
    split->panels = 1;
    split->width = d;
    if (panels > 1) {
        split->width = (vectors + panels - 1) / panels * lanes;
        split->panels = (d + split->width - 1) / split->width;
    }
}

enum la_status
la_run_backward_split(struct job *job, int threads)
{
    const ptrdiff_t itemsize = la_number_size(job->call->dtype);
    const ptrdiff_t steps = job->head.n / LA_RATES_STEP + 1;
    const size_t heads = (size_t)job->heads;
    struct la_backward_split split;
    cut_columns(job, &split, itemsize, threads);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)(3 * LA_RATES_STEP * itemsize), (size_t)steps,
                               &bytes)) {
        return LA_NO_MEMORY;
    }
    struct la_scratch rates = la_scratch_take(bytes, (int)heads, NULL);
    if (rates.memory == NULL) {
        return LA_NO_MEMORY;
    }
    la_scratch_prepare(&rates);
    split.rates = &rates;
    job->backward_split = &split;
    const size_t scratch = job->kernel->scratch(&job->head);
    /* Large enough for both runs, so that nothing is written if memory for the second
     * is missing. */
    enum la_status status =
        la_job_reserve(job, scratch, threads) < 0
            ? LA_NO_MEMORY
            : la_job_run(job, job->kernel, run_rows, scratch, 2 * heads, threads);
    if (status == LA_DONE) {
        status = la_job_run(job, job->kernel, run_columns, scratch,
                            heads * (size_t)split.panels, threads);
    }
    const int overrun = la_scratch_overrun(&rates);
    la_scratch_give(&rates);
    return overrun ? LA_OVERRUN : status;
}
