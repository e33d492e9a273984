/* fast_call.c: calls on plain operands without NumPy's gufunc machinery.
 *
 * NumPy takes 2 us to examine the operands of a gufunc, as long as the kernel takes for
 * one token of a few heads, and passes on one leading axis at a time.  Operands are
 * plain if they are exact, aligned, native arrays of one loop's dtypes, or states of 16
 * bits, or finite Python floats for numbers, eps at least 0, and outputs overlap
 * nothing.  None for an output allocates it; Ellipsis leaves out an optional operand.
 * Everything else, including errors, is left to NumPy. */
#include "numpy_api.h"

#include "fast_call.h"

#include "gufunc.h"

#include <math.h>
#include <string.h>

#include "call.h"
#include "run.h"
#include "state_rows.h"

/* Finds the loop whose tokens have the dtype of the first operand; 0 if there is
 * none. */
static int
choose_loop(struct la_operands *c)
{
    PyArrayObject *x = (PyArrayObject *)c->object[0];
    return PyArray_CheckExact(x) && PyArray_ISBEHAVED_RO(x) &&
           la_loop_find(c->g, PyArray_TYPE(x), &c->loop);
}

int
la_operands_number(struct la_operands *c, int i)
{
    const enum la_dtype dtype = la_loop_kinds[c->loop].dtype;
    if (!PyFloat_CheckExact(c->object[i])) {
        return 0;
    }
    const double x = PyFloat_AsDouble(c->object[i]);
    c->numbers[i] = la_number_of(dtype, x);
    c->x[i] = (struct la_tensor){.data = &c->numbers[i]};
    return isfinite(la_number_read(dtype, &c->numbers[i])) &&
           !(c->g->signature->slots[i].id == LA_AT_eps && x < 0);
}

void
la_operands_set(struct la_operands *c, int i, int stored)
{
    PyArrayObject *x = (PyArrayObject *)c->object[i];
    c->x[i] = (struct la_tensor){PyArray_DATA(x), PyArray_NDIM(x), PyArray_DIMS(x),
                                 PyArray_STRIDES(x), stored};
}

/* Whether the caller left out operand i. */
static int
take_omitted(struct la_operands *c, int i)
{
    if (c->object[i] != Py_Ellipsis || !la_may_lack(c->g->signature, i)) {
        return 0;
    }
    c->x[i] = (struct la_tensor){.ndim = -1};
    return 1;
}

int
la_operands_stored(const struct la_operands *c, int i, int type)
{
    const struct la_signature *signature = c->g->signature;
    if (type == la_loop_type(c->g, c->loop, i)) {
        return 0;
    }
    if (!(la_operators[signature->op].properties & LA_HALF_STATES) ||
        la_loop_kinds[c->loop].dtype != LA_F32 ||
        !la_is_state(signature->slots[i].id)) {
        return -1;
    }
    const int bfloat = la_loop_exists(c->g, LA_LOOP_BFLOAT) && type == la_bfloat16();
    return type == NPY_HALF ? 1 + LA_HALF : bfloat ? 1 + LA_BFLOAT : -1;
}

static int
take_array(struct la_operands *c, int i)
{
    PyArrayObject *x = (PyArrayObject *)c->object[i];
    if (!PyArray_CheckExact(c->object[i]) || !PyArray_ISBEHAVED_RO(x)) {
        return 0;
    }
    const int stored = la_operands_stored(c, i, PyArray_TYPE(x)),
              before = la_signature_before(c->g->signature, i);
    if (stored < 0 ||
        (before >= 0 && c->x[before].ndim >= 0 && c->x[before].stored != stored) ||
        (i >= c->g->signature->nin && !PyArray_ISWRITEABLE(x))) {
        return 0;
    }
    la_operands_set(c, i, stored);
    return 1;
}

/* The range of bytes of operand i: its first byte and one past its last. */
static void
span_of(const struct la_operands *c, int i, const char **begin, const char **end)
{
    const struct la_loop_kind *kind = &la_loop_kinds[c->loop];
    const enum la_operand id = c->g->signature->slots[i].id;
    const enum la_type type = la_tensor_type(&c->x[i], la_type_of(id, kind->type));
    la_tensor_extent(&c->x[i], la_operand_size(id, kind->dtype, type), begin, end);
}

/* Whether output i is the state after the tokens, and input j the one before them, in
 * the same memory.  Kernels read all of it before they write. */
static int
is_updated(const struct la_operands *c, int i, int j)
{
    return c->in_place && c->object[i] == c->object[j] &&
           la_signature_before(c->g->signature, i) == j;
}

int
la_operands_are_disjoint(const struct la_operands *c)
{
    const struct la_signature *signature = c->g->signature;
    for (int i = signature->nin; i < signature->nin + signature->nout; i++) {
        const char *begin, *end, *other, *other_end;
        if (c->made[i] || c->x[i].ndim < 0) {
            continue;
        }
        span_of(c, i, &begin, &end);
        for (int j = 0; j < signature->nin + signature->nout; j++) {
            if (j == i || c->x[j].ndim < 0 || is_updated(c, i, j)) {
                continue;
            }
            span_of(c, j, &other, &other_end);
            if (begin < other_end && other < end) {
                return 0;
            }
        }
    }
    return 1;
}

/* Whether elements of an output share memory, which is then left to NumPy.  -1 on an
 * error. */
static int
overlaps_itself(const struct la_tensor *x, PyArrayObject *array)
{
    const int status = la_overlaps_itself(x, PyArray_ITEMSIZE(array));
    if (status < 0) {
        PyErr_NoMemory();
    }
    return status;
}

PyObject *
la_array_overlaps_itself(PyObject *Py_UNUSED(module), PyObject *arg)
{
    if (!PyArray_Check(arg)) {
        PyErr_SetString(PyExc_TypeError, "expected an array");
        return NULL;
    }
    PyArrayObject *x = (PyArrayObject *)arg;
    const struct la_tensor tensor = {PyArray_DATA(x), PyArray_NDIM(x), PyArray_DIMS(x),
                                     PyArray_STRIDES(x), 0};
    const int status = overlaps_itself(&tensor, x);
    return status < 0 ? NULL : PyBool_FromLong(status);
}

int
la_operands_take(struct la_operands *c)
{
    const struct la_signature *signature = c->g->signature;
    if (!choose_loop(c)) {
        return 0;
    }
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        int taken;
        if (la_is_number(signature->slots[i].id)) {
            taken = la_operands_number(c, i);
        }
        else if (take_omitted(c, i)) {
            taken = 1;
        }
        else if (i < signature->nin && PyFloat_CheckExact(c->object[i])) {
            taken = c->g->signature->slots[i].rank == 0 && la_is_native(c, i) &&
                    la_operands_number(c, i);
        }
        else if (i >= signature->nin && c->object[i] == Py_None) {
            /* A state that is updated in place must be passed. */
            taken = signature->variant & LA_WITH_IN_PLACE && i > signature->nin
                        ? 0
                        : la_operands_make(c, i);
        }
        else {
            taken = take_array(c, i);
            if (taken > 0 && i >= signature->nin) {
                PyArrayObject *x = (PyArrayObject *)c->object[i];
                const int shared =
                    PyArray_IS_C_CONTIGUOUS(x) ? 0 : overlaps_itself(&c->x[i], x);
                taken = shared < 0 ? -1 : !shared;
            }
        }
        if (taken <= 0) {
            return taken;
        }
    }
    return la_operands_are_disjoint(c);
}

/* Returns the outputs: one array, or a tuple of them. */
static PyObject *
result(const struct la_operands *c)
{
    const struct la_signature *signature = c->g->signature;
    if (signature->nout == 1) {
        return Py_NewRef(c->object[signature->nin]);
    }
    PyObject *all = PyTuple_New(signature->nout);
    for (int i = 0; all != NULL && i < signature->nout; i++) {
        PyObject *x =
            c->x[signature->nin + i].ndim < 0 ? Py_None : c->object[signature->nin + i];
        PyTuple_SetItem(all, i, Py_NewRef(x));
    }
    return all;
}

int
la_operands_run(struct la_operands *c)
{
    struct la_call call;
    const struct la_loop_kind *kind = &la_loop_kinds[c->loop];
    const struct la_operation what = {c->g->signature, c->g->map, kind->dtype,
                                      kind->type, c->rows};
    if (la_call_prepare(&call, &what, c->x) != LA_DONE) {
        return 0;
    }
    return la_run_python(&call) < 0 ? -1 : 1;
}

void
la_operands_release(struct la_operands *c)
{
    const struct la_signature *signature = c->g->signature;
    for (int i = signature->nin; i < signature->nin + signature->nout; i++) {
        if (c->made[i]) {
            Py_DECREF(c->object[i]);
        }
    }
}

/* The result of a call of args[0] with the operands that follow; of rows of a pool if
 * there are indices. */
static PyObject *
call_plain(PyObject *const *args, Py_ssize_t nargs, PyObject *indices)
{
    if (nargs < 2 || !la_gufunc_is(args[0]) ||
        nargs != 1 + la_ufunc_fields(args[0])->nargs) {
        PyErr_SetString(PyExc_TypeError,
                        "expected one of linattn's gufuncs and its operands");
        return NULL;
    }
    struct la_operands c;
    struct la_state_rows rows;
    c.g = la_gufunc_of(args[0]);
    c.rows = rows.rows = NULL;
    c.in_place = indices != NULL;
    for (int i = 0; i < nargs - 1; i++) {
        c.object[i] = args[1 + i];
        c.made[i] = 0;
    }
    int plain = la_operands_take(&c);
    if (plain > 0 && indices != NULL) {
        plain = la_state_rows_take(&rows, indices, &c);
    }
    if (plain > 0) {
        plain = la_operands_run(&c);
    }
    PyObject *answer = plain > 0    ? result(&c)
                       : plain == 0 ? Py_NewRef(Py_NotImplemented)
                                    : NULL;
    la_state_rows_release(&rows);
    la_operands_release(&c);
    return answer;
}

PyObject *
la_fast_call(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    return call_plain(args, nargs, NULL);
}

PyObject *
la_pool_call(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    return call_plain(args + (nargs > 0), nargs - 1, nargs > 0 ? args[0] : NULL);
}
