/* describe.c: operators.def and maps.def as read-only mappings.
 *
 * `operators` has a mapping for each operator:
 * - inputs, outputs: (name, dims, channels, optional, state_dtype) of each array.
 * - dims: the letters of the dimensions that it always has; a gradient has its input's.
 * - channels: the letter of one more that it may have, or "".
 * - optional: whether it may be left out.
 * - state_dtype: whether it is held as states are.
 * - numbers: the names of the operands that are numbers.
 * - state: (name, dims) of each of the state's fields, for one sequence.
 * - maps, normalizer, key_lengths, public, elementwise: its properties (table.h).
 * - summary: what it computes, or None where a public function documents it.
 * - gradient_of, step_of: the operator that it is the gradient or the step of, or None.
 *
 * Indices are left out: they follow from state and key_lengths.
 *
 * `maps` has a mapping for each map: rows, whether it is a map of whole rows, and
 * signed, whether features can be negative. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "describe.h"

#include "form.h"

/* Describes one operand of a form by a new object; NULL on an error. */
typedef PyObject *describe_operand(const struct la_form_operand *x);

static PyObject *
describe_array(const struct la_form_operand *x)
{
    const char channels[] = {x->channels, '\0'};
    return Py_BuildValue("(sssNN)", la_operands[x->id].name, x->dims, channels,
                         PyBool_FromLong(x->optional),
                         PyBool_FromLong(la_operands[x->id].kind == LA_STATE));
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

/* A tuple of the descriptions of those of `count` operands that `belongs` selects. */
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

/* A read-only mapping of a dict, which it takes over; NULL of NULL. */
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

/* Puts a new object into a dict, and drops it; 0, or -1. */
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

/* Puts what the form says into a dict; 0, or -1. */
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

int
la_describe(PyObject *module)
{
    PyObject *operators = describe_operators(), *maps = NULL;
    int status = PyModule_AddObjectRef(module, "operators", operators);
    if (status == 0) {
        maps = describe_maps();
        status = PyModule_AddObjectRef(module, "maps", maps);
    }
    Py_XDECREF(operators);
    Py_XDECREF(maps);
    return status;
}
