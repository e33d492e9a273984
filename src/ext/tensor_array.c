/* tensor_array.c: an array of the memory of a tensor of PyTorch.
 *
 * Its numpy() would pin its storage, which can then never be resized; sharded training
 * frees parameters by resizing them.  Where it has no DLPack in C, as in PyTorch 2.9,
 * its attributes are read, which takes 0.3 us more. */
#include "numpy_api.h"

#include "tensor_array.h"

#include "dlpack.h"

enum {
    IS_CPU,
    REQUIRES_GRAD,
    DTYPE,
    IS_NEG,
    IS_CONJ,
    DATA_PTR,
    SHAPE,
    STRIDE,
    NEW_EMPTY,
    NNAMES
};

static PyObject *names[NNAMES];

int
la_tensor_array_init(void)
{
    static const char *const text[] = {
        [IS_CPU] = "is_cpu",       [REQUIRES_GRAD] = "requires_grad",
        [DTYPE] = "dtype",         [IS_NEG] = "is_neg",
        [IS_CONJ] = "is_conj",     [DATA_PTR] = "data_ptr",
        [SHAPE] = "shape",         [STRIDE] = "stride",
        [NEW_EMPTY] = "new_empty",
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

static int
refuse_device(void)
{
    PyErr_SetString(PyExc_TypeError, "no array of a tensor on another device");
    return -1;
}

/* Of a tensor that does not describe itself, which is an error. */
static int
refuse_memory(PyObject *x)
{
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError) &&
        !PyErr_ExceptionMatches(PyExc_BufferError)) {
        return -1;
    }
    PyErr_Clear();
    const int here = is_true(x, IS_CPU, 0);
    if (here == 0) {
        return refuse_device();
    }
    if (here > 0) {
        PyErr_SetString(PyExc_TypeError, "the tensor has no memory");
    }
    return -1;
}

static int
refuse_axes(Py_ssize_t axes)
{
    PyErr_Format(PyExc_ValueError, "%zd axes; expected at most %d", axes, NPY_MAXDIMS);
    return -1;
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

/* By attributes; -1 on an error, as in read_exchanged. */
static int
read_attributes(PyObject *x, npy_intp itemsize, struct la_tensor_memory *m)
{
    const int here = is_true(x, IS_CPU, 0);
    if (here <= 0) {
        return here < 0 ? -1 : refuse_device();
    }
    PyObject *sizes = PyObject_GetAttr(x, names[SHAPE]), *steps = NULL, *address = NULL;
    int status = -1;
    if (sizes == NULL ||
        (steps = PyObject_CallMethodObjArgs(x, names[STRIDE], NULL)) == NULL ||
        (address = PyObject_CallMethodObjArgs(x, names[DATA_PTR], NULL)) == NULL) {
        goto done;
    }
    if (!PyTuple_Check(sizes) || !PyTuple_Check(steps)) {
        PyErr_SetString(PyExc_TypeError,
                        "the shape or stride of the tensor is no tuple");
        goto done;
    }
    const Py_ssize_t axes = PyTuple_Size(sizes);
    if (axes > NPY_MAXDIMS) {
        refuse_axes(axes);
        goto done;
    }
    if (read_axes(sizes, axes, 1, m->shape) < 0 ||
        read_axes(steps, axes, itemsize, m->strides) < 0) {
        goto done;
    }
    m->axes = (int)axes;
    m->data = PyLong_AsVoidPtr(address);
    status = m->data == NULL && PyErr_Occurred() ? -1 : 0;
done:
    Py_XDECREF(sizes);
    Py_XDECREF(address);
    Py_XDECREF(steps);
    return status;
}

static int
read_exchanged(const struct la_dl_exchange *dl, PyObject *x, npy_intp itemsize,
               struct la_tensor_memory *m)
{
    struct la_dl_tensor t;
    if (dl->describe(x, &t) < 0) {
        return refuse_memory(x);
    }
    if (t.device != LA_DL_CPU) {
        return refuse_device();
    }
    if (t.axes > NPY_MAXDIMS) {
        return refuse_axes(t.axes);
    }
    m->axes = t.axes;
    for (int i = 0; i < t.axes; i++) {
        m->shape[i] = (npy_intp)t.shape[i];
        m->strides[i] = (npy_intp)t.strides[i] * itemsize;
    }
    m->data = t.data == NULL ? NULL : (char *)t.data + t.byte_offset;
    return 0;
}

/* The table by which tensors describe themselves; NULL if x is no tensor, or there is
 * none, or on an error. */
static const struct la_dl_exchange *
exchange_of(PyObject *torch, PyObject *x)
{
    PyObject *capsule = PyTuple_GetItem(torch, LA_TORCH_EXCHANGE);
    PyObject *classes = PyTuple_GetItem(torch, LA_TORCH_CLASSES);
    PyObject *class = classes == NULL ? NULL : PyTuple_GetItem(classes, 0);
    if (capsule == NULL || capsule == Py_None || class == NULL ||
        !PyObject_TypeCheck(x, (PyTypeObject *)class)) {
        return NULL;
    }
    const struct la_dl_exchange *dl = PyCapsule_GetPointer(capsule, LA_DL_CAPSULE);
    return dl != NULL && dl->major == LA_DL_MAJOR ? dl : NULL;
}

static void
fail(void *unused, const char *kind, const char *message)
{
    (void)unused, (void)kind;
    PyErr_SetString(PyExc_MemoryError, message);
}

/* By DLPack; NULL, perhaps with an exception, if it makes none. */
static PyObject *
allocated(const struct la_dl_exchange *dl, PyObject *like, const npy_intp *shape,
          int axes)
{
    int64_t sizes[NPY_MAXDIMS];
    struct la_dl_tensor t;
    struct la_dl_owned *owned;
    void *object;
    if (axes > NPY_MAXDIMS || dl->describe(like, &t) < 0) {
        return NULL;
    }
    for (int i = 0; i < axes; i++) {
        sizes[i] = shape[i];
    }
    t.data = NULL;
    t.axes = axes;
    t.shape = sizes;
    t.strides = NULL;
    t.byte_offset = 0;
    return dl->allocate(&t, &owned, NULL, fail) != 0 || dl->wrap(owned, &object) < 0
               ? NULL
               : object;
}

PyObject *
la_tensor_new(PyObject *torch, PyObject *like, const npy_intp *shape, int axes)
{
    const struct la_dl_exchange *dl = exchange_of(torch, like);
    if (dl != NULL) {
        return allocated(dl, like, shape, axes);
    }
    PyObject *sizes = PyErr_Occurred() ? NULL : PyTuple_New(axes);
    for (int i = 0; sizes != NULL && i < axes; i++) {
        PyTuple_SetItem(sizes, i, PyLong_FromSsize_t(shape[i]));
    }
    PyObject *x = sizes == NULL
                      ? NULL
                      : PyObject_CallMethodObjArgs(like, names[NEW_EMPTY], sizes, NULL);
    Py_XDECREF(sizes);
    return x;
}

int
la_tensor_memory_of(PyObject *torch, PyObject *x, npy_intp itemsize,
                    struct la_tensor_memory *m)
{
    const struct la_dl_exchange *dl = exchange_of(torch, x);
    if (dl == NULL && PyErr_Occurred()) {
        return -1;
    }
    return dl != NULL ? read_exchanged(dl, x, itemsize, m)
                      : read_attributes(x, itemsize, m);
}

PyObject *
la_tensor_array_of(PyObject *torch, PyObject *x, PyArray_Descr *dtype)
{
    struct la_tensor_memory m;
    if (la_tensor_memory_of(torch, x, PyDataType_ELSIZE(dtype), &m) < 0) {
        return NULL;
    }
    int some = 1;
    for (int i = 0; i < m.axes; i++) {
        some &= m.shape[i] != 0;
    }
    if (m.data == NULL && some) {
        PyErr_SetString(PyExc_TypeError, "the tensor has no memory");
        return NULL;
    }
    /* Without an address, NumPy allocates memory, which is right for an empty array. */
    PyObject *array = PyArray_NewFromDescr(
        &PyArray_Type, (PyArray_Descr *)Py_NewRef((PyObject *)dtype), m.axes, m.shape,
        m.data == NULL ? NULL : m.strides, m.data, NPY_ARRAY_WRITEABLE, NULL);
    if (array != NULL && m.data != NULL &&
        PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(x)) < 0) {
        Py_CLEAR(array);
    }
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
    if (hidden > 0) {
        PyErr_SetString(PyExc_TypeError,
                        "no array of a tensor with the bit of -x or of conj x");
    }
    return hidden == 0 ? 0 : -1;
}
