/* tensor_array.h: an array of the memory of a tensor of PyTorch. */
#ifndef LA_TENSOR_ARRAY_H
#define LA_TENSOR_ARRAY_H

#include "numpy_api.h"

int la_tensor_array_init(void);

/* Whether x requires a gradient; -1 on an error. */
int la_tensor_requires_grad(PyObject *x);

/* The dtype of x, borrowed, from a dictionary by PyTorch's dtypes; NULL if it is not
 * there. */
PyArray_Descr *la_tensor_dtype(PyObject *dtypes, PyObject *x);

/* -1 with a TypeError unless x is on the CPU and its memory holds its numbers, without
 * the negative bit or the conjugate one. */
int la_tensor_check(PyObject *x, const PyArray_Descr *dtype);

/* A writeable array of the memory of x, of that dtype, which keeps x alive. */
PyObject *la_tensor_array_of(PyObject *x, PyArray_Descr *dtype);

#endif
