/* xla.c: see xla.h.
 *
 * One handler serves all operators: the attribute "operator" is a gufunc's name, the
 * arguments are its arrays and indices in the order of its form, "numbers" its numbers.
 * It needs no Python: XLA's threads call it, and la_call raises nothing. */
#include "xla.h"

#ifdef LA_HAS_XLA

#include <stdlib.h>
#include <string.h>
#include <xla/ffi/api/c_api.h>

#include "call.h"
#include "gufunc.h"

enum { MOST_RANK = 32 };

/* The operands of a call as they are read. */
struct operands {
    const struct la_form *form;
    struct la_operation what;
    struct la_tensor x[LA_MAX_OPERANDS];
    ptrdiff_t shape[LA_MAX_OPERANDS][MOST_RANK], strides[LA_MAX_OPERANDS][MOST_RANK];
    union {
        float f;
        double d;
    } numbers[LA_MAX_OPERANDS];
    ptrdiff_t *indices[LA_MAX_OPERANDS]; /* widened from 32 bits; to be freed */
};

static const char no_memory[] = "linattn: no room for the call";

static XLA_FFI_Error *
fail(const XLA_FFI_CallFrame *frame, const char *message)
{
    XLA_FFI_Error_Create_Args args = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
        .message = message,
        .errc = message == no_memory ? XLA_FFI_Error_Code_RESOURCE_EXHAUSTED
                                     : XLA_FFI_Error_Code_INVALID_ARGUMENT,
    };
    return frame->api->XLA_FFI_Error_Create(&args);
}

/* The attribute of that name and type, or NULL. */
static const void *
attribute(const XLA_FFI_CallFrame *frame, const char *name, XLA_FFI_AttrType type)
{
    const size_t length = strlen(name);
    for (int64_t i = 0; i < frame->attrs.size; i++) {
        const XLA_FFI_ByteSpan *key = frame->attrs.names[i];
        if (key->len == length && memcmp(key->ptr, name, length) == 0) {
            return frame->attrs.types[i] == type ? frame->attrs.attrs[i] : NULL;
        }
    }
    return NULL;
}

/* What the dtype of the first operand makes of a call; -1 where it is none of ours. */
static int
read_dtype(struct la_operation *what, XLA_FFI_DataType dtype)
{
    what->dtype = dtype == XLA_FFI_DataType_F64 ? LA_F64 : LA_F32;
    what->type = dtype == XLA_FFI_DataType_F16    ? LA_HALF
                 : dtype == XLA_FFI_DataType_BF16 ? LA_BFLOAT
                                                  : LA_NATIVE;
    return dtype == XLA_FFI_DataType_F32 || dtype == XLA_FFI_DataType_F64 ||
                   what->type != LA_NATIVE
               ? 0
               : -1;
}

static XLA_FFI_DataType
expected_dtype(const struct la_operation *what, enum la_operand id)
{
    if (la_is_tokens(id) && what->type != LA_NATIVE) {
        return what->type == LA_HALF ? XLA_FFI_DataType_F16 : XLA_FFI_DataType_BF16;
    }
    return what->dtype == LA_F64 ? XLA_FFI_DataType_F64 : XLA_FFI_DataType_F32;
}

/* Indices of 32 bits, which is what JAX has by default, in our own integers. */
static int
widen(struct operands *c, int i, const XLA_FFI_Buffer *b, ptrdiff_t count)
{
    c->indices[i] = malloc((size_t)(count ? count : 1) * sizeof(ptrdiff_t));
    if (c->indices[i] == NULL) {
        return -1;
    }
    for (ptrdiff_t j = 0; j < count; j++) {
        c->indices[i][j] = ((const int32_t *)b->data)[j];
    }
    c->x[i].data = c->indices[i];
    return 0;
}

/* A buffer as operand i; NULL, or what is wrong with it. */
static const char *
take_buffer(struct operands *c, int i, const XLA_FFI_Buffer *b)
{
    const enum la_operand id = c->form->slots[i].id;
    const int is_index = la_is_index(id);
    const int wide = i >= c->form->nin && c->what.type != LA_NATIVE &&
                     b->dtype == XLA_FFI_DataType_F32; /* as the caller asks for it */
    if (b->rank > MOST_RANK) {
        return "linattn: an operand has too many axes";
    }
    if (is_index ? b->dtype != XLA_FFI_DataType_S32 && b->dtype != XLA_FFI_DataType_S64
                 : !wide && b->dtype != expected_dtype(&c->what, id)) {
        return "linattn: an operand has the wrong dtype";
    }
    const ptrdiff_t itemsize = is_index ? (ptrdiff_t)sizeof(ptrdiff_t)
                               : b->dtype == XLA_FFI_DataType_F64 ? 8
                               : b->dtype == XLA_FFI_DataType_F32 ? 4
                                                                  : 2;
    ptrdiff_t count = 1;
    for (int64_t axis = b->rank - 1; axis >= 0; axis--) {
        c->shape[i][axis] = (ptrdiff_t)b->dims[axis];
        c->strides[i][axis] = count * itemsize;
        count *= (ptrdiff_t)b->dims[axis];
    }
    c->x[i] =
        (struct la_tensor){b->data, (int)b->rank, c->shape[i], c->strides[i], wide};
    if (is_index && b->dtype == XLA_FFI_DataType_S32 && widen(c, i, b, count) < 0) {
        return no_memory;
    }
    return NULL;
}

static void
take_number(struct operands *c, int i, double value)
{
    if (c->what.dtype == LA_F64) {
        c->numbers[i].d = value;
    }
    else {
        c->numbers[i].f = (float)value;
    }
    c->x[i] = (struct la_tensor){.data = &c->numbers[i]};
}

/* Reads all operands; NULL, or what is wrong. */
static const char *
take_operands(struct operands *c, const XLA_FFI_CallFrame *frame,
              const XLA_FFI_Array *numbers)
{
    const struct la_form *form = c->form;
    int64_t arg = 0;
    size_t number = 0;
    if (frame->args.size == 0 || frame->rets.size != form->nout ||
        read_dtype(&c->what, ((const XLA_FFI_Buffer *)frame->args.args[0])->dtype) <
            0) {
        return "linattn: the operands are not those of the operator";
    }
    for (int i = 0; i < form->nin + form->nout; i++) {
        const char *wrong = NULL;
        if (i >= form->nin) {
            wrong = take_buffer(c, i, frame->rets.rets[i - form->nin]);
        }
        else if (la_is_number(form->slots[i].id)) {
            if (number == numbers->size) {
                return "linattn: there are fewer numbers than the operator takes";
            }
            take_number(c, i, ((const double *)numbers->data)[number++]);
        }
        else if (arg == frame->args.size) {
            return "linattn: there are fewer operands than the operator takes";
        }
        else {
            wrong = take_buffer(c, i, frame->args.args[arg++]);
        }
        if (wrong != NULL) {
            return wrong;
        }
    }
    return arg == frame->args.size
               ? NULL
               : "linattn: there are more operands than the operator takes";
}

static XLA_FFI_Error *
execute(const XLA_FFI_CallFrame *frame)
{
    const XLA_FFI_ByteSpan *name =
        attribute(frame, "operator", XLA_FFI_AttrType_STRING);
    const XLA_FFI_Array *numbers = attribute(frame, "numbers", XLA_FFI_AttrType_ARRAY);
    char text[96] = "";
    if (name != NULL && name->len < sizeof(text)) {
        memcpy(text, name->ptr, name->len);
    }
    struct operands c;
    memset(c.indices, 0, sizeof(c.indices));
    c.form = c.what.form = la_gufunc_form(text, &c.what.map);
    if (c.form == NULL || numbers == NULL || numbers->dtype != XLA_FFI_DataType_F64) {
        return fail(frame, "linattn: there is no such operator");
    }
    const char *wrong = take_operands(&c, frame, numbers);
    if (wrong == NULL) {
        const enum la_status status = la_call(&c.what, c.x, NULL);
        wrong = status == LA_DONE        ? NULL
                : status == LA_NO_MEMORY ? no_memory
                                         : "linattn: shapes of operands do not fit";
    }
    for (int i = 0; i < LA_MAX_OPERANDS; i++) {
        free(c.indices[i]);
    }
    return wrong != NULL ? fail(frame, wrong) : NULL;
}

static XLA_FFI_Error *
handler(XLA_FFI_CallFrame *frame)
{
    XLA_FFI_Extension_Base *extension = frame->extension_start;
    if (extension != NULL && extension->type == XLA_FFI_Extension_Metadata) {
        XLA_FFI_Metadata *metadata =
            ((XLA_FFI_Metadata_Extension *)extension)->metadata;
        metadata->api_version.major_version = XLA_FFI_API_MAJOR;
        metadata->api_version.minor_version = XLA_FFI_API_MINOR;
        return NULL;
    }
    return execute(frame);
}

PyObject *
la_xla_handler(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    /* A function pointer in a capsule, as JAX takes it. */
    void *pointer;
    XLA_FFI_Handler *function = handler;
    memcpy(&pointer, &function, sizeof(pointer));
    return PyCapsule_New(pointer, "xla._CUSTOM_CALL_TARGET", NULL);
}

#else

PyObject *
la_xla_handler(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    Py_RETURN_NONE;
}

#endif
