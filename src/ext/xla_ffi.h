/* xla_ffi.h: the part of XLA's foreign function interface that xla.c uses.
 *
 * The interface is a stable C ABI with a version.  A minor version only adds fields at
 * the end of a struct, and every struct begins with the size that its writer knew, so a
 * reader checks sizes (LA_XLA_HAS) before it reads.  Fields after the last one declared
 * here are not used. tests/jax/test_xla_ffi.py compares this file with the header that
 * jaxlib installs. */
#ifndef LA_XLA_FFI_H
#define LA_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

enum { LA_XLA_MAJOR = 0 };

/* Whether the struct that p points to is large enough for a field. */
#define LA_XLA_HAS(p, type, field)                                                     \
    ((p)->struct_size >= offsetof(type, field) + sizeof(((type *)0)->field))

enum la_xla_dtype {
    LA_XLA_S32 = 4,
    LA_XLA_S64 = 5,
    LA_XLA_F16 = 10,
    LA_XLA_F32 = 11,
    LA_XLA_F64 = 12,
    LA_XLA_C64 = 15,
    LA_XLA_BF16 = 16,
    LA_XLA_C128 = 18,
};

enum la_xla_code {
    LA_XLA_INVALID_ARGUMENT = 3,
    LA_XLA_RESOURCE_EXHAUSTED = 8,
    LA_XLA_UNIMPLEMENTED = 12,
};

/* The kind of an argument or result. */
enum la_xla_kind { LA_XLA_BUFFER = 1 };

enum la_xla_attribute { LA_XLA_ARRAY = 1, LA_XLA_SCALAR = 3, LA_XLA_STRING = 4 };

enum la_xla_extension_kind { LA_XLA_METADATA = 1 };

/* Optional requests to a handler; the only one used here asks for its metadata. */
struct la_xla_extension {
    size_t struct_size;
    enum la_xla_extension_kind type;
    struct la_xla_extension *next;
};

struct la_xla_version {
    size_t struct_size;
    struct la_xla_extension *extension;
    int major, minor;
};

struct la_xla_metadata {
    size_t struct_size;
    struct la_xla_version version; /* to be filled in */
};

struct la_xla_metadata_extension {
    struct la_xla_extension base;
    struct la_xla_metadata *metadata;
};

struct la_xla_error; /* opaque */

struct la_xla_error_args {
    size_t struct_size;
    struct la_xla_extension *extension;
    const char *message;
    enum la_xla_code code;
};

struct la_xla_api {
    size_t struct_size;
    struct la_xla_extension *extension;
    struct la_xla_version version;
    const void *internal;
    struct la_xla_error *(*create_error)(struct la_xla_error_args *);
};

/* A dense array in row-major order. */
struct la_xla_buffer {
    size_t struct_size;
    struct la_xla_extension *extension;
    enum la_xla_dtype dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
};

/* The arguments or the results of a call. */
struct la_xla_buffers {
    size_t struct_size;
    struct la_xla_extension *extension;
    int64_t size;
    enum la_xla_kind *types;
    void **buffers;
};

struct la_xla_bytes { /* not NUL-terminated */
    const char *data;
    size_t size;
};

struct la_xla_scalar {
    enum la_xla_dtype dtype;
    void *value;
};

struct la_xla_array {
    enum la_xla_dtype dtype;
    size_t size;
    void *data;
};

struct la_xla_attributes {
    size_t struct_size;
    struct la_xla_extension *extension;
    int64_t size;
    enum la_xla_attribute *types;
    struct la_xla_bytes **names;
    void **values;
};

struct la_xla_frame {
    size_t struct_size;
    struct la_xla_extension *extension;
    const struct la_xla_api *api;
    void *context;
    int stage;
    struct la_xla_buffers args, rets;
    struct la_xla_attributes attributes;
};

typedef struct la_xla_error *la_xla_function(struct la_xla_frame *);

#endif
