/* loop.c: NumPy's loops of a gufunc, one for each dtype of its tokens. */
#include "numpy_api.h"

#include <string.h>

#include "aliases.h"
#include "gufunc_object.h"
#include "run.h"

const struct la_loop_kind la_loop_kinds[LA_NLOOPS] = {
    [LA_LOOP_HALF] = {NPY_HALF, NPY_FLOAT, NPY_FLOAT, LA_F32, LA_HALF},
    [LA_LOOP_SINGLE] = {NPY_FLOAT, NPY_FLOAT, NPY_FLOAT, LA_F32, LA_NATIVE},
    [LA_LOOP_DOUBLE] = {NPY_DOUBLE, NPY_DOUBLE, NPY_DOUBLE, LA_F64, LA_NATIVE},
    [LA_LOOP_BFLOAT] = {NPY_NOTYPE, NPY_FLOAT, NPY_FLOAT, LA_F32, LA_BFLOAT},
    [LA_LOOP_CSINGLE] = {NPY_CFLOAT, NPY_CFLOAT, NPY_FLOAT, LA_F32, LA_COMPLEX},
    [LA_LOOP_CDOUBLE] = {NPY_CDOUBLE, NPY_CDOUBLE, NPY_DOUBLE, LA_F64, LA_COMPLEX},
};

/* NumPy's type number of bfloat16, once it was added. */
static int bfloat16 = NPY_NOTYPE;

int
la_loop_exists(const struct la_gufunc *g, enum la_loop loop)
{
    if (la_loop_kinds[loop].type == LA_COMPLEX) {
        return (la_operators[g->signature->op].properties & LA_TAKES_COMPLEX) != 0;
    }
    return loop != LA_LOOP_BFLOAT || bfloat16 != NPY_NOTYPE;
}

int
la_bfloat16(void)
{
    return bfloat16;
}

int
la_loop_add_bfloat16(int type)
{
    const int known = bfloat16 != NPY_NOTYPE;
    bfloat16 = type;
    return !known;
}

int
la_loop_type(const struct la_gufunc *g, enum la_loop loop, int i)
{
    const enum la_operand id = g->signature->slots[i].id;
    const struct la_loop_kind *kind = &la_loop_kinds[loop];
    if (la_is_index(id)) {
        return NPY_INTP;
    }
    if (!la_is_tokens(id)) {
        return la_is_number(id) ? kind->numbers : kind->states;
    }
    return loop == LA_LOOP_BFLOAT ? bfloat16 : kind->tokens;
}

int
la_loop_find(const struct la_gufunc *g, int type, enum la_loop *loop)
{
    for (int i = 0; i < LA_NLOOPS; i++) {
        *loop = (enum la_loop)i;
        if (la_loop_exists(g, *loop) && la_loop_type(g, *loop, 0) == type) {
            return 1;
        }
    }
    return 0;
}

/* One inner loop, in NumPy's calling convention; called with the GIL. */
static int
run_loop(PyArrayMethod_Context *context, char *const *data, const npy_intp *dimensions,
         const npy_intp *steps, NpyAuxData *Py_UNUSED(unused))
{
    const struct la_gufunc *g = la_gufunc_of(context->caller);
    enum la_loop loop;
    la_loop_find(g, context->descriptors[0]->type_num, &loop); /* it is one of them */
    const struct la_signature *signature = g->signature;
    const int elementwise = la_operators[signature->op].properties & LA_ELEMENTWISE;
    const int count = signature->nin + signature->nout;
    const npy_intp *core = steps + count;
    struct la_call call = {.signature = signature,
                           .map = g->map,
                           .dtype = la_loop_kinds[loop].dtype,
                           .axes = !elementwise,
                           .extent = {dimensions[0]}};
    memcpy(call.dims, dimensions + !elementwise,
           (size_t)signature->ndims * sizeof(npy_intp));
    for (int i = 0; i < count; i++) {
        call.x[i].data = data[i];
        call.x[i].type = la_type_of(signature->slots[i].id, la_loop_kinds[loop].type);
        if (elementwise) { /* NumPy's loop is the only dimension */
            call.x[i].core[0] = steps[i];
            continue;
        }
        call.x[i].outer[0] = steps[i];
        for (int j = 0; j < signature->slots[i].rank; j++) {
            call.x[i].core[j] = *core++;
        }
    }
    void *copies[LA_MAX_OPERANDS] = {NULL};
    int status = -1;
    /* NumPy copies inputs itself, except if input and output are the same array: it
     * assumes that a gufunc reads all of its operands before it writes. */
    if (!elementwise && la_aliases_copy(&call, 0, copies) < 0) {
        PyErr_NoMemory();
    }
    else {
        status = la_run_python(&call);
    }
    la_aliases_free(&call, copies);
    return status;
}

/* The loop requires the GIL, and la_run_python releases it: NumPy would decide by the
 * size of the outputs alone, which does not reflect the work if they are small. */
int
la_loop_add(PyObject *gufunc, const struct la_gufunc *g, enum la_loop loop)
{
    if (!la_loop_exists(g, loop)) {
        return 0;
    }
    PyArray_DTypeMeta *dtypes[LA_MAX_OPERANDS];
    PyType_Slot slots[] = {{NPY_METH_strided_loop, (void *)run_loop}, {0, NULL}};
    const int count = g->signature->nin + g->signature->nout;
    PyArrayMethod_Spec spec = {
        .name = g->name,
        .nin = g->signature->nin,
        .nout = g->signature->nout,
        .casting = NPY_NO_CASTING,
        .flags = NPY_METH_REQUIRES_PYAPI | NPY_METH_NO_FLOATINGPOINT_ERRORS,
        .dtypes = dtypes,
        .slots = slots,
    };
    for (int i = 0; i < count; i++) {
        PyArray_Descr *descr = PyArray_DescrFromType(la_loop_type(g, loop, i));
        /* NumPy keeps the type alive. */
        dtypes[i] = (PyArray_DTypeMeta *)Py_TYPE((PyObject *)descr);
        Py_DECREF(descr);
    }
    return PyUFunc_AddLoopFromSpec(gufunc, &spec);
}
