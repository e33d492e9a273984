/* call.h: a call without NumPy: takes pointers, shapes and strides, returns a
 * status. */
#ifndef LA_CALL_H
#define LA_CALL_H

#include <stddef.h>

#include "plan.h"

/* An array, or a number with ndim 0, owned by the caller. */
struct la_tensor {
    void *data;
    int ndim;                         /* -1: left out */
    const ptrdiff_t *shape, *strides; /* strides in bytes, of any sign, or 0 */
    int wide; /* tokens stored in the dtype of the computation, though the call's tokens
                 have 16 bits */
};

/* The operator, with its variant, map and dtypes. */
struct la_operation {
    const struct la_signature *signature;
    enum la_map map;
    enum la_dtype dtype;   /* of numbers and states, and of tokens if type is native */
    enum la_type type;     /* of tokens */
    const ptrdiff_t *rows; /* of the call (plan.h) */
};

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

/* Whether elements of an array share memory; -1 if there is no memory to find out
 * (overlap.c). */
int la_overlaps_itself(const struct la_tensor *x, ptrdiff_t itemsize);

/* Computes the call.  Raises nothing and does not need the GIL; any thread may call
 * it. */
enum la_status la_call(const struct la_operation *what,
                       const struct la_tensor *operands, const struct la_watch *watch);

#endif
