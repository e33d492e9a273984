/* fast_output.c: allocates the outputs of a call on plain operands. */
#include "numpy_api.h"

#include "fast_call.h"

#include "gufunc.h"

/* The size of a core dimension, from the inputs; -1 if no input has it. */
static npy_intp
core_size(const struct la_operands *c, char letter)
{
    const struct la_signature *signature = c->g->signature;
    for (int i = 0; i < signature->nin; i++) {
        const struct la_slot *slot = &signature->slots[i];
        for (int j = 0; c->x[i].ndim >= 0 && j < slot->rank; j++) {
            const int axis = c->x[i].ndim - slot->rank + j;
            if (slot->dims[j] == letter) {
                return axis < 0 ? -1 : c->x[i].shape[axis];
            }
        }
    }
    return letter == 'r' ? 1 : -1; /* all tokens are one sequence */
}

/* Whether output i, with these leading axes, is the gradient of an input that is
 * repeated along one of them.  The caller then sums the output, and rounds to 16 bits
 * only after that. */
static int
is_to_be_summed(const struct la_operands *c, int i, const npy_intp *shape, int lead)
{
    const int of = c->g->signature->slots[i].of;
    const int skip =
        of < 0 ? lead : lead - (c->x[of].ndim - c->g->signature->slots[of].rank);
    int repeated = 0;
    for (int axis = 0; of >= 0 && axis < lead; axis++) {
        repeated |= axis < skip || c->x[of].shape[axis - skip] != shape[axis];
    }
    return repeated;
}

/* The input in whose order output i is allocated: that of which it is the gradient, or
 * the first one with tokens of the same width, which are mostly the values; or -1. */
static int
input_like(const struct la_signature *signature, int i)
{
    const struct la_slot *slot = &signature->slots[i];
    const int last = slot->rank - 1;
    if (slot->rank == 0 || (slot->dims[0] != 'n' && slot->dims[0] != 's')) {
        return -1;
    }
    int like = slot->of;
    for (int j = 0; like < 0 && j < signature->nin; j++) {
        const struct la_slot *x = &signature->slots[j];
        like = x->rank == slot->rank && x->dims[last] == slot->dims[last] ? j : like;
    }
    return like;
}

/* Whether an array of this shape can have the order of x. */
static int
has_order(PyArrayObject *x, const npy_intp *shape, int ndim)
{
    int can = PyArray_NDIM(x) == ndim;
    for (int axis = 0; can && axis < ndim; axis++) {
        can = PyArray_DIM(x, axis) == shape[axis] &&
              (PyArray_STRIDE(x, axis) != 0 || shape[axis] < 2);
    }
    return can;
}

/* An array for output i.  As with elementwise functions of NumPy, its axes have the
 * order of an input's: heads that are interleaved stay so, and to transpose the result
 * back takes no copy. */
static PyObject *
allocate(const struct la_operands *c, int i, const npy_intp *shape, int ndim, int type)
{
    const int like = input_like(c->g->signature, i);
    if (like >= 0 && c->x[like].ndim > 0) {
        PyArrayObject *x = (PyArrayObject *)c->object[like];
        if (!PyArray_IS_C_CONTIGUOUS(x) && has_order(x, shape, ndim)) {
            PyArray_Descr *dtype = PyArray_DescrFromType(type);
            return PyArray_NewLikeArray(x, NPY_KEEPORDER, dtype, 0);
        }
    }
    return PyArray_SimpleNew(ndim, shape, type);
}

int
la_operands_make(struct la_operands *c, int i)
{
    const struct la_signature *signature = c->g->signature;
    const struct la_slot *slot = &signature->slots[i];
    npy_intp shape[NPY_MAXDIMS];
    int lead = 0;
    for (int j = 0; j < signature->nin; j++) {
        const int axes = c->x[j].ndim - signature->slots[j].rank;
        lead = axes > lead ? axes : lead; /* negative if left out */
    }
    if (lead + slot->rank > NPY_MAXDIMS) {
        return 0;
    }
    for (int axis = 0; axis < lead; axis++) {
        shape[axis] = 1;
        for (int j = 0; j < signature->nin; j++) {
            const int at = axis - lead + c->x[j].ndim - signature->slots[j].rank;
            if (at >= 0 && c->x[j].shape[at] != 1) {
                shape[axis] = c->x[j].shape[at];
            }
        }
    }
    for (int axis = 0; axis < slot->rank; axis++) {
        shape[lead + axis] = core_size(c, slot->dims[axis]);
        if (shape[lead + axis] < 0) {
            return 0;
        }
    }
    const int wide = !la_is_native(c, i) && is_to_be_summed(c, i, shape, lead);
    const int before = la_signature_before(c->g->signature, i);
    const int stored = wide ? 1 + LA_NATIVE : before >= 0 ? c->x[before].stored : 0;
    const int type = wide     ? la_loop_kinds[c->loop].states
                     : stored ? PyArray_TYPE((PyArrayObject *)c->object[before])
                              : la_loop_type(c->g, c->loop, i);
    c->object[i] = allocate(c, i, shape, lead + slot->rank, type);
    c->made[i] = c->object[i] != NULL;
    if (c->made[i]) {
        la_operands_set(c, i, stored);
    }
    return c->made[i] ? 1 : -1;
}
