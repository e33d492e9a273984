/* tensor_update.c: a step of tensors that updates its state, from Python's call to the
 * kernel.
 *
 * Such a step takes as long as a few calls of PyTorch, so only the result is made by
 * one, and no array of NumPy is made.  The caller has chosen the gufunc; what is not
 * plain is left to it. */
#include "numpy_api.h"

#include "tensor_update.h"

#include "fast_call.h"
#include "gufunc.h"
#include "pool.h"
#include "state_rows.h"
#include "tensor_array.h"
#include "tensor_lend.h"

/* A call while its operands are read. */
struct update {
    struct la_operands c;
    struct la_lending l;
    struct la_state_rows rows;
    struct la_tensor_memory memory[LA_MAX_OPERANDS];
};

/* Whether a tensor has one axis for the two of operand i: the columns of all heads. */
static int
is_flat(const struct update *u, int i)
{
    const struct la_slot *slot = &u->c.g->signature->slots[i];
    return la_operators[u->c.g->signature->op].properties & LA_LAYER_TOKEN &&
           slot->rank == 2 && !la_is_state(slot->id) && slot->dims[0] == 'n' &&
           slot->dims[1] == 'm';
}

/* The size of a core dimension that an operand has which has been read; -1 if none has
 * it. */
static npy_intp
size_of_core(const struct update *u, char letter)
{
    const struct la_signature *signature = u->c.g->signature;
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const struct la_slot *slot = &signature->slots[i];
        const int lead = u->c.x[i].ndim - slot->rank;
        for (int j = 0; lead >= 0 && !is_flat(u, i) && j < slot->rank; j++) {
            if (slot->dims[j] == letter) {
                return u->c.x[i].shape[lead + j];
            }
        }
    }
    return -1;
}

/* The dtype of a tensor that can be lent; NULL, perhaps with an exception, if it cannot
 * be. */
static PyArray_Descr *
plain_dtype(const struct update *u, PyObject *x)
{
    if (la_is_lendable(&u->l, x) <= 0) {
        return NULL;
    }
    PyArray_Descr *dtype =
        la_tensor_dtype(PyTuple_GetItem(u->l.torch, LA_TORCH_DTYPES), x);
    return dtype == NULL || la_tensor_check(x, dtype) < 0 ? NULL : dtype;
}

/* Reads a tensor as operand i; 0, perhaps with an exception, if it is not plain. */
static int
take_tensor(struct update *u, int i, PyObject *x)
{
    const PyArray_Descr *dtype = plain_dtype(u, x);
    struct la_tensor_memory *m = &u->memory[i];
    const int stored =
        dtype == NULL ? -1 : la_operands_stored(&u->c, i, dtype->type_num);
    if (stored < 0 ||
        la_tensor_memory_of(u->l.torch, x, PyDataType_ELSIZE(dtype), m) < 0 ||
        m->data == NULL ||
        (uintptr_t)m->data % (uintptr_t)PyDataType_ELSIZE(dtype) != 0) {
        return 0;
    }
    u->c.x[i] = (struct la_tensor){m->data, m->axes, m->shape, m->strides, stored};
    return 1;
}

/* Reads a tensor or a number; 0 as above. */
static int
take(struct update *u, int i, PyObject *x)
{
    u->c.object[i] = x;
    return la_is_number(u->c.g->signature->slots[i].id) ? la_operands_number(&u->c, i)
                                                        : take_tensor(u, i, x);
}

/* Chooses the loop by the dtype of the first operand; 0 if there is none. */
static int
choose_loop(struct update *u, PyObject *x)
{
    const PyArray_Descr *dtype = plain_dtype(u, x);
    return dtype != NULL && la_loop_find(u->c.g, dtype->type_num, &u->c.loop);
}

/* Gives operand i its axes of heads and columns, if it is flat; 0 if it cannot have
 * them. */
static int
split_heads(struct update *u, int i)
{
    struct la_tensor_memory *m = &u->memory[i];
    if (!is_flat(u, i)) {
        return 1;
    }
    const npy_intp n = size_of_core(u, 'n'), width = size_of_core(u, 'm');
    const int last = m->axes - 1;
    if (n <= 0 || width <= 0 || last < 0 || last + 2 > NPY_MAXDIMS ||
        m->shape[last] % width != 0 || m->shape[last] / width != n) {
        return 0;
    }
    m->shape[last] = n;
    m->shape[last + 1] = width;
    m->strides[last + 1] = m->strides[last];
    m->strides[last] *= width;
    u->c.x[i].ndim = ++m->axes;
    return 1;
}

/* The tensor of the result: of the dtype of x, whose leading axes it has; NULL, perhaps
 * with an exception, if the sizes are not plain. */
static PyObject *
new_result(const struct update *u, PyObject *x)
{
    npy_intp shape[NPY_MAXDIMS];
    const struct la_signature *signature = u->c.g->signature;
    const struct la_slot *slot = &signature->slots[signature->nin];
    const int lead = u->c.x[0].ndim - signature->slots[0].rank;
    npy_intp size = 1;
    for (int j = 0; j < slot->rank; j++) {
        const npy_intp found = size_of_core(u, slot->dims[j]);
        size = found < 0 || size < 0 ? -1 : size * found;
    }
    if (lead < 0 || size < 0) {
        return NULL;
    }
    for (int axis = 0; axis < lead; axis++) {
        shape[axis] = u->c.x[0].shape[axis];
    }
    shape[lead] = size;
    return la_tensor_new(u->l.torch, x, shape, lead + 1);
}

/* Whether the elements of no state share memory. */
static int
are_states_plain(const struct update *u, PyObject *states)
{
    int plain = 1;
    for (int i = 0; plain && i < PyTuple_Size(states); i++) {
        const int at = u->c.g->signature->nin + 1 + i;
        const enum la_dtype dtype = la_loop_kinds[u->c.loop].dtype;
        const enum la_type type = la_tensor_type(&u->c.x[at], LA_NATIVE);
        plain = la_overlaps_itself(&u->c.x[at], la_stored_size(dtype, type)) == 0;
    }
    return plain;
}

/* Whether an operand is a parameter, which has no leading axes. */
static int
is_parameter(enum la_operand id)
{
    return id == LA_AT_weight || id == LA_AT_bias || id == LA_AT_A_log ||
           id == LA_AT_dt_bias || id == LA_AT_norm_weight || id == LA_AT_D;
}

/* Whether the operands have the axes that their slots ask for, and no others: gates may
 * be per channel; and the state has the inputs that filters reach. */
static int
have_own_axes(const struct update *u)
{
    const struct la_signature *signature = u->c.g->signature;
    const int lead = u->c.x[0].ndim - signature->slots[0].rank;
    int own = size_of_core(u, 'f') - 1 <= size_of_core(u, 'd');
    for (int i = 1; own && i < signature->nin; i++) {
        const struct la_slot *slot = &signature->slots[i];
        own = la_is_number(slot->id) ||
              u->c.x[i].ndim - slot->rank == (is_parameter(slot->id) ? 0 : lead);
    }
    return own;
}

/* Reads all operands, and makes the result; 0, perhaps with an exception, if they are
 * not plain. */
static int
take_operands(struct update *u, PyObject *inputs, PyObject *states, PyObject **result)
{
    const int o = u->c.g->signature->nin;
    PyObject *first = PyTuple_GetItem(inputs, 0);
    int plain = choose_loop(u, first);
    for (int i = 0; i < o + u->c.g->signature->nout; i++) {
        u->c.x[i] = (struct la_tensor){.ndim = -1};
        u->c.made[i] = 0;
    }
    for (int i = 0; plain && i < o; i++) {
        plain = take(u, i, PyTuple_GetItem(inputs, i));
    }
    for (int i = 0; plain && i < PyTuple_Size(states); i++) {
        plain = take(u, o + 1 + i, PyTuple_GetItem(states, i));
    }
    *result = plain ? new_result(u, first) : NULL;
    plain = *result != NULL && take_tensor(u, o, *result);
    u->c.made[o] = 1;
    for (int i = 0; plain && i <= o; i++) {
        plain = split_heads(u, i);
    }
    return plain && have_own_axes(u) && are_states_plain(u, states) &&
           la_operands_are_disjoint(&u->c);
}

/* Finds the rows of the states, if there are indices; as la_state_rows_take. */
static int
take_rows(struct update *u, PyObject *indices)
{
    if (indices == Py_None) {
        return 1;
    }
    PyObject *array = la_lend(&u->l, indices);
    const int plain = array == NULL ? 0 : la_state_rows_take(&u->rows, array, &u->c);
    Py_XDECREF(array);
    return plain;
}

/* Computes the call, and tells PyTorch of the states that it has written to; as
 * la_operands_run. */
static int
compute(struct update *u, PyObject *states)
{
    const long held = la_lend_threads(u->l.torch);
    if (held < 0) {
        return -1;
    }
    const int status = la_operands_run(&u->c);
    la_pool_hold_threads(held);
    if (status <= 0) {
        return status;
    }
    PyObject *list = PySequence_List(states), *done = NULL;
    if (list != NULL) {
        PyObject *written = PyTuple_GetItem(u->l.torch, LA_TORCH_WRITTEN);
        done = PyObject_CallFunctionObjArgs(written, list, NULL);
    }
    Py_XDECREF(list);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

PyObject *
la_tensor_update(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    enum { TORCH, RECORDED, GUFUNC, INPUTS, STATES, INDICES, NARGS };
    if (nargs != NARGS || !PyTuple_Check(args[TORCH]) || !la_gufunc_is(args[GUFUNC]) ||
        !PyTuple_Check(args[INPUTS]) || !PyTuple_Check(args[STATES])) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple, a bool, one of linattn's "
                                         "gufuncs, two tuples and a tensor or None");
        return NULL;
    }
    struct update u; /* of which only the used part is set */
    u.c.g = la_gufunc_of(args[GUFUNC]);
    u.c.in_place = 0;
    u.c.rows = u.rows.rows = NULL;
    u.l.torch = args[TORCH];
    u.l.seen = u.l.count = 0;
    u.l.recorded = args[RECORDED] == Py_True;
    u.l.dtypes = LA_TORCH_DTYPES;
    if (PyTuple_Size(args[INPUTS]) != u.c.g->signature->nin ||
        PyTuple_Size(args[STATES]) != u.c.g->signature->nout - 1) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *result = NULL;
    int status = take_operands(&u, args[INPUTS], args[STATES], &result);
    status = status > 0 ? take_rows(&u, args[INDICES]) : status;
    status = status > 0 ? compute(&u, args[STATES]) : status;
    la_state_rows_release(&u.rows);
    la_lend_release(&u.l);
    if (status > 0) {
        return result;
    }
    Py_XDECREF(result);
    return status < 0 ? NULL : la_lend_refuse(&u.l);
}

/* --- by plans ----------------------------------------------------------------- */

/* The members of a plan: the gufunc, the names of the tensors that it takes, of those
 * that are left out, and of options, the values of these, and the numbers that they
 * stand for. */
enum { GUFUNC, GIVEN, LEFT_OUT, OPTIONS, VALUES, NUMBERS, NPLAN };

/* Whether two options are the same, 1 and True not being so; -1 on an error. */
static int
are_same(PyObject *x, PyObject *y)
{
    return x == y                     ? 1
           : x == NULL                ? 0
           : Py_TYPE(x) == Py_TYPE(y) ? PyObject_RichCompareBool(x, y, Py_EQ)
                                      : 0;
}

/* Whether a plan is one for these arguments by name; -1 on an error. */
static int
is_for(PyObject *plan, PyObject *named)
{
    PyObject *left_out = PyTuple_GetItem(plan, LEFT_OUT),
             *options = PyTuple_GetItem(plan, OPTIONS),
             *values = PyTuple_GetItem(plan, VALUES);
    int found = 1;
    for (Py_ssize_t i = 0; found && i < PyTuple_Size(left_out); i++) {
        found = PyDict_GetItem(named, PyTuple_GetItem(left_out, i)) == Py_None;
    }
    for (Py_ssize_t i = 0; found > 0 && i < PyTuple_Size(options); i++) {
        found = are_same(PyDict_GetItem(named, PyTuple_GetItem(options, i)),
                         PyTuple_GetItem(values, i));
    }
    return found;
}

/* The inputs of the plan's gufunc; NULL with an exception if one is missing. */
static PyObject *
planned_inputs(PyObject *plan, PyObject *named)
{
    PyObject *given = PyTuple_GetItem(plan, GIVEN),
             *numbers = PyTuple_GetItem(plan, NUMBERS);
    const Py_ssize_t tensors = PyTuple_Size(given), more = PyTuple_Size(numbers);
    PyObject *inputs = PyTuple_New(tensors + more);
    for (Py_ssize_t i = 0; inputs != NULL && i < tensors + more; i++) {
        PyObject *x = i < tensors ? PyDict_GetItem(named, PyTuple_GetItem(given, i))
                                  : PyTuple_GetItem(numbers, i - tensors);
        PyTuple_SetItem(inputs, i, Py_NewRef(x == NULL ? Py_None : x));
    }
    return inputs;
}

enum { PTORCH, RECORDED, PLANS, NAMED, STATES, INDICES, NPLANNED };

/* The result by one plan; NotImplemented if it is not for these arguments. */
static PyObject *
by_plan(PyObject *plan, PyObject *const *args)
{
    const int found = PyTuple_Check(plan) && PyTuple_Size(plan) == NPLAN
                          ? is_for(plan, args[NAMED])
                          : 0;
    if (found <= 0) {
        return found < 0 ? NULL : Py_NewRef(Py_NotImplemented);
    }
    PyObject *inputs = planned_inputs(plan, args[NAMED]);
    PyObject *const update[] = {
        args[PTORCH], args[RECORDED], PyTuple_GetItem(plan, GUFUNC),
        inputs,       args[STATES],   args[INDICES]};
    PyObject *result = inputs == NULL ? NULL : la_tensor_update(NULL, update, NPLANNED);
    Py_XDECREF(inputs);
    return result;
}

PyObject *
la_tensor_planned(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != NPLANNED || !PyTuple_Check(args[PLANS]) ||
        !PyDict_Check(args[NAMED])) {
        PyErr_SetString(PyExc_TypeError,
                        "expected a tuple, a bool, a tuple of plans, a "
                        "dict, a tuple and a tensor or None");
        return NULL;
    }
    PyObject *result = Py_NewRef(Py_NotImplemented);
    const Py_ssize_t count = PyTuple_Size(args[PLANS]);
    for (Py_ssize_t i = 0; result == Py_NotImplemented && i < count; i++) {
        Py_DECREF(result);
        result = by_plan(PyTuple_GetItem(args[PLANS], i), args);
    }
    return result;
}
