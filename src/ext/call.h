/* call.h: a call without NumPy: pointers, shapes and strides in, a status out. */
#ifndef LA_CALL_H
#define LA_CALL_H

#include <stddef.h>

#include "plan.h"

/* An array, or a number with ndim 0, that the caller owns. */
struct la_tensor {
    void *data;
    int ndim;                         /* -1: it is left out */
    const ptrdiff_t *shape, *strides; /* strides in bytes, any sign, zero allowed */
    int wide; /* of tokens, and held as computed where those of the call have 16 bits */
};

/* What an operator is called as. */
struct la_operation {
    const struct la_signature *signature;
    enum la_map map;
    enum la_dtype dtype; /* of numbers and states, and of tokens where type is native */
    enum la_type type;   /* of tokens */
};

/* Fills `call` from its operands, in the order of the signature.  Leading axes
 * broadcast by NumPy's rules; outputs have all of them, and overlap nothing.  LA_DONE,
 * or LA_BAD_SHAPE where shapes do not fit, or have too many axes that cannot be merged.
 */
enum la_status la_call_prepare(struct la_call *call, const struct la_operation *what,
                               const struct la_tensor *operands);

/* From the first byte of an array to after its last one; nothing where it is empty
 * (overlap.c). */
void la_tensor_extent(const struct la_tensor *x, ptrdiff_t itemsize, const char **begin,
                      const char **end);

/* Whether elements of an array lie in the same memory; -1 where there is none to find
 * out (overlap.c). */
int la_overlaps_itself(const struct la_tensor *x, ptrdiff_t itemsize);

/* Computes it.  Raises nothing and needs no GIL; any thread may call. */
enum la_status la_call(const struct la_operation *what,
                       const struct la_tensor *operands, const struct la_watch *watch);

#endif
