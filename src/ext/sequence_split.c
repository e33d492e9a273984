/* sequence_split.c: splits one long sequence into several pieces of work if there are
 * fewer heads and panels than threads.
 *
 * First, the sum that each segment except the last adds to the state is computed, in
 * parallel. Running sums of these give the state at the start of each segment; then all
 * segments are computed at the same time.  This costs a third more arithmetic and gives
 * the same bits as causal.h, which computes the same segments one after another if
 * there is enough other work to share. */
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "number.h"

/* The states at the start of all segments of all groups of heads: `count` states s
 * (d,m), then as many z (d). */
struct la_state_sums {
    char *s, *z;
    ptrdiff_t itemsize, d, m, tokens; /* tokens per segment */
};

static struct la_array
state_at(const struct la_state_sums *sums, size_t i)
{
    const ptrdiff_t row = sums->m * sums->itemsize;
    return (struct la_array){
        .data = sums->s + i * (size_t)(sums->d * row), .rs = row, .cs = sums->itemsize};
}

static struct la_array
vector_at(const struct la_state_sums *sums, size_t i)
{
    return (struct la_array){.data = sums->z + i * (size_t)(sums->d * sums->itemsize),
                             .cs = sums->itemsize};
}

/* The heads of a group, at segment j. */
static struct la_head
segment_of(const struct job *job, size_t group, ptrdiff_t panel, ptrdiff_t j)
{
    const ptrdiff_t g = (ptrdiff_t)group, tokens = job->sums->tokens;
    const struct piece p = {g / job->groups * job->last + g % job->groups * job->group,
                            0, panel, 0};
    struct la_head h = la_job_head(job, p);
    struct la_array *const of_tokens[] = {&h.q, &h.k, &h.v, &h.o};
    const ptrdiff_t first = j * tokens;
    for (size_t i = 0; i < sizeof(of_tokens) / sizeof(of_tokens[0]); i++) {
        of_tokens[i]->data += first * of_tokens[i]->rs;
    }
    h.n = h.s = j + 1 < LA_SEGMENT_COUNT ? tokens : h.n - first;
    h.keys = h.keys < first ? 0 : h.keys - first;
    h.keys = h.keys < h.n ? h.keys : h.n;
    h.segment = h.n;
    return h;
}

/* The sum that one segment adds to the state: item = group * (segments - 1) +
 * segment. */
static int
sum_segment(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const size_t group = item / (LA_SEGMENT_COUNT - 1);
    const ptrdiff_t j = (ptrdiff_t)(item % (LA_SEGMENT_COUNT - 1));
    const size_t to = group * LA_SEGMENT_COUNT + (size_t)j + 1;
    struct la_head h = segment_of(job, group, 0, j);
    h.m = job->head.m; /* all columns */
    h.group = 1;
    h.s1 = state_at(job->sums, to);
    h.z1 = vector_at(job->sums, to);
    return la_job_compute(job, &h, lane);
}

/* Computes one segment: item = (group * segments + segment) * panels + panel. */
static int
run_segment(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const size_t at = item / (size_t)job->panels, group = at / LA_SEGMENT_COUNT;
    const ptrdiff_t panel = (ptrdiff_t)(item % (size_t)job->panels);
    const ptrdiff_t j = (ptrdiff_t)(at % LA_SEGMENT_COUNT);
    struct la_head h = segment_of(job, group, panel, j);
    h.s0 = state_at(job->sums, at);
    h.all_s0 = h.s0;
    h.s0.data += panel * job->width * job->sums->itemsize;
    h.z0 = vector_at(job->sums, at);
    if (j + 1 < LA_SEGMENT_COUNT) {
        h.s1.data = h.z1.data = NULL;
    }
    return la_job_compute(job, &h, lane);
}

/* to, which is contiguous, = the caller's matrix, or zeros if there is none. */
static void
copy_state(char *to, const struct la_array *from, ptrdiff_t rows, ptrdiff_t cols,
           ptrdiff_t itemsize)
{
    for (ptrdiff_t i = 0; i < rows * cols; i++) {
        if (from->data == NULL) {
            memset(to + i * itemsize, 0, (size_t)itemsize);
        }
        else {
            memcpy(to + i * itemsize,
                   from->data + i / cols * from->rs + i % cols * from->cs,
                   (size_t)itemsize);
        }
    }
}

/* Turns the sums of the segments into the states at their starts. */
static void
running_sums(const struct job *job, size_t groups)
{
    const struct la_state_sums *sums = job->sums;
    const enum la_dtype dtype = job->call->dtype;
    const ptrdiff_t d = sums->d, m = sums->m;
    for (size_t group = 0; group < groups; group++) {
        const size_t first = group * LA_SEGMENT_COUNT;
        const struct la_head h = segment_of(job, group, 0, 0);
        copy_state(state_at(sums, first).data, &h.s0, d, m, sums->itemsize);
        copy_state(vector_at(sums, first).data, &h.z0, 1, d, sums->itemsize);
        for (size_t j = first + 1; j < first + LA_SEGMENT_COUNT; j++) {
            la_number_add(dtype, state_at(sums, j).data, state_at(sums, j - 1).data,
                          d * m);
            la_number_add(dtype, vector_at(sums, j).data, vector_at(sums, j - 1).data,
                          d);
        }
    }
}

enum la_status
la_run_sequence_split(struct job *job, int threads)
{
    const size_t groups = (size_t)(job->heads / job->last * job->groups);
    const size_t itemsize = (size_t)la_number_size(job->call->dtype);
    struct la_state_sums sums = {.itemsize = (ptrdiff_t)itemsize,
                                 .d = job->head.d,
                                 .m = job->head.m,
                                 .tokens = la_job_segment(job, job->head.n)};
    const size_t d = (size_t)sums.d, m = (size_t)sums.m;
    const size_t count = groups * LA_SEGMENT_COUNT;
    size_t bytes;
    if (__builtin_mul_overflow(d, m + 1, &bytes) ||
        __builtin_mul_overflow(bytes, count * itemsize, &bytes)) {
        return LA_NO_MEMORY;
    }
    sums.s = malloc(bytes + 1);
    if (sums.s == NULL) {
        return LA_NO_MEMORY;
    }
    sums.z = sums.s + count * d * m * itemsize;
    job->sums = &sums;
    const struct la_kernel *causal = job->kernel;
    struct la_head whole = job->head;
    whole.group = 1;
    whole.segment = whole.n;
    enum la_status status =
        la_job_run(job, &job->table->kernels[LA_OP_state], sum_segment,
                   job->table->kernels[LA_OP_state].scratch(&whole),
                   groups * (LA_SEGMENT_COUNT - 1), threads);
    if (status == LA_DONE) {
        running_sums(job, groups);
        whole.m = job->width;
        status = la_job_run(job, causal, run_segment, causal->scratch(&whole),
                            count * (size_t)job->panels, threads);
    }
    free(sums.s);
    return status;
}
