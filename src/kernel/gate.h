/* gate.h: what a chunk's gates do: how much of each earlier token, and of the state,
 * is left when a later token reads.
 *
 * g_i is the natural logarithm of a decay, one number a token or one a key channel
 * (a row of the state); G_i is its sum from the chunk's first token on.  Row i reads
 * what row j < i wrote times E_ij = exp(G_i - G_j), and the state before the chunk
 * times exp(G_i); the state after it keeps exp(G_last), and what row j wrote
 * exp(G_last - G_j).  Where a token reads before its decay (RWKV-6, with a bonus for
 * its own key) G_{i-1} stands in the place of G_i for the readers.
 *
 * Numerics.  No factor is the product of a large and a small exponential, nor the
 * exponential of a difference of long sums, from which a gate of -1e30 would wipe all
 * that follows it: every exponent is a sum of the gates between the two tokens alone.
 * Where no gate is positive, then, every factor is at most 1, a gate of -inf is a reset
 * to exactly 0, and nothing overflows; a factor exceeds 1 only where the recurrence
 * itself grows.  Row i looks at gates up to i only, so that no later gate, NaN or not,
 * changes a bit of it.
 *
 * One number a token: row i of all exponents is row i - 1 plus g_i; one exponential a
 * pair of rows.
 *
 * One a channel: MR rows at a time.  Among themselves they multiply channel by channel
 * with the exponential of each of the ten sums that MR gates have.  What earlier rows
 * of the chunk wrote is held decayed up to the MR rows' first token, the readers from
 * there on, so that the products of both are register tiles as without gates; after
 * them the earlier rows are decayed by exp of the MR rows' sum.  So a factor is a
 * product of at most rows / MR + 1 exponentials, within 2 u each.
 *
 * The state's decay is applied in two parts, s <- keep s + change s: near 1 they are 1
 * and expm1(G), else 0 and exp(G).  A state that forgets little over thousands of
 * chunks then rounds no more than one that forgets nothing (exp would round the decay
 * itself, alike in all chunks), and with gates of 0 it has the same bits.
 *
 * A token without a key has the gate 0: it leaves the state as it is. */
#ifndef LA_GATE_H
#define LA_GATE_H

#include "gate_factors.h"

/* Row i of x times factor, for rows [from, to). */
INLINE void
decay_rows(struct block x, ptrdiff_t from, ptrdiff_t to, const T *factor,
           ptrdiff_t cols)
{
    for (ptrdiff_t i = from; i < to; i++) {
        for (ptrdiff_t l = 0; l < cols; l += VL) {
            vstore(&x.x[i * x.ld + l], vload(&x.x[i * x.ld + l]) * vload(&factor[l]));
        }
    }
}

/* x = x o y, rows [from, from + MR). */
INLINE void
multiply_rows(struct block x, struct block y, ptrdiff_t from, ptrdiff_t cols)
{
    LA_EACH(r, MR) {
        decay_rows(x, from + r, from + r + 1, y.x + (from + r) * y.ld, cols);
    }
}

/* E between rows j < i of the MR from `first` on, columns [l, l + VL); both numbers are
 * known when this is compiled.  `next` is 1 where rows read before their decay. */
INLINE vec
factor_within(const struct gate *gate, ptrdiff_t first, ptrdiff_t l, const int i,
              const int j, const int next)
{
    const int last = i - next;
    const struct block x = last == 3 ? gate->from : gate->within;
    const int row = last == 3 ? j : last == 2 ? 1 + j : 0;
    return last == j ? vset1(1) : vload(&x.x[(first + row) * x.ld + l]);
}

/* The block on the diagonal of x_ij = (a_i o E_ij).b_j, from row `first` on. */
INLINE void
diagonal_with(const struct gate *gate, struct block x, struct block a, struct block b,
              ptrdiff_t first, ptrdiff_t cols, const int next)
{
    _Alignas(LA_ALIGN) T sums[MR * MR];
    vec part[MR * MR];
    LA_EACH(t, MR * MR) {
        part[t] = (vec){0};
    }
    for (ptrdiff_t l = 0; l < cols; l += VL) {
        vec y[MR];
        LA_EACH(j, MR) {
            y[j] = vload(&b.x[(first + j) * b.ld + l]);
        }
        LA_EACH(i, MR) {
            const vec row = vload(&a.x[(first + i) * a.ld + l]);
            LA_EACH(j, i) {
                const vec decayed = row * factor_within(gate, first, l, i, j, next);
                part[MR * i + j] = vfma(decayed, y[j], part[MR * i + j]);
            }
            const vec own = next ? row * vload(&gate->bonus[l]) : row;
            part[MR * i + i] = vfma(own, y[i], part[MR * i + i]);
        }
    }
    LA_UNROLL
    for (int t = 0; t < MR * MR; t += VL) {
        vstore(&sums[t], lane_sums(part + t));
    }
    LA_EACH(i, MR) {
        memcpy(&x.x[(first + i) * x.ld + first], &sums[MR * i], MR * sizeof(T));
    }
}

static void
diagonal_scores(const struct gate *gate, struct block x, struct block a, struct block b,
                ptrdiff_t first, ptrdiff_t cols)
{
    if (gate->bonus != NULL) {
        diagonal_with(gate, x, a, b, first, cols, 1);
    }
    else {
        diagonal_with(gate, x, a, b, first, cols, 0);
    }
}

/* x_ij of the MR rows from `first` on and all columns before them. */
static void
earlier_scores(struct block x, struct block a, struct block b, ptrdiff_t first,
               ptrdiff_t d, struct la_fetch *ahead)
{
    for (ptrdiff_t i = first; i < first + MR; i += SI) {
        for (ptrdiff_t j = 0; j < first; j += SJ) {
            la_fetch_some(ahead);
            score_block(block_at(x, i, j), block_at(a, i, 0), block_at(b, j, 0), d);
        }
    }
}

/* What readers see of the rows of a chunk: a (rows, d), and x (rows, rows). */
struct reader {
    struct block a, x;
};

/* before = exp of all gates of the blocks passed, with that of the MR rows from i on.
 */
INLINE void
pass_block(const struct gate *gate, ptrdiff_t i, ptrdiff_t cols, const int first)
{
    const T *whole = gate->whole.x + i / MR * gate->whole.ld;
    for (ptrdiff_t l = 0; l < cols; l += VL) {
        const vec e = vload(&whole[l]);
        vstore(&gate->before[l], first ? e : e * vload(&gate->before[l]));
    }
}

/* b_j <- exp(gates after j) b_j over the MR rows from i on: those of the block, from
 * their own row on, and all earlier ones. */
static void
decay_keys(const struct gate *gate, struct block b, ptrdiff_t i, ptrdiff_t cols)
{
    decay_rows(b, 0, i, gate->whole.x + i / MR * gate->whole.ld, cols);
    multiply_rows(b, gate->from, i, cols);
}

/* gated_triangles, with one number a channel. */
static void
channel_triangles(const struct gate *gate, const struct reader *reader, int readers,
                  struct block b, ptrdiff_t rows, ptrdiff_t d, struct la_fetch *ahead)
{
    const ptrdiff_t cols = round_up(d, VL);
    for (ptrdiff_t i = 0; i < rows; i += MR) {
        for (int r = 0; r < readers; r++) {
            const struct block a = reader[r].a, x = reader[r].x;
            diagonal_scores(gate, x, a, b, i, cols);
            multiply_rows(a, gate->to, i, cols);
            earlier_scores(x, a, b, i, d, ahead);
            if (i > 0) {
                decay_rows(a, i, i + MR, gate->before, cols);
            }
        }
        decay_keys(gate, b, i, cols);
        pass_block(gate, i, cols, i == 0);
    }
}

/* x_ii = (a_i o u).b_i */
static void
own_scores(const struct gate *gate, struct block x, struct block a, struct block b,
           ptrdiff_t rows, ptrdiff_t d)
{
    _Alignas(LA_ALIGN) T sums[VL];
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        vec part[VL];
        for (ptrdiff_t r = 0; r < VL; r++) {
            const ptrdiff_t i = first + r < rows ? first + r : rows - 1;
            part[r] = (vec){0};
            for (ptrdiff_t l = 0; l < d; l += VL) {
                const vec own = vload(&a.x[i * a.ld + l]) * vload(&gate->bonus[l]);
                part[r] = vfma(own, vload(&b.x[i * b.ld + l]), part[r]);
            }
        }
        vstore(sums, lane_sums(part));
        for (ptrdiff_t r = 0; r < VL && first + r < rows; r++) {
            x.x[(first + r) * x.ld + first + r] = sums[r];
        }
    }
}

/* x_ij = (a_i o E_ij).b_j for j <= i, of each reader; its other half holds anything.
 * On the way a_i becomes exp(G_i) a_i, which is to read the state, and b_j
 * exp(G_last - G_j) b_j, which is to be written to it.  x_ii = a_i.b_i, or
 * (a_i o u).b_i with a bonus. */
static void
gated_triangles(const struct gate *gate, const struct reader *reader, int readers,
                struct block b, ptrdiff_t rows, ptrdiff_t d, struct la_fetch *ahead)
{
    if (gate->channels) {
        channel_triangles(gate, reader, readers, b, rows, d, ahead);
        return;
    }
    for (int r = 0; r < readers; r++) {
        const struct block a = reader[r].a, x = reader[r].x;
        const struct scan c = {
            .rows = rows, .K = d, .a = a, .b = b, .dots = x, .ahead = ahead};
        scores(&c);
        for (ptrdiff_t i = 0; i < rows; i++) {
            decay_rows(block_at(x, i, 0), 0, 1, gate->pairs.x + i * gate->pairs.ld,
                       i + 1);
        }
        if (gate->bonus != NULL) {
            own_scores(gate, x, a, b, rows, d);
        }
        scale_rows(a, rows, gate->start);
    }
    scale_rows(b, rows, gate->end);
}

/* x <- factor o x o before, MR rows from i on, and before <- before o whole. */
INLINE void
pass_rows(const struct gate *gate, struct block x, struct block factor, ptrdiff_t i,
          ptrdiff_t cols, const int first)
{
    multiply_rows(x, factor, i, cols);
    if (!first) {
        decay_rows(x, i, i + MR, gate->before, cols);
    }
    pass_block(gate, i, cols, first);
}

/* x_i <- exp(G_i) x_i: what the readers see of the state before the chunk. */
static void
from_start(const struct gate *gate, struct block x, ptrdiff_t rows, ptrdiff_t d)
{
    if (!gate->channels) {
        scale_rows(x, rows, gate->start);
        return;
    }
    for (ptrdiff_t i = 0; i < rows; i += MR) {
        pass_rows(gate, x, gate->to, i, round_up(d, VL), i == 0);
    }
}

/* x_j <- exp(G_last - G_j) x_j: what the state after the chunk keeps of its rows. */
static void
to_end(const struct gate *gate, struct block x, ptrdiff_t rows, ptrdiff_t d)
{
    if (!gate->channels) {
        scale_rows(x, rows, gate->end);
        return;
    }
    for (ptrdiff_t i = rows - MR; i >= 0; i -= MR) {
        pass_rows(gate, x, gate->from, i, round_up(d, VL), i == rows - MR);
    }
}

#endif
