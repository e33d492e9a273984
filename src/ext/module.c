/* module.c: the Python module: gufuncs, threads, instruction set. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "c_api.h"
#include "cpu.h"
#include "describe.h"
#include "gufunc.h"
#include "job.h"
#include "pool.h"
#include "scratch.h"
#include "tensor_array.h"
#include "tensor_call.h"
#include "tensor_update.h"
#include "xla.h"
#include "xla_python.h"

#if defined(__clang__)
#define BUILT_BY "clang " __clang_version__
#elif defined(__GNUC__)
#define BUILT_BY "gcc " __VERSION__
#else
#define BUILT_BY "unknown"
#endif

/* --- threads and instruction sets -------------------------------------------- */

/* For callers that find these symbols in the library, mainly threadpoolctl. */
Py_EXPORTED_SYMBOL int linattn_get_num_threads(void);
Py_EXPORTED_SYMBOL void linattn_set_num_threads(int n);

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

/* hold_threads(n): calls of this thread use n threads; 0: as set by set_num_threads. */
static PyObject *
hold_threads(PyObject *Py_UNUSED(module), PyObject *arg)
{
    const long n = PyLong_AsLong(arg);
    if (n == -1 && PyErr_Occurred()) {
        return NULL;
    }
    la_pool_hold_threads(n);
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

static PyObject *
get_products(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyUnicode_FromString(la_cpu_selected_pairs() ? "bfloat16" : "float32");
}

/* set_products(pairs): whether bfloat16 operands are multiplied as such. */
static PyObject *
set_products(PyObject *Py_UNUSED(module), PyObject *arg)
{
    const int pairs = PyObject_IsTrue(arg);
    if (pairs < 0) {
        return NULL;
    }
    la_cpu_select_products(pairs);
    Py_RETURN_NONE;
}

/* get_amx(), set_amx(choice): la_cpu_select_amx. */
static PyObject *
get_amx(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(la_cpu_selected_amx());
}

static PyObject *
set_amx(PyObject *Py_UNUSED(module), PyObject *arg)
{
    const long choice = PyLong_AsLong(arg);
    if (choice == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (choice < LA_AMX_OFF || choice > LA_AMX_TRAPPED) {
        return PyErr_Format(PyExc_ValueError, "choice is %ld; expected 0 to 3", choice);
    }
    const char *lack = la_cpu_select_amx((enum la_amx)choice);
    if (lack != NULL) {
        PyErr_SetString(PyExc_ValueError, lack);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
poison_scratch(PyObject *Py_UNUSED(module), PyObject *arg)
{
    const long byte = PyLong_AsLong(arg);
    if (byte == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (byte != 0 &&
        (byte < 0x7f || byte > 0xff)) { /* small numbers could go unnoticed */
        return PyErr_Format(PyExc_ValueError, "byte is %ld; expected 0, or 127 to 255",
                            byte);
    }
    la_scratch_poison((int)byte);
    Py_RETURN_NONE;
}

/* spin_time(us): la_pool_spin. */
static PyObject *
spin_time(PyObject *Py_UNUSED(module), PyObject *arg)
{
    const long us = PyLong_AsLong(arg);
    if (us == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyLong_FromLong(la_pool_spin(us));
}

/* set_runner(address): la_pool_set_runner; 0 ends it. */
static PyObject *
set_runner(PyObject *Py_UNUSED(module), PyObject *arg)
{
    void *address = PyLong_AsVoidPtr(arg);
    if (address == NULL && PyErr_Occurred()) {
        return NULL;
    }
    la_runner runner;
    memcpy(&runner, &address, sizeof(runner));
    la_pool_set_runner(runner);
    Py_RETURN_NONE;
}

/* delay_workers(ms): la_pool_delay_workers, for tests. */
static PyObject *
delay_workers(PyObject *Py_UNUSED(module), PyObject *arg)
{
    const long ms = PyLong_AsLong(arg);
    if (ms == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (ms < 0 || ms > 1000) {
        return PyErr_Format(PyExc_ValueError, "ms is %ld; expected 0 to 1000", ms);
    }
    la_pool_delay_workers((int)ms);
    Py_RETURN_NONE;
}

static PyObject *
hold_isa(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    la_cpu_hold();
    Py_RETURN_NONE;
}

static PyObject *
release_isa(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    la_cpu_release();
    Py_RETURN_NONE;
}

/* force_stages(chunks): la_stages_force, for tests. */
static PyObject *
force_stages(PyObject *Py_UNUSED(module), PyObject *arg)
{
    const Py_ssize_t chunks = PyLong_AsSsize_t(arg);
    if (chunks == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyLong_FromSsize_t(la_stages_force(chunks));
}

/* take_jobs(): la_pool_take_jobs as a list of (items, lanes), for tests. */
static PyObject *
take_jobs(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    const struct la_jobs jobs = la_pool_take_jobs();
    PyObject *const list = PyList_New(0);
    for (int i = 0; list != NULL && i < jobs.count; i++) {
        PyObject *const pair =
            Py_BuildValue("(ni)", (Py_ssize_t)jobs.items[i], jobs.lanes[i]);
        const int failed = pair == NULL || PyList_Append(list, pair) < 0;
        Py_XDECREF(pair);
        if (failed) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyMethodDef methods[] = {
    {"add_bfloat16", la_gufunc_add_bfloat16, METH_O, NULL},
    {"fast_call", (PyCFunction)(void (*)(void))la_fast_call, METH_FASTCALL, NULL},
    {"pool_call", (PyCFunction)(void (*)(void))la_pool_call, METH_FASTCALL, NULL},
    {"fast_step", (PyCFunction)(void (*)(void))la_fast_step, METH_FASTCALL, NULL},
    {"overlaps_itself", la_array_overlaps_itself, METH_O, NULL},
    {"make_ufunc", la_gufunc_make, METH_O, NULL},
    {"get_num_threads", get_num_threads, METH_NOARGS, NULL},
    {"set_num_threads", set_num_threads, METH_O, NULL},
    {"hold_threads", hold_threads, METH_O, NULL},
    {"available_isas", available_isas, METH_NOARGS, NULL},
    {"get_isa", get_isa, METH_NOARGS, NULL},
    {"set_isa", set_isa, METH_O, NULL},
    {"get_products", get_products, METH_NOARGS, NULL},
    {"set_products", set_products, METH_O, NULL},
    {"get_amx", get_amx, METH_NOARGS, NULL},
    {"set_amx", set_amx, METH_O, NULL},
    {"spin_time", spin_time, METH_O, NULL},
    {"set_runner", set_runner, METH_O, NULL},
    {"delay_workers", delay_workers, METH_O, NULL},
    {"hold_isa", hold_isa, METH_NOARGS, NULL},
    {"release_isa", release_isa, METH_NOARGS, NULL},
    {"force_stages", force_stages, METH_O, NULL},
    {"take_jobs", take_jobs, METH_NOARGS, NULL},
    {"xla_finish", la_xla_finish, METH_NOARGS, NULL},
    {"xla_handler", la_xla_handler, METH_O, NULL},
    {"poison_scratch", poison_scratch, METH_O, NULL},
    {"tensor_array", (PyCFunction)(void (*)(void))la_tensor_array, METH_FASTCALL, NULL},
    {"tensor_call", (PyCFunction)(void (*)(void))la_tensor_call, METH_FASTCALL, NULL},
    {"tensor_step", (PyCFunction)(void (*)(void))la_tensor_step, METH_FASTCALL, NULL},
    {"tensor_planned", (PyCFunction)(void (*)(void))la_tensor_planned, METH_FASTCALL,
     NULL},
    {"tensor_update", (PyCFunction)(void (*)(void))la_tensor_update, METH_FASTCALL,
     NULL},
    {NULL, NULL, 0, NULL},
};

/* --- the module ------------------------------------------------------------- */

static int
exec(PyObject *module)
{
    static int initialized; /* threads belong to the process */
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        /* NumPy 2.1 does not refuse it, and calls that take the GIL would hang. */
        PyErr_SetString(PyExc_ImportError,
                        "linattn, like NumPy, works in the main interpreter alone");
        return -1;
    }
    if (!initialized) {
        if (la_cpu_init() < 0) {
            PyErr_SetString(
                PyExc_ImportError,
                "linattn was not built for any instruction set of this CPU; "
                "x86-64 needs at least v2 (SSE4.2 and POPCNT)");
            return -1;
        }
        la_pool_init();
        la_pool_set_num_threads(la_pool_cpus());
        if (la_tensor_array_init() < 0) {
            return -1;
        }
        initialized = 1;
    }
    if (PyModule_AddStringConstant(module, "compiler", BUILT_BY) < 0 ||
        PyModule_AddObjectRef(module, "has_bfloat16_products",
                              la_cpu_has_pairs() ? Py_True : Py_False) < 0 ||
        PyModule_AddObjectRef(module, "has_amx",
                              la_cpu_lacks_amx() == NULL ? Py_True : Py_False) < 0 ||
        PyModule_AddIntConstant(module, "EVEN_PIECES", LA_EVEN_PIECES) < 0) {
        return -1;
    }
    const int failed = la_gufunc_add_all(module) < 0 || la_describe(module) < 0 ||
                       la_c_api_add(module) < 0;
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static const char NAME[] = "linattn._linattn", DOC[] = "The compiled half of linattn.";

#ifdef Py_TARGET_ABI3T

PyABIInfo_VAR(abi);

static PySlot exported[] = {
    PySlot_DATA(Py_mod_abi, &abi),    PySlot_DATA(Py_mod_name, NAME),
    PySlot_DATA(Py_mod_doc, DOC),     PySlot_STATIC_DATA(Py_mod_methods, methods),
    PySlot_DATA(Py_mod_slots, slots), PySlot_END,
};

PyMODEXPORT_FUNC
PyModExport__linattn(void)
{
    return exported;
}

#else

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = NAME,   .m_doc = DOC,
    .m_methods = methods,  .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__linattn(void)
{
    return PyModuleDef_Init(&definition);
}

#endif
