/* sweep.h: passes over the state, by column tiles (micro.h). */
#ifndef LA_SWEEP_H
#define LA_SWEEP_H

#include "micro.h"

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
#endif
#if LA_HAS_HALVES && defined(__AVX512F__)
LA_SWEEP_WIDTHS(sweep_native, LA_NATIVE_PRODUCTS)
#endif

INLINE void
sweep_tile(const struct sweep *c, ptrdiff_t col, int what, const int nr)
{
#if LA_HAS_HALVES && defined(__AVX512F__)
    if (c->pairs.by == LA_NATIVE_PRODUCTS) {
        sweep_native[nr - 1](c, col, what);
        return;
    }
#endif
#if LA_HAS_HALVES
    if (c->pairs.by != LA_FLOAT_PRODUCTS) {
        sweep_pairs[nr - 1](c, col, what);
        return;
    }
#endif
    sweep_floats[nr - 1](c, col, what);
}

/* Makes the pairs that all column tiles share. */
static void
pair_operands(const struct sweep *c, int what)
{
    if (c->pairs.by == LA_FLOAT_PRODUCTS) {
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
        pair_rows(c->pairs.b, c->b, c->rows, round_up(c->K, VL), c->pairs.by);
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
