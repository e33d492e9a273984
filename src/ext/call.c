/* call.c: see call.h. */
#include "call.h"

#include <string.h>

int
la_operation_set(struct la_operation *what, struct la_storage tokens)
{
    const int properties = la_operators[what->signature->op].properties;
    what->dtype = tokens.dtype;
    what->type = tokens.type;
    return tokens.type == LA_COMPLEX && !(properties & LA_TAKES_COMPLEX) ? -1 : 0;
}

struct la_storage
la_operation_storage(const struct la_operation *what, enum la_operand id)
{
    return (struct la_storage){what->dtype, la_type_of(id, what->type)};
}

ptrdiff_t
la_tensor_strides(ptrdiff_t *strides, const ptrdiff_t *shape, int ndim,
                  ptrdiff_t itemsize)
{
    ptrdiff_t count = 1;
    for (int axis = ndim - 1; axis >= 0; axis--) {
        strides[axis] = count * itemsize;
        count *= shape[axis];
    }
    return count;
}

struct la_tensor
la_tensor_number(const struct la_operation *what, union la_number *number, double x)
{
    *number = la_number_of(what->dtype, x);
    return (struct la_tensor){.data = number};
}

/* The leading axes of a call before they are merged. */
struct lead {
    int axes;
    ptrdiff_t extent[LA_NUMPY_AXES];
    ptrdiff_t step[LA_MAX_OPERANDS][LA_NUMPY_AXES];
};

/* Reads the types of the operands and the sizes of the core dimensions; -1 if sizes do
 * not agree. */
static int
read_core(struct la_call *call, const struct la_operation *what,
          const struct la_tensor *x)
{
    const struct la_signature *signature = what->signature;
    for (int i = 0; i < LA_MAX_DIMS; i++) {
        call->dims[i] = signature->dims[i] == 'g' ? LA_GATES : -1;
    }
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const struct la_slot *slot = &signature->slots[i];
        const int lead = x[i].ndim - slot->rank;
        call->x[i].lacks = x[i].ndim < 0;
        if (call->x[i].lacks && la_may_lack(signature, i)) {
            continue;
        }
        if (lead < 0 || lead > LA_NUMPY_AXES) {
            return -1;
        }
        call->x[i].data = x[i].data;
        call->x[i].type = la_tensor_type(&x[i], la_type_of(slot->id, what->type));
        for (int j = 0; j < slot->rank; j++) {
            ptrdiff_t *dim = &call->dims[la_signature_dim(signature, slot->dims[j])];
            if (*dim >= 0 && *dim != x[i].shape[lead + j]) {
                return -1;
            }
            *dim = x[i].shape[lead + j];
            call->x[i].core[j] = x[i].strides[lead + j];
        }
    }
    for (int i = 0; i < signature->ndims;
         i++) { /* dimensions of operands that are all left out */
        if (call->dims[i] < 0) {
            call->dims[i] = signature->dims[i] == 'r' ? 1 : 0;
        }
    }
    return 0;
}

/* The number of leading axes of an operand. */
static int
leading(const struct la_signature *signature, const struct la_tensor *x, int i)
{
    return x[i].ndim < 0 ? 0 : x[i].ndim - signature->slots[i].rank;
}

/* Broadcasts the leading axes of the inputs; the outputs must have all of them. */
static int
broadcast(struct lead *lead, const struct la_signature *signature,
          const struct la_tensor *x)
{
    const int count = signature->nin + signature->nout;
    lead->axes = 0;
    for (int i = 0; i < signature->nin; i++) {
        const int axes = leading(signature, x, i);
        lead->axes = axes > lead->axes ? axes : lead->axes;
    }
    for (int axis = 0; axis < lead->axes; axis++) {
        lead->extent[axis] = 1;
    }
    for (int i = 0; i < count; i++) {
        const int axes = leading(signature, x, i), skip = lead->axes - axes;
        const int written = i >= signature->nin && x[i].ndim >= 0;
        if (skip < 0 || (written && skip != 0)) {
            return -1;
        }
        for (int axis = 0; axis < lead->axes; axis++) {
            const ptrdiff_t size = axis < skip ? 1 : x[i].shape[axis - skip];
            ptrdiff_t *all = &lead->extent[axis];
            if (written ? size != *all : size != 1 && *all != 1 && size != *all) {
                return -1;
            }
            *all = size != 1 ? size : *all;
            lead->step[i][axis] =
                axis < skip || size == 1 ? 0 : x[i].strides[axis - skip];
        }
    }
    return 0;
}

/* Whether axes a and b are one axis in every operand: b continues a. */
static int
one_axis(const struct lead *lead, int a, int b, int count)
{
    for (int i = 0; i < count; i++) {
        if (lead->step[i][a] != lead->extent[b] * lead->step[i][b]) {
            return 0;
        }
    }
    return 1;
}

/* Sets the leading axes of the call: drops those of length 1 and merges neighbours,
 * except for the first if it chooses rows of a pool. */
static int
merge(struct la_call *call, const struct lead *lead, int count)
{
    struct lead out; /* 16 KiB, of which only the used part is set */
    out.axes = 0;
    const int first = call->rows != NULL;
    for (int axis = 0; axis < lead->axes; axis++) {
        if (lead->extent[axis] == 1) {
            continue;
        }
        const int here = out.axes;
        out.extent[here] = lead->extent[axis];
        for (int i = 0; i < count; i++) {
            out.step[i][here] = lead->step[i][axis];
        }
        if (here > first && one_axis(&out, here - 1, here, count)) {
            out.extent[here - 1] *= out.extent[here];
            for (int i = 0; i < count; i++) {
                out.step[i][here - 1] = out.step[i][here];
            }
        }
        else {
            out.axes++;
        }
    }
    if (out.axes > LA_MAX_AXES - 1) {
        return -1;
    }
    call->axes = out.axes;
    for (int axis = 0; axis < out.axes; axis++) {
        call->extent[axis] = out.extent[axis];
        for (int i = 0; i < count; i++) {
            call->x[i].outer[axis] = out.step[i][axis];
        }
    }
    return 0;
}

enum la_status
la_call_prepare(struct la_call *call, const struct la_operation *what,
                const struct la_tensor *operands)
{
    const struct la_signature *signature = what->signature;
    struct lead lead;
    call->signature = signature;
    call->map = what->map;
    call->dtype = what->dtype;
    call->rows = what->rows;
    if (read_core(call, what, operands) < 0 ||
        broadcast(&lead, signature, operands) < 0 ||
        merge(call, &lead, signature->nin + signature->nout) < 0) {
        return LA_BAD_SHAPE;
    }
    return LA_DONE;
}

enum la_status
la_call(const struct la_operation *what, const struct la_tensor *operands,
        const struct la_watch *watch)
{
    struct la_call call;
    const enum la_status status = la_call_prepare(&call, what, operands);
    return status == LA_DONE ? la_run(&call, watch) : status;
}
