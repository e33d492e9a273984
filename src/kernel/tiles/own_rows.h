/* own_rows.h: loads rows of bfloat16 numbers that no map changes as they are in memory
 * (own_pairs.h). */
#ifndef LA_OWN_ROWS_H
#define LA_OWN_ROWS_H

#include "recurrence.h"

/* Whether products take the numbers of x as they are. */
INLINE int
are_operands(const struct la_head *h, const struct la_array *x)
{
    return LA_HAS_HALVES && h->products != LA_FLOAT_PRODUCTS && x->type == LA_BFLOAT;
}

/* Whether they take those of phi(q) and phi(k) so. */
INLINE int
are_own_rows(const struct la_head *h)
{
    return h->map == LA_MAP_identity && are_operands(h, &h->k) &&
           are_operands(h, &h->q);
}

/* A block of rows of `cols` numbers, or of their pairs: each chunk may decide. */
INLINE struct block
take_own_block(const struct la_head *h, struct arena *arena, ptrdiff_t rows,
               ptrdiff_t cols)
{
    return take_block(arena, rows, wider_of(cols, padded_lanes(cols, h->products)));
}

/* A block of rows of `cols` numbers or, if they are `own`, of their pairs. */
INLINE struct block
take_rows_as(int own, const struct la_head *h, struct arena *arena, ptrdiff_t rows,
             ptrdiff_t cols)
{
    return take_block(arena, rows, own ? padded_lanes(cols, h->products) : cols);
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
            la_fetch_to_write(&dst.x[(i + LA_WRITE_AHEAD) * dst.ld + l]);
            vstore(&dst.x[i * dst.ld + l], own_pairs(row, l, cols));
        }
    }
    for (ptrdiff_t i = 0; !by_rows(x) && i < count; i += VL) {
        const ptrdiff_t rows = count - i < VL ? count - i : VL;
        load_own_pairs_across(block_at(dst, i, 0), x, t.first + i, rows, cols, by);
    }
    clear_rows(dst, count, round_up(t.rows, MR));
}

/* a = phi of the tokens t of x: as floats, or as they are. */
static void
load_readers_as(struct own own, const struct la_head *h, const struct la_array *x,
                struct span t, struct block a)
{
    if (own.rows) {
        load_own_pairs(a, x, t, t.rows, h->d, h->products);
    }
    else {
        load_mapped(a, x, t, h->d, h->map);
    }
}

/* b = phi(k) and v of the tokens t, and 0 where no key exists. */
static void
load_keys_as(struct own own, const struct la_head *h, struct span t, struct block b,
             struct block v)
{
    if (own.rows) {
        load_own_pairs(b, &h->k, t, keys_left(h, t), h->d, h->products);
    }
    else {
        load_features(h, t, b);
    }
    if (own.values) {
        load_own_pairs(v, &h->v, t, keys_left(h, t), h->m, h->products);
    }
    else {
        load_values(h, t, v);
    }
}

#endif
