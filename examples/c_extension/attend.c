/* attend.c: an extension module that calls linattn's operators without the GIL.
 *
 *     attend.causal(q, k, v, o)      o[...] = linattn.causal(q, k, v)
 *     attend.gated(q, k, v, g, o)    o[...] = linattn.gated(q, k, v, g)
 *
 * Arguments are buffers of float32 or float64, such as NumPy's arrays. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <linattn.h>
#include <string.h>

enum { MOST = 8 };

static const linattn_api *linattn; /* set by PyInit_attend */

/* Calls an operator with arrays, the last of which is its result, and numbers before
 * it. */
static PyObject *
run(const char *operator, PyObject *args, int arrays, const double *numbers, int count)
{
    linattn_array x[MOST] = {{0}};
    Py_buffer buffers[MOST];
    int taken = 0, status = LINATTN_BAD_COUNT;
    for (; taken < arrays && taken < PyTuple_Size(args); taken++) {
        Py_buffer *b = &buffers[taken];
        const int last = taken == arrays - 1;
        if (PyObject_GetBuffer(PyTuple_GetItem(args, taken), b,
                               last ? PyBUF_RECORDS : PyBUF_RECORDS_RO) < 0) {
            break;
        }
        x[last ? taken + count : taken] =
            (linattn_array){.data = b->buf,
                            .dtype = strcmp(b->format, "f") == 0   ? LINATTN_FLOAT32
                                     : strcmp(b->format, "d") == 0 ? LINATTN_FLOAT64
                                                                   : LINATTN_LEFT_OUT,
                            .ndim = b->ndim,
                            .shape = b->shape,
                            .strides = b->strides};
    }
    for (int i = 0; i < count; i++) {
        x[arrays - 1 + i] =
            (linattn_array){.dtype = LINATTN_NUMBER, .number = numbers[i]};
    }
    if (taken == arrays && PyTuple_Size(args) == arrays) {
        Py_BEGIN_ALLOW_THREADS status =
            linattn->call(linattn->find(operator), x, arrays + count, 0);
        Py_END_ALLOW_THREADS
    }
    while (taken > 0) {
        PyBuffer_Release(&buffers[--taken]);
    }
    if (status != LINATTN_OK && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "%s: %s", operator,
                     linattn->status_text(status));
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *
causal(PyObject *module, PyObject *args)
{
    return run("causal_elu", args, 4, (double[]){1, 1e-6}, 2); /* scale, eps */
}

static PyObject *
gated(PyObject *module, PyObject *args)
{
    return run("gated_identity", args, 5, (double[]){1}, 1); /* scale */
}

static PyMethodDef methods[] = {
    {"causal", causal, METH_VARARGS, "causal(q, k, v, o)"},
    {"gated", gated, METH_VARARGS, "gated(q, k, v, g, o)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "attend",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit_attend(void)
{
    linattn = linattn_import();
    return linattn != NULL ? PyModule_Create(&definition) : NULL;
}
