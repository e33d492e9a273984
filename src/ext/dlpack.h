/* dlpack.h: what is used of DLPack's exchange of tensors between libraries in C.
 *
 * The layout is that of major version 1 (github.com/dmlc/dlpack).  A class of tensors
 * has the table in a capsule, its attribute __dlpack_c_exchange_api__. */
#ifndef LA_DLPACK_H
#define LA_DLPACK_H

#include <stdint.h>

#define LA_DL_CAPSULE "dlpack_exchange_api"

enum { LA_DL_MAJOR = 1, LA_DL_CPU = 1 };

/* Sizes and strides are in elements; there are none if there are no axes. */
struct la_dl_tensor {
    void *data;
    int32_t device, device_number;
    int32_t axes;
    uint8_t dtype_code, dtype_bits;
    uint16_t dtype_lanes;
    const int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct la_dl_owned; /* a tensor, and how to free it */

struct la_dl_exchange {
    uint32_t major, minor;
    const struct la_dl_exchange *before;
    /* A new tensor of the shape, dtype and device of another: 0; or, after a call of
     * `fail`, another number. */
    int (*allocate)(const struct la_dl_tensor *like, struct la_dl_owned **tensor,
                    void *context,
                    void (*fail)(void *context, const char *kind, const char *message));
    void (*unused)(void);
    /* An object of a tensor, which it takes over: 0, or -1 with an exception. */
    int (*wrap)(struct la_dl_owned *tensor, void **object);
    /* Describes a tensor, while that is not used: 0, or -1 with an exception. */
    int (*describe)(void *x, struct la_dl_tensor *tensor);
};

#endif
