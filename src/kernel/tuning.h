/* tuning.h: measured sizes of blocks, tiles and chunks, and the least work worth
 * splitting.
 *
 * The first part determines the order of sums.  Its values depend on the problem alone,
 * so that results have the same bits on every processor of an instruction set and for
 * any number of threads; changing a value changes bits.  The second part affects only
 * speed: another processor may have other values. */
#ifndef LA_TUNING_H
#define LA_TUNING_H

#include <stddef.h>

/* --- sizes that determine the order of sums ---------------------------------- */

/* Rows per chunk.  Per token, the triangle costs rows (d + m), and reading and writing
 * the state moves d m / rows numbers; 16, 32 and 64 rows were measured to be fastest.
 * It depends on d alone: a panel of the values must have the chunks of the whole head,
 * or its bits would differ. */
static inline ptrdiff_t
chunk_rows(ptrdiff_t d)
{
    return d <= 64 ? 16 : d <= 192 ? 32 : 64;
}

/* For causal_backward: a chunk also costs two copies of a state and a transposition,
 * and stages keep the state before it. */
static inline ptrdiff_t
causal_backward_rows(ptrdiff_t d)
{
    return d <= 32 ? 16 : d <= 192 ? 32 : 64;
}

/* With products of bfloat16: the triangle costs half as much, and the state is also
 * converted once per chunk. */
static inline ptrdiff_t
paired_chunk_rows(ptrdiff_t d)
{
    return d <= 192 ? 32 : 64;
}

/* With AMX: tiles compute most of the triangle, too.  Their sizes are those of the
 * instructions; the pairs of a sum come in parts of LA_AMX_PAIRS. */
enum { LA_AMX_CHUNK = 64, LA_AMX_ROWS = 16, LA_AMX_PAIRS = 16 };
enum { LA_AMX_BLOCK = 2 * LA_AMX_ROWS }; /* the rows of two registers */

/* For noncausal: no triangle limits the rows of a narrow state, which is read and
 * written once per chunk. */
static inline ptrdiff_t
noncausal_rows(ptrdiff_t d)
{
    return d <= 64 ? 32 : chunk_rows(d);
}

/* For the delta rules: chunks are short since the triangles cost rows (2 d + 2 m) per
 * token; with AMX, products with the state cost less than reading and writing it.
 * LA_CHUNK_MAX bounds the arrays on the stack. */
enum { LA_CHUNK_MAX = 32 };

static inline ptrdiff_t
delta_chunk_rows(ptrdiff_t d, int by_amx)
{
    return d <= (by_amx ? 63 : 128) ? 16 : LA_CHUNK_MAX;
}

/* For gated_backward: chunks are longer than forward, since each costs five sweeps over
 * a state, a copy and a transposition. */
static inline ptrdiff_t
gated_backward_rows(ptrdiff_t d)
{
    return d <= 192 ? 32 : 64;
}

enum {
    LA_RESCALED_ROWS_MAX = 64, /* rows per chunk of rescaled features */

    /* Sums of more chunks than this are compensated (recurrence.h). */
    LA_PLAIN_SUMS = 16,
    LA_PLAIN_PAIRED_SUMS = 1024, /* with products of bfloat16 operands */
    LA_RUN_CHUNKS = 8, /* summed plainly by noncausal: half of those (token_sum.h) */

    /* In calls that carry what sums lose (operands.def), chunks end at multiples of
     * this many tokens, where a cut changes no bit; so do the runs of runs.h.  All
     * numbers of rows per chunk divide it. */
    LA_CUT_TOKENS = 64,

    /* The largest number of rows of S read per pass: they stay in the first-level cache
     * while all rows of A are read.  Scores are summed in parts of KC vectors. */
    KC = 64,

    LA_SCAN_COLS = 128,     /* channels of a block of the scans over tokens */
    LA_SELECTIVE_ROWS = 24, /* tokens of a block of selective_scan_backward, at least */
    LA_SLSTM_TOKENS = 64,   /* tokens of a sum of the gradient of sLSTM's R */
    LA_CHANNEL_GROUPS = 8,
};

/* selective_scan_backward sums over channels by groups of so many, a multiple of
 * LA_SCAN_COLS, and then over groups.  It depends on the number of channels alone, so
 * that threads may share the groups. */
static inline ptrdiff_t
channel_group(ptrdiff_t m)
{
    const ptrdiff_t step = (ptrdiff_t)LA_SCAN_COLS * LA_CHANNEL_GROUPS;
    return m > 0 ? (m + step - 1) / step * LA_SCAN_COLS : LA_SCAN_COLS;
}

/* Rows at a time where no recurrence determines them. */
#define LA_BLOCK ((ptrdiff_t)64)

/* --- sizes that affect only speed -------------------------------------------- */

/* The rows of a block are a multiple of MR.  A register tile has LA_TR rows (a multiple
 * of MR) or MR rows, and up to LA_NR vectors per row.  It must leave registers for
 * LA_NR + 1 operands.  Steps walk LA_STEP_NR vectors of columns at a time and hold two
 * numbers per column in registers. */
#define MR 4
#if defined(__AVX512F__)
#define LA_NR 4
#define LA_TR 4
#define LA_STEP_NR 8
#elif defined(__aarch64__)
#define LA_NR 2
#define LA_TR 8
#define LA_STEP_NR 8
#else
#define LA_NR 2
#define LA_TR 4
#define LA_STEP_NR 4
#endif

/* Whether panels (panels.h) are read for all column tiles before any is written.  A and
 * B take more room than a tile: where narrow tiles read them often, and a second-level
 * cache of 512 KiB holds only one of them, width 500 in double precision took 0.92 of
 * the time. */
#if defined(__x86_64__) && !defined(__AVX512F__)
#define LA_READ_FIRST 1
#else
#define LA_READ_FIRST 0
#endif

/* Vectors whose functions are computed step by step together: an even number. */
#if defined(__AVX512F__)
#define LA_CHAINS 8
#else
#define LA_CHAINS 4
#endif

enum {
    LA_MAPPED = 4, /* vectors that a map takes together: few rows have more */

    LA_QUERIES = 256, /* queries per block of softmax */

    LA_FEATURE_BYTES = 1 << 14, /* of the features that a map stores at a time */

    /* Sizes of a block of the short convolution. */
    LA_CONV_ROWS = 16,
    LA_CONV_COLS = 512,       /* such rows fit the first-level cache */
    LA_CONV_TAPS = 8,         /* of the gradients of the weights */
    LA_CONV_GROUP = 4,        /* taps of a tile in registers */
    LA_CONV_LONG = 64,        /* tokens of a channel worth a call of its own */
    LA_CONV_TOKENS = 1 << 16, /* between two polls */

    /* Sizes of a block of the scans over tokens. */
    LA_SCAN_ROWS = 32,
    /* Where a channel's tokens are adjacent: few channels, whose lines may all lie in a
     * few sets of the cache, and for each of them several lines. */
    LA_SCAN_CHANNELS = 16,
    LA_SCAN_COLUMN_ROWS = 128,
    LA_LINEAR_COLS = 4096,
    LA_LINEAR_ROWS = 1024,
    LA_WKV_WORK = 16,        /* multiply-adds in the time of a number's exponentials */
    LA_WKV_SETTLE = 1 << 20, /* tokens between roundings of its log scale */
    LA_WKV_TOGETHER = 2,     /* vectors of a row, with two exponentials each */

    /* Sequences of sLSTM that share the products with R. */
    LA_SLSTM_SEQUENCES = 16,

    /* The row step of a block in bytes is not a multiple of this: a cache of 32 KiB and
     * 8 ways has 64 sets of one 64-byte line per way, so that rows 2 KiB apart would
     * alternate between two sets. */
    LA_SET_STEP = 2048,

    /* Long chunks of wide blocks (panels.h). */
    LA_PANEL_ROWS = 64, /* rows of a chunk that are worth copying */
    LA_PANEL_TILES = 4, /* column tiles of the state that share the copy */

    /* Prefetching (fetch.h). */
    LA_LINE = 64,        /* bytes */
    LA_LINES_MAX = 32,   /* prefetched at a time: slightly more than a core can await */
    LA_LINES_MORE = 4,   /* added if prefetches are late; few per tile */
    LA_WRITE_AHEAD = 16, /* rows that will be written */

    /* Results of more numbers than this (16 MiB in float32) are written past the
     * caches: the caller would not find them there anyway. */
    LA_LARGE = 1 << 22,

    /* Interleaving of heads (interleave.c). */
    LA_INTERLEAVE_ROWS = 16,     /* tokens per slice: the chunk of most heads */
    LA_INTERLEAVE_WIDTH = 512,   /* bytes per row of a head; wider heads gain little */
    LA_INTERLEAVE_HEADS = 8,     /* 16 take more memory and are no faster */
    LA_INTERLEAVE_FAR = 1 << 20, /* bytes from first to last token: more than a cache */
    LA_INTERLEAVE_SCRATCH = 1 << 20, /* bytes that leave a second-level cache room */

    /* Rows that a thread takes at a time (operators.def). */
    LA_PIECE_ROWS = 256,
    LA_PIECE_FEATURES = 512,
    LA_PIECE_CONV = 16384,
    LA_PIECE_NUMBERS = 32768,
    LA_PIECE_HEADS = 8,

    /* Tokens of a convolution that a thread takes at least, as it loads the weights for
     * them, and a multiple of tiles. */
    LA_PART_ROWS = 64,
    LA_PART_STEP = 8,

    /* Panels of the values (split.c).  With this many pieces per thread, an uneven
     * share costs little; narrower panels would repeat maps and scores for too little
     * gain. */
    LA_EVEN_PIECES = 4,
    LA_EVEN_ROUNDS = 10, /* units per thread, for those left over in stages */
    LA_PANEL_VECTORS = 2,

    /* In multiply-adds, or work of about the same time. */
    LA_POLL = 1000000,          /* between two polls: at most a millisecond */
    LA_LONG_WORK = 1000000,     /* about 50 us; a thread wakes up in 10 to 50 us */
    LA_BRIEF_WORK = 20000000,   /* about a millisecond: Ctrl-C may wait for it */
    LA_GROUP_BYTES = 1 << 19,   /* what a group keeps, per thread (stages.c) */
    LA_GROUPS_BYTES = 48 << 20, /* of all groups, below what scratch.c keeps */
    LA_STAGED_THREADS = 4,      /* per unit of a call, for them to share groups */
    LA_RELAY_THREADS = 2,       /* the same for them to take groups in turn (relay.c) */
    LA_RELAY_COLUMNS = 96,      /* of wider values, delta rules gain more by panels */
    LA_RELAY_TOKENS = 128,      /* of a group, if they fit it */
    LA_STAGE_SHARES = 4,        /* of a group's chunks, per thread */
    LA_CARRY_AHEAD = 3,         /* chunks whose sums are prefetched */
    LA_STAGED_WORK = 16000000,  /* stages begin and end with few threads */
    LA_RELAY_WORK = 8000000,    /* the same of each unit, by a relay */
    LA_SPLIT_WORK = 4000000,    /* where threads share columns that are summed over */
};

#endif
