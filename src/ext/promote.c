/* promote.c: chooses the loop of a gufunc for given dtypes. */
#include "numpy_api.h"

#include "gufunc_object.h"

static PyArray_DTypeMeta *
dtype_of(const struct la_gufunc *g, enum la_loop loop, int i)
{
    PyArray_Descr *descr = PyArray_DescrFromType(la_loop_type(g, loop, i));
    PyArray_DTypeMeta *dtype = (PyArray_DTypeMeta *)Py_TYPE((PyObject *)descr);
    Py_DECREF(descr);
    return dtype;
}

/* Whether the loop has all the dtypes that the caller requested explicitly. */
static int
agrees(const struct la_gufunc *g, enum la_loop loop,
       PyArray_DTypeMeta *const *signature)
{
    const int count = g->signature->nin + g->signature->nout;
    for (int i = 0; i < count; i++) {
        if (signature[i] != NULL && signature[i] != dtype_of(g, loop, i)) {
            return 0;
        }
    }
    return 1;
}

/* Python's own numbers are weakly typed, as in NumPy: they fit every loop, or every
 * complex one. */
static int
is_python_number(PyArray_DTypeMeta *dtype, enum la_loop loop)
{
    return dtype == &PyArray_PyFloatDType || dtype == &PyArray_PyLongDType ||
           (dtype == &PyArray_PyComplexDType && la_loop_kinds[loop].type == LA_COMPLEX);
}

/* Whether a dtype casts safely to one of NumPy's types. */
static int
casts_to(PyArray_DTypeMeta *dtype, int type)
{
    PyArray_Descr *from = PyArray_GetDefaultDescr(dtype);
    if (from == NULL) { /* there are no such arrays, as for Python's complex numbers */
        PyErr_Clear();
        return 0;
    }
    PyArray_Descr *to = PyArray_DescrFromType(type);
    const int casts = PyArray_CanCastTypeTo(from, to, NPY_SAFE_CASTING);
    Py_DECREF(from);
    Py_DECREF(to);
    return casts;
}

/* The first loop that the dtypes of all tokens cast to; of 64 bits a part if all are
 * integers, as NumPy does for an integer array and a Python float.  -1 if there is
 * none. */
static int
choose_loop(const struct la_gufunc *g, PyArray_DTypeMeta *const *dtypes)
{
    static const enum la_loop order[] = {LA_LOOP_HALF,   LA_LOOP_BFLOAT,
                                         LA_LOOP_SINGLE, LA_LOOP_CSINGLE,
                                         LA_LOOP_DOUBLE, LA_LOOP_CDOUBLE};
    int integers = 1;
    for (int i = 0; i < g->signature->nin; i++) {
        if (la_is_tokens(g->signature->slots[i].id)) {
            integers = integers && (is_python_number(dtypes[i], LA_LOOP_CDOUBLE) ||
                                    casts_to(dtypes[i], NPY_LONGLONG) ||
                                    casts_to(dtypes[i], NPY_ULONGLONG));
        }
    }
    for (int k = integers ? LA_NLOOPS - 2 : 0; k < LA_NLOOPS; k++) {
        int all = la_loop_exists(g, order[k]);
        for (int i = 0; all && i < g->signature->nin; i++) {
            all = !la_is_tokens(g->signature->slots[i].id) ||
                  is_python_number(dtypes[i], order[k]) ||
                  casts_to(dtypes[i], la_loop_type(g, order[k], i));
        }
        if (all) {
            return (int)order[k];
        }
    }
    return -1;
}

static int
promote(PyObject *ufunc, PyArray_DTypeMeta *const dtypes[],
        PyArray_DTypeMeta *const signature[], PyArray_DTypeMeta *new_dtypes[])
{
    const struct la_gufunc *g = la_gufunc_of(ufunc);
    int loop = choose_loop(g, dtypes);
    if (loop >= 0 && !agrees(g, (enum la_loop)loop, signature)) {
        loop = -1;
        for (int i = 0; loop < 0 && i < LA_NLOOPS; i++) {
            if (la_loop_exists(g, (enum la_loop)i) &&
                agrees(g, (enum la_loop)i, signature)) {
                loop = i;
            }
        }
    }
    if (loop < 0) {
        PyErr_Format(
            PyExc_TypeError,
            "%s: no loop for these dtypes; expected float16, bfloat16, float32%s "
            "or float64, or integers, which are computed in float64",
            g->name,
            la_loop_exists(g, LA_LOOP_CDOUBLE) ? ", complex64, complex128" : "");
        return -1;
    }
    for (int i = 0; i < g->signature->nin + g->signature->nout; i++) {
        new_dtypes[i] = dtype_of(g, (enum la_loop)loop, i);
        Py_INCREF((PyObject *)new_dtypes[i]);
    }
    return 0;
}

/* Adds the promoter to a gufunc, for any dtypes. */
int
la_promoter_add(PyObject *gufunc, int count)
{
    PyObject *any = PyTuple_New(count);
    PyObject *capsule = PyCapsule_New((void *)promote, "numpy._ufunc_promoter", NULL);
    for (int i = 0; any != NULL && i < count; i++) {
        PyTuple_SetItem(any, i, Py_NewRef((PyObject *)&PyArrayDescr_Type));
    }
    const int status =
        any == NULL || capsule == NULL ? -1 : PyUFunc_AddPromoter(gufunc, any, capsule);
    Py_XDECREF(any);
    Py_XDECREF(capsule);
    return status;
}
