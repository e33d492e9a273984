/* tensor_update.c: a step of tensors that updates its state, from Python's call to the
 * kernel.
 *
 * Such a step takes as long as a dozen calls of PyTorch, so only the result is made by
 * one.  The caller has chosen the gufunc; what is not plain is left to it. */
#include "numpy_api.h"

#include "tensor_update.h"

#include "gufunc.h"
#include "gufunc_object.h"
#include "pool.h"
#include "tensor_array.h"
#include "tensor_lend.h"

/* Indices and the gufunc, then its operands, as la_pool_call takes them: references. */
struct update {
    const struct la_signature *signature;
    PyObject *args[2 + LA_MAX_OPERANDS], **operands;
};

/* Whether tensors have one axis for the two of a slot: the columns of all heads. */
static int
is_flat(const struct update *u, int i)
{
    const struct la_slot *slot = &u->signature->slots[i];
    return la_operators[u->signature->op].properties & LA_LAYER_TOKEN &&
           slot->rank == 2 && !la_is_state(slot->id) && slot->dims[0] == 'n' &&
           slot->dims[1] == 'm';
}

/* The size of a core dimension that an array has; -1 if none does. */
static npy_intp
size_of_core(const struct update *u, char letter)
{
    const struct la_signature *signature = u->signature;
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const struct la_slot *slot = &signature->slots[i];
        PyObject *x = u->operands[i];
        if (x == NULL || !PyArray_Check(x) || is_flat(u, i)) {
            continue;
        }
        const int lead = PyArray_NDIM((PyArrayObject *)x) - slot->rank;
        for (int j = 0; lead >= 0 && j < slot->rank; j++) {
            if (slot->dims[j] == letter) {
                return PyArray_DIM((PyArrayObject *)x, lead + j);
            }
        }
    }
    return -1;
}

/* Gives operand i its axes of heads and columns, if it is flat; 0 if it cannot have
 * them, -1 on an error. */
static int
split_heads(struct update *u, int i)
{
    if (u->operands[i] == NULL || !is_flat(u, i)) {
        return 1;
    }
    PyArrayObject *x = (PyArrayObject *)u->operands[i];
    const int last = PyArray_Check(u->operands[i]) ? PyArray_NDIM(x) - 1 : -1;
    const npy_intp n = size_of_core(u, 'n'), m = size_of_core(u, 'm');
    npy_intp shape[NPY_MAXDIMS];
    if (n <= 0 || m <= 0 || last < 0 || last + 2 > NPY_MAXDIMS ||
        PyArray_DIM(x, last) % m != 0 || PyArray_DIM(x, last) / m != n) {
        return 0;
    }
    for (int axis = 0; axis < last; axis++) {
        shape[axis] = PyArray_DIM(x, axis);
    }
    shape[last] = n;
    shape[last + 1] = m;
    PyArray_Dims axes = {shape, last + 2};
    u->operands[i] = PyArray_Newshape(x, &axes, NPY_CORDER);
    Py_DECREF(x);
    return u->operands[i] == NULL ? -1 : 1;
}

/* The tensor of the result: of the dtype of x, whose leading axes it has. */
static PyObject *
new_result(const struct update *u, PyObject *x)
{
    const struct la_signature *signature = u->signature;
    const struct la_slot *slot = &signature->slots[signature->nin];
    PyArrayObject *first = (PyArrayObject *)u->operands[0];
    const int lead = PyArray_NDIM(first) - signature->slots[0].rank;
    npy_intp size = 1;
    for (int j = 0; j < slot->rank; j++) {
        size *= size_of_core(u, slot->dims[j]);
    }
    PyObject *shape = lead < 0 || size < 0 ? NULL : PyTuple_New(lead + 1);
    for (int axis = 0; shape != NULL && axis <= lead; axis++) {
        PyTuple_SetItem(
            shape, axis,
            PyLong_FromSsize_t(axis < lead ? PyArray_DIM(first, axis) : size));
    }
    PyObject *name = PyUnicode_InternFromString("new_empty");
    PyObject *result = shape == NULL || name == NULL
                           ? NULL
                           : PyObject_CallMethodObjArgs(x, name, shape, NULL);
    Py_XDECREF(name);
    Py_XDECREF(shape);
    return result;
}

/* Lends the members of a tuple as operands from i on; 0 if that is not plain. */
static int
lend_operands(struct update *u, struct la_lending *l, PyObject *x, int i)
{
    for (Py_ssize_t at = 0; at < PyTuple_Size(x); at++, i++) {
        u->operands[i] = la_lend(l, PyTuple_GetItem(x, at));
        if (u->operands[i] == NULL) {
            return 0;
        }
    }
    return 1;
}

/* Lends all operands, and the result, which it makes; 0 if they are not plain. */
static int
take_operands(struct update *u, struct la_lending *l, PyObject *inputs,
              PyObject *states, PyObject **result)
{
    const int o = u->signature->nin;
    if (!lend_operands(u, l, inputs, 0) || !lend_operands(u, l, states, o + 1) ||
        !PyArray_Check(u->operands[0])) {
        return 0;
    }
    *result = new_result(u, PyTuple_GetItem(inputs, 0));
    if (*result == NULL || (u->operands[o] = la_lend(l, *result)) == NULL) {
        return 0;
    }
    for (int i = 0; i <= o; i++) {
        if (split_heads(u, i) <= 0) {
            return 0;
        }
    }
    return 1;
}

/* Calls the gufunc, and tells PyTorch of the states that it has written to. */
static PyObject *
call(const struct update *u, PyObject *torch, PyObject *states)
{
    const Py_ssize_t count = 1 + u->signature->nin + u->signature->nout;
    const long held = la_lend_threads(torch);
    if (held < 0) {
        return NULL;
    }
    PyObject *found = u->args[0] == Py_None ? la_fast_call(NULL, u->args + 1, count)
                                            : la_pool_call(NULL, u->args, count + 1);
    la_pool_hold_threads(held);
    if (found != NULL && found != Py_NotImplemented) {
        PyObject *list = PySequence_List(states), *done = NULL;
        if (list != NULL) {
            PyObject *written = PyTuple_GetItem(torch, LA_TORCH_WRITTEN);
            done = PyObject_CallFunctionObjArgs(written, list, NULL);
        }
        Py_XDECREF(list);
        if (done == NULL) {
            Py_CLEAR(found);
        }
        Py_XDECREF(done);
    }
    return found;
}

PyObject *
la_tensor_update(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    enum { TORCH, RECORDED, GUFUNC, INPUTS, STATES, INDICES, NARGS };
    if (nargs != NARGS || !PyTuple_Check(args[TORCH]) || !la_gufunc_is(args[GUFUNC]) ||
        !PyTuple_Check(args[INPUTS]) || !PyTuple_Check(args[STATES])) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple, a bool, one of linattn's "
                                         "gufuncs, two tuples and a tensor or None");
        return NULL;
    }
    struct update u = {.signature = la_gufunc_of(args[GUFUNC])->signature};
    if (PyTuple_Size(args[INPUTS]) != u.signature->nin ||
        PyTuple_Size(args[STATES]) != u.signature->nout - 1) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    struct la_lending l = {.torch = args[TORCH],
                           .recorded = args[RECORDED] == Py_True,
                           .dtypes = LA_TORCH_DTYPES};
    PyObject *result = NULL, *found = NULL;
    u.operands = &u.args[2];
    u.args[0] = la_lend(&l, args[INDICES]);
    u.args[1] = Py_NewRef(args[GUFUNC]);
    if (u.args[0] == NULL ||
        !take_operands(&u, &l, args[INPUTS], args[STATES], &result)) {
        found = la_lend_refuse(&l);
    }
    else {
        found = call(&u, args[TORCH], args[STATES]);
    }
    if (found != NULL && found != Py_NotImplemented) {
        Py_DECREF(found);
        found = Py_NewRef(result);
    }
    Py_XDECREF(result);
    for (size_t i = 0; i < sizeof(u.args) / sizeof(u.args[0]); i++) {
        Py_XDECREF(u.args[i]);
    }
    la_lend_release(&l);
    return found;
}
