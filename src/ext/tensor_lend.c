/* tensor_lend.c: see tensor_lend.h. */
#include "numpy_api.h"

#include "tensor_lend.h"

#include "pool.h"
#include "tensor_array.h"

long
la_lend_threads(PyObject *torch)
{
    PyObject *count = PyObject_CallNoArgs(PyTuple_GetItem(torch, LA_TORCH_THREADS));
    const long threads = count == NULL ? -1 : PyLong_AsLong(count);
    Py_XDECREF(count);
    return threads < 0 ? -1 : la_pool_hold_threads(threads);
}

int
la_is_lendable(const struct la_lending *l, PyObject *x)
{
    PyObject *classes = PyTuple_GetItem(l->torch, LA_TORCH_CLASSES);
    for (Py_ssize_t i = 0; i < PyTuple_Size(classes); i++) {
        if ((PyObject *)Py_TYPE(x) == PyTuple_GetItem(classes, i)) {
            return l->recorded && la_tensor_requires_grad(x) != 0 ? -1 : 1;
        }
    }
    const int tensor = PyObject_IsInstance(x, PyTuple_GetItem(classes, 0));
    return l->seen ? tensor : -tensor;
}

/* Notes that `lent`, a reference that is taken over, stands for x. */
static PyObject *
note(struct la_lending *l, PyObject *x, PyObject *lent)
{
    if (lent == NULL) {
        return NULL;
    }
    if (l->count == LA_LENT) {
        Py_DECREF(lent);
        return NULL;
    }
    l->from[l->count] = x;
    l->lent[l->count++] = lent;
    return Py_NewRef(lent);
}

PyObject *
la_lend(struct la_lending *l, PyObject *x)
{
    if (x == Py_None) {
        return Py_NewRef(x);
    }
    if (PyTuple_Check(x)) {
        const Py_ssize_t size = PyTuple_Size(x);
        PyObject *members = PyTuple_New(size), *whole;
        for (Py_ssize_t i = 0; members != NULL && i < size; i++) {
            PyObject *member = la_lend(l, PyTuple_GetItem(x, i));
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
    const int lendable = la_is_lendable(l, x);
    if (lendable <= 0) { /* operands are tensors, or PyTorch's operators convert them */
        return lendable < 0 || l->dtypes == LA_TORCH_OPERAND_DTYPES ? NULL
                                                                    : Py_NewRef(x);
    }
    PyArray_Descr *dtype = la_tensor_dtype(PyTuple_GetItem(l->torch, l->dtypes), x);
    if (dtype == NULL || (!l->seen && la_tensor_check(x, dtype) < 0)) {
        return NULL;
    }
    return note(l, x, la_tensor_array_of(l->torch, x, dtype));
}

PyObject *
la_lend_refuse(const struct la_lending *l)
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

void
la_lend_release(struct la_lending *l)
{
    for (int i = 0; i < l->count; i++) {
        Py_DECREF(l->lent[i]);
    }
}
