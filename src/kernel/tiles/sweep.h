/* sweep.h: passes over the state, by column tiles (micro.h). */
#ifndef LA_SWEEP_H
#define LA_SWEEP_H

#include "amx_tiles.h"

/* The pairs of the state are made anew: it has changed. */
INLINE void
forget_pairs(const struct sweep *c)
{
    for (ptrdiff_t col = 0; c->held != NULL && col < c->W; col += NR * VL) {
        c->held[col / (NR * VL)] = NULL;
    }
}

/* Whether tiles read copies of B and V (panels.h). */
INLINE int
by_panels(const struct sweep *c)
{
    return c->pairs.panels.b != NULL && are_worth_panels(c->W);
}

/* O = bias + X V + A S for one column tile of nr vectors. */
INLINE void
read_tiles(const struct sweep *c, ptrdiff_t col, const T *s, struct block values,
           const int nr, const enum la_products by)
{
    LA_PANEL(of_s, KC, nr, by);
    for (ptrdiff_t k = 0; k == 0 || k < c->K; k += KC) {
        const ptrdiff_t kc = c->K - k < KC ? c->K - k : KC;
        const struct block plain = {(T *)s + k * nr * VL, nr * VL};
        const struct block part = paired(of_s, plain, kc, nr * VL, by);
        ptrdiff_t i = 0;
        for (; nr <= NR / 2 && i + 2 * LA_TR <= c->rows; i += 2 * LA_TR) {
            read_tile(c, col, part, values, k, kc, i, 2 * LA_TR, nr, by);
        }
        for (; i + LA_TR <= c->rows; i += LA_TR) {
            read_tile(c, col, part, values, k, kc, i, LA_TR, nr, by);
        }
        for (; i < c->rows; i += MR) {
            read_tile(c, col, part, values, k, kc, i, MR, nr, by);
        }
    }
}

INLINE void
write_tiles(const struct sweep *c, ptrdiff_t col, struct block values,
            struct state_tile to, const int compensated, const int nr,
            const enum la_products by)
{
    const struct block plain = by == LA_FLOAT_PRODUCTS ? c->b : c->pairs.b;
    struct columns b = {plain.x, 1, plain.ld};
    if (by == LA_FLOAT_PRODUCTS && nr > NR / 2 && by_panels(c)) {
        b = (struct columns){c->pairs.panels.b, c->rows, MR};
    }
    const ptrdiff_t end = c->K;
    ptrdiff_t l = 0;
    for (; nr <= NR / 2 && l + 2 * LA_TR <= end; l += 2 * LA_TR) {
        write_tile(c, col, b, values, to, l, compensated, 2 * LA_TR, nr, by);
    }
    for (; l + LA_TR <= end; l += LA_TR) {
        write_tile(c, col, b, values, to, l, compensated, LA_TR, nr, by);
    }
    for (; l < end; l += MR) {
        write_tile(c, col, b, values, to, l, compensated, MR, nr, by);
    }
}

/* Reads, then writes, one column tile of nr vectors. */
INLINE void
sweep_width(const struct sweep *c, ptrdiff_t col, int what, const int nr,
            const enum la_products by)
{
    const ptrdiff_t at = col * round_up(c->K, MR);
    LA_PANEL(room, LA_PAIRED_ROWS, nr, by);
    struct block values = block_at(c->v, 0, col);
    if (by == LA_FLOAT_PRODUCTS && by_panels(c)) {
        values = (struct block){c->pairs.panels.v, nr * VL};
    }
    else if (by != LA_FLOAT_PRODUCTS && (what & LA_WRITE || c->dots.x != NULL)) {
        values = (struct block){room, nr * VL};
        pair_values(values, c, col, nr * VL);
    }
    if (what & LA_READ) {
        read_tiles(c, col, state_read(c) + at, values, nr, by);
    }
    if (what & LA_WRITE && c->lost != NULL && !c->fades) {
        write_tiles(c, col, values, state_tile(c, at), 1, nr, by);
    }
    else if (what & LA_WRITE) {
        write_tiles(c, col, values, state_tile(c, at), 0, nr, by);
    }
}

/* One function for each width and kind of products, shared by all recurrences: tiles
 * are most of the code. */
#define LA_SWEEP_WIDTH(name, width, nr, by)                                            \
    static __attribute__((noinline)) void name##_##nr(const struct sweep *c,           \
                                                      ptrdiff_t col, int what)         \
    {                                                                                  \
        width(c, col, what, nr, by);                                                   \
    }
#if LA_NR > 2
#define LA_SWEEP_WIDTHS(name, width, by)                                               \
    LA_SWEEP_WIDTH(name, width, 1, by)                                                 \
    LA_SWEEP_WIDTH(name, width, 2, by)                                                 \
    LA_SWEEP_WIDTH(name, width, 3, by)                                                 \
    LA_SWEEP_WIDTH(name, width, 4, by)                                                 \
    static void (*const name[])(const struct sweep *, ptrdiff_t,                       \
                                int) = {name##_1, name##_2, name##_3, name##_4};
#else
#define LA_SWEEP_WIDTHS(name, width, by)                                               \
    LA_SWEEP_WIDTH(name, width, 1, by)                                                 \
    LA_SWEEP_WIDTH(name, width, 2, by)                                                 \
    static void (*const name[])(const struct sweep *, ptrdiff_t, int) = {name##_1,     \
                                                                         name##_2};
#endif
LA_SWEEP_WIDTHS(sweep_floats, sweep_width, LA_FLOAT_PRODUCTS)
#if LA_HAS_HALVES
LA_SWEEP_WIDTHS(sweep_pairs, sweep_width, LA_BFLOAT_PRODUCTS)

/* Plain C in place of AMX serves tests: one function of all widths compiles faster. */
static __attribute__((noinline)) void
plain_amx_sweep(const struct sweep *c, ptrdiff_t col, int what, int nr,
                enum la_products by)
{
    (void)by;
    amx_sweep(c, col, what, nr, LA_PLAIN_AMX_PRODUCTS);
}
LA_SWEEP_WIDTHS(sweep_plain_amx, plain_amx_sweep, LA_PLAIN_AMX_PRODUCTS)
#endif
#if LA_HAS_HALVES && defined(__AVX512F__)
LA_SWEEP_WIDTHS(sweep_native, sweep_width, LA_NATIVE_PRODUCTS)
#else
#define sweep_native sweep_pairs
#endif
#if LA_HAS_AMX
LA_SWEEP_WIDTHS(sweep_amx, amx_sweep, LA_AMX_PRODUCTS)
#else
#define sweep_amx sweep_plain_amx
#endif

#if LA_HAS_HALVES
static void (*const *const sweep_of[])(const struct sweep *, ptrdiff_t, int) = {
    [LA_FLOAT_PRODUCTS] = sweep_floats,  [LA_BFLOAT_PRODUCTS] = sweep_pairs,
    [LA_NATIVE_PRODUCTS] = sweep_native, [LA_PLAIN_AMX_PRODUCTS] = sweep_plain_amx,
    [LA_AMX_PRODUCTS] = sweep_amx,
};
#endif

INLINE void
sweep_tile(const struct sweep *c, ptrdiff_t col, int what, const int nr)
{
#if LA_HAS_HALVES
    if (c->pairs.by != LA_FLOAT_PRODUCTS) {
        sweep_of[c->pairs.by][nr - 1](c, col, what);
        return;
    }
#endif
    if (by_panels(c) && (what & LA_WRITE || c->dots.x != NULL)) {
        const ptrdiff_t rows = round_up(c->rows, MR); /* up to these, zeros */
        copy_vectors(c->pairs.panels.v, block_at(c->v, 0, col), rows, nr);
    }
    sweep_floats[nr - 1](c, col, what);
}

/* Rows [c->first, c->end) of one column tile of the next S, from the sums B^T V in its
 * place. */
INLINE void
carry_width(const struct sweep *c, ptrdiff_t col, const int nr)
{
    const struct state_tile to = state_tile(c, col * round_up(c->K, MR));
    const int compensated = c->lost != NULL && !c->fades;
    for (ptrdiff_t l = c->first; l < c->end; l += MR) {
        if (compensated) {
            add_sums(c, col, to, l, to.s + l * nr * VL, 1, nr);
        }
        else {
            add_sums(c, col, to, l, to.s + l * nr * VL, 0, nr);
        }
    }
}

#define LA_CARRY_WIDTH(nr)                                                             \
    static __attribute__((noinline)) void carry_##nr(const struct sweep *c,            \
                                                     ptrdiff_t col)                    \
    {                                                                                  \
        carry_width(c, col, nr);                                                       \
    }
LA_CARRY_WIDTH(1)
LA_CARRY_WIDTH(2)
#if LA_NR > 2
LA_CARRY_WIDTH(3)
LA_CARRY_WIDTH(4)
static void (*const carry_of[])(const struct sweep *, ptrdiff_t) = {carry_1, carry_2,
                                                                    carry_3, carry_4};
#else
static void (*const carry_of[])(const struct sweep *, ptrdiff_t) = {carry_1, carry_2};
#endif

INLINE void
carry_tile(const struct sweep *c, ptrdiff_t col, const int nr)
{
    carry_of[nr - 1](c, col);
}

#if LA_HAS_HALVES
/* The pairs of row i of X, as far as tiles hold them: of its own part and of `cols`
 * columns from `first` on, which end with it or begin with it. */
INLINE void
pair_seen_row(const struct sweep *c, ptrdiff_t i, const int upper, ivec *most,
              const enum la_products by)
{
    const ptrdiff_t part = 2 * LA_AMX_PAIRS, own = i / part * part, next = own + part;
    const ptrdiff_t end = upper ? round_up(c->rows, part) : next;
    const ptrdiff_t cols = upper ? c->rows : next;
    for (ptrdiff_t j = upper ? own : 0; j < end; j += 2 * VL) {
        vec x = pair_of_columns(&c->dots.x[i * c->dots.ld + j], cols - j, by);
        if (j >= own && j < next) {
            x = some_of_pairs(x, i - j, upper);
        }
        note_sizes(most, x, by);
        vstore(&c->pairs.dots.x[i * c->pairs.dots.ld + j / 2], x);
    }
}

INLINE int
pair_seen_scores_by(const struct sweep *c, ptrdiff_t rows, const enum la_products by)
{
    ivec most = {0};
    for (ptrdiff_t i = 0; c->upper && i < rows; i++) {
        pair_seen_row(c, i, 1, &most, by);
    }
    for (ptrdiff_t i = 0; !c->upper && i < rows; i++) {
        pair_seen_row(c, i, 0, &most, by);
    }
    return reaches_infinity(most);
}

/* The pairs of the rows of X, as far as tiles hold them. */
static void
pair_seen_scores(const struct sweep *c, ptrdiff_t rows)
{
    LA_CONVERT(pair_seen_scores_by, c->pairs.by, c, rows);
}
#else
static void
pair_seen_scores(const struct sweep *c, ptrdiff_t rows)
{
    (void)c, (void)rows;
}
#endif

/* Makes the pairs of A and B from their own rows, unless A is there already. */
static void
pair_own_rows(const struct sweep *c, int what)
{
    const enum la_products by = c->pairs.by;
    const ptrdiff_t lanes = padded_lanes(c->K, by);
    if (what & LA_READ && c->from_start != NULL) {
        scale_own_rows(c->pairs.a, c->a, c->rows, c->K, c->from_start, by);
    }
    if (what & LA_WRITE && by_amx(by)) {
        if (!c->scored) {
            transpose_own_rows(c->pairs.keys, c->b, c->rows, lanes);
        }
        split_transposed(c->pairs.b, c->pairs.keys, c->rows, c->K, c->to_end, by);
    }
    else if (what & LA_WRITE) {
        zip_rows(c->pairs.b, c->b, c->rows, round_up(c->K, VL), c->to_end, by);
    }
}

/* Makes those of A and B from floats. */
static void
pair_rows_of_floats(const struct sweep *c, int what)
{
    const enum la_products by = c->pairs.by;
    if (what & LA_READ && !c->scored) {
        pair_rows_of_a(c);
    }
    if (what & LA_WRITE && by_amx(by) && c->scored && c->dots.x != NULL) {
        split_transposed(c->pairs.b, c->pairs.keys, c->rows, c->K, NULL, by);
    }
    else if (what & LA_WRITE && by_amx(by)) {
        pair_rows_transposed(c->pairs.b, c->b, c->rows, round_up(c->K, VL), by);
    }
    else if (what & LA_WRITE) {
        pair_rows(c->pairs.b, c->b, c->rows, round_up(c->K, VL), by);
    }
}

/* Makes the pairs, or panels, that all column tiles share. */
static void
pair_operands(const struct sweep *c, int what)
{
    if (!LA_HAS_HALVES || c->pairs.by == LA_FLOAT_PRODUCTS) {
        if (what & LA_WRITE && by_panels(c)) {
            copy_columns(c->pairs.panels.b, c->b, c->rows, c->K);
        }
        return;
    }
    const ptrdiff_t rows = round_up(c->rows, MR);
    if (c->own.rows) {
        pair_own_rows(c, what);
    }
    else {
        pair_rows_of_floats(c, what);
    }
    if (what & LA_READ && c->dots.x != NULL && by_amx(c->pairs.by)) {
        pair_seen_scores(c, rows);
    }
    else if (what & LA_READ && c->dots.x != NULL) {
        pair_columns(c->pairs.dots, c->dots, rows, c->rows, 2 * c->pairs.dots.ld,
                     c->pairs.by);
    }
}

/* Reads, then writes, each column tile of the state while it is in cache, or all of
 * them. */
static void
sweep(const struct sweep *c, int what)
{
    const int first = LA_READ_FIRST && by_panels(c) ? what & LA_READ : 0;
    const int then = what & ~first;
    pair_operands(c, what);
    if (first) {
        LA_BY_TILES(c->W, sweep_tile(c, col, first, nr));
    }
    if (then) {
        LA_BY_TILES(c->W, sweep_tile(c, col, then, nr));
    }
}

#endif
