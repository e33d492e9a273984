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

struct la_dl_exchange {
    uint32_t major, minor;
    const struct la_dl_exchange *before;
    void (*unused[3])(void); /* to allocate tensors, and to own their memory */
    /* Describes a tensor, while that is not used: 0, or -1 with an exception. */
    int (*describe)(void *x, struct la_dl_tensor *tensor);
};

#endif
