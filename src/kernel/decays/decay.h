/* decay.h: the decays of a chunk: how each earlier token, and the state, has decayed
 * when a later token reads it.
 *
 * g_i is the natural logarithm of a decay, one number per token or one per key channel
 * (a row of the state); G_i is its sum from the chunk's first token on.  Row i reads
 * what row j < i wrote times E_ij = exp(G_i - G_j), and the state before the chunk
 * times exp(G_i).  The state after the chunk keeps exp(G_last) of the state before it,
 * and exp(G_last - G_j) of what row j wrote.  If a row reads before its decay
 * (`before`: queries with a bonus for their own key, DPLR's a), G_{i-1} replaces G_i.
 *
 * Products between the rows of a chunk take three steps; each kind needs only
 * one of the first two:
 *
 *    meet                  scale the rows as the triangle's product needs them
 *    triangle              the product, times E
 *    from_start, to_end    scale readers for the product with the state before the
 *                          chunk, and writers for the sum added to the state after it
 *
 * One number per token: the triangle is multiplied by E.  No factor is the product of a
 * large and a small exponential, nor the exponential of a difference of long sums,
 * which one of -1e30 would make wrong for all later tokens: every exponent is the sum
 * of g between the two tokens.  If no g is positive, every factor is at most 1.  The
 * cost is one exponential per pair of rows.  A chunk ends before the token up to which
 * some consecutive g sum to more than LA_DECAY_MAX: then no factor overflows except
 * that of a single token, in whatever order g grows and shrinks.
 *
 * One number per channel: with H_i = g_1 + ... + g_i of the tokens after the chunk's
 * first,
 *
 *    up_i = c exp(H_i), down_i = 1 / up_i, first = exp(g_0) / c, last = up_end
 *
 * readers are multiplied by up and writers by down.  A chunk ends before the token
 * whose H would leave [LA_DECAY_MIN, LA_DECAY_MAX], so that every product of up and
 * down is as accurate as its factors.  c, a power of two, centres the range of up and
 * down around 1.  H is summed in two numbers: up is accurate to a few roundings for
 * every H.  The cost is one exponential and one division per decay.
 *
 * A reset, a decay of 0, always begins a chunk, and the state before it is cleared: 0
 * times inf or NaN would not be 0.  With a bonus, queries read that state, so a reset
 * is a chunk of its own.  DPLR's a reads it too, so clearing it would gain nothing.
 *
 * In both cases, row i of the output, and where its chunk ends, depend only on decays
 * up to i: no later g, even if it is NaN, changes a bit of it.  Gradients of row i may
 * differ in their last bits, since the distance between checkpoints depends on all
 * chunks.
 *
 * The state's decay is applied in two parts, s <- keep s + change s: 1 and expm1(G) for
 * decays near 1, else 0 and exp(G).  A state that forgets little over thousands of
 * chunks then has no larger error than one that forgets nothing (exp would round the
 * decay itself, alike in all chunks), and with g = 0 it has the same bits.
 *
 * A token without a key has g = 0: it leaves the state unchanged. */
#ifndef LA_DECAY_H
#define LA_DECAY_H

#include "decay_factors.h"

/* exp(G_i), or exp(G_{i-1}) for rows that read before their decay; one decay per
 * token. */
INLINE const T *
start_of(const struct decay *decay, int before)
{
    return decay->start + VL - before;
}

/* y = x o factor, with one row of factors per row of x or, with ld = 0, one for all. */
INLINE void
multiply_rows(struct block y, struct block x, struct block factor, ptrdiff_t rows,
              ptrdiff_t d)
{
    for (ptrdiff_t i = 0; i < rows;
         i++, y.x += y.ld, x.x += x.ld, factor.x += factor.ld) {
        for (ptrdiff_t l = 0; l < d; l += VL) {
            vstore(&y.x[l], vload(&x.x[l]) * vload(&factor.x[l]));
        }
    }
}

/* y_i = factor_i x_i */
INLINE void
scale_into(struct block y, struct block x, const T *factor, ptrdiff_t rows, ptrdiff_t d)
{
    for (ptrdiff_t i = 0; i < rows; i++, y.x += y.ld, x.x += x.ld) {
        const vec scale = vset1(factor[i]);
        for (ptrdiff_t l = 0; l < d; l += VL) {
            vstore(&y.x[l], vload(&x.x[l]) * scale);
        }
    }
}

INLINE void
copy_rows(struct block y, struct block x, ptrdiff_t rows)
{
    if (y.x != x.x) {
        memcpy(y.x, x.x, (size_t)(rows * x.ld) * sizeof(T));
    }
}

/* y = x, `rows` readers, scaled for the product with the writers of their chunk. */
static void
readers_meet(const struct decay *decay, struct block y, struct block x, ptrdiff_t rows,
             ptrdiff_t d, int before)
{
    const ptrdiff_t same = decay->channels ? before : rows;
    copy_rows(y, x, same);
    multiply_rows(block_at(y, same, 0), block_at(x, same, 0), decay->up, rows - same,
                  d);
    clear_rows(y, rows, round_up(rows, MR));
}

/* y = x, `rows` writers, scaled for the product with the readers of their chunk. */
static void
writers_meet(const struct decay *decay, struct block y, struct block x, ptrdiff_t rows,
             ptrdiff_t d)
{
    if (decay->channels) {
        multiply_rows(y, x, decay->down, rows, d);
    }
    else {
        copy_rows(y, x, rows);
    }
    clear_rows(y, rows, round_up(rows, MR));
}

/* x_ij <- x_ij E_ij for j <= i (before: j < i), where x = A B^T of scaled rows. */
static void
decay_triangle(const struct decay *decay, struct block x, ptrdiff_t rows, int before)
{
    for (ptrdiff_t i = before; !decay->channels && i < rows; i++) {
        const struct block row = block_at(x, i, 0),
                           e = block_at(decay->pairs, i - before, 0);
        multiply_rows(row, row, e, 1, i + 1);
    }
}

/* y = x, readers scaled by readers_meet, now scaled for the product with the state
 * before the chunk. */
static void
from_start(const struct decay *decay, struct block y, struct block x, ptrdiff_t rows,
           ptrdiff_t d, int before)
{
    if (!decay->channels) {
        scale_into(y, x, start_of(decay, before), rows, d);
        return;
    }
    copy_rows(y, x, before);
    multiply_rows(block_at(y, before, 0), block_at(x, before, 0),
                  (struct block){decay->first, 0}, rows - before, d);
}

/* y = x, writers scaled by writers_meet, now scaled for the state after the chunk. */
static void
to_end(const struct decay *decay, struct block y, struct block x, ptrdiff_t rows,
       ptrdiff_t d)
{
    if (!decay->channels) {
        scale_into(y, x, decay->end, rows, d);
        return;
    }
    multiply_rows(y, x, (struct block){decay->last, 0}, rows, d);
}

/* Scales x, unscaled writers, for the state after the chunk; needs load_decay_ends. */
static void
given_to_end(const struct decay *decay, struct block x, ptrdiff_t rows, ptrdiff_t d)
{
    if (decay->channels) {
        multiply_rows(x, x, decay->down, rows, d);
    }
    else {
        scale_into(x, x, decay->end, rows, d);
    }
}

/* --- resets --------------------------------------------------------------- */

/* s (K, W) = 0 where the chunk's first decays reset it: rows or, `transposed`, columns.
 * Without this, inf and NaN times a decay of 0 would remain. */
static void
forget(const struct decay *decay, T *s, ptrdiff_t K, ptrdiff_t W, int transposed)
{
    if (s == NULL || !forgets(decay, transposed ? W : K)) {
        return;
    }
    if (!decay->channels) {
        clear(s, state_size(K, W)); /* including its padding */
        return;
    }
    for (ptrdiff_t l = 0; l < K; l++) {
        for (ptrdiff_t j = 0; j < W; j += VL) {
            const T *g = decay->g.x;
            T *x = state_at(s, K, W, l, j);
            const ivec reset = is_reset(transposed ? vload(&g[j]) : vset1(g[l]));
            vstore(x, vkeep(~reset, vload(x)));
        }
    }
}

/* Applies the resets to the state that a sweep decays, and to `lost`. */
static void
forget_state(const struct decay *decay, struct sweep *c)
{
    if (!forgets(decay, c->transposed ? c->W : c->K)) {
        return;
    }
    if (c->from != NULL) {
        memcpy(c->s, c->from, (size_t)state_size(c->K, c->W) * sizeof(T));
        c->from = NULL;
    }
    forget(decay, c->s, c->K, c->W, c->transposed);
    forget(decay, c->lost, c->K, c->W, c->transposed);
    forget_pairs(c);
}

/* Whether keep is 0 in all rows: then the sum is rounded as a whole, and `lost` is 0
 * after the chunk.  With one decay per channel, this is not looked for. */
INLINE int
keeps_nothing(const struct decay *decay)
{
    return !decay->channels && decay->keep[0] == 0;
}

/* Reads the state if `what` says so, decays it and writes to it; `before`: reads it
 * before a reset. */
static void
sweep_decayed(const struct decay *decay, struct sweep *c, int what, int before)
{
    if (before && forgets(decay, c->K)) {
        sweep(c, LA_READ);
        what = LA_WRITE;
    }
    forget_state(decay, c);
    sweep(c, what);
}

/* --- a bonus -------------------------------------------------------------- */

/* own_i = (a_i o u).b_i, for unscaled rows. */
static void
own_scores(T *own, const T *u, struct block a, struct block b, ptrdiff_t rows,
           ptrdiff_t d)
{
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        vec part[VL];
        for (ptrdiff_t r = 0; r < VL; r++) {
            const ptrdiff_t i = first + r < rows ? first + r : rows - 1;
            part[r] = (vec){0};
            for (ptrdiff_t l = 0; l < d; l += VL) {
                const vec bonus = vload(&a.x[i * a.ld + l]) * vload(&u[l]);
                part[r] = vfma(bonus, vload(&b.x[i * b.ld + l]), part[r]);
            }
        }
        vstore(&own[first], lane_sums(part));
    }
}

static void
set_diagonal(struct block x, const T *own, ptrdiff_t rows)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        x.x[i * x.ld + i] = own[i];
    }
}

#endif
