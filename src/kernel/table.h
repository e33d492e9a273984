/* table.h: the one contract between src/ext and src/kernel.
 *
 * src/ext fills a la_head (one head, one panel of value columns, one stretch of rows)
 * and calls an entry of the la_table chosen for this CPU.  Nothing else crosses the
 * border. The kernels allocate nothing, know no Python and hold no state. */
#ifndef LA_TABLE_H
#define LA_TABLE_H

#include <stddef.h>

#include "tuning.h"

enum la_dtype {
#define LA_FLOAT(id, name, type, format) LA_##id,
#include "dtypes.def"
    LA_NDTYPES
};

enum la_map {
#define LA_MAP(map, is_signed) LA_MAP_##map,
#define LA_ROW_MAP(map, is_signed) LA_MAP_##map,
#include "maps.def"
    LA_NMAPS
};

enum la_op {
#define LA_OP(op, form, properties, rows, doc) LA_OP_##op,
#include "operators.def"
    LA_NOPS
};

/* What is made of an operator's row, and how its work may be cut. */
enum la_property {
    LA_MAPS = 1,             /* one gufunc for each fused map */
    LA_NORMALIZER = 2,       /* with and without the normaliser z */
    LA_KEYS = 4,             /* takes the number of keys: with the packed sequences,
                                or in a variant of its own */
    LA_PANELS = 8,           /* columns of v never meet: they may be cut */
    LA_GROUPS = 16,          /* heads that differ in q alone share one state */
    LA_PAIRS = 32,           /* every query meets every key */
    LA_ELEMENTWISE = 64,     /* numbers, not rows: a plain ufunc */
    LA_INTERNAL = 128,       /* linattn.ufuncs does not list it */
    LA_SEQUENCE_SPLIT = 256, /* the state is a sum: long sequences are cut
                                (sequence_split.c) */
    LA_BACKWARD_SPLIT = 512, /* may be done in parts, enum la_pass (backward_split.c) */
    LA_INTERLEAVE = 1024     /* computes a head in slices (interleave.c) */
};

/* Which part of a backward operator a piece of work is: all of it; dq, with two rates a
 * token that dk needs; dv; or dk, for some columns of the keys. */
enum la_pass { LA_ALL_PASSES, LA_PASS_QUERIES, LA_PASS_VALUES, LA_PASS_KEYS };

/* Tokens may be held in 16 bits; states are as computed. */
enum la_kind { LA_TOKENS, LA_STATE };

/* How an operand's numbers are held: as the kernel's own dtype, or in 16 bits. */
enum la_type { LA_NATIVE, LA_HALF, LA_BFLOAT };

/* A matrix operand as NumPy holds it: row i, column j is at data + i*rs + j*cs. */
struct la_array {
    char *data;
    ptrdiff_t rs, cs; /* in bytes, any sign, zero allowed */
    enum la_type type;
};

/* Operands by number: arrays, in the order of la_head, then numbers, then indices. */
enum la_operand {
#define LA_ARRAY(field, name, kind, of_z) LA_AT_##field,
#include "operands.def"
#define LA_NUMBER(name, of_z) LA_AT_##name,
#include "operands.def"
#define LA_INDEX(name) LA_AT_##name,
#include "operands.def"
    LA_NOPERANDS,
    LA_NARRAYS = LA_AT_scale, /* the first number */
    LA_NNUMBERS = LA_AT_begin - LA_NARRAYS
};

/* Operands of a signature at most. */
enum { LA_MAX_OPERANDS = 24 };

struct la_fetch;

/* A slice of a head's tokens, whose scratch is left as it is until the next one. */
struct la_interleave {
    ptrdiff_t at, to;       /* where the head was left, 0 at first; where to leave it */
    struct la_fetch *ahead; /* what to ask for meanwhile */
    int index;              /* which it is of the interleaved heads */
};

/* One head.  Vectors have no row step.  What a call lacks has data NULL. */
struct la_head {
    ptrdiff_t n, s, d, m, f; /* tokens of q, of k, widths of q, of v, of features */
    ptrdiff_t all_d;         /* d of the whole, of which this may be some columns */
    ptrdiff_t all_m; /* m likewise, and the state before the tokens with all of it */
    struct la_array all_s0;
    struct la_interleave *interleave; /* NULL: all tokens at once */
    ptrdiff_t keys;                   /* keys that exist, the first of s */
    ptrdiff_t first;   /* which row of all the first one is, for some of the rows */
    ptrdiff_t segment; /* tokens a segment of a long sequence (causal.h), or 0 */
    union {
        struct {
#define LA_ARRAY(field, name, kind, of_z) struct la_array field;
#include "operands.def"
        };
        struct la_array arrays[LA_NARRAYS];
    };
    union {
        struct {
#define LA_NUMBER(name, of_z) double name;
#include "operands.def"
        };
        double numbers[LA_NNUMBERS];
    };
    /* `group` queries share these keys, each so many bytes after the last; causal and
     * noncausal compute the state once for all of them. */
    ptrdiff_t group, q_step, o_step, s1_step, z1_step;
    /* Whether an array has the dimension that it may have, by enum la_operand. */
    unsigned char channels[LA_NARRAYS];
    enum la_map map;
    enum la_pass pass;
    void *rates; /* of a pass: of every token, thrice n rounded up to LA_SEGMENT_STEP */
    int normalize;
    int large;           /* results are more than a cache holds */
    void *scratch;       /* LA_ALIGN-aligned, of the operator's size */
    int (*poll)(void *); /* called about once a chunk; nonzero: give up */
    void *poll_arg;
};

/* Whether a call has an operand that it may lack. */
static inline int
la_is_given(const struct la_array *x)
{
    return x->data != NULL;
}

/* Every buffer a kernel cuts from its scratch starts on such a boundary. */
#define LA_ALIGN 64

struct la_kernel {
    /* Computes one head; 0, or nonzero where poll said to give up. */
    int (*run)(const struct la_head *);
    /* Bytes of scratch that run needs for these sizes. */
    size_t (*scratch)(const struct la_head *);
};

/* All kernels of one instruction set and one dtype. */
struct la_table {
    int vector_bytes;
    struct la_kernel kernels[LA_NOPS];
};

#endif
