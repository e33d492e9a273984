/* sequences.c: checks which tokens the packed sequences of a call cover.  Rows of
 * tokens in no sequence become zeros; a token in two sequences is an error, since two
 * threads would write its row. */
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "number.h"

struct range {
    ptrdiff_t begin, end;
};

static struct range
sequence_at(const struct job *job, ptrdiff_t head, ptrdiff_t sequence)
{
    const struct piece p = {head, sequence, 0, 0};
    struct range x;
    x.begin = la_job_index(job, LA_AT_begin, p, 0, job->head.n, 0);
    x.end = la_job_index(job, LA_AT_end, p, x.begin, job->head.n, job->head.n);
    return x;
}

/* Accumulates the ranges of a head's sequences, in order. */
struct cover {
    ptrdiff_t next; /* the token after the last range */
    int gap, back;  /* tokens were left out; a range began too early */
};

static void
add_range(struct cover *c, struct range x)
{
    if (x.begin < x.end) {
        c->gap |= x.begin > c->next;
        c->back |= x.begin < c->next;
        c->next = x.end;
    }
}

static int
by_begin(const void *x, const void *y)
{
    const struct range *a = x, *b = y;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Checks sequences that are not in order, after sorting them. */
static enum la_status
cover_sorted(const struct job *job, ptrdiff_t head, struct cover *c)
{
    const size_t count = (size_t)job->sequences;
    size_t bytes, used = 0;
    struct range *all =
        __builtin_mul_overflow(count, sizeof(*all), &bytes) ? NULL : malloc(bytes);
    if (all == NULL) {
        return LA_NO_MEMORY;
    }
    for (size_t r = 0; r < count; r++) {
        all[used] = sequence_at(job, head, (ptrdiff_t)r);
        used += all[used].begin < all[used].end;
    }
    qsort(all, used, sizeof(*all), by_begin);
    *c = (struct cover){0};
    for (size_t r = 0; r < used; r++) {
        add_range(c, all[r]);
    }
    free(all);
    return c->back ? LA_OVERLAP : LA_DONE;
}

static enum la_status
cover_head(struct job *job, ptrdiff_t head, int *gaps)
{
    struct cover c = {0};
    for (ptrdiff_t r = 0; r < job->sequences && !c.back; r++) {
        if (r % 1024 == 0 && la_job_poll(job)) {
            return LA_STOPPED;
        }
        add_range(&c, sequence_at(job, head, r));
    }
    const enum la_status status = c.back ? cover_sorted(job, head, &c) : LA_DONE;
    *gaps = c.gap || c.next < job->head.n;
    return status;
}

static ptrdiff_t
step_of(const struct job *job, enum la_operand id, int axis)
{
    return job->by_id[id] != NULL ? job->by_id[id]->outer[axis] : 0;
}

/* The number of heads whose sequences have to be checked: 1 if all heads have the
 * same. */
static ptrdiff_t
heads_to_check(const struct job *job)
{
    int same = 1;
    for (int axis = 0; axis < job->call->axes; axis++) {
        same = same && step_of(job, LA_AT_begin, axis) == 0 &&
               step_of(job, LA_AT_end, axis) == 0;
    }
    return same && job->heads > 1 ? 1 : job->heads;
}

enum la_status
la_sequences_check(struct job *job, int *gaps)
{
    enum la_status status = LA_DONE;
    *gaps = 0;
    if (job->by_id[LA_AT_begin] == NULL && job->by_id[LA_AT_end] == NULL) {
        return job->sequences > 1 ? LA_OVERLAP : LA_DONE;
    }
    const ptrdiff_t heads = heads_to_check(job);
    for (ptrdiff_t head = 0; status == LA_DONE && head < heads; head++) {
        int some = 0;
        status = cover_head(job, head, &some);
        *gaps = *gaps || some;
    }
    return status;
}

static void
clear_row(char *data, ptrdiff_t cs, ptrdiff_t size, ptrdiff_t cols)
{
    if (cs == size) {
        memset(data, 0, (size_t)(cols * size));
        return;
    }
    for (ptrdiff_t j = 0; j < cols; j++) {
        memset(data + j * cs, 0, (size_t)size);
    }
}

/* Clears so many rows of each token. */
static int
clear_tokens(struct job *job, const struct la_array *x, char *data, ptrdiff_t step,
             ptrdiff_t rows, ptrdiff_t cols)
{
    const ptrdiff_t size = la_stored_size(job->call->dtype, x->type);
    for (ptrdiff_t t = 0; t < job->head.n; t++, data += step) {
        if (t % 256 == 0 && la_job_poll(job)) { /* 256 rows take a few us */
            return 1;
        }
        for (ptrdiff_t i = 0; i < rows; i++) {
            clear_row(data + i * x->rs, x->cs, size, cols);
        }
    }
    return 0;
}

/* Clears all tokens of result i, if it has some, for one head. */
static int
clear_result(struct job *job, int i, ptrdiff_t head)
{
    const struct la_slot *slot = &job->call->signature->slots[i];
    const struct la_array *x = la_array_of(&job->head, slot->id);
    const struct piece p = {head, 0, 0, 0};
    if (slot->dims[0] != 'n') {
        return 0;
    }
    const int rank = slot->rank;
    const ptrdiff_t rows =
        rank > 2 ? la_job_dimension(job->call, slot->dims[rank - 2], 1) : 1;
    const ptrdiff_t cols =
        rank > 1 ? la_job_dimension(job->call, slot->dims[rank - 1], 0) : 1;
    return clear_tokens(job, x, la_job_at(job, slot->id, p),
                        rank > 2 ? x->plane : x->rs, rows, cols);
}

int
la_sequences_clear(struct job *job)
{
    const struct la_signature *signature = job->call->signature;
    for (ptrdiff_t head = 0; head < job->heads; head++) {
        for (int i = signature->nin; i < signature->nin + signature->nout; i++) {
            if (clear_result(job, i, head)) {
                return 1;
            }
        }
    }
    return 0;
}
