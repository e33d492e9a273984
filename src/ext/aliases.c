/* aliases.c: see aliases.h. */
#include "aliases.h"

#include <stdlib.h>
#include <string.h>

#include "call.h"

/* An operand of a call as an array, with its leading axes. */
struct view {
    struct la_tensor x;
    ptrdiff_t itemsize;
    ptrdiff_t shape[LA_MAX_AXES + LA_MAX_RANK], strides[LA_MAX_AXES + LA_MAX_RANK];
};

static void
view_operand(struct view *view, const struct la_call *call, int i)
{
    const struct la_slot *slot = &call->signature->slots[i];
    const int axes = call->axes;
    for (int axis = 0; axis < axes; axis++) {
        view->shape[axis] = call->extent[axis];
        view->strides[axis] = call->x[i].outer[axis];
    }
    for (int core = 0; core < slot->rank; core++) {
        view->shape[axes + core] =
            call->dims[la_signature_dim(call->signature, slot->dims[core])];
        view->strides[axes + core] = call->x[i].core[core];
    }
    view->itemsize = la_operand_size(slot->id, call->dtype, call->x[i].type);
    view->x = (struct la_tensor){call->x[i].data, axes + slot->rank, view->shape,
                                 view->strides, 0};
}

static int
operands_meet(const struct la_call *call, int i, int j)
{
    struct view x, y;
    if (call->x[i].lacks || call->x[j].lacks) {
        return 0;
    }
    view_operand(&x, call, i);
    view_operand(&y, call, j);
    return la_tensors_meet(&x.x, x.itemsize, &y.x, y.itemsize);
}

/* Whether operand i shares memory with an output from `first` on. */
static int
meets_output(const struct la_call *call, int i, int first)
{
    const int count = call->signature->nin + call->signature->nout;
    int found = 0;
    for (int j = first; !found && j < count; j++) {
        found = operands_meet(call, i, j);
    }
    return found;
}

int
la_outputs_meet(const struct la_call *call)
{
    const int count = call->signature->nin + call->signature->nout;
    int found = 0;
    for (int i = call->signature->nin; !found && i < count; i++) {
        found = meets_output(call, i, i + 1);
    }
    return found;
}

static int
same_array(const struct la_call *call, int i, int j)
{
    struct view x, y;
    view_operand(&x, call, i);
    view_operand(&y, call, j);
    int same = x.x.data == y.x.data;
    for (int axis = 0; same && axis < x.x.ndim; axis++) {
        same = x.strides[axis] == y.strides[axis] || x.shape[axis] == 1;
    }
    return same;
}

/* Whether operand i is a field of the state before the tokens, and the field after them
 * is the same array. */
static int
is_updated(const struct la_call *call, int i)
{
    const int after =
        la_signature_slot(call->signature, call->signature->slots[i].id + 1);
    return after >= call->signature->nin && !call->x[after].lacks &&
           same_array(call, i, after);
}

/* Whether every field of the state is updated.  split.c does not split a state of which
 * the field s is, and does not look at the others. */
static int
is_in_place(const struct la_call *call)
{
    int all = 1;
    for (int i = 0; all && i < call->signature->nin; i++) {
        all = !la_is_state(call->signature->slots[i].id) ||
              (!call->x[i].lacks && is_updated(call, i));
    }
    return all;
}

static void *
copy_operand(struct la_call *call, int i)
{
    const char *begin, *end;
    struct view view;
    view_operand(&view, call, i);
    la_tensor_extent(&view.x, view.itemsize, &begin, &end);
    void *copy = malloc((size_t)(end - begin));
    if (copy != NULL) {
        memcpy(copy, begin, (size_t)(end - begin));
        call->x[i].data = (char *)copy + (call->x[i].data - begin);
    }
    return copy;
}

int
la_aliases_copy(struct la_call *call, int in_place, void **copies)
{
    const int nin = call->signature->nin, updated = in_place && is_in_place(call);
    for (int i = 0; i < nin; i++) {
        const int is_state = la_is_state(call->signature->slots[i].id);
        if ((updated && is_state) || !meets_output(call, i, nin)) {
            continue;
        }
        copies[i] = copy_operand(call, i);
        if (copies[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

void
la_aliases_free(const struct la_call *call, void **copies)
{
    for (int i = 0; i < call->signature->nin; i++) {
        free(copies[i]);
    }
}
