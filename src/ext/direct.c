/* direct.c: a gufunc's loop on plain arrays, without NumPy's machinery.
 *
 * NumPy takes 2 us to look at the operands of a gufunc, as long as the kernel takes for
 * one token of a few heads.  Decoding comes here first.  Plain are C-contiguous,
 * aligned arrays of one loop's dtypes and of the same leading axes, numbers that are
 * finite Python floats, and outputs that overlap nothing; an output that is None is
 * made. Everything else, errors included, is left to NumPy and to the wrapper's checks.
 */
#define PY_SSIZE_T_CLEAN
#include "direct.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_1_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL la_array_api
#define NO_IMPORT_ARRAY
#include <numpy/ndarrayobject.h>
#define PY_UFUNC_UNIQUE_SYMBOL la_ufunc_api
#define NO_IMPORT_UFUNC
#include <numpy/ufuncobject.h>

#include <math.h>
#include <string.h>

#include "plan.h"

_Static_assert(sizeof(npy_intp) == sizeof(ptrdiff_t), "npy_intp is ptrdiff_t");

void
la_gufunc_loop(char **args, npy_intp const *dimensions, npy_intp const *steps,
               void *data)
{
    la_plan_loop(args, dimensions, steps, data);
}

struct call {
    struct la_loop *loop;
    const struct la_form *form;
    const char *types; /* of the loop's operands */
    int lead;          /* leading axes, those of the first operand */
    npy_intp *shape;   /* of the first operand */
    npy_intp dims[1 + LA_MAX_DIMS], steps[(1 + LA_MAX_RANK) * LA_MAX_OPERANDS];
    char *data[LA_MAX_OPERANDS];
    npy_intp size[LA_MAX_OPERANDS]; /* in bytes */
    union {
        float f;
        double d;
    } numbers[LA_MAX_OPERANDS];
};

/* The loop whose tokens have the dtype of q; 0 where there is none. */
static int
choose_loop(struct call *c, PyUFuncObject *gufunc, PyObject *q)
{
    if (!PyArray_CheckExact(q)) {
        return 0;
    }
    for (int k = 0; k < gufunc->ntypes; k++) {
        const char *types = gufunc->types + k * gufunc->nargs;
        if (types[0] == PyArray_TYPE((PyArrayObject *)q)) {
            c->loop = gufunc->data[k];
            c->form = c->loop->form;
            c->types = types;
            c->lead = PyArray_NDIM((PyArrayObject *)q) - c->form->slots[0].rank;
            c->shape = PyArray_DIMS((PyArrayObject *)q);
            return c->lead >= 0;
        }
    }
    return 0;
}

static int
take_number(struct call *c, int i, PyObject *x)
{
    const double value = PyFloat_CheckExact(x) ? PyFloat_AsDouble(x) : NAN;
    const int single = c->types[i] == NPY_FLOAT;
    if (single) {
        c->numbers[i].f = (float)value;
    }
    else {
        c->numbers[i].d = value;
    }
    c->data[i] = (char *)&c->numbers[i];
    c->size[i] = 0;
    return isfinite(single ? c->numbers[i].f : value);
}

/* Whether the core axes of operand i agree with those seen so far. */
static int
take_shape(struct call *c, int i, const npy_intp *shape)
{
    const struct la_slot *slot = &c->form->slots[i];
    for (int axis = 0; axis < slot->rank; axis++) {
        npy_intp *dim = &c->dims[1 + la_form_dim(c->form, slot->dims[axis])];
        if (*dim >= 0 && *dim != shape[axis]) {
            return 0;
        }
        *dim = shape[axis];
    }
    return 1;
}

static int
take_array(struct call *c, int i, PyObject *object)
{
    PyArrayObject *x = (PyArrayObject *)object;
    const struct la_slot *slot = &c->form->slots[i];
    if (!PyArray_CheckExact(object) || PyArray_TYPE(x) != c->types[i] ||
        PyArray_NDIM(x) != c->lead + slot->rank ||
        !(i < c->form->nin ? PyArray_ISCARRAY_RO(x) : PyArray_ISCARRAY(x)) ||
        memcmp(PyArray_DIMS(x), c->shape, (size_t)c->lead * sizeof(npy_intp)) != 0) {
        return 0;
    }
    c->data[i] = PyArray_BYTES(x);
    c->size[i] = PyArray_NBYTES(x);
    return take_shape(c, i, PyArray_DIMS(x) + c->lead);
}

/* A new array for output i; its core axes are known from the inputs. */
static PyObject *
make_output(struct call *c, int i)
{
    const struct la_slot *slot = &c->form->slots[i];
    npy_intp shape[NPY_MAXDIMS + LA_MAX_RANK];
    memcpy(shape, c->shape, (size_t)c->lead * sizeof(npy_intp));
    for (int axis = 0; axis < slot->rank; axis++) {
        shape[c->lead + axis] = c->dims[1 + la_form_dim(c->form, slot->dims[axis])];
    }
    return PyArray_SimpleNew(c->lead + slot->rank, shape, c->types[i]);
}

static int
outputs_are_apart(const struct call *c)
{
    const int nargs = c->form->nin + c->form->nout;
    for (int i = c->form->nin; i < nargs; i++) {
        for (int j = 0; j < i; j++) {
            if (c->data[i] < c->data[j] + c->size[j] &&
                c->data[j] < c->data[i] + c->size[i]) {
                return 0;
            }
        }
    }
    return 1;
}

/* Dimensions and steps in the order in which NumPy hands them to a loop. */
static void
set_steps(struct call *c)
{
    const int nargs = c->form->nin + c->form->nout;
    npy_intp *core = c->steps + nargs;
    c->dims[0] = 1;
    for (int axis = 0; axis < c->lead; axis++) {
        c->dims[0] *= c->shape[axis];
    }
    for (int i = 0; i < nargs; i++) {
        const struct la_slot *slot = &c->form->slots[i];
        npy_intp step = c->types[i] == NPY_HALF ? 2 : c->types[i] == NPY_FLOAT ? 4 : 8;
        for (int axis = slot->rank - 1; axis >= 0; axis--) {
            core[axis] = step;
            step *= c->dims[1 + la_form_dim(c->form, slot->dims[axis])];
        }
        c->steps[i] = la_operand_kind(slot->id) == LA_NUMBER ? 0 : step;
        core += slot->rank;
    }
}

/* Runs the loop; where it is long, other Python threads may run meanwhile. */
static void
run(struct call *c)
{
    NPY_BEGIN_THREADS_DEF;
    if (c->dims[0] == 0) {
        return; /* as NumPy, which has nothing to do for an empty batch */
    }
    NPY_BEGIN_THREADS_THRESHOLDED(c->dims[0]);
    la_gufunc_loop(c->data, c->dims, c->steps, c->loop);
    NPY_END_THREADS;
}

PyObject *
la_direct(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    PyUFuncObject *gufunc = nargs > 1 ? (PyUFuncObject *)args[0] : NULL;
    if (gufunc == NULL || !PyObject_TypeCheck(args[0], &PyUFunc_Type) ||
        gufunc->functions[0] != la_gufunc_loop || nargs != 1 + gufunc->nargs) {
        PyErr_SetString(PyExc_TypeError, "expected one of ufuncs and its operands");
        return NULL;
    }
    struct call c;
    PyObject *made = NULL;
    int plain = choose_loop(&c, gufunc, args[1]);
    memset(c.dims, -1, sizeof(c.dims));
    for (int i = 0; plain && i < nargs - 1; i++) {
        PyObject *x = args[1 + i];
        if (la_operand_kind(c.form->slots[i].id) == LA_NUMBER) {
            plain = take_number(&c, i, x);
            continue;
        }
        if (i == c.form->nin && x == Py_None) {
            x = made = make_output(&c, i);
            if (made == NULL) {
                return NULL;
            }
        }
        plain = take_array(&c, i, x);
    }
    if (!plain || !outputs_are_apart(&c)) {
        Py_XDECREF(made);
        Py_RETURN_NOTIMPLEMENTED;
    }
    set_steps(&c);
    run(&c);
    if (PyErr_Occurred()) {
        Py_XDECREF(made);
        return NULL;
    }
    return made != NULL ? made : Py_NewRef(args[1 + c.form->nin]);
}
