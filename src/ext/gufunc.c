/* gufunc.c: NumPy's gufuncs, made of operators.def: one for each form and map, when it
 * is asked for: 600 of them take 10 ms.
 *
 * A gufunc's loops are told apart by the dtype of its tokens.  Numbers, states and
 * indices follow it: a float64 scale makes no float32 call a float64 one. */
#define LA_FILLS_NUMPY_API
#undef NDEBUG /* how many there are is the same in every build */
#include "numpy_api.h"

#include "gufunc.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "gufunc_object.h"

/* Forms of an operator, and gufuncs in all: at most so many. */
enum { NFORMS = 16 * LA_NOPS, NGUFUNCS = 1024 };

static struct la_form forms[NFORMS];
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
    int status = la_promoter_add(object, f->nin + f->nout);
    for (int loop = 0; status == 0 && loop < LA_NLOOPS; loop++) {
        status = la_loop_add(object, g, (enum la_loop)loop);
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
static void
add_gufunc(const struct la_form *form, enum la_map map)
{
    assert(ngufuncs < NGUFUNCS);
    struct la_gufunc *g = &gufuncs[ngufuncs++];
    const struct la_operator *op = &la_operators[form->op];
    char stem[64], operands[192];
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
}

static void
add_form(enum la_op op, la_variant variant)
{
    assert(nforms < NFORMS);
    struct la_form *form = &forms[nforms++];
    la_form_read(form, op, variant);
    const int maps = la_operators[op].properties & LA_MAPS ? LA_NMAPS : 1;
    for (int map = 0; map < maps; map++) {
        add_gufunc(form, (enum la_map)map);
    }
}

/* All forms of an operator: every choice among what its properties offer. */
static void
add_forms(enum la_op op)
{
    const la_variant offered = la_form_choices(op);
    la_variant variant = 0;
    do {
        add_form(op, variant);
        variant = (variant - offered) & offered; /* the next subset */
    } while (variant != 0);
}

/* Appends a name to a list; 0, or -1. */
static int
append_name(PyObject *list, const char *text)
{
    PyObject *name = PyUnicode_FromString(text);
    const int status = name != NULL ? PyList_Append(list, name) : -1;
    Py_XDECREF(name);
    return status;
}

/* The list as a tuple, and drops it; NULL of none. */
static PyObject *
as_tuple(PyObject *list)
{
    PyObject *tuple = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

/* The names of the gufuncs, of operators of rows or of the others. */
static PyObject *
gufunc_names(int of_rows)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < ngufuncs; i++) {
        if ((la_operators[gufuncs[i].form->op].doc != NULL) == of_rows &&
            append_name(list, gufuncs[i].name) < 0) {
            Py_CLEAR(list);
        }
    }
    return as_tuple(list);
}

/* The names of the maps in kernels, of whole rows or of each number by itself. */
static PyObject *
map_names(int of_rows)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < LA_NMAPS; i++) {
        if (la_map_of_rows[i] == of_rows && append_name(list, la_map_names[i]) < 0) {
            Py_CLEAR(list);
        }
    }
    return as_tuple(list);
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
        add_forms((enum la_op)op);
    }
    if (add_object(module, "ufunc_names", gufunc_names(0)) < 0 ||
        add_object(module, "internal_ufunc_names", gufunc_names(1)) < 0 ||
        add_object(module, "map_names", map_names(0)) < 0) {
        return -1;
    }
    return add_object(module, "row_map_names", map_names(1));
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
    if (name == NULL) {
        return NULL;
    }
    struct la_gufunc *g = find_gufunc(name);
    if (g == NULL) {
        PyErr_SetObject(PyExc_KeyError, arg);
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
    const int added = la_loop_add_bfloat16(descr->type_num);
    Py_DECREF(descr);
    for (int i = 0; added && i < ngufuncs; i++) {
        PyObject *object = atomic_load(&gufuncs[i].object);
        if (object != NULL && la_loop_add(object, &gufuncs[i], LA_LOOP_BFLOAT) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}
