/* module.c: the Python module: the table of gufuncs, threads, instruction set.
 *
 * Every call of NumPy's C API is in this file or in direct.c. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_1_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL la_array_api
#define PY_UFUNC_UNIQUE_SYMBOL la_ufunc_api
#include <numpy/ndarrayobject.h>
#include <numpy/ufuncobject.h>

#include <string.h>

#include "cpu.h"
#include "direct.h"
#include "plan.h"
#include "pool.h"
#include "task.h"

/* --- gufuncs --------------------------------------------------------------- */

/* One form times the maps, with and without a normaliser where it can have one. */
static const struct {
    const char *name;
    enum la_op op;
    const char *form;
} forms[] = {
    {"causal", LA_causal, "q(n,d) k(n,d) v(n,m) scale() eps() -> o(n,m)"},
    {"causal_state", LA_causal,
     "q(n,d) k(n,d) v(n,m) scale() eps() begin(r) end(r) keys(r) s0(r,d,m) z0(r,d)"
     " -> o(n,m) s(r,d,m) z(r,d)"},
    {"causal_backward", LA_causal_backward,
     "q(n,d) k(n,d) v(n,m) grad_out(n,m) scale() eps() -> dq(n,d) dk(n,d) dv(n,m)"},
    {"causal_state_backward", LA_causal_backward,
     "q(n,d) k(n,d) v(n,m) grad_out(n,m) scale() eps() begin(r) end(r) keys(r)"
     " s0(r,d,m) z0(r,d) grad_s(r,d,m) grad_z(r,d)"
     " -> dq(n,d) dk(n,d) dv(n,m) ds0(r,d,m) dz0(r,d)"},
    {"noncausal", LA_noncausal, "q(n,d) k(s,d) v(s,m) scale() eps() -> o(n,m)"},
    {"noncausal_keys", LA_noncausal,
     "q(n,d) k(s,d) v(s,m) scale() eps() keys() -> o(n,m)"},
    {"noncausal_backward", LA_noncausal_backward,
     "q(n,d) k(s,d) v(s,m) grad_out(n,m) scale() eps() -> dq(n,d) dk(s,d) dv(s,m)"},
    {"noncausal_keys_backward", LA_noncausal_backward,
     "q(n,d) k(s,d) v(s,m) grad_out(n,m) scale() eps() keys()"
     " -> dq(n,d) dk(s,d) dv(s,m)"},
    {"state", LA_state, "k(s,d) v(s,m) -> s(d,m) z(d)"},
    {"step", LA_step, "q(d) k(d) v(m) scale() eps() s0(d,m) z0(d) -> o(m) s(d,m) z(d)"},
    /* Reads its outputs s and z first, so they must be given: for the wrapper alone. */
    {"_step", LA_step, "q(d) k(d) v(m) scale() eps() -> o(m) s(d,m) z(d)"},
    {"delta", LA_delta, "q(n,d) k(n,d) v(n,m) beta(n) scale() -> o(n,m)"},
    {"delta_channels", LA_delta, "q(n,d) k(n,d) v(n,m) beta(n,m) scale() -> o(n,m)"},
    {"delta_state", LA_delta,
     "q(n,d) k(n,d) v(n,m) beta(n) scale() begin(r) end(r) keys(r) s0(r,d,m)"
     " -> o(n,m) s(r,d,m)"},
    {"delta_channels_state", LA_delta,
     "q(n,d) k(n,d) v(n,m) beta(n,m) scale() begin(r) end(r) keys(r) s0(r,d,m)"
     " -> o(n,m) s(r,d,m)"},
    {"delta_backward", LA_delta_backward,
     "q(n,d) k(n,d) v(n,m) beta(n) grad_out(n,m) scale()"
     " -> dq(n,d) dk(n,d) dv(n,m) dbeta(n)"},
    {"delta_channels_backward", LA_delta_backward,
     "q(n,d) k(n,d) v(n,m) beta(n,m) grad_out(n,m) scale()"
     " -> dq(n,d) dk(n,d) dv(n,m) dbeta(n,m)"},
    {"delta_state_backward", LA_delta_backward,
     "q(n,d) k(n,d) v(n,m) beta(n) grad_out(n,m) scale() begin(r) end(r) keys(r)"
     " s0(r,d,m) grad_s(r,d,m) -> dq(n,d) dk(n,d) dv(n,m) dbeta(n) ds0(r,d,m)"},
    {"delta_channels_state_backward", LA_delta_backward,
     "q(n,d) k(n,d) v(n,m) beta(n,m) grad_out(n,m) scale() begin(r) end(r) keys(r)"
     " s0(r,d,m) grad_s(r,d,m) -> dq(n,d) dk(n,d) dv(n,m) dbeta(n,m) ds0(r,d,m)"},
    {"delta_step", LA_delta_step,
     "q(d) k(d) v(m) beta() scale() s0(d,m) -> o(m) s(d,m)"},
    {"delta_channels_step", LA_delta_step,
     "q(d) k(d) v(m) beta(m) scale() s0(d,m) -> o(m) s(d,m)"},
    {"_delta_step", LA_delta_step, "q(d) k(d) v(m) beta() scale() -> o(m) s(d,m)"},
    {"_delta_channels_step", LA_delta_step,
     "q(d) k(d) v(m) beta(m) scale() -> o(m) s(d,m)"},
};

enum { NFORMS = sizeof(forms) / sizeof(forms[0]) };

static const char *const maps[LA_NMAPS] = {
#define LA_OP(op)
#define LA_MAP(map) #map,
#include "../kernel/ops.def"
};

/* The loops of a gufunc: NumPy takes the first that its operands cast to. */
static const struct {
    char tokens, rest; /* type letters of arrays of tokens, and of all else */
    enum la_dtype dtype;
    enum la_type type;
} kinds[] = {
    {NPY_HALF, NPY_FLOAT, LA_F32, LA_HALF},
    {NPY_FLOAT, NPY_FLOAT, LA_F32, LA_NATIVE},
    {NPY_DOUBLE, NPY_DOUBLE, LA_F64, LA_NATIVE},
};

enum { NLOOPS = sizeof(kinds) / sizeof(kinds[0]) };

/* NumPy keeps pointers into these for as long as the gufuncs live. */
static struct gufunc {
    char name[64], doc[128];
    char types[NLOOPS * LA_MAX_OPERANDS];
    void *data[NLOOPS];
    struct la_loop loops[NLOOPS + 1]; /* bfloat16 comes last, if at all */
    PyObject *object;                 /* borrowed: the module keeps it */
} gufuncs[NFORMS][LA_NMAPS][2];

/* The same for all maps. */
static struct la_form parsed[NFORMS][2];

static PyUFuncGenericFunction functions[NLOOPS] = {la_gufunc_loop, la_gufunc_loop,
                                                   la_gufunc_loop};

static int
type_letter(const struct la_slot *slot, int tokens, int rest)
{
    const enum la_kind kind = la_operand_kind(slot->id);
    return kind == LA_INDEX ? NPY_INTP : kind == LA_TOKENS ? tokens : rest;
}

static int
has_normalizer(int form)
{
    const struct la_form *f = parsed[form];
    return f[1].nin + f[1].nout > f[0].nin + f[0].nout;
}

static PyObject *
new_gufunc(int form, int map, int normalize)
{
    struct gufunc *g = &gufuncs[form][map][normalize];
    const struct la_form *f = &parsed[form][normalize];
    const int nargs = f->nin + f->nout;
    char signature[160];
    la_form_signature(f, signature, sizeof(signature));
    la_form_names(f, g->doc, sizeof(g->doc));
    PyOS_snprintf(g->name, sizeof(g->name), "%s_%s%s", forms[form].name, maps[map],
                  has_normalizer(form) && !normalize ? "_sum" : "");
    for (int k = 0; k < NLOOPS; k++) {
        g->loops[k] = (struct la_loop){
            f,        forms[form].op, (enum la_map)map, kinds[k].dtype, kinds[k].type,
            normalize};
        g->data[k] = &g->loops[k];
        for (int i = 0; i < nargs; i++) {
            g->types[k * nargs + i] =
                (char)type_letter(&f->slots[i], kinds[k].tokens, kinds[k].rest);
        }
    }
    g->loops[NLOOPS] = (struct la_loop){f,      forms[form].op, (enum la_map)map,
                                        LA_F32, LA_BFLOAT,      normalize};
    PyObject *gufunc = PyUFunc_FromFuncAndDataAndSignature(
        functions, g->data, g->types, NLOOPS, f->nin, f->nout, PyUFunc_None, g->name,
        g->doc, 0, signature);
    if (gufunc != NULL && forms[form].name[0] == '_') {
        /* These read their states: a copy that NumPy puts in an output's place must
         * hold what the output held. */
        for (int i = f->nin + 1; i < nargs; i++) {
            ((PyUFuncObject *)gufunc)->op_flags[i] = NPY_ITER_READWRITE;
        }
    }
    return gufunc;
}

static int
add_gufunc(PyObject *all, int form, int map, int normalize)
{
    PyObject *gufunc = new_gufunc(form, map, normalize);
    gufuncs[form][map][normalize].object = gufunc;
    const int status =
        gufunc == NULL
            ? -1
            : PyDict_SetItemString(all, gufuncs[form][map][normalize].name, gufunc);
    Py_XDECREF(gufunc);
    return status;
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
    for (int form = 0; form < NFORMS; form++) {
        if (la_form_read(&parsed[form][0], forms[form].form, 0) < 0 ||
            la_form_read(&parsed[form][1], forms[form].form, 1) < 0) {
            PyErr_Format(PyExc_SystemError, "bad form: %s", forms[form].form);
            return -1;
        }
        for (int normalize = 0; normalize <= has_normalizer(form); normalize++) {
            for (int map = 0; map < LA_NMAPS; map++) {
                if (add_gufunc(all, form, map, normalize) < 0) {
                    return -1;
                }
            }
        }
    }
    return 0;
}

/* Adds a loop for the bfloat16 dtype, a type that NumPy itself does not know. */
static PyObject *
add_bfloat16(PyObject *Py_UNUSED(module), PyObject *dtype)
{
    PyArray_Descr *descr = NULL;
    if (!PyArray_DescrConverter(dtype, &descr)) {
        return NULL;
    }
    const int number = descr->type_num;
    Py_DECREF(descr);
    struct gufunc *g = &gufuncs[0][0][0];
    for (size_t i = 0; i < sizeof(gufuncs) / sizeof(*g); i++, g++) {
        if (g->object == NULL) {
            continue; /* the normalised half of a form without a normaliser */
        }
        struct la_loop *loop = &g->loops[NLOOPS];
        int types[LA_MAX_OPERANDS];
        for (int j = 0; j < loop->form->nin + loop->form->nout; j++) {
            types[j] = type_letter(&loop->form->slots[j], number, NPY_FLOAT);
        }
        if (PyUFunc_RegisterLoopForType((PyUFuncObject *)g->object, number,
                                        la_gufunc_loop, types, loop) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* --- ufuncs on rows: feature maps of arrays, softmax ------------------------ */

static void
task_entry(char **args, npy_intp const *dimensions, npy_intp const *steps, void *data)
{
    la_task_run(args, dimensions, steps, data);
}

static PyUFuncGenericFunction task_functions[LA_NDTYPES] = {task_entry, task_entry};
static struct {
    char types[LA_NDTYPES * LA_TASK_OPERANDS];
    void *data[LA_NDTYPES];
    struct la_task_loop loops[LA_NDTYPES];
} tasks[LA_NTASKS];

static PyObject *
new_task(int i)
{
    const struct la_task_row *row = &la_task_rows[i];
    const int nargs = row->nin + row->nout;
    for (int dtype = 0; dtype < LA_NDTYPES; dtype++) {
        tasks[i].loops[dtype] = (struct la_task_loop){i, (enum la_dtype)dtype};
        tasks[i].data[dtype] = &tasks[i].loops[dtype];
        memset(tasks[i].types + dtype * nargs, dtype == LA_F32 ? NPY_FLOAT : NPY_DOUBLE,
               (size_t)nargs);
    }
    return PyUFunc_FromFuncAndDataAndSignature(
        task_functions, tasks[i].data, tasks[i].types, LA_NDTYPES, row->nin, row->nout,
        PyUFunc_None, row->name, row->doc, 0, row->signature);
}

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
        PyObject *ufunc = new_task(i);
        if (ufunc == NULL ||
            PyDict_SetItemString(all, la_task_rows[i].name, ufunc) < 0) {
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
    {"add_bfloat16", add_bfloat16, METH_O, NULL},
    {"direct", (PyCFunction)(void (*)(void))la_direct, METH_FASTCALL, NULL},
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
                            "this CPU has no instruction set that linattn was built "
                            "for; on x86-64 it needs v2 (SSE4.2 and POPCNT) at least");
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
