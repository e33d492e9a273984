/* xla.h: operators as custom calls of XLA, the compiler of JAX. */
#ifndef LA_XLA_H
#define LA_XLA_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* xla_handler(caller): a capsule of the handler that XLA calls.  A call with the
 * attribute "function", a number, becomes caller(function, arguments, results), with
 * memoryviews of all arrays; caller returns None, or an error message. */
PyObject *la_xla_handler(PyObject *module, PyObject *caller);

#endif
