/* xla.h: operators as custom calls of XLA, the compiler of JAX. */
#ifndef LA_XLA_H
#define LA_XLA_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* xla_handler(): a capsule of the handler that XLA calls, or None where this was built
 * without XLA's header. */
PyObject *la_xla_handler(PyObject *module, PyObject *unused);

#endif
