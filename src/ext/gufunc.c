/* gufunc.c: NumPy's gufuncs, generated from operators.def, one for each variant and
 * map.  They are created on request: all of them would take 10 ms.
 *
 * A gufunc's loops differ in the dtype of tokens.  The dtypes of numbers, states and
 * indices follow from it: a float64 scale does not make a float32 call a float64
 * one. */
#define LA_FILLS_NUMPY_API
#undef NDEBUG /* the counts asserted below are the same in every build */
#include "numpy_api.h"

#include "gufunc.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "gufunc_object.h"

/* The largest number of signatures. */
enum { NSIGNATURES = 16 * LA_NOPS };

static struct la_signature signatures[NSIGNATURES];
static struct la_gufunc gufuncs[LA_NGUFUNCS];
static int nsignatures, ngufuncs;

/* By operator: its form, what it offers, and its first gufunc. */
static struct {
    struct la_form form;
    la_variant offered;
    int first;
} of_operator[LA_NOPS];

int
la_gufunc_is(PyObject *object)
{
    if (!PyObject_TypeCheck(object, &PyUFunc_Type)) {
        return 0;
    }
    const char *g = (const char *)la_gufunc_of(object), *first = (const char *)gufuncs;
    return g >= first && g < first + sizeof(gufuncs);
}

/* Lists the loops in `ufunc.types`, which has no character for bfloat16. */
static void
write_types(struct la_gufunc *g)
{
    const int count = g->signature->nin + g->signature->nout;
    g->ntypes = 0;
    for (int loop = 0; loop < LA_NLOOPS; loop++) {
        if (loop == LA_LOOP_BFLOAT || !la_loop_exists(g, (enum la_loop)loop)) {
            continue;
        }
        for (int i = 0; i < count; i++) {
            g->types[g->ntypes * count + i] =
                (char)la_loop_type(g, (enum la_loop)loop, i);
        }
        g->ntypes++;
    }
}

static PyObject *
new_gufunc(struct la_gufunc *g)
{
    const struct la_signature *signature = g->signature;
    const int nin = signature->nin, nout = signature->nout;
    const struct la_operator *op = &la_operators[signature->op];
    char text[256];
    la_signature_numpy(signature, text, sizeof(text));
    PyObject *object = PyUFunc_FromFuncAndDataAndSignature(
        NULL, (void *const *)(void *)g, NULL, 0, nin, nout, PyUFunc_None, g->name,
        g->doc, 0, op->properties & LA_ELEMENTWISE ? NULL : text);
    if (object == NULL) {
        return NULL;
    }
    PyUFuncObject_fields *gufunc = la_ufunc_fields(object);
    if (signature->variant & LA_WITH_IN_PLACE) {
        /* The kernel reads these outputs, which are states: if NumPy replaces one by a
         * temporary copy, the copy must hold its contents. */
        for (int i = nin + 1; i < nin + nout; i++) {
            gufunc->op_flags[i] = NPY_ITER_READWRITE;
        }
    }
    int status = la_promoter_add(object, nin + nout);
    for (int loop = 0; status == 0 && loop < LA_NLOOPS; loop++) {
        status = la_loop_add(object, g, (enum la_loop)loop);
    }
    if (status < 0) {
        Py_DECREF(object);
        return NULL;
    }
    gufunc->types = g->types;
    gufunc->ntypes = g->ntypes;
    return object;
}

/* Adds one gufunc of a signature; its object is created on request. */
static void
add_gufunc(const struct la_signature *signature, enum la_map map)
{
    assert(ngufuncs < LA_NGUFUNCS);
    struct la_gufunc *g = &gufuncs[ngufuncs++];
    const struct la_operator *op = &la_operators[signature->op];
    char operands[256];
    la_signature_operands(signature, operands, sizeof(operands));
    g->signature = signature;
    g->map = map;
    const int mapped = op->properties & LA_MAPS;
    const int sums =
        op->properties & LA_NORMALIZER && !(signature->variant & LA_WITH_NORMALIZER);
    PyOS_snprintf(g->name, sizeof(g->name), "%s%s%s%s", signature->name,
                  mapped ? "_" : "", mapped ? la_maps[map].name : "",
                  sums ? "_sum" : "");
    PyOS_snprintf(g->doc, sizeof(g->doc), "%s%s%s", operands, op->doc ? ": " : "",
                  op->doc ? op->doc : "");
    write_types(g);
}

static void
add_variant(const struct la_form *form, la_variant variant)
{
    assert(nsignatures < NSIGNATURES);
    struct la_signature *signature = &signatures[nsignatures++];
    la_signature_read(signature, form, variant);
    const int maps = la_operators[form->op].properties & LA_MAPS ? LA_NMAPS : 1;
    for (int map = 0; map < maps; map++) {
        add_gufunc(signature, (enum la_map)map);
    }
}

/* Adds all variants of an operator: every combination of what its form offers, if it
 * exists. */
static void
add_variants(enum la_op op)
{
    struct la_form *form = &of_operator[op].form;
    la_form_read(form, op);
    const la_variant offered = la_variants(form);
    of_operator[op].offered = offered;
    of_operator[op].first = ngufuncs;
    la_variant variant = 0;
    do {
        if (la_variant_exists(form, variant)) {
            add_variant(form, variant);
        }
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

/* Converts a list to a tuple and releases the list; NULL for NULL. */
static PyObject *
as_tuple(PyObject *list)
{
    PyObject *tuple = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

/* The names of the public gufuncs, or of the internal ones. */
static PyObject *
gufunc_names(int internal)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < ngufuncs; i++) {
        const int properties = la_operators[gufuncs[i].signature->op].properties;
        if (!(properties & LA_INTERNAL) == !internal &&
            append_name(list, gufuncs[i].name) < 0) {
            Py_CLEAR(list);
        }
    }
    return as_tuple(list);
}

/* Adds a new object to the module and releases it; 0, or -1. */
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
    /* NumPy keeps pointers to them: one set per process. */
    const int known = ngufuncs > 0;
    for (int op = 0; !known && op < LA_NOPS; op++) {
        add_variants((enum la_op)op);
    }
    if (add_object(module, "ufunc_names", gufunc_names(0)) < 0) {
        return -1;
    }
    return add_object(module, "internal_ufunc_names", gufunc_names(1));
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

const struct la_gufunc *
la_gufunc_at(int i)
{
    return i < ngufuncs ? &gufuncs[i] : NULL;
}

const struct la_form *
la_gufunc_form(enum la_op op)
{
    return &of_operator[op].form;
}

const struct la_gufunc *
la_gufunc_variant(enum la_op op, la_variant variant, enum la_map map)
{
    /* add_variants counts through the subsets of the offered bits in this order, and
     * without blocks all of them exist. */
    int rank = 0, place = 0;
    for (la_variant bit = 1; bit <= of_operator[op].offered; bit *= 2) {
        if (of_operator[op].offered & bit) {
            rank |= (variant & bit) != 0 ? 1 << place : 0;
            place++;
        }
    }
    const int maps = la_operators[op].properties & LA_MAPS ? LA_NMAPS : 1;
    return &gufuncs[of_operator[op].first + rank * maps + (maps > 1 ? (int)map : 0)];
}

const struct la_signature *
la_gufunc_signature(const char *name, enum la_map *map)
{
    const struct la_gufunc *g = find_gufunc(name);
    if (g != NULL) {
        *map = g->map;
    }
    return g != NULL ? g->signature : NULL;
}

PyObject *
la_gufunc_add_bfloat16(PyObject *Py_UNUSED(module), PyObject *dtype)
{
    PyArray_Descr *descr = NULL;
    if (!PyArray_DescrConverter(dtype, &descr)) {
        return NULL;
    }
    const int added = la_loop_add_bfloat16(PyDataType_TYPENUM(descr));
    Py_DECREF(descr);
    for (int i = 0; added && i < ngufuncs; i++) {
        PyObject *object = atomic_load(&gufuncs[i].object);
        if (object != NULL && la_loop_add(object, &gufuncs[i], LA_LOOP_BFLOAT) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}
