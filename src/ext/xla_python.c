/* xla_python.c: see xla_python.h.
 *
 * jax.pure_callback passes JAX arrays to its function; with several devices, these may
 * wait for one another forever.  This file passes plain views of the buffers. */
#include "xla_python.h"

#include <stdatomic.h>
#include <string.h>

#include "number.h"

const char la_xla_no_memory[] = "linattn: out of memory";

/* caller(function, arguments, results) -> None, or an error message */
static PyObject *caller;
static atomic_int running, finishing;

/* Whether views of the buffers can be made. */
static int
are_floats(const struct la_xla_buffers *buffers)
{
    for (int64_t i = 0; i < buffers->size; i++) {
        const struct la_xla_buffer *b = buffers->buffers[i];
        enum la_dtype dtype;
        if (!LA_XLA_HAS(b, struct la_xla_buffer, dims) || b->rank > LA_XLA_RANK ||
            la_xla_float(b->dtype, &dtype) < 0) {
            return 0;
        }
    }
    return 1;
}

/* A memoryview of a buffer. */
static PyObject *
view_of(const struct la_xla_buffer *b, int readonly)
{
    static double nothing; /* a view of an empty buffer needs an address too */
    Py_ssize_t shape[LA_XLA_RANK], strides[LA_XLA_RANK];
    enum la_dtype dtype = LA_F32;
    la_xla_float(b->dtype, &dtype); /* are_floats has checked it */
    Py_buffer view = {
        .buf = b->data,
        .itemsize = la_number_size(dtype),
        .readonly = readonly,
        .ndim = (int)b->rank,
        .format = (char *)la_number_format(dtype), /* only read */
        .shape = shape,
        .strides = strides,
    };
    view.len = view.itemsize;
    for (int64_t axis = b->rank - 1; axis >= 0; axis--) {
        shape[axis] = (Py_ssize_t)b->dims[axis];
        strides[axis] = view.len;
        view.len *= shape[axis];
    }
    if (view.buf == NULL) {
        view.buf = &nothing;
    }
    return PyMemoryView_FromBuffer(&view);
}

static PyObject *
views_of(const struct la_xla_buffers *buffers, int readonly)
{
    PyObject *views = PyTuple_New((Py_ssize_t)buffers->size);
    for (Py_ssize_t i = 0; views != NULL && i < buffers->size; i++) {
        PyObject *view = view_of(buffers->buffers[i], readonly);
        if (view == NULL || PyTuple_SetItem(views, i, view) < 0) {
            Py_CLEAR(views);
        }
    }
    return views;
}

/* Reads what the caller returned: NULL, or an error message. */
static const char *
read_result(PyObject *done, char *message)
{
    Py_ssize_t length = 0;
    const char *text;
    if (done == Py_None) {
        return NULL;
    }
    if (done == NULL || (text = PyUnicode_AsUTF8AndSize(done, &length)) == NULL) {
        PyErr_Clear();
        return la_xla_no_memory;
    }
    if (length >= LA_XLA_MESSAGE) {
        length = LA_XLA_MESSAGE - 1;
        while ((text[length] & 0xC0) == 0x80) { /* do not cut a character in two */
            length--;
        }
    }
    memcpy(message, text, (size_t)length);
    message[length] = '\0';
    return message;
}

static const char *
call_python(const struct la_xla_frame *frame, int64_t function, char *message)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *done = NULL, *arguments = views_of(&frame->args, 1);
    PyObject *results = arguments == NULL ? NULL : views_of(&frame->rets, 0);
    if (results != NULL) {
        done = PyObject_CallFunction(caller, "LOO", (long long)function, arguments,
                                     results);
    }
    const char *wrong = read_result(done, message);
    Py_XDECREF(done);
    Py_XDECREF(results);
    Py_XDECREF(arguments);
    PyGILState_Release(state);
    return wrong;
}

const char *
la_xla_python(const struct la_xla_frame *frame, int64_t function, char *message)
{
    if (!are_floats(&frame->args) || !are_floats(&frame->rets)) {
        return "linattn: a Python function takes and returns float32 or float64";
    }
    atomic_fetch_add(&running, 1); /* before the check of `finishing` (la_xla_finish) */
    const char *wrong =
        atomic_load(&finishing)
            ? "linattn: Python is finalizing and can run no more functions"
            : call_python(frame, function, message);
    atomic_fetch_sub(&running, 1);
    return wrong;
}

PyObject *
la_xla_finish(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    atomic_store(&finishing, 1);
    return PyLong_FromLong(atomic_load(&running));
}

void
la_xla_set_caller(PyObject *function)
{
    PyObject *before = caller;
    Py_INCREF(function);
    caller = function;
    Py_XDECREF(before);
}
