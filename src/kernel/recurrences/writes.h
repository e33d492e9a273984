/* writes.h: what gated attention writes and adds to its outputs where writes have
 * strengths (ssd.h): w_i v_i in place of v_i, and D o v_i in row i of the output.
 *
 * In gradients, with dW_i the gradient of w_i v_i and c_i the cotangent,
 *
 *    dw_i = v_i.dW_i,  dv_i = w_i dW_i + D o c_i,  dD = sum c_i o v_i
 *
 * A token without a key has no value: all of these are 0. */
#ifndef LA_WRITES_H
#define LA_WRITES_H

#include "../tiles/recurrence.h"

struct writes {
    T *strength;               /* w, (rows), or NULL */
    T *skip;                   /* D, (m), or NULL */
    struct block v, cotangent; /* without their factors */
};

/* `gradients`: also for those. */
static struct writes
take_writes(const struct la_head *h, struct arena *arena, ptrdiff_t rows, int gradients)
{
    const int skips = la_is_given(&h->D), writes = la_is_given(&h->strength);
    struct writes r = {0};
    if (writes) {
        r.strength = take_row(arena, rows);
    }
    if (skips) {
        r.skip = take_row(arena, h->m);
    }
    if (skips || (gradients && writes)) {
        r.v = take_block(arena, rows, h->m);
    }
    if (skips && gradients) {
        r.cotangent = take_block(arena, rows, h->m);
    }
    return r;
}

/* What is the same for all tokens. */
INLINE void
load_skip(const struct la_head *h, const struct writes *r)
{
    if (r->skip != NULL) {
        load_vector(r->skip, &h->D, h->m);
    }
}

/* w of the tokens t, if they have strengths, and 0 where no key exists. */
static void
load_strengths(const struct la_head *h, const struct writes *r, struct span t)
{
    if (r->strength != NULL) {
        const struct la_array row =
            transposed(shifted(&h->strength, t.first * h->strength.rs));
        load_row(r->strength, round_up(t.rows, VL), &row, 0, keys_left(h, t));
    }
}

/* The same, and v = w v. */
static void
strengthen(const struct la_head *h, const struct writes *r, struct span t,
           struct block v)
{
    load_strengths(h, r, t);
    if (r->strength != NULL) {
        scale_rows(v, keys_left(h, t), r->strength);
    }
}

/* b = phi(k) and v = w v of the tokens t, and 0 where no key exists. */
static void
load_writes(const struct la_head *h, const struct writes *r, struct span t,
            struct block b, struct block v)
{
    load_keys(h, t, b, v);
    strengthen(h, r, t, v);
}

/* x_i += D o y_i */
static void
add_skip(struct block x, const T *skip, struct block y, ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t i = 0; i < rows; i++, x.x += x.ld, y.x += y.ld) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const vec sum = vload(&x.x[j]);
            vstore(&x.x[j], vfma(vload(&skip[j]), vload(&y.x[j]), sum));
        }
    }
}

/* Stores scale_i o_i, and D o v_i with it. */
static void
store_outputs(const struct la_head *h, const struct writes *r, struct span t,
              struct block o, const T *scale)
{
    if (r->skip == NULL) {
        store_rows(&h->o, t, h->m, o, scale);
        return;
    }
    const struct span keys = rows_from(t.first, keys_left(h, t));
    load_plain(r->v, &h->v, keys, h->m);
    scale_rows(o, t.rows, scale);
    add_skip(o, r->skip, r->v, keys.rows, h->m);
    store_rows(&h->o, t, h->m, o, NULL);
}

/* --- gradients ------------------------------------------------------------ */

/* v and the cotangents of those of the tokens t that have a key. */
static void
load_unscaled(const struct la_head *h, const struct writes *r, struct span t)
{
    const struct span keys = rows_from(t.first, keys_left(h, t));
    load_plain(r->v, &h->v, keys, h->m);
    if (r->skip != NULL) {
        load_plain(r->cotangent, &h->grad_out, keys, h->m);
    }
}

/* dw, and dv in place of dW, from load_unscaled. */
static void
gradients_of_writes(const struct la_head *h, const struct writes *r, struct span t,
                    struct block dv)
{
    const ptrdiff_t keys = keys_left(h, t);
    clear(r->strength, row_step(t.rows));
    row_dots(r->strength, r->v, dv, keys, round_up(h->m, VL));
    store_numbers(&h->dstrength, t, r->strength);
    strengthen(h, r, t, dv);
    if (r->skip != NULL) {
        add_skip(dv, r->skip, r->cotangent, keys, h->m);
    }
}

/* What VL channels of the tokens t add to dD. */
INLINE vec
skip_sum(const struct la_head *h, const struct writes *r, struct span t, ptrdiff_t j)
{
    vec sum = (vec){0};
    for (ptrdiff_t i = 0; i < keys_left(h, t); i++) {
        sum = vfma(vload(&r->v.x[i * r->v.ld + j]),
                   vload(&r->cotangent.x[i * r->cotangent.ld + j]), sum);
    }
    return sum;
}

#endif
