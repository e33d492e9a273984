/* describe.c: what operators.def and maps.def say, as mappings that nothing changes.
 *
 * `operators` has a mapping for each operator:
 *   inputs, outputs  (name, dims, channels, optional, state_dtype) of each array: the
 *                    letters of the dimensions that it always has, that of one more
 *                    that it may have or "", whether it may be left out, and whether it
 *                    is held as states are.  A gradient has the dimensions of its
 * input. numbers          names of the operands that are numbers. state (name, dims) of
 * each of the state's fields, for one sequence. maps, normalizer, key_lengths, public,
 * elementwise  as its properties say (table.h). summary          what it computes,
 * where no public function documents it, or None. gradient_of, step_of  the name of the
 * operator that it is the gradient or the step of, or None. Indices are nowhere: they
 * follow from state and key_lengths.
 *
 * `maps` has one for each map: rows, whether it is one of whole rows, and signed,
 * whether features can be negative. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "describe.h"

#include "form.h"

/* What is told of one operand of a form, a new object; NULL on an error. */
typedef PyObject *tell(const struct la_form_operand *x);

static PyObject *
tell_array(const struct la_form_operand *x)
{
    const char channels[] = {x->channels, '\0'};
    return Py_BuildValue("(sssNN)", la_operands[x->id].name, x->dims, channels,
                         PyBool_FromLong(x->optional),
                         PyBool_FromLong(la_operands[x->id].kind == LA_STATE));
}

static PyObject *
tell_field(const struct la_form_operand *x)
{
    return Py_BuildValue("(ss)", la_operands[x->id].name, x->dims);
}

static PyObject *
tell_name(const struct la_form_operand *x)
{
    return PyUnicode_FromString(la_operands[x->id].name);
}

static int
is_array(enum la_operand id)
{
    return id < LA_NARRAYS;
}

/* A tuple of what is told of each of `count` operands that `belongs`. */
static PyObject *
tell_each(const struct la_form_operand *x, int count, int (*belongs)(enum la_operand),
          tell *one)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; i++) {
        if (!belongs(x[i].id)) {
            continue;
        }
        PyObject *item = one(&x[i]);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    PyObject *tuple = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

/* A mapping that nothing changes, of a dict that it takes over; NULL of none. */
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

static PyObject *
describe_operator(enum la_op op)
{
    struct la_form form;
    la_form_read(&form, op);
    const struct la_operator *row = &la_operators[op];
    const struct la_form_operand *state = form.operands + form.nin;
    const struct la_form_operand *outputs = state + form.nstate;
    const enum la_op gradient_of = la_gradient_of(op), step_of = la_step_of(op);
    return read_only(Py_BuildValue(
        "{s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:z,s:z,s:z}",                /**/
        "inputs", tell_each(form.operands, form.nin, is_array, tell_array), /**/
        "outputs", tell_each(outputs, form.nout, is_array, tell_array),     /**/
        "numbers", tell_each(form.operands, form.nin, la_is_number, tell_name), "state",
        tell_each(state, form.nstate, is_array, tell_field), "maps", flag(op, LA_MAPS),
        "normalizer", flag(op, LA_NORMALIZER), "key_lengths", flag(op, LA_KEYS),
        "public", PyBool_FromLong(!(row->properties & LA_INTERNAL)), "elementwise",
        flag(op, LA_ELEMENTWISE), "summary", row->doc, "gradient_of",
        gradient_of != LA_NOPS ? la_operators[gradient_of].name : NULL, "step_of",
        step_of != LA_NOPS ? la_operators[step_of].name : NULL));
}

/* Puts a new object into a dict, and drops it; 0, or -1. */
static int
put(PyObject *dict, const char *name, PyObject *object)
{
    const int status = object != NULL ? PyDict_SetItemString(dict, name, object) : -1;
    Py_XDECREF(object);
    return status;
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
