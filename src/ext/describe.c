/* describe.c: operators.def and maps.def as read-only mappings.
 *
 * `operators` has a mapping for each operator:
 *  - inputs, outputs: (name, dims, channels, optional, state_dtype, suffix) of each
 *    array.
 *  - dims: the letters of its fixed dimensions; a gradient has those of its input.
 *  - channels: the letter of its optional dimension, or "".
 *  - optional: whether it may be left out.
 *  - state_dtype: whether it has the dtype of states.
 *  - suffix: the part of a gufunc's name for its optional dimension, or for the array.
 *  - numbers: the names of the operands that are numbers.
 *  - state: (name, dims) of each of the state's fields, for one sequence.
 *  - maps, normalizer, key_lengths, complex, compensated, half_states, products,
 *    public, elementwise: its properties (table.h).
 *  - blocks: whether its tokens may be in blocks.
 *  - summary: what it computes, or None if a public function documents it.
 *  - gradient_of, step_of: the operator of which it is the gradient or step, or None.
 *
 * Indices are left out: they follow from state, key_lengths and blocks.
 *
 * `operands` has the description of each operand that operands.def describes, by name.
 *
 * `maps` has a mapping for each map: rows, whether it is a map of whole rows, and
 * signed, whether features can be negative. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "describe.h"

#include "signature.h"

/* Returns a new object that describes one operand of a form; NULL on an error. */
typedef PyObject *describe_operand(const struct la_form_operand *x);

static PyObject *
describe_array(const struct la_form_operand *x)
{
    const char channels[] = {x->channels, '\0'};
    char suffix[LA_MAX_SUFFIX];
    la_choice_suffix(x, suffix, sizeof(suffix));
    return Py_BuildValue("(sssNNs)", la_operands[x->id].name, x->dims, channels,
                         PyBool_FromLong(x->optional),
                         PyBool_FromLong(la_operands[x->id].kind == LA_STATE), suffix);
}

static PyObject *
describe_field(const struct la_form_operand *x)
{
    return Py_BuildValue("(ss)", la_operands[x->id].name, x->dims);
}

static PyObject *
describe_name(const struct la_form_operand *x)
{
    return PyUnicode_FromString(la_operands[x->id].name);
}

static int
is_array(enum la_operand id)
{
    return id < LA_NARRAYS;
}

/* A tuple of the descriptions of those operands for which `belongs` is true. */
static PyObject *
describe_each(const struct la_form_operand *x, int count,
              int (*belongs)(enum la_operand), describe_operand *describe)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; i++) {
        if (!belongs(x[i].id)) {
            continue;
        }
        PyObject *item = describe(&x[i]);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    PyObject *tuple = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

/* A read-only mapping of a dict, whose reference it takes; NULL for NULL. */
static PyObject *
read_only(PyObject *dict)
{
    PyObject *proxy = dict != NULL ? PyDictProxy_New(dict) : NULL;
    Py_XDECREF(dict);
    return proxy;
}

static PyObject *
flag(enum la_op op, enum la_property property)
{
    return PyBool_FromLong((la_operators[op].properties & property) != 0);
}

/* Adds a new object to a dict and releases it; 0, or -1. */
static int
put(PyObject *dict, const char *name, PyObject *object)
{
    const int status = object != NULL ? PyDict_SetItemString(dict, name, object) : -1;
    Py_XDECREF(object);
    return status;
}

/* The name of an operator, or None for LA_NOPS. */
static PyObject *
name_of(enum la_op op)
{
    return Py_BuildValue("z", op != LA_NOPS ? la_operators[op].name : NULL);
}

/* Adds the contents of the form to a dict; 0, or -1. */
static int
put_form(PyObject *dict, const struct la_form *form)
{
    const struct la_form_operand *inputs = form->operands, *state = inputs + form->nin;
    const struct la_form_operand *outputs = state + form->nstate;
    const int nin = form->nin, nstate = form->nstate, nout = form->nout;
    const int failed =
        put(dict, "inputs", describe_each(inputs, nin, is_array, describe_array)) ||
        put(dict, "outputs", describe_each(outputs, nout, is_array, describe_array)) ||
        put(dict, "numbers", describe_each(inputs, nin, la_is_number, describe_name)) ||
        put(dict, "state", describe_each(state, nstate, is_array, describe_field));
    return failed ? -1 : 0;
}

static int
has_input(const struct la_form *form, enum la_operand id)
{
    int i = 0;
    while (i < form->nin && form->operands[i].id != id) {
        i++;
    }
    return i < form->nin;
}

static PyObject *
describe_operator(enum la_op op)
{
    struct la_form form;
    la_form_read(&form, op);
    const struct la_operator *row = &la_operators[op];
    const int internal = row->properties & LA_INTERNAL;
    PyObject *dict = PyDict_New();
    if (dict == NULL || put_form(dict, &form) || put(dict, "maps", flag(op, LA_MAPS)) ||
        put(dict, "normalizer", flag(op, LA_NORMALIZER)) ||
        put(dict, "key_lengths", flag(op, LA_KEYS)) ||
        put(dict, "complex", flag(op, LA_TAKES_COMPLEX)) ||
        put(dict, "compensated", flag(op, LA_COMPENSATED)) ||
        put(dict, "half_states", flag(op, LA_HALF_STATES)) ||
        put(dict, "products", flag(op, LA_PRODUCTS)) ||
        put(dict, "blocks", PyBool_FromLong(has_input(&form, LA_AT_block))) ||
        put(dict, "public", PyBool_FromLong(!internal)) ||
        put(dict, "elementwise", flag(op, LA_ELEMENTWISE)) ||
        put(dict, "summary", Py_BuildValue("z", row->doc)) ||
        put(dict, "gradient_of", name_of(la_gradient_of(op))) ||
        put(dict, "step_of", name_of(la_step_of(op)))) {
        Py_CLEAR(dict);
    }
    return read_only(dict);
}

static PyObject *
describe_operators(void)
{
    PyObject *all = PyDict_New();
    for (int op = 0; all != NULL && op < LA_NOPS; op++) {
        if (put(all, la_operators[op].name, describe_operator((enum la_op)op)) < 0) {
            Py_CLEAR(all);
        }
    }
    return read_only(all);
}

static PyObject *
describe_maps(void)
{
    PyObject *all = PyDict_New();
    for (int i = 0; all != NULL && i < LA_NMAPS; i++) {
        PyObject *map = read_only(
            Py_BuildValue("{s:N,s:N}", "rows", PyBool_FromLong(la_maps[i].of_rows),
                          "signed", PyBool_FromLong(la_maps[i].is_signed)));
        if (put(all, la_maps[i].name, map) < 0) {
            Py_CLEAR(all);
        }
    }
    return read_only(all);
}

static PyObject *
describe_operands(void)
{
    PyObject *all = PyDict_New();
    for (int id = 0; all != NULL && id < LA_NOPERANDS; id++) {
        const struct la_operand_row *row = &la_operands[id];
        if (row->doc != NULL &&
            put(all, row->name, PyUnicode_FromString(row->doc)) < 0) {
            Py_CLEAR(all);
        }
    }
    return read_only(all);
}

/* Adds the object that `describe` returns to the module; 0, or -1. */
static int
add(PyObject *module, const char *name, PyObject *(*describe)(void))
{
    PyObject *object = describe();
    const int status = PyModule_AddObjectRef(module, name, object);
    Py_XDECREF(object);
    return status;
}

int
la_describe(PyObject *module)
{
    const int failed = add(module, "operators", describe_operators) ||
                       add(module, "operands", describe_operands) ||
                       add(module, "maps", describe_maps);
    return failed ? -1 : 0;
}
