/* call.h: a call without NumPy: takes pointers, shapes and strides, returns a
 * status. */
#ifndef LA_CALL_H
#define LA_CALL_H

#include <stddef.h>

#include "number.h"
#include "plan.h"

enum { LA_NUMPY_AXES = 64 }; /* most axes of an array; calls merge them (plan.h) */

/* An array, or a number with ndim 0, owned by the caller. */
struct la_tensor {
    void *data;
    int ndim;                         /* -1: left out */
    const ptrdiff_t *shape, *strides; /* strides in bytes, of any sign, or 0 */
    /* How its numbers are stored: 0 as the call stores such operands; else 1 more than
     * their la_type: tokens in the dtype of the computation, though the call's have 16
     * bits, or a state in 16 bits. */
    int stored;
};

/* How the numbers of x are stored, if those of such operands are of type `usual`. */
static inline enum la_type
la_tensor_type(const struct la_tensor *x, enum la_type usual)
{
    return x->stored > 0 ? (enum la_type)(x->stored - 1) : usual;
}

/* The operator, with its variant, map and dtypes. */
struct la_operation {
    const struct la_signature *signature;
    enum la_map map;
    enum la_dtype dtype;   /* of numbers and states, and of tokens if type is native */
    enum la_type type;     /* of tokens */
    const ptrdiff_t *rows; /* of the call (plan.h) */
};

/* How the numbers of an array are stored, and the dtype that they are computed in. */
struct la_storage {
    enum la_dtype dtype;
    enum la_type type;
};

/* Sets the dtypes of a call from how its first operand, which has tokens, is stored; -1
 * if the operator does not take that. */
int la_operation_set(struct la_operation *what, struct la_storage tokens);

/* How an operand of the call is stored that is not an index. */
struct la_storage la_operation_storage(const struct la_operation *what,
                                       enum la_operand id);

/* Bytes per number of an operand that is stored so. */
static inline ptrdiff_t
la_operand_size(enum la_operand id, enum la_dtype dtype, enum la_type type)
{
    return la_is_index(id) ? (ptrdiff_t)sizeof(ptrdiff_t) : la_stored_size(dtype, type);
}

/* Sets the strides of an array without gaps; returns the number of its elements. */
ptrdiff_t la_tensor_strides(ptrdiff_t *strides, const ptrdiff_t *shape, int ndim,
                            ptrdiff_t itemsize);

/* x, rounded to the dtype of the call and kept at `number`, as an operand. */
struct la_tensor la_tensor_number(const struct la_operation *what,
                                  union la_number *number, double x);

/* Fills `call` from its operands, in the order of the signature.  Leading axes
 * broadcast by NumPy's rules.  Outputs have all leading axes and must not overlap any
 * operand. Returns LA_DONE, or LA_BAD_SHAPE if shapes do not match or too many axes
 * cannot be merged. */
enum la_status la_call_prepare(struct la_call *call, const struct la_operation *what,
                               const struct la_tensor *operands);

/* The range of bytes of an array: its first byte and one past its last; empty for an
 * empty array (overlap.c). */
void la_tensor_extent(const struct la_tensor *x, ptrdiff_t itemsize, const char **begin,
                      const char **end);

/* Whether elements of two arrays may share memory.  They do not if they lie apart, or
 * are parts of the rows of one array (overlap.c). */
int la_tensors_meet(const struct la_tensor *x, ptrdiff_t x_itemsize,
                    const struct la_tensor *y, ptrdiff_t y_itemsize);

/* Whether elements of an array share memory; -1 if there is no memory to find out
 * (overlap.c). */
int la_overlaps_itself(const struct la_tensor *x, ptrdiff_t itemsize);

/* Computes the call.  Raises nothing and does not need the GIL; any thread may call
 * it. */
enum la_status la_call(const struct la_operation *what,
                       const struct la_tensor *operands, const struct la_watch *watch);

#endif
