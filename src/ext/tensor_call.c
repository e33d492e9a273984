/* tensor_call.c: functions of arrays, called with tensors of PyTorch.
 *
 * A tensor is lent to the function as an array of its memory, and an array of the
 * result becomes a tensor.  What the function returns of what it was lent has been
 * written to; the caller gets its own tensor, or state, back. */
#include "numpy_api.h"

#include "tensor_call.h"

#include "gufunc.h"
#include "pool.h"
#include "tensor_array.h"
#include "tensor_lend.h"

PyObject *
la_tensor_array(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple and a tensor");
        return NULL;
    }
    PyArray_Descr *dtype =
        la_tensor_dtype(PyTuple_GetItem(args[0], LA_TORCH_DTYPES), args[1]);
    return dtype == NULL || la_tensor_check(args[1], dtype) < 0
               ? NULL
               : la_tensor_array_of(args[0], args[1], dtype);
}

static PyObject *give_back(struct la_lending *l, PyObject *x, PyObject *written);

/* Adds the tensors that x stands for to those written to. */
static int
note_written(PyObject *x, PyObject *written)
{
    if (!PyTuple_Check(x)) {
        return x == Py_None ? 0 : PyList_Append(written, x);
    }
    int status = 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(x); i++) {
        status = note_written(PyTuple_GetItem(x, i), written);
    }
    return status;
}

static PyObject *
give_back_all(struct la_lending *l, PyObject *x, PyObject *written)
{
    const Py_ssize_t size = PyTuple_Size(x);
    PyObject *members = PyTuple_New(size);
    for (Py_ssize_t i = 0; members != NULL && i < size; i++) {
        PyObject *member = give_back(l, PyTuple_GetItem(x, i), written);
        if (member == NULL) {
            Py_CLEAR(members);
            break;
        }
        PyTuple_SetItem(members, i, member);
    }
    if (members == NULL || PyTuple_CheckExact(x)) {
        return members;
    }
    PyObject *whole = PyObject_CallObject((PyObject *)Py_TYPE(x), members);
    Py_DECREF(members);
    return whole;
}

/* What x, a result, is to the caller. */
static PyObject *
give_back(struct la_lending *l, PyObject *x, PyObject *written)
{
    for (int i = 0; i < l->count; i++) {
        if (l->lent[i] == x) {
            return note_written(l->from[i], written) < 0 ? NULL : Py_NewRef(l->from[i]);
        }
    }
    if (PyTuple_Check(x)) {
        return give_back_all(l, x, written);
    }
    if (!PyArray_Check(x)) {
        return Py_NewRef(x);
    }
    PyArrayObject *array = (PyArrayObject *)x;
    const int plain =
        PyArray_IS_C_CONTIGUOUS(array) &&
        PyArray_TYPE(array) < NPY_USERDEF; /* bfloat16 is no dtype of NumPy's */
    PyObject *make =
        PyTuple_GetItem(l->torch, plain ? LA_TORCH_FROM_NUMPY : LA_TORCH_TENSOR);
    return PyObject_CallFunctionObjArgs(make, x, NULL);
}

/* The caller's results, once PyTorch knows of the tensors that were written to. */
static PyObject *
results(struct la_lending *l, PyObject *x)
{
    PyObject *written = PyList_New(0);
    PyObject *mine = written == NULL ? NULL : give_back(l, x, written);
    if (mine != NULL && PyList_Size(written) > 0) {
        PyObject *done = PyObject_CallFunctionObjArgs(
            PyTuple_GetItem(l->torch, LA_TORCH_WRITTEN), written, NULL);
        if (done == NULL) {
            Py_CLEAR(mine);
        }
        Py_XDECREF(done);
    }
    Py_XDECREF(written);
    return mine;
}

/* The keywords of a call: what is lent, and the options, of which none is a tensor. */
static PyObject *
keywords(struct la_lending *l, PyObject *given, PyObject *options)
{
    PyObject *key, *x;
    Py_ssize_t at = 0;
    while (PyDict_Next(options, &at, &key, &x)) {
        if (la_is_lendable(l, x) != 0) {
            return NULL;
        }
    }
    PyObject *all = PyDict_Copy(options);
    at = 0;
    while (all != NULL && PyDict_Next(given, &at, &key, &x)) {
        PyObject *lent = la_lend(l, x);
        if (lent == NULL || PyDict_SetItem(all, key, lent) < 0) {
            Py_CLEAR(all);
        }
        Py_XDECREF(lent);
    }
    return all;
}

PyObject *
la_tensor_call(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    enum { TORCH, RECORDED, FUNCTION, OPERANDS, GIVEN, OPTIONS, NARGS };
    if (nargs != NARGS || !PyTuple_Check(args[TORCH]) ||
        !PyTuple_Check(args[OPERANDS]) || !PyDict_Check(args[GIVEN]) ||
        !PyDict_Check(args[OPTIONS])) {
        PyErr_SetString(PyExc_TypeError,
                        "expected a tuple, a bool, a function, a tuple and two "
                        "dicts");
        return NULL;
    }
    struct la_lending l = {.torch = args[TORCH],
                           .seen = args[RECORDED] == Py_None,
                           .recorded = args[RECORDED] == Py_True,
                           .dtypes = LA_TORCH_OPERAND_DTYPES};
    PyObject *operands = la_lend(&l, args[OPERANDS]), *positional = NULL,
             *result = NULL;
    l.dtypes = LA_TORCH_DTYPES;
    PyObject *all = operands == NULL ? NULL : keywords(&l, args[GIVEN], args[OPTIONS]);
    if (all == NULL) {
        result = la_lend_refuse(&l);
    }
    else if ((positional = PyTuple_New(1)) != NULL) {
        PyTuple_SetItem(positional, 0, Py_NewRef(operands));
        const long held = la_lend_threads(l.torch);
        PyObject *found = NULL;
        if (held >= 0) {
            found = PyObject_Call(args[FUNCTION], positional, all);
            la_pool_hold_threads(held);
        }
        result = found == NULL ? NULL : results(&l, found);
        Py_XDECREF(found);
    }
    Py_XDECREF(positional);
    Py_XDECREF(operands);
    Py_XDECREF(all);
    la_lend_release(&l);
    return result;
}

/* --- steps -------------------------------------------------------------------- */

/* The members of `step` of la_tensor_step. */
enum { OP, COUNT, AFTER, S, Z, MAP, NORMALIZE, SCALE, EPS, NSTEP };

/* Sets the number of the operator, and s, z and options of a step: arguments at their
 * places, or values that stand for those that there are not.  1 if no argument follows
 * s and z, 0 if one does, -1 on an error. */
static int
read_step(PyObject *step, PyObject *arguments, PyObject **x)
{
    for (int i = 0; i < NSTEP; i++) {
        x[i] = PyTuple_GetItem(step, i);
        if (i >= S && x[i] != NULL && PyLong_CheckExact(x[i])) {
            x[i] = PyTuple_GetItem(arguments, PyLong_AsSsize_t(x[i]));
        }
        if (x[i] == NULL) {
            return -1;
        }
        if (i < S && !PyLong_Check(x[i])) {
            PyErr_SetString(PyExc_TypeError, "expected three ints first");
            return -1;
        }
    }
    int plain = 1;
    for (Py_ssize_t i = PyLong_AsSsize_t(x[AFTER]); i < PyTuple_Size(arguments); i++) {
        plain = plain && PyTuple_GetItem(arguments, i) == Py_None;
    }
    return plain;
}

/* What fast_step returns for a step of these, in arrays. */
static PyObject *
take_step(struct la_lending *l, PyObject *operands, PyObject *const *x,
          PyObject *in_place)
{
    PyObject *given = la_lend(l, operands),
             *s = given == NULL ? NULL : la_lend(l, x[S]),
             *z = s == NULL ? NULL : la_lend(l, x[Z]), *found = NULL;
    if (z == NULL) {
        found = la_lend_refuse(l);
    }
    else {
        PyObject *const call[] = {x[OP],  given,        s,        z,     in_place,
                                  x[MAP], x[NORMALIZE], x[SCALE], x[EPS]};
        const long held = la_lend_threads(l->torch);
        if (held >= 0) {
            found = la_fast_step(NULL, call, sizeof call / sizeof *call);
            la_pool_hold_threads(held);
        }
    }
    Py_XDECREF(given);
    Py_XDECREF(s);
    Py_XDECREF(z);
    return found;
}

PyObject *
la_tensor_step(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    enum { TORCH, STEP, IN_PLACE, ARGUMENTS, NARGS };
    if (nargs != NARGS || !PyTuple_Check(args[TORCH]) || !PyTuple_Check(args[STEP]) ||
        !PyTuple_Check(args[ARGUMENTS])) {
        PyErr_SetString(PyExc_TypeError, "expected two tuples, a bool and a tuple");
        return NULL;
    }
    PyObject *x[NSTEP];
    const int plain = read_step(args[STEP], args[ARGUMENTS], x);
    if (plain <= 0) {
        return plain < 0 ? NULL : Py_NewRef(Py_NotImplemented);
    }
    struct la_lending l = {.torch = args[TORCH], .seen = 1, .dtypes = LA_TORCH_DTYPES};
    PyObject *operands =
        PyTuple_GetSlice(args[ARGUMENTS], 0, PyLong_AsSsize_t(x[COUNT]));
    PyObject *found =
        operands == NULL ? NULL : take_step(&l, operands, x, args[IN_PLACE]);
    PyObject *answer = found == NULL                ? NULL
                       : found == Py_NotImplemented ? Py_NewRef(found)
                                                    : results(&l, found);
    Py_XDECREF(found);
    Py_XDECREF(operands);
    la_lend_release(&l);
    return answer;
}
