/* xla.c: see xla.h.
 *
 * One handler serves all operators: the attribute "operator" is a gufunc's name, the
 * arguments are its arrays and indices in the order of its signature, and "numbers" has
 * its numbers.  This needs no Python: XLA's threads call the handler, and la_call
 * raises nothing.  With the attribute "function" instead, the handler calls a Python
 * function (xla_python.c). */
#include "xla.h"

#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "gufunc.h"
#include "xla_python.h"

/* The operands of a call while they are read. */
struct operands {
    const struct la_signature *signature;
    struct la_operation what;
    struct la_tensor x[LA_MAX_OPERANDS];
    ptrdiff_t shape[LA_MAX_OPERANDS][LA_XLA_RANK],
        strides[LA_MAX_OPERANDS][LA_XLA_RANK];
    union la_number numbers[LA_MAX_OPERANDS];
    ptrdiff_t
        *indices[LA_MAX_OPERANDS]; /* widened from 32 bits; freed after the call */
};

static const char unknown_version[] =
    "linattn: XLA's foreign function interface is not the version 0.x that linattn was "
    "built for; install another version of JAX or of linattn";

static struct la_xla_error *
fail(const struct la_xla_frame *frame, const char *message)
{
    struct la_xla_error_args args = {
        .struct_size =
            offsetof(struct la_xla_error_args, code) + sizeof(enum la_xla_code),
        .message = message,
        .code = message == la_xla_no_memory  ? LA_XLA_RESOURCE_EXHAUSTED
                : message == unknown_version ? LA_XLA_UNIMPLEMENTED
                                             : LA_XLA_INVALID_ARGUMENT,
    };
    return frame->api->create_error(&args);
}

/* Whether an error can be created, which is so in every version 0.x. */
static int
can_fail(const struct la_xla_frame *frame)
{
    return LA_XLA_HAS(frame, struct la_xla_frame, api) && frame->api != NULL &&
           LA_XLA_HAS(frame->api, struct la_xla_api, create_error);
}

/* Whether a frame has the layout of xla_ffi.h.  Structs that it contains directly, not
 * by pointer, must have exactly the expected size. */
static int
is_known(const struct la_xla_frame *frame)
{
    return frame->api->version.major == LA_XLA_MAJOR &&
           LA_XLA_HAS(frame, struct la_xla_frame, attributes) &&
           frame->args.struct_size == sizeof(frame->args) &&
           frame->rets.struct_size == sizeof(frame->rets) &&
           frame->attributes.struct_size == sizeof(frame->attributes);
}

/* The attribute of that name and type, or NULL. */
static const void *
attribute(const struct la_xla_frame *frame, const char *name,
          enum la_xla_attribute type)
{
    const size_t length = strlen(name);
    for (int64_t i = 0; i < frame->attributes.size; i++) {
        const struct la_xla_bytes *key = frame->attributes.names[i];
        if (key->size == length && memcmp(key->data, name, length) == 0) {
            return frame->attributes.types[i] == type ? frame->attributes.values[i]
                                                      : NULL;
        }
    }
    return NULL;
}

/* How numbers of a dtype are stored; -1 if no kernel has it. */
static int
read_dtype(enum la_xla_dtype dtype, struct la_storage *x)
{
    x->dtype = dtype == LA_XLA_C128 ? LA_F64 : LA_F32; /* also for tokens of 16 bits */
    x->type = dtype == LA_XLA_F16                           ? LA_HALF
              : dtype == LA_XLA_BF16                        ? LA_BFLOAT
              : dtype == LA_XLA_C64 || dtype == LA_XLA_C128 ? LA_COMPLEX
                                                            : LA_NATIVE;
    return x->type != LA_NATIVE ? 0 : la_xla_float(dtype, &x->dtype);
}

/* Sets the dtypes of a call from that of the first operand; -1 if no kernel has it. */
static int
set_dtype(struct la_operation *what, enum la_xla_dtype dtype)
{
    struct la_storage tokens;
    return read_dtype(dtype, &tokens) < 0 ? -1 : la_operation_set(what, tokens);
}

/* Whether an operand of the call has the expected dtype. */
static int
is_expected(const struct la_operation *what, enum la_operand id,
            enum la_xla_dtype dtype)
{
    const struct la_storage expected = la_operation_storage(what, id);
    struct la_storage x;
    return read_dtype(dtype, &x) == 0 && x.dtype == expected.dtype &&
           x.type == expected.type;
}

/* Converts indices of 32 bits, JAX's default, to ptrdiff_t.  The least one, which marks
 * what states have lost (operands.def), stays the least. */
static int
widen(struct operands *c, int i, const struct la_xla_buffer *b, ptrdiff_t count)
{
    c->indices[i] = malloc((size_t)(count ? count : 1) * sizeof(ptrdiff_t));
    if (c->indices[i] == NULL) {
        return -1;
    }
    for (ptrdiff_t j = 0; j < count; j++) {
        const int32_t index = ((const int32_t *)b->data)[j];
        c->indices[i][j] = index == INT32_MIN ? PTRDIFF_MIN : index;
    }
    c->x[i].data = c->indices[i];
    return 0;
}

/* Reads a buffer as operand i.  Returns NULL, or an error message. */
static const char *
take_buffer(struct operands *c, int i, const struct la_xla_buffer *b)
{
    const enum la_operand id = c->signature->slots[i].id;
    const int is_index = la_is_index(id);
    if (!LA_XLA_HAS(b, struct la_xla_buffer, dims)) {
        return unknown_version;
    }
    const int halved = c->what.type == LA_HALF || c->what.type == LA_BFLOAT;
    const int wide = i >= c->signature->nin && halved &&
                     b->dtype == LA_XLA_F32; /* at the caller's request */
    if (b->rank > LA_XLA_RANK) {
        return "linattn: an operand has too many axes";
    }
    if (is_index ? b->dtype != LA_XLA_S32 && b->dtype != LA_XLA_S64
                 : !wide && !is_expected(&c->what, id, b->dtype)) {
        return "linattn: an operand has the wrong dtype";
    }
    const enum la_type type = wide ? LA_NATIVE : la_type_of(id, c->what.type);
    for (int64_t axis = 0; axis < b->rank; axis++) {
        c->shape[i][axis] = (ptrdiff_t)b->dims[axis];
    }
    const ptrdiff_t count = la_tensor_strides(c->strides[i], c->shape[i], (int)b->rank,
                                              la_operand_size(id, c->what.dtype, type));
    c->x[i] =
        (struct la_tensor){b->data, (int)b->rank, c->shape[i], c->strides[i], wide};
    if (is_index && b->dtype == LA_XLA_S32 && widen(c, i, b, count) < 0) {
        return la_xla_no_memory;
    }
    return NULL;
}

/* Reads all operands.  Returns NULL, or an error message. */
static const char *
take_operands(struct operands *c, const struct la_xla_frame *frame,
              const struct la_xla_array *numbers)
{
    const struct la_signature *signature = c->signature;
    int64_t arg = 0;
    size_t number = 0;
    if (frame->args.size == 0 || frame->rets.size != signature->nout ||
        set_dtype(&c->what,
                  ((const struct la_xla_buffer *)frame->args.buffers[0])->dtype) < 0) {
        return "linattn: the operands do not match the operator";
    }
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const char *wrong = NULL;
        if (i >= signature->nin) {
            wrong = take_buffer(c, i, frame->rets.buffers[i - signature->nin]);
        }
        else if (la_is_number(signature->slots[i].id)) {
            if (number == numbers->size) {
                return "linattn: there are fewer numbers than the operator takes";
            }
            c->x[i] = la_tensor_number(&c->what, &c->numbers[i],
                                       ((const double *)numbers->data)[number++]);
        }
        else if (arg == frame->args.size) {
            return "linattn: there are fewer operands than the operator takes";
        }
        else {
            wrong = take_buffer(c, i, frame->args.buffers[arg++]);
        }
        if (wrong != NULL) {
            return wrong;
        }
    }
    return arg == frame->args.size
               ? NULL
               : "linattn: there are more operands than the operator takes";
}

/* Calls an operator.  Returns NULL, or an error message. */
static const char *
call_operator(const struct la_xla_frame *frame)
{
    const struct la_xla_bytes *name = attribute(frame, "operator", LA_XLA_STRING);
    const struct la_xla_array *numbers = attribute(frame, "numbers", LA_XLA_ARRAY);
    char text[96] = "";
    if (name != NULL && name->size < sizeof(text)) {
        memcpy(text, name->data, name->size);
    }
    struct operands c;
    memset(c.indices, 0, sizeof(c.indices));
    c.what.rows = NULL;
    c.signature = c.what.signature = la_gufunc_signature(text, &c.what.map);
    if (c.signature == NULL || numbers == NULL || numbers->dtype != LA_XLA_F64) {
        return "linattn: there is no such operator";
    }
    const char *wrong = take_operands(&c, frame, numbers);
    if (wrong == NULL) {
        const enum la_status status = la_call(&c.what, c.x, NULL);
        wrong = status == LA_DONE        ? NULL
                : status == LA_NO_MEMORY ? la_xla_no_memory
                : status == LA_OVERLAP
                    ? "linattn: packed sequences share tokens"
                    : "linattn: the shapes of the operands do not match";
    }
    for (int i = 0; i < LA_MAX_OPERANDS; i++) {
        free(c.indices[i]);
    }
    return wrong;
}

static struct la_xla_error *
execute(const struct la_xla_frame *frame)
{
    if (!is_known(frame)) {
        return fail(frame, unknown_version);
    }
    const struct la_xla_scalar *function = attribute(frame, "function", LA_XLA_SCALAR);
    char message[LA_XLA_MESSAGE];
    const char *wrong =
        function != NULL && function->dtype == LA_XLA_S64
            ? la_xla_python(frame, *(const int64_t *)function->value, message)
            : call_operator(frame);
    return wrong != NULL ? fail(frame, wrong) : NULL;
}

/* XLA asks for the handler's version when a handler is registered.  This answers with
 * XLA's own: a refusal would prevent JAX from starting on CPUs at all, and execute()
 * refuses frames with an unknown layout. */
static void
report_version(const struct la_xla_frame *frame)
{
    struct la_xla_metadata *metadata =
        ((struct la_xla_metadata_extension *)frame->extension)->metadata;
    if (can_fail(frame) && LA_XLA_HAS(metadata, struct la_xla_metadata, version)) {
        metadata->version.major = frame->api->version.major;
        metadata->version.minor = frame->api->version.minor;
    }
}

static struct la_xla_error *
handler(struct la_xla_frame *frame)
{
    if (frame->extension != NULL && frame->extension->type == LA_XLA_METADATA) {
        report_version(frame);
        return NULL;
    }
    return can_fail(frame) ? execute(frame) : NULL;
}

PyObject *
la_xla_handler(PyObject *Py_UNUSED(module), PyObject *caller)
{
    la_xla_set_caller(caller);
    /* JAX takes the function pointer in a capsule. */
    void *pointer;
    la_xla_function *function = handler;
    memcpy(&pointer, &function, sizeof(pointer));
    return PyCapsule_New(pointer, "xla._CUSTOM_CALL_TARGET", NULL);
}
