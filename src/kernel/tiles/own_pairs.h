/* own_pairs.h: rows of bfloat16 numbers that no map changes, as the pairs of products
 * (pairs.h).
 *
 * Rows of adjacent numbers are copied, not converted.  The product of two such numbers
 * is a float, unless it overflows or vanishes, so that only sums are rounded. */
#ifndef LA_OWN_PAIRS_H
#define LA_OWN_PAIRS_H

#include "mapped.h"
#include "scores.h"

/* Whether products take the numbers of phi(x) as they are. */
INLINE int
are_pairs(const struct la_head *h, const struct la_array *x)
{
    return LA_HAS_HALVES && h->products != LA_FLOAT_PRODUCTS &&
           h->map == LA_MAP_identity && x->type == LA_BFLOAT;
}

/* A block of rows of `cols` numbers, or of their pairs. */
INLINE struct block
take_own_block(const struct la_head *h, struct arena *arena, ptrdiff_t rows,
               ptrdiff_t cols)
{
    return take_block(arena, rows, wider_of(cols, padded_lanes(cols, h->products)));
}

/* Lanes [l, l + VL) of a row of `cols` adjacent numbers; zeros past them. */
INLINE vec
own_pairs(const char *row, ptrdiff_t l, ptrdiff_t cols)
{
    const ptrdiff_t size = cols * (ptrdiff_t)sizeof(uint16_t),
                    at = l * (ptrdiff_t)sizeof(T);
    vec x = {0};
    if (at + LA_VBYTES <= size) {
        return vload_any(row + at);
    }
    if (at < size) {
        memcpy(&x, row + at, (size_t)(size - at));
    }
    return x;
}

/* Rows [first, first + rows) of x, which is not by rows; rows <= VL. */
INLINE void
load_own_pairs_across(struct block dst, const struct la_array *x, ptrdiff_t first,
                      ptrdiff_t rows, ptrdiff_t cols, enum la_products by)
{
    for (ptrdiff_t l = 0; l < padded_lanes(cols, by); l += VL) {
        _Alignas(LA_ALIGN) T room[2 * VL * VL];
        const struct block copy = {room, 2 * VL};
        const struct la_array part = shifted(x, 2 * l * x->cs);
        const ptrdiff_t left = cols - 2 * l, some = left < 2 * VL ? left : 2 * VL;
        if (some > 0) {
            load_across(copy, &part, rows_from(first, rows), some);
        }
        pair_columns(block_at(dst, 0, l), copy, rows, some, 2 * VL, by);
    }
}

/* dst = rows t of x in pairs, of which `count` exist, and zeros up to a multiple of MR
 * rows. */
static void
load_own_pairs(struct block dst, const struct la_array *x, struct span t,
               ptrdiff_t count, ptrdiff_t cols, enum la_products by)
{
    const ptrdiff_t lanes = padded_lanes(cols, by);
    look_ahead(x, (struct span){t.first, count, t.next, t.ahead}, cols);
    for (ptrdiff_t i = 0; by_rows(x) && i < count; i++) {
        const char *row = x->data + (t.first + i) * x->rs;
        for (ptrdiff_t l = 0; l < lanes; l += VL) {
            vstore(&dst.x[i * dst.ld + l], own_pairs(row, l, cols));
        }
    }
    for (ptrdiff_t i = 0; !by_rows(x) && i < count; i += VL) {
        const ptrdiff_t rows = count - i < VL ? count - i : VL;
        load_own_pairs_across(block_at(dst, i, 0), x, t.first + i, rows, cols, by);
    }
    clear_rows(dst, count, round_up(t.rows, MR));
}

/* Numbers of the same columns of two rows in pairs, side by side. */
INLINE void
zip_words(vec *low, vec *high, vec x, vec y)
{
#if defined(__AVX512F__)
    typedef uint16_t words __attribute__((vector_size(64)));
    const words order = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i a = (__m512i)x, b = (__m512i)y;
    *low = (vec)_mm512_permutex2var_epi16(a, (__m512i)order, b);
    *high = (vec)_mm512_permutex2var_epi16(a, (__m512i)(order + 16), b);
#else
    enum { WORDS = LA_VBYTES / 2 };
    uint16_t from[2][WORDS], to[2][WORDS];
    memcpy(from[0], &x, sizeof(x));
    memcpy(from[1], &y, sizeof(y));
    for (ptrdiff_t t = 0; t < 2 * WORDS; t++) {
        to[t / WORDS][t % WORDS] = from[t % 2][t / 2];
    }
    memcpy(low, to[0], sizeof(*low));
    memcpy(high, to[1], sizeof(*high));
#endif
}

/* pair_rows of a block, from its rows in pairs. */
static void
zip_rows(struct block dst, struct block src, ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t i = 0; i < rows; i += 2) {
        const T *x = &src.x[i * src.ld], *y = x + src.ld;
        T *to = &dst.x[i / 2 * dst.ld];
        for (ptrdiff_t j = 0; j < cols; j += 2 * VL) {
            vec low, high;
            zip_words(&low, &high, vload(&x[j / 2]), vload(&y[j / 2]));
            vstore(&to[j], low);
            if (j + VL < cols) {
                vstore(&to[j + VL], high);
            }
        }
    }
}

/* Makes the pairs of rows of B for a write, from those along columns, of the sweep's
 * first rows; with AMX, from these transposed. */
static void
zip_operands(const struct sweep *c)
{
    if (by_amx(c->pairs.by)) {
        split_transposed(c->pairs.b, c->pairs.keys, c->rows, c->K, c->pairs.by);
    }
    else {
        zip_rows(c->pairs.b, c->pairs.a, c->rows, round_up(c->K, VL));
    }
}

/* pair_transposed of B, from the pairs along columns. */
static void
transpose_own_keys(const struct sweep *c)
{
    const struct block a = c->pairs.a;
    for (ptrdiff_t j = 0; j < c->rows; j += VL) {
        for (ptrdiff_t l = 0; l < padded_lanes(c->K, c->pairs.by); l += VL) {
            vec x[VL];
            LA_EACH(i, VL) {
                x[i] = j + i < c->rows ? vload(&a.x[(j + i) * a.ld + l]) : (vec){0};
            }
            store_transposed(block_at(c->pairs.keys, l, j), x);
        }
    }
}

#endif
