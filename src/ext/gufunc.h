/* gufunc.h: NumPy's gufuncs, generated from operators.def. */
#ifndef LA_GUFUNC_H
#define LA_GUFUNC_H

#include <Python.h>

#include "signature.h"

/* Adds the tuples `ufunc_names` and `internal_ufunc_names` to the module; 0, or -1. */
int la_gufunc_add_all(PyObject *module);

/* make_ufunc(name): the gufunc of that name, always the same object. */
PyObject *la_gufunc_make(PyObject *module, PyObject *name);

/* The signature and the map of the gufunc of that name; NULL if there is none. */
const struct la_signature *la_gufunc_signature(const char *name, enum la_map *map);

/* add_bfloat16(dtype): adds loops for a dtype that NumPy itself does not have. */
PyObject *la_gufunc_add_bfloat16(PyObject *module, PyObject *dtype);

/* fast_call(gufunc, *operands): calls a gufunc without NumPy's machinery. */
PyObject *la_fast_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* pool_call(state_indices, gufunc, *operands): fast_call whose states are rows of a
 * pool: those of a step in place, or the same arrays before and after the tokens. */
PyObject *la_pool_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* fast_step(op, operands, s, z, in_place, feature_map, normalize, scale, eps,
 * state_indices=None): a step on plain operands, of which those that are left out are
 * None: (o, s, z), where s and z are those given if in_place, or if indices choose
 * their rows, else new.  NotImplemented if the call needs a closer look. */
PyObject *la_fast_step(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* overlaps_itself(array): whether elements of the array share memory. */
PyObject *la_array_overlaps_itself(PyObject *module, PyObject *array);

#endif
