/* fast_call.h: the operands of a call that needs none of NumPy's machinery. */
#ifndef LA_FAST_CALL_H
#define LA_FAST_CALL_H

#include "call.h"
#include "gufunc_object.h"
#include "number.h"

/* The operands of a call while they are read.  The caller sets g, object, made,
 * in_place and rows. */
struct la_operands {
    const struct la_gufunc *g;
    enum la_loop loop;
    PyObject *object[LA_MAX_OPERANDS]; /* borrowed, except for allocated outputs */
    int made[LA_MAX_OPERANDS];         /* allocated by la_operands_take */
    struct la_tensor x[LA_MAX_OPERANDS];
    union la_number numbers[LA_MAX_OPERANDS];
    int in_place;          /* a state given as both input and output is updated */
    const ptrdiff_t *rows; /* of a pool (state_rows.h), or NULL */
};

/* Reads all operands, and allocates outputs that are None; 1 if they are plain, 0 if
 * not, -1 on an error. */
int la_operands_take(struct la_operands *c);

/* Its parts.  Reads a Python float as a number for the kernel, or as an array without
 * core axes; 0 if it is none. */
int la_operands_number(struct la_operands *c, int i);

/* How operand i is stored (struct la_tensor) if its numbers have that type of NumPy's;
 * -1 if the loop takes no such operand: only states may have 16 bits where others have
 * not. */
int la_operands_stored(const struct la_operands *c, int i, int type);

/* Reads the array in c->object[i] as operand i, stored so. */
void la_operands_set(struct la_operands *c, int i, int stored);

/* Allocates output i, of the broadcast leading axes of the inputs and its core
 * dimensions (fast_output.c).  Returns 0 if the shape is undefined, -1 on an error. */
int la_operands_make(struct la_operands *c, int i);

/* Whether operand i has the dtype of the computation. */
static inline int
la_is_native(const struct la_operands *c, int i)
{
    return la_loop_type(c->g, c->loop, i) == la_loop_kinds[c->loop].states;
}

/* Whether the outputs that the caller passed share no memory with other operands. */
int la_operands_are_disjoint(const struct la_operands *c);

/* Computes the call; 1 if it did, 0 if the shapes do not match, -1 on an error. */
int la_operands_run(struct la_operands *c);

/* Releases the outputs that la_operands_take allocated. */
void la_operands_release(struct la_operands *c);

#endif
