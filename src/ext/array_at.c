/* array_at.c: an array on the memory of a tensor.
 *
 * A tensor's own numpy() pins its storage, which can then never be resized; sharded
 * training frees parameters by resizing them. */
#include "numpy_api.h"

#include "gufunc.h"

/* Reads sizes or strides from a tuple; -1, with an exception set, if it is not `count`
 * integers. */
static int
read_axes(PyObject *tuple, Py_ssize_t count, npy_intp *axes)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        if (item == NULL) {
            return -1;
        }
        axes[i] = PyLong_AsSsize_t(item);
        if (axes[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

PyObject *
la_array_at(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS], some = 1;
    if (nargs != 5 || !PyArray_DescrCheck(args[4])) {
        PyErr_SetString(PyExc_TypeError,
                        "expected owner, address, shape, strides and a dtype");
        return NULL;
    }
    void *address = PyLong_AsVoidPtr(args[1]);
    const Py_ssize_t axes = PyTuple_Size(args[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (axes > NPY_MAXDIMS) {
        return PyErr_Format(PyExc_ValueError, "%zd axes; expected at most %d", axes,
                            NPY_MAXDIMS);
    }
    if (read_axes(args[2], axes, shape) < 0 || read_axes(args[3], axes, strides) < 0) {
        return NULL;
    }
    PyArray_Descr *dtype = (PyArray_Descr *)Py_NewRef(args[4]);
    for (Py_ssize_t i = 0; i < axes; i++) {
        some &= shape[i] != 0;
        strides[i] *= PyDataType_ELSIZE(dtype);
    }
    if (address == NULL && some) {
        Py_DECREF(dtype);
        PyErr_SetString(PyExc_TypeError, "the tensor has no memory");
        return NULL;
    }
    /* Without an address, NumPy allocates memory, which is right for an empty array. */
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, dtype, (int)axes, shape,
                                           address == NULL ? NULL : strides, address,
                                           NPY_ARRAY_WRITEABLE, NULL);
    if (array != NULL && address != NULL &&
        PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(args[0])) < 0) {
        Py_CLEAR(array);
    }
    return array;
}
