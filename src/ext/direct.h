/* direct.h: a gufunc's loop on plain arrays, without NumPy's machinery. */
#ifndef LA_DIRECT_H
#define LA_DIRECT_H

#include <Python.h>
#include <numpy/npy_common.h>

/* The inner loop of every gufunc, to NumPy. */
void la_gufunc_loop(char **args, npy_intp const *dimensions, npy_intp const *steps,
                    void *data);

/* direct(gufunc, *inputs, *outputs): the first output, or NotImplemented where the
 * operands are anything but plain; see direct.c. */
PyObject *la_direct(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
