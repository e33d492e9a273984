/* gufunc.c: NumPy's gufuncs, made of operators.def: one for each form and map, when it
 * is asked for: 600 of them take 10 ms.
 *
 * A gufunc's loops are told apart by the dtype of its tokens.  Numbers, states and
 * indices follow it: a float64 scale makes no float32 call a float64 one. */
#define LA_FILLS_NUMPY_API
#include "numpy_api.h"

#include "gufunc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gufunc_object.h"
#include "run.h"

const struct la_loop_kind la_loop_kinds[LA_NLOOPS] = {
    [LA_LOOP_HALF] = {NPY_HALF, NPY_FLOAT, LA_F32, LA_HALF},
    [LA_LOOP_SINGLE] = {NPY_FLOAT, NPY_FLOAT, LA_F32, LA_NATIVE},
    [LA_LOOP_DOUBLE] = {NPY_DOUBLE, NPY_DOUBLE, LA_F64, LA_NATIVE},
    [LA_LOOP_BFLOAT] = {NPY_NOTYPE, NPY_FLOAT, LA_F32, LA_BFLOAT},
};

/* NumPy's number of the bfloat16 type, once there is one. */
static int bfloat16 = NPY_NOTYPE;

int
la_loop_type(const struct la_gufunc *g, enum la_loop loop, int i)
{
    const enum la_operand id = g->form->slots[i].id;
    const struct la_loop_kind *kind = &la_loop_kinds[loop];
    if (la_is_index(id)) {
        return NPY_INTP;
    }
    if (!la_is_tokens(id)) {
        return kind->rest;
    }
    return loop == LA_LOOP_BFLOAT ? bfloat16 : kind->tokens;
}

/* --- loops ------------------------------------------------------------------ */

/* From the first byte of operand i of a call to after its last one. */
static void
extent(const struct la_call *call, int i, npy_intp itemsize, char **begin, char **end)
{
    const struct la_slot *slot = &call->form->slots[i];
    *begin = *end = call->x[i].data;
    for (int axis = 0; axis < call->axes + slot->rank; axis++) {
        const int core = axis - call->axes;
        const ptrdiff_t size =
            core < 0 ? call->extent[axis]
                     : call->dims[la_form_dim(call->form, slot->dims[core])];
        const ptrdiff_t step =
            core < 0 ? call->x[i].outer[axis] : call->x[i].core[core];
        if (size == 0) {
            *end = *begin;
            return;
        }
        *(step < 0 ? begin : end) += (size - 1) * step;
    }
    *end += itemsize;
}

/* Copies the inputs that share memory with an output, into copies[i], to be freed.
 * NumPy does so, but not where the two are one array: it takes a gufunc to read all of
 * its operands before it writes.  0, or -1 where there is no memory. */
static int
copy_aliased(struct la_call *call, PyArray_Descr *const *descr, void **copies)
{
    const struct la_form *form = call->form;
    for (int i = 0; i < form->nin; i++) {
        char *begin, *end, *to, *to_end;
        extent(call, i, PyDataType_ELSIZE(descr[i]), &begin, &end);
        for (int j = form->nin; copies[i] == NULL && j < form->nin + form->nout; j++) {
            extent(call, j, PyDataType_ELSIZE(descr[j]), &to, &to_end);
            if (begin >= to_end || to >= end) {
                continue;
            }
            copies[i] = malloc((size_t)(end - begin));
            if (copies[i] == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            memcpy(copies[i], begin, (size_t)(end - begin));
            call->x[i].data = (char *)copies[i] + (call->x[i].data - begin);
        }
    }
    return 0;
}

/* One inner loop, in NumPy's calling convention, which holds the GIL. */
static int
run_loop(PyArrayMethod_Context *context, char *const *data, const npy_intp *dimensions,
         const npy_intp *steps, enum la_loop loop)
{
    const struct la_gufunc *g = la_gufunc_of(context->caller);
    const struct la_form *form = g->form;
    const int elementwise = la_operators[form->op].properties & LA_ELEMENTWISE;
    const int count = form->nin + form->nout;
    const npy_intp *core = steps + count;
    struct la_call call = {.form = form,
                           .map = g->map,
                           .dtype = la_loop_kinds[loop].dtype,
                           .type = la_loop_kinds[loop].type,
                           .axes = !elementwise,
                           .extent = {dimensions[0]}};
    memcpy(call.dims, dimensions + !elementwise,
           (size_t)form->ndims * sizeof(npy_intp));
    for (int i = 0; i < count; i++) {
        call.x[i].data = data[i];
        if (elementwise) { /* NumPy's loop is our only dimension */
            call.x[i].core[0] = steps[i];
            continue;
        }
        call.x[i].outer[0] = steps[i];
        for (int j = 0; j < form->slots[i].rank; j++) {
            call.x[i].core[j] = *core++;
        }
    }
    void *copies[LA_MAX_OPERANDS] = {NULL};
    int status = elementwise ? 0 : copy_aliased(&call, context->descriptors, copies);
    if (status == 0) {
        status = la_run_python(&call);
    }
    for (int i = 0; i < form->nin; i++) {
        free(copies[i]);
    }
    return status;
}

#define LOOP(name, loop)                                                               \
    static int name(PyArrayMethod_Context *context, char *const *data,                 \
                    const npy_intp *dimensions, const npy_intp *steps,                 \
                    NpyAuxData *Py_UNUSED(unused))                                     \
    {                                                                                  \
        return run_loop(context, data, dimensions, steps, loop);                       \
    }
LOOP(loop_half, LA_LOOP_HALF)
LOOP(loop_single, LA_LOOP_SINGLE)
LOOP(loop_double, LA_LOOP_DOUBLE)
LOOP(loop_bfloat, LA_LOOP_BFLOAT)
#undef LOOP

static PyArrayMethod_StridedLoop *const loops[LA_NLOOPS] = {loop_half, loop_single,
                                                            loop_double, loop_bfloat};

/* The GIL is ours to release: NumPy does so by the size of the outputs alone, which
 * says nothing about the work where these are small. */
static int
add_loop(PyObject *gufunc, const struct la_gufunc *g, enum la_loop loop)
{
    PyArray_DTypeMeta *dtypes[LA_MAX_OPERANDS];
    PyType_Slot slots[] = {{NPY_METH_strided_loop, (void *)loops[loop]}, {0, NULL}};
    const int count = g->form->nin + g->form->nout;
    PyArrayMethod_Spec spec = {
        .name = g->name,
        .nin = g->form->nin,
        .nout = g->form->nout,
        .casting = NPY_NO_CASTING,
        .flags = NPY_METH_REQUIRES_PYAPI | NPY_METH_NO_FLOATINGPOINT_ERRORS,
        .dtypes = dtypes,
        .slots = slots,
    };
    for (int i = 0; i < count; i++) {
        PyArray_Descr *descr = PyArray_DescrFromType(la_loop_type(g, loop, i));
        if (descr == NULL) {
            return -1;
        }
        dtypes[i] =
            (PyArray_DTypeMeta *)Py_TYPE((PyObject *)descr); /* which NumPy keeps */
        Py_DECREF(descr);
    }
    return PyUFunc_AddLoopFromSpec(gufunc, &spec);
}

/* --- which loop ------------------------------------------------------------- */

static PyArray_DTypeMeta *
dtype_of(int type)
{
    PyArray_Descr *descr = PyArray_DescrFromType(type);
    PyArray_DTypeMeta *dtype = (PyArray_DTypeMeta *)Py_TYPE((PyObject *)descr);
    Py_DECREF(descr);
    return dtype;
}

/* Whether the loop has all the dtypes that the caller asked for by name. */
static int
agrees(const struct la_gufunc *g, enum la_loop loop,
       PyArray_DTypeMeta *const *signature)
{
    const int count = g->form->nin + g->form->nout;
    for (int i = 0; i < count; i++) {
        if (signature[i] != NULL &&
            signature[i] != dtype_of(la_loop_type(g, loop, i))) {
            return 0;
        }
    }
    return 1;
}

/* Python's own numbers are as weak as NumPy has them: they go with all the rest. */
static int
is_python_number(PyArray_DTypeMeta *dtype)
{
    return dtype == &PyArray_PyFloatDType || dtype == &PyArray_PyLongDType;
}

/* Whether a dtype casts to one of NumPy's types without loss. */
static int
casts_to(PyArray_DTypeMeta *dtype, int type)
{
    PyArray_Descr *from = PyArray_GetDefaultDescr(dtype);
    PyArray_Descr *to = from != NULL ? PyArray_DescrFromType(type) : NULL;
    const int casts = to != NULL && PyArray_CanCastTypeTo(from, to, NPY_SAFE_CASTING);
    PyErr_Clear();
    Py_XDECREF((PyObject *)from);
    Py_XDECREF((PyObject *)to);
    return casts;
}

/* The first loop that the dtypes of all tokens cast to; float64 where all are integers,
 * as NumPy has it for integers and a Python float.  -1 where there is none. */
static int
choose_loop(const struct la_gufunc *g, PyArray_DTypeMeta *const *dtypes)
{
    static const enum la_loop order[] = {LA_LOOP_HALF, LA_LOOP_BFLOAT, LA_LOOP_SINGLE,
                                         LA_LOOP_DOUBLE};
    int integers = 1;
    for (int i = 0; i < g->form->nin; i++) {
        if (la_is_tokens(g->form->slots[i].id)) {
            integers = integers && (is_python_number(dtypes[i]) ||
                                    casts_to(dtypes[i], NPY_LONGLONG) ||
                                    casts_to(dtypes[i], NPY_ULONGLONG));
        }
    }
    for (int k = integers ? LA_NLOOPS - 1 : 0; k < LA_NLOOPS; k++) {
        int all = order[k] != LA_LOOP_BFLOAT || bfloat16 != NPY_NOTYPE;
        for (int i = 0; all && i < g->form->nin; i++) {
            all = !la_is_tokens(g->form->slots[i].id) || is_python_number(dtypes[i]) ||
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
            if ((i != LA_LOOP_BFLOAT || bfloat16 != NPY_NOTYPE) &&
                agrees(g, (enum la_loop)i, signature)) {
                loop = i;
            }
        }
    }
    if (loop < 0) {
        PyErr_Format(
            PyExc_TypeError,
            "%s: no loop for these dtypes; expected float16, bfloat16, float32 "
            "or float64, or integers, which are computed in float64",
            g->name);
        return -1;
    }
    for (int i = 0; i < g->form->nin + g->form->nout; i++) {
        new_dtypes[i] = dtype_of(la_loop_type(g, (enum la_loop)loop, i));
        Py_INCREF((PyObject *)new_dtypes[i]);
    }
    return 0;
}

/* --- gufuncs ---------------------------------------------------------------- */

/* Forms of an operator, and gufuncs in all: at most so many. */
enum { NVARIANTS = 16, NGUFUNCS = 1024 };

static struct la_form forms[LA_NOPS * NVARIANTS];
static struct la_gufunc gufuncs[NGUFUNCS];
static int nforms, ngufuncs;

int
la_gufunc_is(PyObject *object)
{
    if (!PyObject_TypeCheck(object, &PyUFunc_Type)) {
        return 0;
    }
    const char *g = (const char *)la_gufunc_of(object), *first = (const char *)gufuncs;
    return g >= first && g < first + sizeof(gufuncs);
}

/* What `ufunc.types` tells of the loops. */
static const enum la_loop told[] = {LA_LOOP_HALF, LA_LOOP_SINGLE, LA_LOOP_DOUBLE};
enum { NTOLD = sizeof(told) / sizeof(told[0]) };

static void
write_types(struct la_gufunc *g)
{
    const int count = g->form->nin + g->form->nout;
    for (int k = 0; k < NTOLD; k++) {
        for (int i = 0; i < count; i++) {
            g->types[k * count + i] = (char)la_loop_type(g, told[k], i);
        }
    }
}

/* What the promoter is asked for: any dtypes at all. */
static int
add_promoter(PyObject *gufunc, int count)
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

static PyObject *
new_gufunc(struct la_gufunc *g)
{
    const struct la_form *f = g->form;
    const struct la_operator *op = &la_operators[f->op];
    char signature[160];
    la_form_signature(f, signature, sizeof(signature));
    PyObject *object = PyUFunc_FromFuncAndDataAndSignature(
        NULL, (void *const *)(void *)g, NULL, 0, f->nin, f->nout, PyUFunc_None, g->name,
        g->doc, 0, op->properties & LA_ELEMENTWISE ? NULL : signature);
    if (object == NULL) {
        return NULL;
    }
    PyUFuncObject *gufunc = (PyUFuncObject *)object;
    if (f->variant & LA_IN_PLACE) {
        /* These read their states: a copy that NumPy puts in an output's place must
         * hold what the output held. */
        for (int i = f->nin + 1; i < f->nin + f->nout; i++) {
            gufunc->op_flags[i] = NPY_ITER_READWRITE;
        }
    }
    int status = add_promoter(object, f->nin + f->nout);
    for (int loop = 0; status == 0 && loop < LA_NLOOPS; loop++) {
        if (loop != LA_LOOP_BFLOAT || bfloat16 != NPY_NOTYPE) {
            status = add_loop(object, g, (enum la_loop)loop);
        }
    }
    if (status < 0) {
        Py_DECREF(object);
        return NULL;
    }
    gufunc->types = g->types;
    gufunc->ntypes = NTOLD;
    return object;
}

/* One gufunc of a form, which is made when it is asked for. */
static int
add_gufunc(const struct la_form *form, enum la_map map)
{
    if (ngufuncs == NGUFUNCS) {
        PyErr_SetString(PyExc_SystemError, "more gufuncs than expected");
        return -1;
    }
    struct la_gufunc *g = &gufuncs[ngufuncs++];
    const struct la_operator *op = &la_operators[form->op];
    char stem[64], operands[128];
    la_form_name(form, stem, sizeof(stem));
    la_form_operands(form, operands, sizeof(operands));
    g->form = form;
    g->map = map;
    if (op->properties & LA_MAPS) {
        PyOS_snprintf(g->name, sizeof(g->name), "%s_%s%s", stem, la_map_names[map],
                      op->properties & LA_NORMALIZER && !(form->variant & LA_NORMALIZER)
                          ? "_sum"
                          : "");
    }
    else {
        PyOS_snprintf(g->name, sizeof(g->name), "%s", stem);
    }
    PyOS_snprintf(g->doc, sizeof(g->doc), "%s%s%s", operands, op->doc ? ": " : "",
                  op->doc ? op->doc : "");
    write_types(g);
    return 0;
}

static int
add_form(enum la_op op, la_variant variant)
{
    struct la_form *form = &forms[nforms++];
    if (la_form_read(form, op, variant) < 0) {
        PyErr_Format(PyExc_SystemError, "bad form: %s", la_operators[op].form);
        return -1;
    }
    const int maps = la_operators[op].properties & LA_MAPS ? LA_NMAPS : 1;
    for (int map = 0; map < maps; map++) {
        if (add_gufunc(form, (enum la_map)map) < 0) {
            return -1;
        }
    }
    return 0;
}

/* All forms of an operator: every choice among what its properties offer. */
static int
add_forms(enum la_op op)
{
    const int choices = LA_NORMALIZER | LA_STATES | LA_KEYS | LA_CHANNELS |
                        LA_IN_PLACE | LA_GATE_CHANNELS | LA_BONUS | LA_ERASE;
    const int offered = la_operators[op].properties & choices;
    la_variant variant = 0;
    do {
        if (add_form(op, variant) < 0) {
            return -1;
        }
        variant = (variant - offered) & offered; /* the next subset */
    } while (variant != 0);
    return 0;
}

/* The names of the gufuncs, of operators of rows or of the others. */
static PyObject *
names(int of_rows)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < ngufuncs; i++) {
        if ((la_operators[gufuncs[i].form->op].doc != NULL) != of_rows) {
            continue;
        }
        PyObject *name = PyUnicode_FromString(gufuncs[i].name);
        if (name == NULL || PyList_Append(list, name) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(name);
    }
    PyObject *all = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return all;
}

/* Adds a new object to the module, and drops it; 0, or -1. */
static int
add_object(PyObject *module, const char *name, PyObject *object)
{
    const int status = PyModule_AddObjectRef(module, name, object);
    Py_XDECREF(object);
    return status;
}

int
la_gufunc_add_all(PyObject *module)
{
    if (PyArray_ImportNumPyAPI() < 0 || PyUFunc_ImportUFuncAPI() < 0) {
        return -1;
    }
    const int known = ngufuncs > 0; /* they are the process's: NumPy keeps pointers */
    for (int op = 0; !known && op < LA_NOPS; op++) {
        if (add_forms((enum la_op)op) < 0) {
            return -1;
        }
    }
    if (add_object(module, "ufunc_names", names(0)) < 0) {
        return -1;
    }
    return add_object(module, "row_ufunc_names", names(1));
}

static struct la_gufunc *
find_gufunc(const char *name)
{
    for (int i = 0; i < ngufuncs; i++) {
        if (strcmp(gufuncs[i].name, name) == 0) {
            return &gufuncs[i];
        }
    }
    return NULL;
}

PyObject *
la_gufunc_make(PyObject *Py_UNUSED(module), PyObject *arg)
{
    const char *name = PyUnicode_AsUTF8AndSize(arg, NULL);
    struct la_gufunc *g = name != NULL ? find_gufunc(name) : NULL;
    if (g == NULL) {
        if (name != NULL) {
            PyErr_SetObject(PyExc_KeyError, arg);
        }
        return NULL;
    }
    PyObject *object = atomic_load(&g->object), *other = NULL;
    if (object == NULL) {
        object = new_gufunc(g);
        if (object != NULL &&
            !atomic_compare_exchange_strong(&g->object, &other, object)) {
            Py_DECREF(object); /* another thread was first */
            object = other;
        }
    }
    return Py_XNewRef(object);
}

const struct la_form *
la_gufunc_form(const char *name, enum la_map *map)
{
    const struct la_gufunc *g = find_gufunc(name);
    if (g != NULL) {
        *map = g->map;
    }
    return g != NULL ? g->form : NULL;
}

PyObject *
la_gufunc_add_bfloat16(PyObject *Py_UNUSED(module), PyObject *dtype)
{
    PyArray_Descr *descr = NULL;
    if (!PyArray_DescrConverter(dtype, &descr)) {
        return NULL;
    }
    const int known = bfloat16 != NPY_NOTYPE;
    bfloat16 = descr->type_num;
    Py_DECREF(descr);
    for (int i = 0; !known && i < ngufuncs; i++) {
        PyObject *object = atomic_load(&gufuncs[i].object);
        if (object != NULL && add_loop(object, &gufuncs[i], LA_LOOP_BFLOAT) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}
