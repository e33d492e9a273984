/* sweep.h: passes over the state, by column tiles (micro.h). */
#ifndef LA_SWEEP_H
#define LA_SWEEP_H

#include "amx_tiles.h"

/* O = bias + X V + A S for one column tile of nr vectors. */
INLINE void
read_tiles(const struct sweep *c, ptrdiff_t col, T *s, struct block values,
           const int nr, const enum la_products by)
{
    LA_PANEL(of_s, KC, nr, by);
    for (ptrdiff_t k = 0; k == 0 || k < c->K; k += KC) {
        const ptrdiff_t kc = c->K - k < KC ? c->K - k : KC;
        const struct block plain = {s + k * nr * VL, nr * VL};
        const struct block part = paired(of_s, plain, kc, nr * VL, by);
        ptrdiff_t i = 0;
        for (; by_amx(by) && i < c->rows; i += LA_AMX_ROWS) {
            amx_read_tile(c, col, part, values, k, kc, i, nr, by);
        }
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
    const ptrdiff_t end = c->K;
    ptrdiff_t l = 0;
    for (; by_amx(by) && l < end; l += LA_AMX_ROWS) {
        amx_write_tile(c, col, values, to, l, end, compensated, nr, by);
    }
    for (; nr <= NR / 2 && l + 2 * LA_TR <= end; l += 2 * LA_TR) {
        write_tile(c, col, values, to, l, compensated, 2 * LA_TR, nr, by);
    }
    for (; l + LA_TR <= end; l += LA_TR) {
        write_tile(c, col, values, to, l, compensated, LA_TR, nr, by);
    }
    for (; l < end; l += MR) {
        write_tile(c, col, values, to, l, compensated, MR, nr, by);
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
    amx_begin(by);
    if (what & LA_WRITE || c->dots.x != NULL) {
        values = paired(room, values, c->rows, nr * VL, by);
    }
    if (what & LA_READ) {
        read_tiles(c, col, c->s + at, values, nr, by);
    }
    if (what & LA_WRITE && c->lost != NULL && !c->fades) {
        write_tiles(c, col, values, state_tile(c, at), 1, nr, by);
    }
    else if (what & LA_WRITE) {
        write_tiles(c, col, values, state_tile(c, at), 0, nr, by);
    }
    amx_end(by);
}

/* One function for each width and kind of products, shared by all recurrences: tiles
 * are most of the code. */
#define LA_SWEEP_WIDTH(name, nr, by)                                                   \
    static __attribute__((noinline)) void name##_##nr(const struct sweep *c,           \
                                                      ptrdiff_t col, int what)         \
    {                                                                                  \
        sweep_width(c, col, what, nr, by);                                             \
    }
#if LA_NR > 2
#define LA_SWEEP_WIDTHS(name, by)                                                      \
    LA_SWEEP_WIDTH(name, 1, by)                                                        \
    LA_SWEEP_WIDTH(name, 2, by)                                                        \
    LA_SWEEP_WIDTH(name, 3, by)                                                        \
    LA_SWEEP_WIDTH(name, 4, by)                                                        \
    static void (*const name[])(const struct sweep *, ptrdiff_t,                       \
                                int) = {name##_1, name##_2, name##_3, name##_4};
#else
#define LA_SWEEP_WIDTHS(name, by)                                                      \
    LA_SWEEP_WIDTH(name, 1, by)                                                        \
    LA_SWEEP_WIDTH(name, 2, by)                                                        \
    static void (*const name[])(const struct sweep *, ptrdiff_t, int) = {name##_1,     \
                                                                         name##_2};
#endif
LA_SWEEP_WIDTHS(sweep_floats, LA_FLOAT_PRODUCTS)
#if LA_HAS_HALVES
LA_SWEEP_WIDTHS(sweep_pairs, LA_BFLOAT_PRODUCTS)
LA_SWEEP_WIDTHS(sweep_plain_amx, LA_PLAIN_AMX_PRODUCTS)
#endif
#if LA_HAS_HALVES && defined(__AVX512F__)
LA_SWEEP_WIDTHS(sweep_native, LA_NATIVE_PRODUCTS)
#else
#define sweep_native sweep_pairs
#endif
#if LA_HAS_AMX
LA_SWEEP_WIDTHS(sweep_amx, LA_AMX_PRODUCTS)
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
    sweep_floats[nr - 1](c, col, what);
}

/* Rows [c->first, c->end) of one column tile of the next S, from the sums B^T V in its
 * place (c->sums). */
INLINE void
carry_width(const struct sweep *c, ptrdiff_t col, const int nr)
{
    const struct state_tile to = state_tile(c, col * round_up(c->K, MR));
    const int compensated = c->lost != NULL && !c->fades;
    for (ptrdiff_t l = c->first; l < c->end; l += MR) {
        vec sums[MR][NR];
        LA_EACH(r, MR) {
            LA_EACH(j, nr) {
                sums[r][j] = vload(&to.s[(l + r) * nr * VL + j * VL]);
            }
        }
        if (compensated) {
            add_chunk(c, col, to, l, sums, 1, MR, nr);
        }
        else {
            add_chunk(c, col, to, l, sums, 0, MR, nr);
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

/* Makes the pairs that all column tiles share. */
static void
pair_operands(const struct sweep *c, int what)
{
    if (!LA_HAS_HALVES || c->pairs.by == LA_FLOAT_PRODUCTS) {
        return;
    }
    const ptrdiff_t rows = round_up(c->rows, MR);
    if (what & LA_READ && !c->scored) {
        pair_columns(c->pairs.a, c->a, rows, c->K, c->pairs.by);
    }
    if (what & LA_READ && c->dots.x != NULL) {
        pair_columns(c->pairs.dots, c->dots, rows, c->rows, c->pairs.by);
    }
    if (what & LA_WRITE) {
        (by_amx(c->pairs.by) ? pair_rows_transposed : pair_rows)(
            c->pairs.b, c->b, c->rows, round_up(c->K, VL), c->pairs.by);
    }
}

/* Reads, then writes, each column tile of the state while it is in cache. */
static void
sweep(const struct sweep *c, int what)
{
    pair_operands(c, what);
    LA_BY_TILES(c->W, sweep_tile(c, col, what, nr));
}

#endif
