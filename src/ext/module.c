/* module.c: the Python module: the table of gufuncs, threads, instruction set.
 *
 * Every call of NumPy's C API is in this file. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_1_API_VERSION
#include <numpy/ndarrayobject.h>
#include <numpy/ufuncobject.h>

#include <string.h>

#include "cpu.h"
#include "plan.h"
#include "pool.h"
#include "task.h"

_Static_assert(sizeof(npy_intp) == sizeof(ptrdiff_t), "npy_intp is ptrdiff_t");

/* --- gufuncs --------------------------------------------------------------- */

/* One gufunc is an operator, a map, and whether there is a normaliser. */
static const struct operator {
    const char *name;
    const char *normalized, *sum; /* signatures */
    int nin, nout;                /* with eps */
    const char *doc;
} operators[LA_NOPS] = {
    [LA_causal] = {"causal", "(n,d),(n,d),(n,m),(),()->(n,m)",
                   "(n,d),(n,d),(n,m),()->(n,m)", 5, 1,
                   "q, k, v, scale[, eps] -> o: causal linear attention."},
    [LA_noncausal] = {"noncausal", "(n,d),(s,d),(s,m),(),()->(n,m)",
                      "(n,d),(s,d),(s,m),()->(n,m)", 5, 1,
                      "q, k, v, scale[, eps] -> o: linear attention to all keys."},
    [LA_causal_backward] = {"causal_backward",
                            "(n,d),(n,d),(n,m),(n,m),(),()->(n,d),(n,d),(n,m)",
                            "(n,d),(n,d),(n,m),(n,m),()->(n,d),(n,d),(n,m)", 6, 3,
                            "q, k, v, grad_out, scale[, eps] -> dq, dk, dv: gradients "
                            "of causal."},
    [LA_noncausal_backward] = {"noncausal_backward",
                               "(n,d),(s,d),(s,m),(n,m),(),()->(n,d),(s,d),(s,m)",
                               "(n,d),(s,d),(s,m),(n,m),()->(n,d),(s,d),(s,m)", 6, 3,
                               "q, k, v, grad_out, scale[, eps] -> dq, dk, dv: "
                               "gradients of noncausal."},
};

static const char *const maps[LA_NMAPS] = {
#define LA_OP(op)
#define LA_MAP(map) #map,
#include "../kernel/ops.def"
};

enum { LA_MAX_OPERANDS = 16 };

/* NumPy keeps pointers to these for as long as a gufunc lives. */
static struct la_loop loops[LA_NOPS][LA_NMAPS][2][LA_NDTYPES];
static void *loop_data[LA_NOPS][LA_NMAPS][2][LA_NDTYPES];
static char names[LA_NOPS][LA_NMAPS][2][48];
static char types[LA_MAX_OPERANDS + 1][LA_NDTYPES * LA_MAX_OPERANDS];

static void
loop_entry(char **args, npy_intp const *dimensions, npy_intp const *steps, void *data)
{
    la_plan_loop(args, dimensions, steps, data);
}

static PyUFuncGenericFunction functions[LA_NDTYPES] = {loop_entry, loop_entry};

/* The type letters of a gufunc: one row of `nargs` equal ones for each dtype. */
static char *
type_rows(int nargs)
{
    memset(types[nargs], NPY_FLOAT, (size_t)nargs);
    memset(types[nargs] + nargs, NPY_DOUBLE, (size_t)nargs);
    return types[nargs];
}

static PyObject *
new_gufunc(enum la_op op, enum la_map map, int normalize)
{
    const struct operator *o = &operators[op];
    const int nin = o->nin - !normalize;
    char *name = names[op][map][normalize];
    PyOS_snprintf(name, sizeof(names[0][0][0]), "%s_%s%s", o->name, maps[map],
                  normalize ? "" : "_sum");
    for (int dtype = 0; dtype < LA_NDTYPES; dtype++) {
        struct la_loop *loop = &loops[op][map][normalize][dtype];
        *loop = (struct la_loop){op, map, (enum la_dtype)dtype, normalize};
        loop_data[op][map][normalize][dtype] = loop;
    }
    return PyUFunc_FromFuncAndDataAndSignature(
        functions, loop_data[op][map][normalize], type_rows(nin + o->nout),
        LA_NDTYPES, nin, o->nout,
        PyUFunc_None, name, o->doc, 0, normalize ? o->normalized : o->sum);
}

static int
add_gufuncs(PyObject *module)
{
    PyObject *all = PyDict_New();
    if (all == NULL || PyModule_AddObjectRef(module, "ufuncs", all) < 0) {
        Py_XDECREF(all);
        return -1;
    }
    Py_DECREF(all); /* the module keeps it */
    for (int op = 0; op < LA_NOPS; op++) {
        for (int map = 0; map < LA_NMAPS; map++) {
            for (int normalize = 0; normalize < 2; normalize++) {
                PyObject *gufunc = new_gufunc(op, map, normalize);
                if (gufunc == NULL ||
                    PyDict_SetItemString(all, names[op][map][normalize], gufunc) < 0) {
                    Py_XDECREF(gufunc);
                    return -1;
                }
                Py_DECREF(gufunc);
            }
        }
    }
    return 0;
}

/* --- ufuncs on rows: feature maps of arrays, softmax ------------------------ */

static void
task_entry(char **args, npy_intp const *dimensions, npy_intp const *steps, void *data)
{
    la_task_run(args, dimensions, steps, data);
}

static PyUFuncGenericFunction task_functions[LA_NDTYPES] = {task_entry, task_entry};
static struct la_task_loop task_loops[LA_NTASKS][LA_NDTYPES];
static void *task_data[LA_NTASKS][LA_NDTYPES];

static int
add_tasks(PyObject *module)
{
    PyObject *all = PyDict_New();
    if (all == NULL || PyModule_AddObjectRef(module, "tasks", all) < 0) {
        Py_XDECREF(all);
        return -1;
    }
    Py_DECREF(all); /* the module keeps it */
    for (int i = 0; i < LA_NTASKS; i++) {
        const struct la_task_row *row = &la_task_rows[i];
        for (int dtype = 0; dtype < LA_NDTYPES; dtype++) {
            task_loops[i][dtype] = (struct la_task_loop){i, (enum la_dtype)dtype};
            task_data[i][dtype] = &task_loops[i][dtype];
        }
        PyObject *ufunc = PyUFunc_FromFuncAndDataAndSignature(
            task_functions, task_data[i], type_rows(row->nin + row->nout), LA_NDTYPES,
            row->nin, row->nout, PyUFunc_None, row->name, row->doc, 0, row->signature);
        if (ufunc == NULL || PyDict_SetItemString(all, row->name, ufunc) < 0) {
            Py_XDECREF(ufunc);
            return -1;
        }
        Py_DECREF(ufunc);
    }
    return 0;
}

/* --- threads and instruction set ------------------------------------------- */

/* For callers that reach the library through its symbols, threadpoolctl above all. */
#define EXPORT __attribute__((visibility("default")))
EXPORT int linattn_get_num_threads(void);
EXPORT void linattn_set_num_threads(int n);

int
linattn_get_num_threads(void)
{
    return la_pool_get_num_threads();
}

void
linattn_set_num_threads(int n)
{
    la_pool_set_num_threads(n < 1 ? 1 : n > LA_MAX_THREADS ? LA_MAX_THREADS : n);
}

static PyObject *
get_num_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(la_pool_get_num_threads());
}

static PyObject *
set_num_threads(PyObject *Py_UNUSED(module), PyObject *arg)
{
    const long n = PyLong_AsLong(arg);
    if (n == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (n < 1 || n > LA_MAX_THREADS) {
        return PyErr_Format(PyExc_ValueError, "n is %ld; expected 1 to %d threads", n,
                            LA_MAX_THREADS);
    }
    la_pool_set_num_threads((int)n);
    Py_RETURN_NONE;
}

static PyObject *
available_isas(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    const char *name;
    for (int i = 0; list != NULL && (name = la_cpu_isa(i)) != NULL; i++) {
        PyObject *item = PyUnicode_FromString(name);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *
get_isa(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyUnicode_FromString(la_cpu_selected());
}

static PyObject *
set_isa(PyObject *module, PyObject *arg)
{
    const char *name = PyUnicode_AsUTF8AndSize(arg, NULL);
    if (name == NULL) {
        return NULL;
    }
    if (la_cpu_select(name) < 0) {
        PyObject *list = available_isas(module, NULL);
        if (list != NULL) {
            PyErr_Format(PyExc_ValueError,
                         "instruction set %R is not available here; expected one of %R",
                         arg, list);
            Py_DECREF(list);
        }
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"get_num_threads", get_num_threads, METH_NOARGS, NULL},
    {"set_num_threads", set_num_threads, METH_O, NULL},
    {"available_isas", available_isas, METH_NOARGS, NULL},
    {"get_isa", get_isa, METH_NOARGS, NULL},
    {"set_isa", set_isa, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* --- the module ------------------------------------------------------------- */

static int
exec(PyObject *module)
{
    static int initialized; /* threads and gufunc tables are the process's */
    if (PyArray_ImportNumPyAPI() < 0 || PyUFunc_ImportUFuncAPI() < 0) {
        return -1;
    }
    if (!initialized) {
        if (la_cpu_init() == NULL) {
            PyErr_SetString(PyExc_ImportError,
                            "linattn needs an x86-64-v2 CPU (SSE4.2 and POPCNT)");
            return -1;
        }
        la_pool_init();
        la_pool_set_num_threads(la_pool_cpus());
        initialized = 1;
    }
    if (PyModule_AddStringConstant(module, "compiler", __VERSION__) < 0) {
        return -1;
    }
    if (add_gufuncs(module) < 0) {
        return -1;
    }
    return add_tasks(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "linattn._linattn",
    .m_doc = "The compiled half of linattn.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__linattn(void)
{
    return PyModuleDef_Init(&definition);
}
