/* xla_python.h: Python functions as custom calls of XLA, for what has no kernel. */
#ifndef LA_XLA_PYTHON_H
#define LA_XLA_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../kernel/table.h"
#include "xla_ffi.h"

enum {
    LA_XLA_RANK = 32,     /* largest number of axes of a buffer */
    LA_XLA_MESSAGE = 512, /* bytes of an error message */
};

extern const char la_xla_no_memory[]; /* the error message that stands for that */

/* Converts XLA's dtype to one that kernels compute in; -1 if it is another. */
static inline int
la_xla_float(enum la_xla_dtype dtype, enum la_dtype *computed)
{
    switch ((int)dtype) {
#define LA_FLOAT(id, name, type, format)                                               \
    case LA_XLA_##id:                                                                  \
        *computed = LA_##id;                                                           \
        return 0;
#include "../kernel/dtypes.def"
    default:
        return -1;
    }
}

/* Calls a Python function.  Returns NULL, or an error message, which may be stored in
 * `message`. */
const char *la_xla_python(const struct la_xla_frame *frame, int64_t function,
                          char *message);

/* Sets what la_xla_python calls with the number of the function and views of the
 * buffers: caller(function, arguments, results). */
void la_xla_set_caller(PyObject *function);

/* xla_finish(): prevents further calls of Python functions, since they must not begin
 * while Python finalizes; returns how many are still running. */
PyObject *la_xla_finish(PyObject *module, PyObject *unused);

#endif
