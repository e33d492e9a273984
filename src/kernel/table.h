/* table.h: the one contract between src/ext and src/kernel.
 *
 * src/ext fills a la_head (one head, one panel of value columns) and calls an
 * entry of the la_table chosen for this CPU.  Nothing else crosses the border.
 * The kernels allocate nothing, know no Python and hold no state. */
#ifndef LA_TABLE_H
#define LA_TABLE_H

#include <stddef.h>

enum la_dtype { LA_F32, LA_F64, LA_NDTYPES };

enum la_map {
#define LA_MAP(map) LA_##map,
#define LA_OP(op)
#include "ops.def"
    LA_NMAPS
};

enum la_op {
#define LA_MAP(map)
#define LA_OP(op) LA_##op,
#include "ops.def"
    LA_NOPS
};

/* How an operand's numbers are held: as the kernel's own dtype, or in 16 bits. */
enum la_type { LA_NATIVE, LA_HALF, LA_BFLOAT };

/* A matrix operand as NumPy holds it: row i, column j is at data + i*rs + j*cs. */
struct la_array {
    char *data;
    ptrdiff_t rs, cs; /* in bytes, any sign, zero allowed */
    enum la_type type;
};

/* Vectors (z) have no row step.  What a call lacks has data NULL. */
struct la_head {
    ptrdiff_t n, s, d, m;      /* tokens of q, tokens of k, features, values */
    ptrdiff_t keys;            /* keys that exist, the first of s */
    struct la_array q, k, v;   /* (n,d) (s,d) (s,m) */
    struct la_array beta;      /* (n,m) with `channels`, else (n) */
    int channels;              /* beta and dbeta are one number a channel */
    struct la_array o;         /* (n,m) */
    struct la_array s0, z0;    /* state before the first token, (d,m) (d) */
    struct la_array s1, z1;    /* state behind the last */
    struct la_array g, gs, gz; /* cotangents of o, s1, z1 */
    struct la_array dq, dk, dv, dbeta, ds0, dz0;
    /* `group` queries share these keys, each so many bytes behind the last; causal and
     * noncausal compute the state once for all of them. */
    ptrdiff_t group, q_step, o_step, s1_step, z1_step;
    enum la_map map;
    int normalize;
    double scale, eps;
    void *scratch;       /* LA_ALIGN-aligned, of the operator's size */
    int (*poll)(void *); /* called about once a chunk; nonzero: give up */
    void *poll_arg;
};

/* Every buffer a kernel cuts from its scratch starts on such a boundary. */
#define LA_ALIGN 64

struct la_kernel {
    /* Computes one head; 0, or nonzero where poll said to give up. */
    int (*run)(const struct la_head *);
    /* Bytes of scratch that run needs for these n, s, d, m. */
    size_t (*scratch)(const struct la_head *);
};

/* Work on rows that do not depend on each other: feature maps, softmax attention. */
enum la_task_name {
#define LA_TASK(name, ...) LA_TASK_##name,
#include "tasks.def"
    LA_NTASKS
};

enum { LA_TASK_OPERANDS = 10, LA_TASK_DIMS = 8 };

struct la_task {
    ptrdiff_t dim[LA_TASK_DIMS]; /* core dimensions, in order of appearance */
    ptrdiff_t first, rows;       /* the rows of the first dimension to compute */
    struct la_array x[LA_TASK_OPERANDS]; /* as in the signature */
    void *scratch;
    int (*poll)(void *);
    void *poll_arg;
};

struct la_task_kernel {
    int (*run)(const struct la_task *);
    size_t (*scratch)(const struct la_task *);
};

/* All kernels of one instruction set and one dtype. */
struct la_table {
    int vector_bytes;
    struct la_kernel kernels[LA_NOPS];
    struct la_task_kernel tasks[LA_NTASKS];
};

#endif
