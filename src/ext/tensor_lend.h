/* tensor_lend.h: tensors of PyTorch lent to functions as arrays of their memory. */
#ifndef LA_TENSOR_LEND_H
#define LA_TENSOR_LEND_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { LA_LENT = 64 };

struct la_lending {
    PyObject *torch; /* enum la_torch */
    int seen; /* whether PyTorch has seen the call: it is inside an operator's kernel,
               * whose tensors have passed la_tensor_check, or the dispatcher */
    int recorded; /* whether PyTorch has to see tensors that require gradients */
    int dtypes;   /* which dtypes tensors may have, a member of `torch` */
    int count;
    PyObject *from[LA_LENT], *lent[LA_LENT]; /* tensors and tuples of them */
};

/* Has calls use as many threads as PyTorch's operators; what they used, or -1 on an
 * error. */
long la_lend_threads(PyObject *torch);

/* 1 if x is a tensor that can be lent, 0 if it is no tensor, -1 if PyTorch has to see
 * it, or on an error. */
int la_is_lendable(const struct la_lending *l, PyObject *x);

/* What stands for x in a call: an array for a tensor, a tuple of what stands for its
 * members for a tuple, and x itself for anything else.  NULL without an exception if
 * PyTorch has to see the call. */
PyObject *la_lend(struct la_lending *l, PyObject *x);

/* What a call returns whose tensors cannot be lent: NotImplemented, or the error. */
PyObject *la_lend_refuse(const struct la_lending *l);

/* Drops what stood for tensors. */
void la_lend_release(struct la_lending *l);

#endif
