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
        pair_columns(block_at(dst, 0, l), copy, rows, some, 2 * VL,
                     LA_BFLOAT_PRODUCTS); /* unlike instructions, it keeps subnormals */
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
        const ptrdiff_t later = i + LA_WRITE_AHEAD < count ? i + LA_WRITE_AHEAD : i;
        for (ptrdiff_t l = 0; l < lanes; l += VL) {
            la_fetch_to_write(&dst.x[later * dst.ld + l]);
            vstore(&dst.x[i * dst.ld + l], own_pairs(row, l, cols));
        }
    }
    for (ptrdiff_t i = 0; !by_rows(x) && i < count; i += VL) {
        const ptrdiff_t rows = count - i < VL ? count - i : VL;
        load_own_pairs_across(block_at(dst, i, 0), x, t.first + i, rows, cols, by);
    }
    clear_rows(dst, count, round_up(t.rows, MR));
}

/* Whether rows t of x can be read in the caller's array: numbers of whole vectors of
 * pairs, at boundaries of `align` bytes. */
INLINE int
are_in_place(const struct la_head *h, const struct la_array *x, struct span t,
             ptrdiff_t cols, size_t align)
{
    const ptrdiff_t whole = 2 * round_up(padded_lanes(cols, h->products), VL);
    const size_t odd = ((uintptr_t)x->data | (size_t)x->rs) % align;
    return by_rows(x) && odd == 0 && cols == whole && t.rows % MR == 0;
}

/* Rows t of x in the caller's array. */
INLINE struct block
rows_in_place(const struct la_array *x, struct span t)
{
    char *const rows = x->data + t.first * x->rs;
    return (struct block){(T *)(void *)rows, x->rs / (ptrdiff_t)sizeof(T)};
}

/* The same of what is written: all rows must exist. */
INLINE int
are_writers_in_place(const struct la_head *h, const struct la_array *x, struct span t,
                     ptrdiff_t cols)
{
    return keys_left(h, t) == t.rows && are_in_place(h, x, t, cols, sizeof(T));
}

/* Copies such rows, unless they are read there. */
static void
load_own_rows(const struct la_head *h, const struct la_array *x, struct span t,
              ptrdiff_t cols, struct block copy)
{
    if (are_writers_in_place(h, x, t, cols)) {
        look_ahead(x, t, cols);
    }
    else {
        load_own_pairs(copy, x, t, keys_left(h, t), cols, h->products);
    }
}

/* Sets B and V of a sweep to those of the tokens t, which load_keys_as has loaded. */
INLINE void
take_keys_as(struct own own, const struct la_head *h, struct span t, struct sweep *c,
             struct block b, struct block v)
{
    const int keys = own.rows && are_writers_in_place(h, &h->k, t, h->d);
    const int values = own.values && are_writers_in_place(h, &h->v, t, h->m);
    c->b = keys ? rows_in_place(&h->k, t) : b;
    c->v = values ? rows_in_place(&h->v, t) : v;
}

/* Loads phi(k) and v of the tokens t, and 0 where no key exists, for a sweep. */
static void
load_keys_as(struct own own, const struct la_head *h, struct span t, struct sweep *c,
             struct block b, struct block v)
{
    if (own.rows) {
        load_own_rows(h, &h->k, t, h->d, b);
    }
    else {
        load_features(h, t, b);
    }
    if (own.values) {
        load_own_rows(h, &h->v, t, h->m, v);
    }
    else {
        load_values(h, t, v);
    }
    take_keys_as(own, h, t, c, b, v);
}

/* Whether tiles may read queries in the caller's array.  Those of AMX hold 16 rows, and
 * are loaded several times: slowly from rows that are not aligned, or far apart. */
INLINE int
are_readers_in_place(const struct la_head *h, const struct la_array *x, struct span t)
{
    const int amx = by_amx(h->products);
    const ptrdiff_t bytes = h->d * (ptrdiff_t)sizeof(uint16_t);
    return are_in_place(h, x, t, h->d, amx ? LA_ALIGN : sizeof(T)) &&
           (!amx || (t.rows % LA_AMX_ROWS == 0 && x->rs == bytes));
}

/* Loads phi of the tokens t of x, queries; A of a sweep. */
static void
load_readers_as(struct own own, const struct la_head *h, const struct la_array *x,
                struct span t, struct sweep *c, struct block a)
{
    const int in_place = own.rows && are_readers_in_place(h, x, t);
    c->a = in_place ? rows_in_place(x, t) : a;
    if (in_place) {
        look_ahead(x, t, h->d);
    }
    else if (own.rows) {
        load_own_pairs(a, x, t, t.rows, h->d, h->products);
    }
    else {
        load_mapped(a, x, t, h->d, h->map);
    }
}

#endif
