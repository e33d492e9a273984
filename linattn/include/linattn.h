/* linattn.h: linattn's operators for other programs in C and C++.
 *
 *     const linattn_api *linattn = linattn_import();      once, with the GIL
 *     int op = linattn->find("causal_elu");               q, k, v, scale, eps -> o
 *     int status = linattn->call(op, operands, 6, 0);     in any thread, without GIL
 *
 * Operators are those of linattn.ufuncs, with the same names, operands and results, and
 * keep them within a major version of this interface.  The memory of an array is one
 * allocation, which nothing else writes to during a call. */
#ifndef LINATTN_H
#define LINATTN_H

#include <stddef.h>

/* The version of this file.  A minor version adds operators, dtypes and status codes,
 * and functions at the end of linattn_api; a major version may change anything else. */
#define LINATTN_API_MAJOR 1
#define LINATTN_API_MINOR 0

/* The name of the capsule that holds a pointer to the linattn_api. */
#define LINATTN_CAPSULE "linattn._linattn._C_API"

/* What an operand is: left out, an array of that dtype, or a number. */
enum {
    LINATTN_LEFT_OUT = 0,
    LINATTN_FLOAT16 = 1,
    LINATTN_BFLOAT16 = 2,
    LINATTN_FLOAT32 = 3,
    LINATTN_FLOAT64 = 4,
    LINATTN_COMPLEX64 = 5,
    LINATTN_COMPLEX128 = 6,
    LINATTN_INDEX = 7, /* ptrdiff_t */
    LINATTN_NUMBER = 8 /* linattn_array.number */
};

enum {
    LINATTN_OK = 0,
    LINATTN_NO_MEMORY = 1,
    LINATTN_BAD_OPERATOR = 2,   /* no operator, or no operand, has this number */
    LINATTN_BAD_COUNT = 3,      /* the operator has more or fewer operands */
    LINATTN_BAD_THREADS = 4,    /* not 0 to 1024 */
    LINATTN_MISSING = 5,        /* this operand cannot be left out */
    LINATTN_BAD_DTYPE = 6,      /* see linattn_api.dtype */
    LINATTN_BAD_SHAPE = 7,      /* sizes that do not fit together, or too many axes */
    LINATTN_BAD_POINTER = 8,    /* NULL, or an array that no memory can hold */
    LINATTN_BAD_ALIGNMENT = 9,  /* no multiple of a number's size */
    LINATTN_OVERLAP = 10,       /* elements of outputs share memory */
    LINATTN_SHARED_TOKENS = 11, /* begin and end give two sequences the same token */
    LINATTN_FAILED = 12         /* a bug in linattn; outputs are undefined */
};

enum { LINATTN_MAX_NDIM = 32 };

/* An operand of a call: an array in your memory, or a number.  All zero: left out. */
typedef struct {
    void *data; /* aligned to its dtype, or to the parts of complex numbers */
    int dtype;
    int ndim; /* leading axes, which broadcast as NumPy's do, then those in dims */
    const ptrdiff_t *shape;
    const ptrdiff_t *strides; /* in bytes, of any sign, or 0; NULL: no gaps, as in C */
    double number;            /* of a LINATTN_NUMBER */
} linattn_array;

/* What an operator says of an operand. */
typedef struct {
    const char *name;
    char dims[12]; /* names of its own axes, such as "n,d" */
    int is_output;
    int is_number; /* takes a LINATTN_NUMBER, or an array of one for each head */
    int may_lack;  /* may be left out: all tokens are one sequence, no state precedes
                      them, or the state after them is not wanted */
} linattn_operand;

/* Operators have numbers from 0 on, which may differ between versions of linattn; their
 * operands have places from 0 on, inputs first, which do not.  Functions raise nothing,
 * need no GIL, and keep no pointer; any thread may call them. */
typedef struct {
    size_t size; /* of this struct */
    int major, minor;
    int (*count)(void);                 /* of operators */
    const char *(*name)(int op);        /* of an operator; NULL if there is none */
    int (*find)(const char *name);      /* the operator of that name, or -1 */
    int (*operands)(int op);            /* number of its operands, or -1 */
    int (*place)(int op, const char *); /* the operand of that name, or -1 */
    /* Describes an operand; returns a status. */
    int (*operand)(int op, int place, linattn_operand *operand);
    /* The dtype of an operand in a call whose first operand has dtype `first`, or
     * LINATTN_LEFT_OUT if the operator does not take that. */
    int (*dtype)(int op, int place, int first);
    /* Computes; returns a status.  Outputs have all leading axes, and may overlap
     * inputs.  A status other than LINATTN_OK means that nothing was written.  Results
     * do not depend on `threads`, the most that the call may use; 0 stands for
     * linattn.get_num_threads(). */
    int (*call)(int op, const linattn_array *operands, int count, int threads);
    const char *(*status_text)(int status);
} linattn_api;

#ifdef Py_PYTHON_H /* include Python.h before this file */
/* Imports linattn.  NULL with an ImportError if it is absent, or too old or too new. */
static inline const linattn_api *
linattn_import(void)
{
    const linattn_api *api = (const linattn_api *)PyCapsule_Import(LINATTN_CAPSULE, 0);
    if (api == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_SetString(PyExc_ImportError, "the installed linattn has no C interface");
    }
    if (api != NULL &&
        (api->major != LINATTN_API_MAJOR || api->minor < LINATTN_API_MINOR)) {
        PyErr_Format(PyExc_ImportError,
                     "compiled for version %d.%d of linattn's C interface; the "
                     "installed linattn has version %d.%d",
                     LINATTN_API_MAJOR, LINATTN_API_MINOR, api->major, api->minor);
        return NULL;
    }
    return api;
}
#endif

#endif
