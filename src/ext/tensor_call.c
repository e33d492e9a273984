/* tensor_call.c: functions of arrays, called with tensors of PyTorch.
 *
 * A tensor is lent to the function as an array of its memory, and an array of the
 * result becomes a tensor.  What the function returns of what it was lent has been
 * written to; the caller gets its own tensor, or state, back.  A tensor's numpy() would
 * pin its storage, which can then never be resized; sharded training frees parameters
 * by resizing them. */
#include "numpy_api.h"

#include "tensor_call.h"

#include "pool.h"

enum { LENT = 64 };

/* The members of `torch`. */
enum { CLASSES, OPERAND_DTYPES, DTYPES, TENSOR, WRITTEN };

enum { IS_CPU, REQUIRES_GRAD, DTYPE, IS_NEG, IS_CONJ, DATA_PTR, SHAPE, STRIDE, NNAMES };

static PyObject *names[NNAMES];

struct lending {
    PyObject *torch;
    int seen; /* whether PyTorch has seen the call: it is inside an operator's kernel */
    int recorded; /* whether PyTorch has to see tensors that require gradients */
    int dtypes;   /* which dtypes tensors may have: OPERAND_DTYPES or DTYPES */
    int count;
    PyObject *from[LENT], *lent[LENT]; /* tensors and tuples of them */
};

int
la_tensor_call_init(void)
{
    static const char *const text[] = {
        [IS_CPU] = "is_cpu",   [REQUIRES_GRAD] = "requires_grad",
        [DTYPE] = "dtype",     [IS_NEG] = "is_neg",
        [IS_CONJ] = "is_conj", [DATA_PTR] = "data_ptr",
        [SHAPE] = "shape",     [STRIDE] = "stride",
    };
    for (int i = 0; i < NNAMES; i++) {
        names[i] = PyUnicode_InternFromString(text[i]);
        if (names[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Whether an attribute, or what a method returns, is True; -1 on an error. */
static int
is_true(PyObject *x, int name, int method)
{
    PyObject *answer = method ? PyObject_CallMethodObjArgs(x, names[name], NULL)
                              : PyObject_GetAttr(x, names[name]);
    const int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return truth;
}

/* Reads sizes or strides from a tuple, times a factor; -1 on an error. */
static int
read_axes(PyObject *tuple, Py_ssize_t count, npy_intp factor, npy_intp *axes)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        axes[i] = item == NULL ? -1 : PyLong_AsSsize_t(item);
        if (axes[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
        axes[i] *= factor;
    }
    return 0;
}

/* An array of the memory of x, of that dtype. */
static PyObject *
array_of(PyObject *x, PyArray_Descr *dtype)
{
    npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS], some = 1;
    PyObject *array = NULL, *address = NULL, *steps = NULL;
    PyObject *sizes = PyObject_GetAttr(x, names[SHAPE]);
    const Py_ssize_t axes = sizes == NULL ? -1 : PyTuple_Size(sizes);
    if (sizes != NULL && axes < 0) {
        PyErr_Clear();
        PyErr_SetString(PyExc_TypeError, "the shape of the tensor is no tuple");
    }
    if (axes > NPY_MAXDIMS) {
        PyErr_Format(PyExc_ValueError, "%zd axes; expected at most %d", axes,
                     NPY_MAXDIMS);
    }
    if (axes < 0 || axes > NPY_MAXDIMS ||
        (address = PyObject_CallMethodObjArgs(x, names[DATA_PTR], NULL)) == NULL ||
        (steps = PyObject_CallMethodObjArgs(x, names[STRIDE], NULL)) == NULL ||
        read_axes(sizes, axes, 1, shape) < 0 ||
        read_axes(steps, axes, PyDataType_ELSIZE(dtype), strides) < 0) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < axes; i++) {
        some &= shape[i] != 0;
    }
    void *data = PyLong_AsVoidPtr(address);
    if (data == NULL && some) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "the tensor has no memory");
        }
        goto done;
    }
    /* Without an address, NumPy allocates memory, which is right for an empty array. */
    array = PyArray_NewFromDescr(
        &PyArray_Type, (PyArray_Descr *)Py_NewRef((PyObject *)dtype), (int)axes, shape,
        data == NULL ? NULL : strides, data, NPY_ARRAY_WRITEABLE, NULL);
    if (array != NULL && data != NULL &&
        PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(x)) < 0) {
        Py_CLEAR(array);
    }
done:
    Py_XDECREF(sizes);
    Py_XDECREF(address);
    Py_XDECREF(steps);
    return array;
}

/* The dtype of the numbers in a tensor's memory, borrowed; NULL if there is none. */
static PyArray_Descr *
dtype_of(PyObject *dtypes, PyObject *x)
{
    PyObject *dtype = PyObject_GetAttr(x, names[DTYPE]);
    PyObject *found = dtype == NULL ? NULL : PyDict_GetItemWithError(dtypes, dtype);
    int hidden = found == NULL ? 1 : is_true(x, IS_NEG, 1);
    if (hidden == 0 && PyDataType_ISCOMPLEX((PyArray_Descr *)found)) {
        hidden = is_true(x, IS_CONJ, 1);
    }
    if (hidden == 0) {
        hidden = is_true(x, IS_CPU, 0) - 1;
    }
    if (hidden != 0 && !PyErr_Occurred()) {
        PyErr_Format(
            PyExc_TypeError,
            "no array of a tensor of %S, on another device, or with the bit of "
            "-x or conj x",
            dtype);
    }
    Py_XDECREF(dtype);
    return hidden == 0 ? (PyArray_Descr *)found : NULL;
}

PyObject *
la_tensor_array(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple and a tensor");
        return NULL;
    }
    PyArray_Descr *dtype = dtype_of(PyTuple_GetItem(args[0], DTYPES), args[1]);
    return dtype == NULL ? NULL : array_of(args[1], dtype);
}

/* --- lending ------------------------------------------------------------------ */

/* 1 if x is a tensor that can be lent, 0 if it is no tensor, -1 if PyTorch has to see
 * it, or on an error. */
static int
is_lendable(const struct lending *l, PyObject *x)
{
    PyObject *classes = PyTuple_GetItem(l->torch, CLASSES);
    for (Py_ssize_t i = 0; i < PyTuple_Size(classes); i++) {
        if ((PyObject *)Py_TYPE(x) == PyTuple_GetItem(classes, i)) {
            return l->recorded && is_true(x, REQUIRES_GRAD, 0) != 0 ? -1 : 1;
        }
    }
    const int tensor = PyObject_IsInstance(x, PyTuple_GetItem(classes, 0));
    return l->seen ? tensor : -tensor;
}

/* Notes that `lent`, a reference that is taken over, stands for x. */
static PyObject *
note(struct lending *l, PyObject *x, PyObject *lent)
{
    if (lent == NULL) {
        return NULL;
    }
    if (l->count == LENT) {
        Py_DECREF(lent);
        return NULL;
    }
    l->from[l->count] = x;
    l->lent[l->count++] = lent;
    return Py_NewRef(lent);
}

/* What stands for x in a call: an array for a tensor, a tuple of what stands for its
 * members for a tuple, and x itself for anything else.  NULL without an exception if
 * PyTorch has to see the call. */
static PyObject *
lend(struct lending *l, PyObject *x)
{
    if (x == Py_None) {
        return Py_NewRef(x);
    }
    if (PyTuple_Check(x)) {
        const Py_ssize_t size = PyTuple_Size(x);
        PyObject *members = PyTuple_New(size), *whole;
        for (Py_ssize_t i = 0; members != NULL && i < size; i++) {
            PyObject *member = lend(l, PyTuple_GetItem(x, i));
            if (member == NULL) {
                Py_DECREF(members);
                return NULL;
            }
            PyTuple_SetItem(members, i, member);
        }
        if (members == NULL || PyTuple_CheckExact(x)) {
            return note(l, x, members);
        }
        whole = PyObject_CallObject((PyObject *)Py_TYPE(x), members);
        Py_DECREF(members);
        return note(l, x, whole);
    }
    const int lendable = is_lendable(l, x);
    if (lendable <= 0) { /* operands are tensors, or PyTorch's operators convert them */
        return lendable < 0 || l->dtypes == OPERAND_DTYPES ? NULL : Py_NewRef(x);
    }
    PyArray_Descr *dtype = dtype_of(PyTuple_GetItem(l->torch, l->dtypes), x);
    return dtype == NULL ? NULL : note(l, x, array_of(x, dtype));
}

/* --- and back ----------------------------------------------------------------- */

static PyObject *give_back(struct lending *l, PyObject *x, PyObject *written);

/* Adds the tensors that `lent` stands for to those written to. */
static int
note_written(const struct lending *l, PyObject *x, PyObject *written)
{
    if (!PyTuple_Check(x)) {
        return x == Py_None ? 0 : PyList_Append(written, x);
    }
    int status = 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(x); i++) {
        status = note_written(l, PyTuple_GetItem(x, i), written);
    }
    return status;
}

static PyObject *
give_back_all(struct lending *l, PyObject *x, PyObject *written)
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
give_back(struct lending *l, PyObject *x, PyObject *written)
{
    for (int i = 0; i < l->count; i++) {
        if (l->lent[i] == x) {
            return note_written(l, l->from[i], written) < 0 ? NULL
                                                            : Py_NewRef(l->from[i]);
        }
    }
    if (PyTuple_Check(x)) {
        return give_back_all(l, x, written);
    }
    if (!PyArray_Check(x)) {
        return Py_NewRef(x);
    }
    return PyObject_CallFunctionObjArgs(PyTuple_GetItem(l->torch, TENSOR), x, NULL);
}

/* The caller's results, once PyTorch knows of the tensors that were written to. */
static PyObject *
results(struct lending *l, PyObject *x)
{
    PyObject *written = PyList_New(0);
    PyObject *mine = written == NULL ? NULL : give_back(l, x, written);
    if (mine != NULL && PyList_Size(written) > 0) {
        PyObject *done = PyObject_CallFunctionObjArgs(
            PyTuple_GetItem(l->torch, WRITTEN), written, NULL);
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
keywords(struct lending *l, PyObject *given, PyObject *options)
{
    PyObject *key, *x;
    Py_ssize_t at = 0;
    while (PyDict_Next(options, &at, &key, &x)) {
        if (is_lendable(l, x) != 0) {
            return NULL;
        }
    }
    PyObject *all = PyDict_Copy(options);
    at = 0;
    while (all != NULL && PyDict_Next(given, &at, &key, &x)) {
        PyObject *lent = lend(l, x);
        if (lent == NULL || PyDict_SetItem(all, key, lent) < 0) {
            Py_CLEAR(all);
        }
        Py_XDECREF(lent);
    }
    return all;
}

/* What a call returns whose tensors cannot be lent: NotImplemented, or the error. */
static PyObject *
refuse(const struct lending *l)
{
    if (l->seen) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "an operand is no tensor");
        }
        return NULL;
    }
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        return NULL;
    }
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
}

PyObject *
la_tensor_call(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    enum { TORCH, RECORDED, THREADS, FUNCTION, OPERANDS, GIVEN, OPTIONS, NARGS };
    if (nargs != NARGS || !PyTuple_Check(args[TORCH]) ||
        !PyTuple_Check(args[OPERANDS]) || !PyDict_Check(args[GIVEN]) ||
        !PyDict_Check(args[OPTIONS])) {
        PyErr_SetString(PyExc_TypeError,
                        "expected a tuple, a bool, an int, a function, a tuple and two "
                        "dicts");
        return NULL;
    }
    struct lending l = {.torch = args[TORCH],
                        .seen = args[RECORDED] == Py_None,
                        .recorded = args[RECORDED] == Py_True,
                        .dtypes = OPERAND_DTYPES};
    const long threads = PyLong_AsLong(args[THREADS]);
    PyObject *operands = lend(&l, args[OPERANDS]), *positional = NULL, *result = NULL;
    l.dtypes = DTYPES;
    PyObject *all = operands == NULL ? NULL : keywords(&l, args[GIVEN], args[OPTIONS]);
    if (all == NULL) {
        result = refuse(&l);
    }
    else if ((positional = PyTuple_New(1)) != NULL) {
        PyTuple_SetItem(positional, 0, Py_NewRef(operands));
        const long held = la_pool_hold_threads(threads);
        PyObject *found = PyObject_Call(args[FUNCTION], positional, all);
        la_pool_hold_threads(held);
        result = found == NULL ? NULL : results(&l, found);
        Py_XDECREF(found);
    }
    Py_XDECREF(positional);
    Py_XDECREF(operands);
    Py_XDECREF(all);
    for (int i = 0; i < l.count; i++) {
        Py_DECREF(l.lent[i]);
    }
    return result;
}
