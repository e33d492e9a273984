/* number.h: numbers of the dtypes that kernels compute in (dtypes.def). */
#ifndef LA_NUMBER_H
#define LA_NUMBER_H

#include <stddef.h>
#include <string.h>

#include "../kernel/table.h"

/* A number of any of these dtypes. */
union la_number {
#define LA_FLOAT(id, name, type, format) type name;
#include "../kernel/dtypes.def"
};

/* Bytes per number. */
static inline ptrdiff_t
la_number_size(enum la_dtype dtype)
{
    static const unsigned char sizes[LA_NDTYPES] = {
#define LA_FLOAT(id, name, type, format) sizeof(type),
#include "../kernel/dtypes.def"
    };
    return sizes[dtype];
}

/* Bytes per number of an operand of that type, in a call of that dtype. */
static inline ptrdiff_t
la_stored_size(enum la_dtype dtype, enum la_type type)
{
    return la_type_size(type, la_number_size(dtype));
}

/* The format character of Python's buffers. */
static inline const char *
la_number_format(enum la_dtype dtype)
{
    static const char *const formats[LA_NDTYPES] = {
#define LA_FLOAT(id, name, type, format) format,
#include "../kernel/dtypes.def"
    };
    return formats[dtype];
}

/* The number at p, which may be unaligned. */
static inline double
la_number_read(enum la_dtype dtype, const void *p)
{
    union la_number x;
    memcpy(&x, p, (size_t)la_number_size(dtype));
    switch (dtype) {
#define LA_FLOAT(id, name, type, format)                                               \
    case LA_##id:                                                                      \
        return (double)x.name;
#include "../kernel/dtypes.def"
    case LA_NDTYPES:
        break;
    }
    return 0;
}

/* x rounded to the dtype. */
static inline union la_number
la_number_of(enum la_dtype dtype, double x)
{
    union la_number y;
    memset(&y, 0, sizeof(y));
    switch (dtype) {
#define LA_FLOAT(id, name, type, format)                                               \
    case LA_##id:                                                                      \
        y.name = (type)x;                                                              \
        break;
#include "../kernel/dtypes.def"
    case LA_NDTYPES:
        break;
    }
    return y;
}

#endif
