/* tensor_call.h: functions of arrays, called with tensors of PyTorch.
 *
 * `torch` is a tuple of what is used of PyTorch: enum la_torch. */
#ifndef LA_TENSOR_CALL_H
#define LA_TENSOR_CALL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* tensor_array(torch, x): a writeable array of the memory of x, which stays alive. */
PyObject *la_tensor_array(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* tensor_call(torch, recorded, function, operands, given, options): what
 * function(operands, **given, **options) returns, in tensors.  Operands are a tuple of
 * tensors and None; what is given may be tensors, tuples of them, or anything else;
 * options are passed as they are.  NotImplemented if PyTorch has to see the call: a
 * tensor has no memory here or is of another class, or `recorded` and it requires a
 * gradient.  If `recorded` is None PyTorch has seen the call, and this is an error. */
PyObject *la_tensor_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* tensor_step(torch, step, in_place, arguments): o, s and z of a step of plain
 * tensors (fast_step.c) in the kernel of an operator of PyTorch with these arguments.
 * `step` is the operator's number, the count of its operands, the place after a plain
 * state, and the places of s, z, feature_map, normalize, scale and eps, or the value of
 * what is no argument.  NotImplemented if anything is not plain. */
PyObject *la_tensor_step(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
