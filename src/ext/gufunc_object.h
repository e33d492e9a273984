/* gufunc_object.h: what a gufunc of ours knows of itself, for gufunc.c, its loops
 * (loop.c), what chooses among them (promote.c) and fast_call.c. */
#ifndef LA_GUFUNC_OBJECT_H
#define LA_GUFUNC_OBJECT_H

#include "signature.h"
#include "numpy_api.h"

/* Loops by how tokens are held. */
enum la_loop {
    LA_LOOP_HALF,
    LA_LOOP_SINGLE,
    LA_LOOP_DOUBLE,
    LA_LOOP_BFLOAT,
    LA_NLOOPS
};

struct la_loop_kind {
    int tokens, rest; /* NumPy's types of arrays of tokens, and of all but indices */
    enum la_dtype dtype;
    enum la_type type;
};

extern const struct la_loop_kind la_loop_kinds[LA_NLOOPS];

/* NumPy keeps pointers into it for as long as the gufunc lives. */
struct la_gufunc {
    const struct la_signature *signature;
    enum la_map map;
    char name[80], doc[320];
    char types[3 * LA_MAX_OPERANDS];
    PyObject *_Atomic object; /* once it has been asked for, and then for good */
};

/* That of a gufunc object, which must be one of ours. */
static inline const struct la_gufunc *
la_gufunc_of(PyObject *gufunc)
{
    return (const struct la_gufunc *)(const void *)((PyUFuncObject *)gufunc)->data;
}

/* Whether an object is a gufunc of ours. */
int la_gufunc_is(PyObject *object);

/* Whether a loop can be: bfloat16 has to be made known first. */
int la_loop_exists(enum la_loop loop);

/* Makes bfloat16 known by NumPy's number of it; whether it was not. */
int la_loop_add_bfloat16(int type);

/* Adds a loop, where it can be, to a gufunc, for which all dtypes are welcome once it
 * has its promoter; 0, or -1. */
int la_loop_add(PyObject *gufunc, const struct la_gufunc *g, enum la_loop loop);
int la_promoter_add(PyObject *gufunc, int count);

/* NumPy's type of operand i in a loop. */
int la_loop_type(const struct la_gufunc *g, enum la_loop loop, int i);

#endif
