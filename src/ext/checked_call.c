/* checked_call.c: see checked_call.h.  All is checked before a kernel runs, except
 * whether the memory that an array describes exists. */
#include "checked_call.h"

#include <stdint.h>

#include "aliases.h"
#include "pool.h"

/* The operands of a call while they are read. */
struct operands {
    const struct la_operation *what;
    struct la_tensor x[LA_MAX_OPERANDS];
    ptrdiff_t strides[LA_MAX_OPERANDS][LINATTN_MAX_NDIM];
    union la_number numbers[LA_MAX_OPERANDS];
};

static const struct la_storage storages[] = {
    [LINATTN_FLOAT16] = {LA_F32, LA_HALF},
    [LINATTN_BFLOAT16] = {LA_F32, LA_BFLOAT},
    [LINATTN_FLOAT32] = {LA_F32, LA_NATIVE},
    [LINATTN_FLOAT64] = {LA_F64, LA_NATIVE},
    [LINATTN_COMPLEX64] = {LA_F32, LA_COMPLEX},
    [LINATTN_COMPLEX128] = {LA_F64, LA_COMPLEX},
};

int
la_storage_of(int dtype, struct la_storage *storage)
{
    if (dtype < LINATTN_FLOAT16 || dtype > LINATTN_COMPLEX128) {
        return -1;
    }
    *storage = storages[dtype];
    return 0;
}

int
la_dtype_of(struct la_storage storage)
{
    int dtype = LINATTN_COMPLEX128;
    while (dtype != LINATTN_LEFT_OUT && (storages[dtype].dtype != storage.dtype ||
                                         storages[dtype].type != storage.type)) {
        dtype--;
    }
    return dtype;
}

/* *total += size * step, both at least 0; -1 if that is too large. */
static int
add_product(ptrdiff_t *total, ptrdiff_t size, ptrdiff_t step)
{
    ptrdiff_t product;
    return __builtin_mul_overflow(size, step, &product) ||
                   __builtin_add_overflow(*total, product, total)
               ? -1
               : 0;
}

/* Whether an array has sizes that NumPy would accept: without those that are 0, their
 * product fits. */
static int
has_sizes(const linattn_array *a, ptrdiff_t itemsize)
{
    ptrdiff_t bytes = itemsize;
    int fits = a->ndim >= 0 && a->ndim <= LINATTN_MAX_NDIM &&
               (a->ndim == 0 || a->shape != NULL);
    for (int axis = 0; fits && axis < a->ndim; axis++) {
        const ptrdiff_t size = a->shape[axis];
        fits = size >= 0 && (size == 0 || !__builtin_mul_overflow(bytes, size, &bytes));
    }
    return fits;
}

/* Checks where an array lies that is not empty. */
static int
check_memory(const struct la_tensor *x, ptrdiff_t itemsize, ptrdiff_t alignment)
{
    const uintptr_t data = (uintptr_t)x->data;
    ptrdiff_t before = 0, after = itemsize;
    int aligned = data % (uintptr_t)alignment == 0;
    for (int axis = 0; axis < x->ndim; axis++) {
        const ptrdiff_t steps = x->shape[axis] - 1, stride = x->strides[axis];
        if (steps == 0) {
            continue;
        }
        aligned = aligned && stride % alignment == 0;
        if (stride < -PTRDIFF_MAX || add_product(stride < 0 ? &before : &after, steps,
                                                 stride < 0 ? -stride : stride) < 0) {
            return LINATTN_BAD_POINTER;
        }
    }
    if (data == 0 || (uintptr_t)before > data ||
        (uintptr_t)after > UINTPTR_MAX - data || before > PTRDIFF_MAX - after) {
        return LINATTN_BAD_POINTER;
    }
    return aligned ? LINATTN_OK : LINATTN_BAD_ALIGNMENT;
}

static int
take_array(struct operands *c, int i, const linattn_array *a)
{
    const enum la_operand id = c->what->signature->slots[i].id;
    const struct la_storage storage = la_operation_storage(c->what, id);
    const ptrdiff_t itemsize = la_operand_size(id, storage.dtype, storage.type);
    const ptrdiff_t parts = storage.type == LA_COMPLEX && !la_is_index(id) ? 2 : 1;
    if (a->dtype != (la_is_index(id) ? LINATTN_INDEX : la_dtype_of(storage))) {
        return LINATTN_BAD_DTYPE;
    }
    if (!has_sizes(a, itemsize)) {
        return LINATTN_BAD_SHAPE;
    }
    const ptrdiff_t *strides = a->strides != NULL ? a->strides : c->strides[i];
    int empty = 0;
    for (int axis = 0; axis < a->ndim; axis++) {
        empty |= a->shape[axis] == 0;
        c->strides[i][axis] = 0; /* of an empty array: no element is at any */
    }
    if (empty) {
        strides = c->strides[i];
    }
    else if (a->strides == NULL) {
        la_tensor_strides(c->strides[i], a->shape, a->ndim, itemsize);
    }
    c->x[i] = (struct la_tensor){a->data, a->ndim, a->shape, strides, 0};
    return empty ? LINATTN_OK : check_memory(&c->x[i], itemsize, itemsize / parts);
}

static int
take(struct operands *c, int i, const linattn_array *a)
{
    const struct la_signature *signature = c->what->signature;
    if (a->dtype == LINATTN_LEFT_OUT) {
        c->x[i] = (struct la_tensor){.ndim = -1};
        return la_may_lack(signature, i) ? LINATTN_OK : LINATTN_MISSING;
    }
    if (a->dtype == LINATTN_NUMBER) {
        c->x[i] = la_tensor_number(c->what, &c->numbers[i], a->number);
        return la_is_number(signature->slots[i].id) ? LINATTN_OK : LINATTN_BAD_DTYPE;
    }
    const int status = take_array(c, i, a);
    if (status != LINATTN_OK || i < signature->nin) {
        return status;
    }
    const enum la_operand id = signature->slots[i].id;
    const struct la_storage storage = la_operation_storage(c->what, id);
    const int shared =
        la_overlaps_itself(&c->x[i], la_operand_size(id, storage.dtype, storage.type));
    return shared < 0 ? LINATTN_NO_MEMORY : shared ? LINATTN_OVERLAP : LINATTN_OK;
}

/* Reads all operands, the first of which has the dtype of the call. */
static int
take_all(struct operands *c, struct la_operation *what, const linattn_array *operands,
         int count)
{
    const struct la_signature *signature = what->signature;
    struct la_storage tokens;
    int status = LINATTN_OK;
    if (operands == NULL || count != signature->nin + signature->nout) {
        return LINATTN_BAD_COUNT;
    }
    if (operands[0].dtype == LINATTN_LEFT_OUT) {
        return LINATTN_MISSING;
    }
    if (la_storage_of(operands[0].dtype, &tokens) < 0 ||
        la_operation_set(what, tokens) < 0) {
        return LINATTN_BAD_DTYPE;
    }
    c->what = what;
    for (int i = 0; status == LINATTN_OK && i < count; i++) {
        status = take(c, i, &operands[i]);
    }
    return status;
}

static int
status_of(enum la_status status)
{
    return status == LA_DONE        ? LINATTN_OK
           : status == LA_NO_MEMORY ? LINATTN_NO_MEMORY
           : status == LA_BAD_SHAPE ? LINATTN_BAD_SHAPE
           : status == LA_OVERLAP   ? LINATTN_SHARED_TOKENS
                                    : LINATTN_FAILED;
}

int
la_checked_call(struct la_operation *what, const linattn_array *operands, int count,
                int threads)
{
    struct operands c;
    struct la_call call;
    void *copies[LA_MAX_OPERANDS] = {NULL};
    if (threads < 0 || threads > LA_MAX_THREADS) {
        return LINATTN_BAD_THREADS;
    }
    int status = take_all(&c, what, operands, count);
    if (status == LINATTN_OK) {
        status = status_of(la_call_prepare(&call, what, c.x));
    }
    if (status != LINATTN_OK) {
        return status;
    }
    if (la_outputs_meet(&call)) {
        return LINATTN_OVERLAP;
    }
    if (la_aliases_copy(&call, 1, copies) < 0) {
        status = LINATTN_NO_MEMORY;
    }
    else {
        const long held =
            la_pool_hold_threads(threads > 0 ? threads : la_pool_get_num_threads());
        status = status_of(la_run(&call, NULL));
        la_pool_hold_threads(held);
    }
    la_aliases_free(&call, copies);
    return status;
}
