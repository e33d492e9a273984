/* tuning.h: sizes that were measured: of blocks, tiles and chunks, and from when on
 * work is worth cutting.
 *
 * The first part orders sums.  Its numbers are of the problem alone, so that results
 * have the same bits on every processor of an instruction set, for any number of
 * threads; changing one changes bits.  The second part is of speed alone: another
 * processor may have others. */
#ifndef LA_TUNING_H
#define LA_TUNING_H

#include <stddef.h>

/* --- what orders sums ------------------------------------------------------- */

/* Rows a chunk.  The triangle costs rows (d + m) a token, reading and writing the
 * state d m / rows in memory traffic: measured, 16, 32 and 64 rows were fastest.  Of d
 * alone: a panel of the values must be cut as the whole is, or its bits would differ.
 */
static inline ptrdiff_t
chunk_rows(ptrdiff_t d)
{
    return d <= 64 ? 16 : d <= 192 ? 32 : 64;
}

/* Of noncausal: no triangle limits the rows of a narrow state, and twice as many are
 * half as many sums to compensate. */
static inline ptrdiff_t
noncausal_rows(ptrdiff_t d)
{
    return d <= 64 ? 32 : chunk_rows(d);
}

/* Of the delta rules: short chunks, for the triangles cost rows (2 d + 2 m) a token. At
 * most LA_CHUNK_MAX: so many numbers and no more lie on the stack. */
enum { LA_CHUNK_MAX = 32 };

static inline ptrdiff_t
delta_chunk_rows(ptrdiff_t d)
{
    return d <= 128 ? 16 : LA_CHUNK_MAX;
}

/* Of gated_backward: longer chunks than forward, for each takes five sweeps over a
 * state, a copy and a transposition. */
static inline ptrdiff_t
gated_backward_rows(ptrdiff_t d)
{
    return d <= 192 ? 32 : 64;
}

enum {
    LA_RESCALED_ROWS_MAX = 64, /* rows a chunk of rescaled features, at most */

    /* Sums of more chunks than this are compensated (recurrence.h). */
    LA_PLAIN_SUMS = 16,

    /* Rows of S read per pass, at most: they stay in first-level cache while all rows
     * of A go by.  Scores are summed in parts of KC vectors. */
    KC = 64,

    /* A sequence of LA_LONG tokens or more is computed as so many segments, the last of
     * which takes what is left over.  Of its length alone, so that neither the number
     * of threads nor of heads changes a bit; whole chunks of any kind. */
    LA_LONG = 1 << 17,
    LA_SEGMENT_COUNT = 8,
    LA_SEGMENT_STEP = 64,
};

/* Rows at a time where no recurrence says how many. */
#define LA_BLOCK ((ptrdiff_t)64)

/* --- what is of speed alone ------------------------------------------------- */

/* Rows of a block come in multiples of MR.  A register tile is LA_TR rows, a multiple
 * of MR, or MR rows, by up to LA_NR vectors, and must leave registers for LA_NR + 1
 * operands. */
#define MR 4
#if defined(__AVX512F__)
#define LA_NR 4
#define LA_TR 4
#elif defined(__aarch64__)
#define LA_NR 2
#define LA_TR 8
#else
#define LA_NR 2
#define LA_TR 4
#endif

enum {
    LA_QUERIES = 256, /* queries at a time of softmax */

    /* The short convolution, at a time. */
    LA_CONV_ROWS = 16,
    LA_CONV_COLS = 512, /* such rows stay in the first-level cache */
    LA_CONV_TAPS = 8,

    /* Scans over tokens, at a time. */
    LA_SCAN_ROWS = 32,
    LA_SCAN_COLS = 128,
    LA_SCAN_CHANNELS = 64, /* of those whose tokens follow one another */
    LA_LINEAR_COLS = 4096,
    LA_WKV_WORK = 16, /* multiply-adds in the time of a number's exponentials */

    /* Rows of a block are no multiple of so many bytes apart: 32 KiB of 8 ways hold 64
     * lines a way, so that rows 2 KiB apart share two sets. */
    LA_SET_STEP = 2048,

    /* Prefetching (fetch.h). */
    LA_LINE = 64,      /* bytes */
    LA_LINES_MAX = 32, /* asked for at a time: what a core can wait for, and some */
    LA_LINES_MORE = 4, /* where some are late: few, so that no tile asks for too many */

    /* Results of more numbers are written past the caches: 16 MiB in float32 no caller
     * finds there. */
    LA_LARGE = 1 << 22,

    /* Interleaved heads (interleave.c). */
    LA_INTERLEAVE_ROWS = 16,     /* tokens a slice: a chunk of heads so narrow */
    LA_INTERLEAVE_WIDTH = 256,   /* bytes of a head's row; longer ones gain nothing */
    LA_INTERLEAVE_HEADS = 4,     /* of 2 to 16 the fewest that were fast */
    LA_INTERLEAVE_FAR = 1 << 20, /* bytes, first token to last: more than a cache */

    /* Rows that a thread takes at a time (operators.def). */
    LA_PIECE_ROWS = 256,
    LA_PIECE_FEATURES = 512,
    LA_PIECE_CONV = 16384,
    LA_PIECE_NUMBERS = 32768,

    /* Panels of the values (plan.c): an uneven share of so many pieces a thread costs
     * little, and narrower panels would repeat maps and scores for too little. */
    LA_EVEN_PIECES = 4,
    LA_PANEL_VECTORS = 2,

    /* In multiply-adds, or what takes about as long. */
    LA_POLL = 1000000,       /* between two looks at the clock: a millisecond at most */
    LA_LONG_WORK = 1000000,  /* 50 us or so; a thread wakes in 10 to 50 */
    LA_SPLIT_WORK = 4000000, /* threads wait for each other twice (backward_split.c) */
};

#endif
