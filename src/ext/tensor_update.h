/* tensor_update.h: a step of tensors that updates its state. */
#ifndef LA_TENSOR_UPDATE_H
#define LA_TENSOR_UPDATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* tensor_update(torch, recorded, gufunc, inputs, states, state_indices): the result of
 * a step, of the dtype of the first input, whose leading axes it has.  The states are
 * updated, or their rows if the indices are not None.  Inputs are tensors and numbers;
 * parameters have no leading axes, and filters reach no further than a state.
 * NotImplemented, with nothing written, if PyTorch has to see the call (tensor_call.h),
 * or if anything needs a conversion or is wrong. */
PyObject *la_tensor_update(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* tensor_planned(torch, recorded, plans, named, states, state_indices): the same by the
 * first of the plans that is for these arguments; NotImplemented if there is none.  A
 * plan is a tuple: a gufunc, the names of the tensors that it takes, of those that are
 * None, and of options; the values of these, and the numbers that they stand for. */
PyObject *la_tensor_planned(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
