/* c_api.c: see c_api.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "c_api.h"

#include <string.h>

#include "checked_call.h"
#include "gufunc_object.h"

/* The operators of linattn.ufuncs: a name with an underscore in front is that of a step
 * that updates its state, as any call does whose state after the tokens is the array of
 * the one before them. */
static const struct la_gufunc *operators[LA_NGUFUNCS];
static int noperators;

static const struct la_signature *
signature_of(int op)
{
    return op >= 0 && op < noperators ? operators[op]->signature : NULL;
}

static int
count(void)
{
    return noperators;
}

static const char *
name_of(int op)
{
    return signature_of(op) != NULL ? operators[op]->name : NULL;
}

static int
find(const char *name)
{
    int op = name != NULL ? noperators - 1 : -1;
    while (op >= 0 && strcmp(operators[op]->name, name) != 0) {
        op--;
    }
    return op;
}

static int
count_operands(int op)
{
    const struct la_signature *signature = signature_of(op);
    return signature != NULL ? signature->nin + signature->nout : -1;
}

static int
find_operand(int op, const char *name)
{
    const int n = name != NULL ? count_operands(op) : -1;
    for (int place = 0; place < n; place++) {
        if (strcmp(la_operands[signature_of(op)->slots[place].id].name, name) == 0) {
            return place;
        }
    }
    return -1;
}

static int
describe(int op, int place, linattn_operand *operand)
{
    const struct la_signature *signature = signature_of(op);
    if (place < 0 || place >= count_operands(op) || operand == NULL) {
        return LINATTN_BAD_OPERATOR;
    }
    const struct la_slot *slot = &signature->slots[place];
    _Static_assert(2 * LA_MAX_RANK <= sizeof(operand->dims), "letters and commas");
    *operand = (linattn_operand){.name = la_operands[slot->id].name,
                                 .is_output = place >= signature->nin,
                                 .is_number = la_is_number(slot->id),
                                 .may_lack = la_may_lack(signature, place)};
    for (int i = 0; i < slot->rank; i++) {
        operand->dims[2 * i] = slot->dims[i];
        operand->dims[2 * i + 1] = i + 1 < slot->rank ? ',' : '\0';
    }
    return LINATTN_OK;
}

static int
dtype_of(int op, int place, int first)
{
    struct la_operation what = {.signature = signature_of(op)};
    struct la_storage tokens;
    if (place < 0 || place >= count_operands(op) || la_storage_of(first, &tokens) < 0 ||
        la_operation_set(&what, tokens) < 0) {
        return LINATTN_LEFT_OUT;
    }
    const enum la_operand id = what.signature->slots[place].id;
    return la_is_index(id) ? LINATTN_INDEX
                           : la_dtype_of(la_operation_storage(&what, id));
}

static int
call(int op, const linattn_array *operands, int n, int threads)
{
    struct la_operation what = {.signature = signature_of(op)};
    if (what.signature == NULL) {
        return LINATTN_BAD_OPERATOR;
    }
    what.map = operators[op]->map;
    return la_checked_call(&what, operands, n, threads);
}

static const char *
status_text(int status)
{
    static const char *const texts[] = {
        [LINATTN_OK] = "done",
        [LINATTN_NO_MEMORY] = "out of memory",
        [LINATTN_BAD_OPERATOR] = "there is no such operator, or no such operand",
        [LINATTN_BAD_COUNT] = "the operator has another number of operands",
        [LINATTN_BAD_THREADS] = "the number of threads is not 0 to 1024",
        [LINATTN_MISSING] = "an operand is left out that the operator needs",
        [LINATTN_BAD_DTYPE] = "an operand has a dtype that this call does not take",
        [LINATTN_BAD_SHAPE] = "the shapes of the operands do not match",
        [LINATTN_BAD_POINTER] = "an operand is NULL, or no memory can hold it",
        [LINATTN_BAD_ALIGNMENT] = "a pointer or stride is not aligned to its dtype",
        [LINATTN_OVERLAP] = "elements of outputs share memory",
        [LINATTN_SHARED_TOKENS] = "packed sequences share tokens",
        [LINATTN_FAILED] = "linattn failed; please report this",
    };
    const int known = status >= 0 && status < (int)(sizeof(texts) / sizeof(texts[0]));
    return known ? texts[status] : "unknown status";
}

static const linattn_api api = {
    .size = sizeof(api),
    .major = LINATTN_API_MAJOR,
    .minor = LINATTN_API_MINOR,
    .count = count,
    .name = name_of,
    .find = find,
    .operands = count_operands,
    .place = find_operand,
    .operand = describe,
    .dtype = dtype_of,
    .call = call,
    .status_text = status_text,
};

int
la_c_api_add(PyObject *module)
{
    const struct la_gufunc *g;
    const int known = noperators > 0;
    for (int i = 0; !known && (g = la_gufunc_at(i)) != NULL; i++) {
        const int properties = la_operators[g->signature->op].properties;
        if (!(properties & LA_INTERNAL) && g->name[0] != '_') {
            operators[noperators++] = g;
        }
    }
    PyObject *capsule = PyCapsule_New((void *)(uintptr_t)&api, LINATTN_CAPSULE, NULL);
    const int status = PyModule_AddObjectRef(module, "_C_API", capsule);
    Py_XDECREF(capsule);
    return status;
}
