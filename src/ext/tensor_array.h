/* tensor_array.h: an array of the memory of a tensor of PyTorch. */
#ifndef LA_TENSOR_ARRAY_H
#define LA_TENSOR_ARRAY_H

#include "numpy_api.h"

/* The members of a tuple of what is used of PyTorch. */
enum la_torch {
    LA_TORCH_CLASSES,        /* of plain tensors, of which the first is Tensor */
    LA_TORCH_EXCHANGE,       /* their capsule for DLPack in C, or None */
    LA_TORCH_OPERAND_DTYPES, /* those that operands may have, by PyTorch's dtypes */
    LA_TORCH_DTYPES,         /* those that all tensors may have */
    LA_TORCH_FROM_NUMPY,     /* torch.from_numpy */
    LA_TORCH_TENSOR,         /* makes tensors of the arrays that it does not take */
    LA_TORCH_WRITTEN,        /* is told of the tensors that were written to */
    LA_TORCH_THREADS,        /* torch.get_num_threads */
};

int la_tensor_array_init(void);

/* Whether x requires a gradient; -1 on an error. */
int la_tensor_requires_grad(PyObject *x);

/* The dtype of x, borrowed, from a dictionary by PyTorch's dtypes; NULL if it is not
 * there. */
PyArray_Descr *la_tensor_dtype(PyObject *dtypes, PyObject *x);

/* -1 with a TypeError unless the memory of x holds its numbers, without the negative
 * bit or the conjugate one. */
int la_tensor_check(PyObject *x, const PyArray_Descr *dtype);

/* Where the elements of a tensor are; strides in bytes. */
struct la_tensor_memory {
    void *data;
    int axes;
    npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
};

/* -1 with an exception if x, whose elements have that size, has no memory here: a
 * TypeError if it is not on the CPU. */
int la_tensor_memory_of(PyObject *torch, PyObject *x, npy_intp itemsize,
                        struct la_tensor_memory *m);

/* A new tensor of that shape, of the dtype of another, without values; NULL with an
 * exception if there is no memory. */
PyObject *la_tensor_new(PyObject *torch, PyObject *like, const npy_intp *shape,
                        int axes);

/* A writeable array of the memory of x, of that dtype, which keeps x alive; a TypeError
 * if x is not on the CPU. */
PyObject *la_tensor_array_of(PyObject *torch, PyObject *x, PyArray_Descr *dtype);

#endif
