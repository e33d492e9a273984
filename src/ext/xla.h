/* xla.h: operators as custom calls of XLA, the compiler of JAX. */
#ifndef LA_XLA_H
#define LA_XLA_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../kernel/table.h"
#include "xla_ffi.h"

enum {
    LA_XLA_RANK = 32,     /* most axes of a buffer */
    LA_XLA_MESSAGE = 512, /* bytes of an error's text */
};

/* xla_handler(caller): a capsule of the handler that XLA calls.  A call with the
 * attribute "function", a number, is caller(function, arguments, results), with
 * memoryviews of all arrays; caller returns None, or a message in words. */
PyObject *la_xla_handler(PyObject *module, PyObject *caller);

/* xla_finish(): lets no more functions of Python begin, as they may not where Python
 * ends, and tells how many still run. */
PyObject *la_xla_finish(PyObject *module, PyObject *unused);

/* XLA's name of a dtype that kernels compute in as ours; -1 where it is none. */
int la_xla_float(enum la_xla_dtype dtype, enum la_dtype *computed);

extern const char la_xla_no_memory[];

/* NULL, or what is wrong, for which there may be room in `message`. */
const char *la_xla_python(const struct la_xla_frame *frame, int64_t function,
                          char *message);

void la_xla_set_caller(PyObject *function);

#endif
