/* fast_step.c: a step on plain operands, from Python's call to the kernel.
 *
 * A step of a few heads takes as long as a dozen operations of Python, so the choice of
 * the gufunc, which Python makes for other calls, is made here.  What is not plain, and
 * every error, is left to Python (NotImplemented). */
#include "fast_call.h"

#include "gufunc.h"
#include "state_rows.h"

#include <math.h>

enum { OP, OPERANDS, S, Z, IN_PLACE, MAP, NORMALIZE, SCALE, EPS, NARGS, ROWS = NARGS };

static PyArrayObject *
array_of(PyObject *x)
{
    return PyArray_CheckExact(x) ? (PyArrayObject *)x : NULL;
}

/* The map of that name; LA_NMAPS if there is none. */
static enum la_map
map_of(PyObject *name, enum la_op op)
{
    const int known = la_operators[op].properties & LA_MAPS ? LA_NMAPS : 1;
    int map = 0;
    while (map < known &&
           !(PyUnicode_Check(name) &&
             PyUnicode_CompareWithASCIIString(name, la_maps[map].name) == 0)) {
        map++;
    }
    return map < known ? (enum la_map)map : LA_NMAPS;
}

/* Whether x, whose optional dimension is its last, has it: all leading operands have as
 * many axes as the first, `axes`.  -1 if that needs a closer look. */
static int
has_channels(PyObject *x, int axes)
{
    PyArrayObject *array = array_of(x);
    if (array == NULL) {
        return PyFloat_CheckExact(x) ? 0 : -1;
    }
    const int ndim = PyArray_NDIM(array);
    return ndim < axes ? 0 : PyArray_DIM(array, ndim - 1) == 1 ? -1 : 1;
}

/* Sets the arrays of the call, in the order of the form, and the variant that they
 * choose; 0 if they are not plain. */
static int
choose_variant(PyObject *operands, const struct la_form *form, la_variant *variant)
{
    int axes = -1;
    Py_ssize_t at = 0;
    for (int i = 0; i < form->nin; i++) {
        const struct la_form_operand *row = &form->operands[i];
        if (la_is_number(row->id)) {
            if (row->id != LA_AT_scale && row->id != LA_AT_eps) {
                return 0;
            }
            continue;
        }
        PyObject *x =
            at < PyTuple_Size(operands) ? PyTuple_GetItem(operands, at) : NULL;
        at++;
        if (x == NULL) {
            return 0;
        }
        if (row->optional) {
            if (x != Py_None) {
                *variant |= LA_WITH_CHOICE << row->choice;
            }
        }
        else if (row->channels != '\0') {
            const int channels = has_channels(x, axes);
            if (channels < 0) {
                return 0;
            }
            *variant |= channels ? LA_WITH_CHOICE << row->choice : 0;
        }
        else if (array_of(x) == NULL ||
                 (axes >= 0 && PyArray_NDIM((PyArrayObject *)x) != axes)) {
            return 0;
        }
        else {
            axes = PyArray_NDIM((PyArrayObject *)x);
        }
    }
    return at == PyTuple_Size(operands);
}

/* Whether the state is s, or s and z. */
static int
is_plain_state(const struct la_form *form)
{
    int plain = form->is_step;
    for (int i = form->nin; i < form->nin + form->nstate; i++) {
        const enum la_operand id = form->operands[i].id;
        plain = plain && (id == LA_AT_s1 || id == LA_AT_z1);
    }
    return plain;
}

/* Whether a field of the state, with `core` axes of its own, has the leading axes of
 * the operands, and rows by which a kernel may read it. */
static int
is_whole(PyObject *field, int core, const struct la_operands *c, int nin)
{
    PyArrayObject *x = array_of(field);
    if (x == NULL || PyArray_NDIM(x) < core) {
        return 0;
    }
    const int lead = PyArray_NDIM(x) - core;
    for (int axis = 0; axis < lead; axis++) {
        const npy_intp size = PyArray_DIM(x, axis);
        int found = 0;
        for (int i = 0; i < nin && !found; i++) {
            PyArrayObject *y = array_of(c->object[i]);
            const int at = y == NULL ? -1
                                     : PyArray_NDIM(y) -
                                           c->g->signature->slots[i].rank - lead + axis;
            found = at >= 0 && (size == 1 || PyArray_DIM(y, at) == size);
        }
        if (!found) {
            return 0;
        }
    }
    return PyArray_STRIDE(x, PyArray_NDIM(x) - 1) == PyArray_ITEMSIZE(x);
}

/* Sets the operands of the call, in the order of its signature; 0 if they are not
 * plain. */
static int
set_operands(struct la_operands *c, PyObject *const *args, int in_place)
{
    const struct la_signature *signature = c->g->signature;
    Py_ssize_t at = 0;
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const enum la_operand id = signature->slots[i].id;
        PyObject *x;
        if (la_is_number(id)) {
            x = args[id == LA_AT_eps ? EPS : SCALE];
        }
        else if (id == LA_AT_s0 || id == LA_AT_z0) {
            x = args[id == LA_AT_s0 ? S : Z];
            if (!is_whole(x, signature->slots[i].rank, c, i)) {
                return 0;
            }
        }
        else if (id == LA_AT_s1 || id == LA_AT_z1) {
            x = !in_place ? Py_None : args[id == LA_AT_s1 ? S : Z];
        }
        else if (i >= signature->nin) {
            x = Py_None;
        }
        else {
            do {
                x = PyTuple_GetItem(args[OPERANDS], at++);
            } while (x == Py_None);
        }
        c->object[i] = x;
        c->made[i] = 0;
    }
    return 1;
}

/* (o, s, z) of a call. */
static PyObject *
result(const struct la_operands *c, PyObject *const *args)
{
    const int nin = c->g->signature->nin, nout = c->g->signature->nout;
    PyObject *all = PyTuple_New(3);
    for (int i = 0; all != NULL && i < 3; i++) {
        PyObject *x = i < nout ? c->object[nin + i] : args[Z];
        PyTuple_SetItem(all, i, Py_NewRef(x));
    }
    return all;
}

PyObject *
la_fast_step(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < NARGS || nargs > NARGS + 1 || !PyTuple_Check(args[OPERANDS])) {
        PyErr_SetString(PyExc_TypeError, "expected nine arguments, or ten");
        return NULL;
    }
    const long number = PyLong_AsLong(args[OP]);
    if (number < 0 || number >= LA_NOPS ||
        !is_plain_state(la_gufunc_form((enum la_op)number))) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_NotImplemented);
    }
    const enum la_op op = (enum la_op)number;
    const enum la_map map = map_of(args[MAP], op);
    PyObject *indices = nargs > ROWS ? args[ROWS] : Py_None;
    const int in_place = args[IN_PLACE] == Py_True || indices != Py_None,
              normalize = args[NORMALIZE] == Py_True;
    la_variant variant =
        (in_place ? LA_WITH_IN_PLACE : 0) | (normalize ? LA_WITH_NORMALIZER : 0);
    struct la_operands c;
    if (map == LA_NMAPS ||
        (normalize && !(la_operators[op].properties & LA_NORMALIZER)) ||
        (!in_place && args[IN_PLACE] != Py_False) ||
        (!normalize && args[NORMALIZE] != Py_False) ||
        normalize != (args[Z] != Py_None) || !PyFloat_CheckExact(args[EPS]) ||
        !isfinite((float)PyFloat_AsDouble(args[EPS])) ||
        PyFloat_AsDouble(args[EPS]) < 0 ||
        !choose_variant(args[OPERANDS], la_gufunc_form(op), &variant)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    c.g = la_gufunc_variant(op, variant, map);
    if (!set_operands(&c, args, in_place)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    struct la_state_rows rows;
    c.in_place = 0;
    c.rows = rows.rows = NULL;
    int plain = la_operands_take(&c);
    if (plain > 0 && indices != Py_None) {
        plain = la_state_rows_take(&rows, indices, &c);
    }
    if (plain > 0) {
        plain = la_operands_run(&c);
    }
    la_state_rows_release(&rows);
    PyObject *answer = plain > 0    ? result(&c, args)
                       : plain == 0 ? Py_NewRef(Py_NotImplemented)
                                    : NULL;
    la_operands_release(&c);
    return answer;
}
