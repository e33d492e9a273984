/* xla.h: operators as custom calls of XLA, the compiler of JAX. */
#ifndef LA_XLA_H
#define LA_XLA_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../kernel/table.h"
#include "xla_ffi.h"

enum {
    LA_XLA_RANK = 32,     /* largest number of axes of a buffer */
    LA_XLA_MESSAGE = 512, /* bytes of an error message */
};

/* xla_handler(caller): a capsule of the handler that XLA calls.  A call with the
 * attribute "function", a number, becomes caller(function, arguments, results), with
 * memoryviews of all arrays; caller returns None, or an error message. */
PyObject *la_xla_handler(PyObject *module, PyObject *caller);

/* xla_finish(): prevents further calls of Python functions, since they must not begin
 * while Python finalizes; returns how many are still running. */
PyObject *la_xla_finish(PyObject *module, PyObject *unused);

/* Converts XLA's dtype to one that kernels compute in; -1 if it is another. */
int la_xla_float(enum la_xla_dtype dtype, enum la_dtype *computed);

extern const char la_xla_no_memory[];

/* Calls a Python function.  Returns NULL, or an error message, which may be stored in
 * `message`. */
const char *la_xla_python(const struct la_xla_frame *frame, int64_t function,
                          char *message);

void la_xla_set_caller(PyObject *function);

#endif
