/* table.h: the only interface between src/ext and src/kernel.
 *
 * src/ext fills a la_head (one head, one panel of value columns, one range of rows) and
 * calls an entry of the la_table chosen for this CPU.  The kernels allocate nothing, do
 * not use Python and keep no state between calls. */
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

/* Which variants an operator has, and how its work may be split. */
enum la_property {
    LA_MAPS = 1,       /* one gufunc for each fused map */
    LA_NORMALIZER = 2, /* with and without the normaliser z */
    LA_KEYS = 4, /* takes the number of keys: in its variant for packed sequences, or in
                    a variant for that alone */
    LA_PANELS = 8,           /* columns of v are independent: they may be split */
    LA_GROUPS = 16,          /* heads that differ only in q share one state */
    LA_PAIRS = 32,           /* cost is queries times keys */
    LA_ELEMENTWISE = 64,     /* elementwise: a plain ufunc */
    LA_INTERNAL = 128,       /* not listed by linattn.ufuncs */
    LA_COMPENSATED = 256,    /* a call may carry what its sums lose (operands.def) */
    LA_INTERLEAVE = 512,     /* can compute a head in slices (interleave.c) */
    LA_CHANNEL_SPLIT = 1024, /* channels may be split, with sums over them in a pass of
                                their own (channel_split.c) */
    LA_RUNS = 2048,          /* computes a run of heads, each with its own operands */
    LA_LAYER_TOKEN = 4096,   /* computes one token of a layer, of which n are the heads
                           (layer_token.h): a step without an operator for whole
                           sequences */
    LA_TAKES_COMPLEX = 8192, /* also takes complex64 and complex128 */
    LA_HALF_STATES = 16384,  /* states may be stored in 16 bits */
    LA_PRODUCTS = 32768,     /* obeys set_products (pairs.h) */
    LA_ADDS = 65536,         /* what tokens add to the state does not depend on it */
    LA_FLUSHES = 131072 /* numbers below the smallest normal one count as 0: results of
                           decays, on which processors may take 150 times as long
                           (modes.h) */
};

/* The part of a backward operator that one piece of work computes: all of it; some
 * channels, with sums of groups of them; or the sums of these groups. */
enum la_pass { LA_ALL_PASSES, LA_PASS_CHANNELS, LA_PASS_SUMS };

/* What products are of: numbers in the kernel's dtype, or pairs of numbers rounded to
 * bfloat16 (pairs.h), multiplied by the instructions of AVX512_BF16 or without them, or
 * 16 rows at a time (amx.h), by the instructions of AMX or without them. */
enum la_products {
    LA_FLOAT_PRODUCTS,
    LA_BFLOAT_PRODUCTS,
    LA_NATIVE_PRODUCTS,
    LA_PLAIN_AMX_PRODUCTS,
    LA_AMX_PRODUCTS
};

/* Tokens may be stored in 16 bits; states are stored in the dtype of the computation.
 * Operators with LA_HALF_STATES also take states in 16 bits: they read them exactly,
 * compute in float, and round once as they write. */
enum la_kind { LA_TOKENS, LA_STATE };

/* How an operand's numbers are stored: in the kernel's own dtype, in 16 bits, or as
 * complex numbers, whose two parts have the kernel's dtype. */
enum la_type { LA_NATIVE, LA_HALF, LA_BFLOAT, LA_COMPLEX };

/* Bytes per stored number of that type, where one of the kernel's own takes `size`. */
static inline ptrdiff_t
la_type_size(enum la_type type, ptrdiff_t size)
{
    return type == LA_NATIVE ? size : type == LA_COMPLEX ? 2 * size : 2;
}

/* A matrix operand as NumPy stores it: row i, column j is at data + i*rs + j*cs.
 * Vectors have no row step.  data is NULL if the call leaves the operand out. */
struct la_array {
    char *data;
    ptrdiff_t rs, cs; /* in bytes, any sign, zero allowed */
    enum la_type type;
    int has_channels; /* it has its optional dimension */
    /* From one of the call's heads to the next, in bytes; if the first dimension is the
     * heads, between these. */
    ptrdiff_t step;
    /* Between its matrices, if it has three dimensions; of a field of the state, to
     * what it has lost to rounding, if the call carries that. */
    ptrdiff_t plane;
};

/* The largest number of operands of a signature. */
enum { LA_MAX_OPERANDS = 27 };

/* The gates of sLSTM. */
enum { LA_GATES = 4 };

struct la_fetch;

/* A slice of a head's tokens.  Scratch must be kept from one slice to the next. */
struct la_interleave {
    int pass; /* index of the pass over the tokens that the slice is part of */
    /* How many tokens of the pass come before the slice, and how many up to its end, in
     * the order of the pass. */
    ptrdiff_t at, to;
    int done;               /* whether the last pass is over */
    struct la_fetch *ahead; /* rows to prefetch during the slice, of all heads */
};

/* The stages of a group of consecutive chunks of a head (stages.c): the lengths of its
 * chunks; what depends on their tokens alone; what the group takes over from the one
 * before; the states between chunks, from the first on, each thread some rows or
 * columns of the state; results.  LA_END is what follows the last pass over all groups,
 * of kernels that have it.  Every number is summed as when a single call computes the
 * head.  The chunks of causal are runs of several (runs.h). */
enum la_stage_kind { LA_CUT, LA_PREPARE, LA_BEGIN, LA_CARRY, LA_FINISH, LA_END };
enum { LA_STAGE_KINDS = LA_FINISH + 1 }; /* of a group */

/* What a stage computes: some chunks of the group or, of LA_CARRY, a share of all of
 * them. */
struct la_stage {
    enum la_stage_kind kind;
    ptrdiff_t from, to; /* chunks */
    ptrdiff_t part;     /* share of the state */
};

struct la_chunks {
    char *records;         /* of each chunk */
    char *last;            /* a record of the state after the last chunk */
    char *first;           /* the same of the group before, or NULL */
    size_t record;         /* bytes of each */
    char *shared;          /* what all groups of the head share */
    ptrdiff_t parts;       /* shares of the state */
    ptrdiff_t index;       /* of the group, in order of tokens */
    ptrdiff_t most, count; /* chunks that fit; that there are, set by LA_CUT */
    /* First token; one past the last, set by LA_CUT.  In a reverse pass, one past the
     * last token; the first one. */
    ptrdiff_t at, next;
    int pass;      /* over all groups, from 0 on */
    int reverse;   /* whether this pass begins with the last token */
    int overflows; /* set by LA_CUT: more chunks than there is memory for */
};

/* One head: what all operators have in common, then their operands.  A kernel that
 * computes with another one describes that call by a copy in which it changes sizes and
 * operands, or, where the operands are of the other family, by a la_head of its own. */
struct la_head {
    ptrdiff_t n, s, d, m, f; /* tokens of q, of k; widths of q, of v, of features */
    struct la_sizes {
        ptrdiff_t c, p, t;
    } sizes;         /* further ones, of a layer's token (operators.def) */
    ptrdiff_t all_m; /* m of the whole head, of which this may be a range of columns */
    ptrdiff_t keys;  /* number of keys that exist: the first ones of s */
    ptrdiff_t first; /* index of the first row, if this is a range of rows */
    ptrdiff_t block; /* tokens of a block, at least 2; 0: no blocks (token_blocks.h) */
    struct la_stage stage; /* of a group of chunks, if there is one */
    struct la_chunks *chunks;
    /* The heads of this call.  causal and noncausal compute the state once for all of
     * them: these heads of queries share their keys. */
    ptrdiff_t group;
    enum la_map map;
    enum la_pass pass;
    enum la_products products;
    int normalize;
    int large;                        /* results exceed the caches */
    struct la_interleave *interleave; /* NULL: all tokens in one call */
    void *rates;   /* of a pass: per group of channels, a row (dB, dC) per token */
    void *scratch; /* aligned to LA_ALIGN, of the size that the operator asks for */
    int (*poll)(void *); /* called about once per chunk; nonzero: stop */
    void *poll_arg;
    int *tiles; /* whether this thread's tile registers are set up (amx.h) */
#define LA_NUMBER(name, of_z, doc) double name;
#include "operands.def"
    struct la_array all_s0; /* the whole head's first state */
#define LA_ARRAY(field, name, kind, of_z, doc) struct la_array field;
    /* clang-format off */
#define LA_FAMILIES union { struct {
#define LA_NEXT_FAMILY }; struct {
#define LA_END_FAMILIES }; };
/* clang-format on */
#include "operands.def"
};

/* Whether the call has this optional operand. */
static inline int
la_is_given(const struct la_array *x)
{
    return x->data != NULL;
}

/* Alignment of every buffer that a kernel carves from its scratch. */
#define LA_ALIGN 64

struct la_kernel {
    /* Computes one head.  Returns 0, or nonzero if poll asked to stop. */
    int (*run)(const struct la_head *);
    /* Bytes of scratch that run needs for these sizes. */
    size_t (*scratch)(const struct la_head *);
};

/* A kernel that can be computed in stages.  Gradients of recurrences take two passes
 * over the groups: the second one is in reverse. */
struct la_stages {
    int (*run)(const struct la_head *); /* one stage; as la_kernel's */
    /* Bytes of scratch, of a record, and of what all groups of a head share. */
    size_t (*scratch)(const struct la_head *), (*record)(const struct la_head *),
        (*shared)(const struct la_head *);
    /* Tokens of a chunk, at most; chunks of a group, at least (NULL: any number). */
    ptrdiff_t (*rows)(const struct la_head *), (*least)(const struct la_head *);
    int passes;
    int reverse; /* whether the pass after the first is */
    int ends;    /* whether there is an LA_END */
    /* Panels of columns, of which threads carry some each, where that is most of the
     * work; NULL: it is little of it. */
    ptrdiff_t (*panels)(const struct la_head *);
};

/* All kernels of one instruction set and one dtype. */
struct la_table {
    int vector_bytes;
    struct la_stages stages[LA_NOPS]; /* zeros for operators without stages */
    struct la_kernel kernels[LA_NOPS];
};

#endif
