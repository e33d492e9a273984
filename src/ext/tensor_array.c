/* tensor_array.c: an array of the memory of a tensor of PyTorch, by its attributes.
 *
 * Its numpy() would pin its storage, which can then never be resized; sharded training
 * frees parameters by resizing them. */
#include "numpy_api.h"

#include "tensor_array.h"

enum { IS_CPU, REQUIRES_GRAD, DTYPE, IS_NEG, IS_CONJ, DATA_PTR, SHAPE, STRIDE, NNAMES };

static PyObject *names[NNAMES];

int
la_tensor_array_init(void)
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

int
la_tensor_requires_grad(PyObject *x)
{
    return is_true(x, REQUIRES_GRAD, 0);
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

PyObject *
la_tensor_array_of(PyObject *x, PyArray_Descr *dtype)
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

PyArray_Descr *
la_tensor_dtype(PyObject *dtypes, PyObject *x)
{
    PyObject *dtype = PyObject_GetAttr(x, names[DTYPE]);
    PyObject *found = dtype == NULL ? NULL : PyDict_GetItemWithError(dtypes, dtype);
    if (found == NULL && !PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "no array of a tensor of %S", dtype);
    }
    Py_XDECREF(dtype);
    return (PyArray_Descr *)found;
}

int
la_tensor_check(PyObject *x, const PyArray_Descr *dtype)
{
    int hidden = is_true(x, IS_NEG, 1);
    if (hidden == 0 && PyDataType_ISCOMPLEX(dtype)) {
        hidden = is_true(x, IS_CONJ, 1);
    }
    if (hidden == 0) {
        hidden = is_true(x, IS_CPU, 0) - 1;
    }
    if (hidden != 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError,
                        "no array of a tensor on another device, or with the bit of "
                        "-x or conj x");
    }
    return hidden == 0 ? 0 : -1;
}
