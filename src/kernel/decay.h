/* decay.h: how a state decays over the tokens of a chunk, a gate's exponentials.
 *
 *   H_i = g_1 + ... + g_i             of the tokens of a chunk after its first
 *   up_i = exp(H_i), down_i = 1 / up_i, first = exp(g_0), last = exp(H_end)
 *
 * What token j writes is decayed by up_i down_j when token i reads it, and the state
 * before the chunk by first up_i.  A chunk ends before the token whose |H| would pass
 * LA_DECAY_RANGE, so that every product of up and down is as right as its factors: a
 * reset, g = -inf, always begins one.  Where it ends hangs on no later token.  H is
 * summed in two numbers: up is right to a few roundings whatever H is. */
#ifndef LA_DECAY_H
#define LA_DECAY_H

#include "gate.h"

enum { LA_CHUNK_MOST = 32 }; /* tokens (delta_chunk) */

/* Of some tokens.  With a number a token, one vector that holds it in every lane stands
 * for all channels (step 0). */
struct decay {
    struct block g, up, down;
    T *first, *last;
    T *keep, *change; /* of the state over the chunk (gate.h), (d) either way */
    ptrdiff_t step;
};

static struct decay
take_decay(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    const ptrdiff_t cols = h->gate_channels ? h->d : 1;
    struct decay x = {.step = h->gate_channels};
    x.g = take_block(arena, rows, cols);
    x.up = take_block(arena, rows, cols);
    x.down = take_block(arena, rows, cols);
    x.first = take_row(arena, cols);
    x.last = take_row(arena, cols);
    x.keep = take_row(arena, h->d);
    x.change = take_row(arena, h->d);
    return x;
}

/* g of the tokens t, 0 where none exists, in every lane where there is one a token. */
static void
load_gates(const struct la_head *h, struct span t, struct block g)
{
    const ptrdiff_t all = t.rows;
    t.rows = keys_left(h, t);
    load_plain(g, &h->gate, t, h->gate_channels ? h->d : 1);
    for (ptrdiff_t i = 0; !h->gate_channels && i < t.rows; i++) {
        T *row = g.x + i * g.ld;
        vstore(row, vset1(row[0]));
    }
    clear_rows(g, t.rows, all);
}

/* x + y, and what rounding lost, whichever is larger. */
INLINE vec
two_sum(vec x, vec y, vec *lost)
{
    const vec sum = x + y, part = sum - x;
    *lost = (x - (sum - part)) + (y - part);
    return sum;
}

/* up and down of the VL channels from col on, of up to `rows` tokens; how many tokens
 * the chunk has. */
INLINE ptrdiff_t
decay_channels(const struct decay *x, ptrdiff_t col, ptrdiff_t rows)
{
    const vec one = vset1(1), range = vset1(LA_DECAY_RANGE);
    const vec first = vload(&x->g.x[col]);
    vec sum = (vec){0}, rest = (vec){0};
    vstore(&x->first[col], vexp(first));
    vstore(&x->up.x[col], one);
    vstore(&x->down.x[col], one);
    for (ptrdiff_t i = 1; i < rows; i++) {
        vec lost;
        sum = two_sum(sum, vload(&x->g.x[i * x->g.ld + col]), &lost);
        if (vany(~((sum <= range) & (sum >= -range)))) {
            return i; /* NaN and resets among them */
        }
        rest += lost;
        const vec high = vexp(sum), all = vfma(high, rest, high);
        vstore(&x->up.x[i * x->up.ld + col], all);
        vstore(&x->down.x[i * x->down.ld + col], one / all);
    }
    return rows;
}

/* keep and change of the VL channels from col on, over so many tokens. */
INLINE void
decay_over(const struct decay *x, ptrdiff_t col, ptrdiff_t rows)
{
    vec sum = (vec){0}, rest = (vec){0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        vec lost;
        sum = two_sum(sum, vload(&x->g.x[i * x->g.ld + col]), &lost);
        rest += lost;
    }
    decay_parts(sum, &x->keep[col], &x->change[col]);
    const vec keep = vload(&x->keep[col]), change = vload(&x->change[col]);
    const vec whole = vmin(vset1(LARGEST), keep + change);
    vstore(&x->change[col], vfma(whole, vkeep(rest == rest, rest), change));
}

/* up and down with a number a token, whose sums take the lanes of one vector. */
static ptrdiff_t
decay_tokens(const struct decay *x, ptrdiff_t rows)
{
    _Alignas(LA_ALIGN) T sums[LA_CHUNK_MOST] = {0}, rests[LA_CHUNK_MOST] = {0};
    T sum = 0, rest = 0;
    vstore(x->first, vexp(vload(x->g.x)));
    for (ptrdiff_t i = 1; i < rows; i++) {
        const T g = x->g.x[i * x->g.ld], next = sum + g, part = next - sum;
        if (!(next <= LA_DECAY_RANGE && next >= -LA_DECAY_RANGE)) {
            rows = i;
            break;
        }
        rests[i] = rest += (sum - (next - part)) + (g - part);
        sums[i] = sum = next;
    }
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        const vec high = vexp(vload(&sums[i]));
        vstore(&sums[i], vfma(high, vload(&rests[i]), high));
        vstore(&rests[i], vset1(1) / vload(&sums[i]));
    }
    for (ptrdiff_t i = 0; i < rows; i++) {
        vstore(&x->up.x[i * x->up.ld], vset1(sums[i]));
        vstore(&x->down.x[i * x->down.ld], vset1(rests[i]));
    }
    return rows;
}

/* The decays of the tokens t, or of the first of them; of how many. */
static ptrdiff_t
chunk_decay(const struct la_head *h, const struct decay *x, struct span t)
{
    const ptrdiff_t cols = round_up(h->gate_channels ? h->d : 1, VL);
    ptrdiff_t rows = t.rows;
    load_gates(h, t, x->g);
    if (!h->gate_channels) {
        rows = decay_tokens(x, rows);
    }
    for (ptrdiff_t col = 0; h->gate_channels && col < cols; col += VL) {
        rows = decay_channels(x, col, rows);
    }
    memcpy(x->last, x->up.x + (rows - 1) * x->up.ld, (size_t)cols * sizeof(T));
    for (ptrdiff_t col = 0; col < h->d; col += VL) {
        if (col == 0 || x->step != 0) {
            decay_over(x, col, rows);
            continue;
        }
        vstore(&x->keep[col], vload(x->keep));
        vstore(&x->change[col], vload(x->change));
    }
    return rows;
}

/* Row i of y = row i of x (rows, d) times row i of f, a block of decays. */
static void
fade_into(struct block y, struct block x, struct block f, ptrdiff_t step,
          ptrdiff_t rows, ptrdiff_t d)
{
    for (ptrdiff_t i = 0; i < rows; i++, y.x += y.ld, x.x += x.ld, f.x += f.ld) {
        for (ptrdiff_t l = 0; l < d; l += VL) {
            vstore(&y.x[l], vload(&x.x[l]) * vload(&f.x[l * step]));
        }
    }
}

INLINE void
fade_rows(struct block x, struct block f, ptrdiff_t step, ptrdiff_t rows, ptrdiff_t d)
{
    fade_into(x, x, f, step, rows, d);
}

#endif
