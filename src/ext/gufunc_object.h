/* gufunc_object.h: the data of a gufunc, shared by gufunc.c, its loops (loop.c), the
 * choice among them (promote.c) and fast_call.c. */
#ifndef LA_GUFUNC_OBJECT_H
#define LA_GUFUNC_OBJECT_H

#include "signature.h"
#include "numpy_api.h"

/* Loops, by the dtype of tokens. */
enum la_loop {
    LA_LOOP_HALF,
    LA_LOOP_SINGLE,
    LA_LOOP_DOUBLE,
    LA_LOOP_BFLOAT,
    LA_LOOP_CSINGLE,
    LA_LOOP_CDOUBLE,
    LA_NLOOPS
};

struct la_loop_kind {
    /* NumPy's types of arrays of tokens, of states and of numbers. */
    int tokens, states, numbers;
    enum la_dtype dtype;
    enum la_type type;
};

extern const struct la_loop_kind la_loop_kinds[LA_NLOOPS];

/* NumPy keeps pointers to this as long as the gufunc lives. */
struct la_gufunc {
    const struct la_signature *signature;
    enum la_map map;
    char name[96], doc[320];
    char types[LA_NLOOPS * LA_MAX_OPERANDS]; /* of the loops that `ufunc.types` lists */
    int ntypes;
    PyObject *_Atomic object; /* created on request, then kept */
};

static inline PyUFuncObject_fields *
la_ufunc_fields(PyObject *ufunc)
{
    return _PyUFuncObject_GET_ITEM_DATA((PyUFuncObject *)ufunc);
}

/* The data of a gufunc object, which must be one of linattn's. */
static inline const struct la_gufunc *
la_gufunc_of(PyObject *gufunc)
{
    return (const struct la_gufunc *)(const void *)la_ufunc_fields(gufunc)->data;
}

/* Gufunc number i, of fewer than LA_NGUFUNCS; NULL past the last one. */
enum { LA_NGUFUNCS = 2048 };
const struct la_gufunc *la_gufunc_at(int i);

/* The form of an operator, and the gufunc of one of its variants, which must not be
 * offered blocks. */
const struct la_form *la_gufunc_form(enum la_op op);
const struct la_gufunc *la_gufunc_variant(enum la_op op, la_variant variant,
                                          enum la_map map);

/* Whether an object is one of linattn's gufuncs. */
int la_gufunc_is(PyObject *object);

/* Whether a gufunc has a loop: of bfloat16 if that was added, complex ones if its
 * operator takes complex numbers. */
int la_loop_exists(const struct la_gufunc *g, enum la_loop loop);

/* Finds the loop whose tokens have NumPy's type of that number, by that of the first
 * operand; 0 if there is none. */
int la_loop_find(const struct la_gufunc *g, int type, enum la_loop *loop);

/* NumPy's type number of bfloat16, once it was added. */
int la_bfloat16(void);

/* Adds bfloat16, given its NumPy type number; returns whether it was new. */
int la_loop_add_bfloat16(int type);

/* la_loop_add adds a loop, if available, to a gufunc; la_promoter_add makes a gufunc
 * accept all dtypes that can be cast.  0, or -1. */
int la_loop_add(PyObject *gufunc, const struct la_gufunc *g, enum la_loop loop);
int la_promoter_add(PyObject *gufunc, int count);

/* NumPy's type of operand i in a loop. */
int la_loop_type(const struct la_gufunc *g, enum la_loop loop, int i);

#endif
