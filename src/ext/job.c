/* job.c: where the pieces of a job find their operands; see job.h. */
#include "job.h"

#include <stdint.h>
#include <string.h>

#include "cpu.h"
#include "number.h"

ptrdiff_t
la_job_dimension(const struct la_call *call, char letter, ptrdiff_t otherwise)
{
    const int i = la_signature_dim(call->signature, letter);
    return i < 0 ? otherwise : call->dims[i];
}

/* Sets the row and column steps of an operand from those of its core dimensions.  One
 * number per token is a matrix whose columns are the same memory. */
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

/* The step between the matrices of an operand of three dimensions, else 0. */
static ptrdiff_t
plane_step(const struct la_slot *slot, const ptrdiff_t *core)
{
    const int own = slot->rank - (slot->dims[0] == 'r');
    return own > 2 ? core[slot->rank - 3] : 0;
}

/* The numbers of the first result, over all heads. */
static double
results(const struct la_call *call)
{
    const struct la_slot *slot = &call->signature->slots[call->signature->nin];
    double count = la_call_parts(call);
    for (int axis = 0; axis < call->axes; axis++) {
        count *= (double)call->extent[axis];
    }
    for (int i = 0; i < slot->rank; i++) {
        count *= (double)la_job_dimension(call, slot->dims[i], 1);
    }
    return count;
}

/* A call that carries what sums lose to rounding (operands.def) has half as many
 * sequences as its states have rows. */
static __attribute__((noinline)) void
halve_sequences(struct job *job)
{
    static const enum la_operand fields[] = {LA_AT_s0, LA_AT_s1, LA_AT_z0, LA_AT_z1};
    const ptrdiff_t half = job->sequences / 2;
    const struct piece last = {0, job->sequences - 1, 0, 0};
    ptrdiff_t begin;
    if (!(job->properties & LA_COMPENSATED) || job->heads == 0 || half == 0 ||
        job->sequences % 2 != 0) {
        return;
    }
    memcpy(&begin, la_job_at(job, LA_AT_begin, last), sizeof(begin));
    if (begin != PTRDIFF_MIN) {
        return;
    }
    job->sequences = half;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        la_array_of(&job->head, fields[i])->plane = half * job->inner[fields[i]];
    }
}

void
la_job_read(struct job *job)
{
    const struct la_call *call = job->call;
    const struct la_signature *signature = call->signature;
    struct la_head *h = &job->head;
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const struct la_slot *slot = &signature->slots[i];
        if (call->x[i].lacks) {
            continue;
        }
        job->by_id[slot->id] = &call->x[i];
        job->inner[slot->id] = slot->dims[0] == 'r' ? call->x[i].core[0] : 0;
        if (slot->id < LA_NARRAYS) {
            struct la_array *x = la_array_of(h, slot->id);
            set_steps(x, slot, call->x[i].core);
            x->data = call->x[i].data;
            x->type = call->x[i].type;
            x->has_channels = slot->has_channels;
            x->plane = plane_step(slot, call->x[i].core);
            x->step = slot->rank > 2 && job->properties & LA_LAYER_TOKEN ? x->plane
                      : call->axes > 0 ? call->x[i].outer[call->axes - 1]
                                       : 0;
        }
    }
    h->n = la_job_dimension(call, 'n', 1);
    h->s = la_job_dimension(call, 's', h->n);
    h->d = la_job_dimension(call, 'd', 0);
    h->m = h->all_m = la_job_dimension(call, 'm', 0);
    h->f = la_job_dimension(call, 'f', 0);
    h->sizes.c = la_job_dimension(call, 'c', 0);
    h->sizes.p = la_job_dimension(call, 'p', 0);
    h->sizes.t = la_job_dimension(call, 't', 0);
    /* Scratch is measured for the least blocks, which have the most chunks. */
    h->block = job->by_id[LA_AT_block] != NULL ? 2 : 0;
    h->map = call->map;
    h->products = LA_FLOAT_PRODUCTS;
    if (job->properties & LA_PRODUCTS && call->x[0].type == LA_BFLOAT) {
        h->products = la_cpu_products();
    }
    h->large = results(call) >= LA_LARGE;
    h->normalize = (signature->variant & LA_WITH_NORMALIZER) != 0;
    job->sequences = la_job_dimension(call, 'r', 1);
    job->heads = 1;
    for (int axis = 0; axis < call->axes; axis++) {
        job->heads *= call->extent[axis];
    }
    if (job->by_id[LA_AT_begin] != NULL) {
        halve_sequences(job);
    }
}

/* The position of a head on each axis of the call; `row`: its state's on the first. */
struct position {
    ptrdiff_t on[LA_MAX_AXES], row;
};

static struct position
position_of(const struct la_call *call, ptrdiff_t head)
{
    struct position at;
    at.row = 0;
    for (int axis = call->axes - 1; axis >= 0; axis--) {
        at.on[axis] = head % call->extent[axis];
        head /= call->extent[axis];
        at.row = at.on[axis];
    }
    if (call->rows != NULL && call->axes > 0) {
        at.row = call->rows[at.row];
    }
    return at;
}

/* Where operand `id` of a sequence of that head begins. */
static char *
find(const struct job *job, int id, const struct position *at, ptrdiff_t sequence)
{
    const struct la_operand_array *x = job->by_id[id];
    char *data = x->data + sequence * job->inner[id];
    for (int axis = job->call->axes - 1; axis > 0; axis--) {
        data += at->on[axis] * x->outer[axis];
    }
    if (job->call->axes > 0) {
        data += (la_is_state((enum la_operand)id) ? at->row : at->on[0]) * x->outer[0];
    }
    return data;
}

char *
la_job_at(const struct job *job, int id, struct piece p)
{
    const struct position at = position_of(job->call, p.head);
    return find(job, id, &at, p.sequence);
}

ptrdiff_t
la_job_index(const struct job *job, enum la_operand id, struct piece p, ptrdiff_t low,
             ptrdiff_t high, ptrdiff_t otherwise)
{
    ptrdiff_t x = otherwise;
    if (job->by_id[id] != NULL) {
        memcpy(&x, la_job_at(job, id, p), sizeof(x));
    }
    return x < low ? low : x > high ? high : x;
}

/* Points operand i, an array, at the tokens of a piece from `begin` on and at the
 * columns of its panel. */
static void
place_array(const struct job *job, struct la_head *h, int i, struct piece p,
            const struct position *at, ptrdiff_t begin)
{
    const struct la_signature *signature = job->call->signature;
    const struct la_slot *slot = &signature->slots[i];
    const ptrdiff_t column = p.panel * job->width;
    const int rank = slot->rank;
    struct la_array *x = la_array_of(h, slot->id);
    x->data = find(job, slot->id, at, p.sequence);
    if (slot->id == LA_AT_s0) {
        h->all_s0 = *x;
    }
    if (slot->dims[0] == 'n') {
        x->data += begin * (rank > 2 ? x->plane : x->rs);
    }
    if (rank > 0 && slot->dims[rank - 1] == 'm') {
        x->data += column * x->cs;
    }
    else if (rank > 1 && slot->dims[rank - 2] == 'm') {
        x->data += column * x->rs;
    }
    else if (p.panel > 0 && i >= signature->nin) {
        x->data = NULL; /* all panels compute the same; the first writes it */
    }
}

struct piece
la_job_unit(const struct job *job, ptrdiff_t unit)
{
    const ptrdiff_t rest = unit / job->parts, group = rest / job->sequences;
    return (struct piece){
        .head = group / job->groups * job->last + group % job->groups * job->group,
        .sequence = rest % job->sequences,
        .part = unit % job->parts,
    };
}

int
la_job_is_in_place(const struct job *job)
{
    const struct la_operand_array *before = job->by_id[LA_AT_s0],
                                  *after = job->by_id[LA_AT_s1];
    return before != NULL && after != NULL && before->data == after->data;
}

/* share_states finds a field before the tokens just before the one after them. */
_Static_assert(LA_AT_s0 + 1 == LA_AT_s1 && LA_AT_z0 + 1 == LA_AT_z1 &&
                   LA_AT_conv0 + 1 == LA_AT_conv1 &&
                   LA_AT_log_scale0 + 1 == LA_AT_log_scale1 &&
                   LA_AT_h0 + 1 == LA_AT_h1 && LA_AT_c0 + 1 == LA_AT_c1 &&
                   LA_AT_n0 + 1 == LA_AT_n1 && LA_AT_m0 + 1 == LA_AT_m1,
               "fields of a state are listed together");

/* A step that updates its state reads the fields that it writes.  Not inlined: other
 * calls are faster without. */
static __attribute__((noinline)) void
share_states(const struct la_signature *signature, struct la_head *h)
{
    for (int i = signature->nin; i < signature->nin + signature->nout; i++) {
        const enum la_operand after = signature->slots[i].id;
        if (la_is_state(after)) {
            *la_array_of(h, after - 1) = *la_array_of(h, after);
        }
    }
}

void
la_job_place(const struct job *job, struct la_head *h, struct piece p)
{
    const struct la_signature *signature = job->call->signature;
    const ptrdiff_t n = job->head.n;
    const ptrdiff_t start = la_job_index(job, LA_AT_begin, p, 0, n, 0);
    const ptrdiff_t end = la_job_index(job, LA_AT_end, p, start, n, n);
    const ptrdiff_t first = p.part * job->rows, begin = start + first;
    const ptrdiff_t column = p.panel * job->width;
    const struct position at = position_of(job->call, p.head); /* divides only once */
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const struct la_slot *slot = &signature->slots[i];
        if (la_is_number(slot->id)) {
            *la_number_of_head(h, slot->id) =
                la_number_read(job->call->dtype, find(job, slot->id, &at, p.sequence));
        }
        else if (slot->id < LA_NARRAYS && job->by_id[slot->id] != NULL) {
            place_array(job, h, i, p, &at, begin);
        }
    }
    const int packed = job->by_id[LA_AT_begin] != NULL || job->by_id[LA_AT_end] != NULL;
    h->s = packed ? end - start : job->head.s;
    h->n = end - start;
    if (job->parts > 1) {
        const ptrdiff_t more = h->n - first;
        h->first = first;
        h->n = more < 0 ? 0 : more < job->rows ? more : job->rows;
    }
    const ptrdiff_t left = job->last - p.head % job->last;
    h->group = left < job->group ? left : job->group;
    h->keys = la_job_index(job, LA_AT_keys, p, 0, h->s, h->s);
    const ptrdiff_t block = la_job_index(job, LA_AT_block, p, 0, PTRDIFF_MAX, 0);
    h->block = block > 1 ? block : 0;
    const ptrdiff_t columns = job->head.m - column;
    h->m = columns < job->width ? columns : job->width;
    if (signature->variant & LA_WITH_IN_PLACE) {
        share_states(signature, h);
    }
}

struct la_head
la_job_head(const struct job *job, struct piece p)
{
    struct la_head h = job->head;
    la_job_place(job, &h, p);
    return h;
}
