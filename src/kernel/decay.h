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

#include "delta.h"
#include "gate.h"

/* Of some tokens.  With a number a token, one vector that holds it in every lane stands
 * for all channels (step 0). */
struct decay {
    struct block g, up, down;
    T *first, *last;
    T *keep, *change; /* of the state over the chunk (gate.h), (d) either way */
    ptrdiff_t step;
};

/* exp(sum + rest) in two parts, where rest is what rounding kept from the sum. */
INLINE void
decay_by(vec sum, vec rest, T *keep, T *change)
{
    decay_parts(sum, keep, change);
    const vec whole = vmin(vset1(LARGEST), vload(keep) + vload(change));
    vstore(change, vfma(whole, vkeep(rest == rest, rest), vload(change)));
}

static struct decay
take_decay(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    const ptrdiff_t cols = h->gate_channels ? h->d : 1;
    struct decay x = {.step = h->gate_channels};
    if (h->gate_channels) {
        x.g = take_block(arena, rows, h->d);
    }
    x.up = take_block(arena, rows, cols);
    x.down = take_block(arena, rows, cols);
    x.first = take_row(arena, cols);
    x.last = take_row(arena, cols);
    x.keep = take_row(arena, h->d);
    x.change = take_row(arena, h->d);
    return x;
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
    decay_by(sum, rest, &x->keep[col], &x->change[col]);
}

/* The same of all channels, g being theirs; 0 where no token exists. */
static ptrdiff_t
channel_decay(const struct la_head *h, const struct decay *x, struct span t)
{
    ptrdiff_t rows = t.rows;
    t.rows = keys_left(h, t);
    load_plain(x->g, &h->gate, t, h->d);
    clear_rows(x->g, t.rows, rows);
    for (ptrdiff_t col = 0; col < h->d; col += VL) {
        rows = decay_channels(x, col, rows);
    }
    for (ptrdiff_t col = 0; col < h->d; col += VL) {
        vstore(&x->last[col], vload(&x->up.x[(rows - 1) * x->up.ld + col]));
        decay_over(x, col, rows);
    }
    return rows;
}

/* The same with a number a token: sums take the lanes of a vector or two. */
static ptrdiff_t
token_decay(const struct la_head *h, const struct decay *x, struct span t)
{
    _Alignas(LA_ALIGN) T g[MR * LA_CHUNK_MOST];
    _Alignas(LA_ALIGN) T sums[LA_CHUNK_MOST] = {0}, rests[LA_CHUNK_MOST] = {0};
    const T range = LA_DECAY_RANGE;
    ptrdiff_t rows = t.rows;
    t.rows = keys_left(h, t);
    load_numbers(g, &h->gate, t);
    for (ptrdiff_t i = 1; i < rows; i++) {
        const T old = sums[i - 1], sum = old + g[i], part = sum - old;
        if (!(sum <= range && sum >= -range)) {
            rows = i;
            break;
        }
        rests[i] = rests[i - 1] + ((old - (sum - part)) + (g[i] - part));
        sums[i] = sum;
    }
    vec lost;
    const vec sum = two_sum(vset1(g[0]), vset1(sums[rows - 1]), &lost);
    const vec rest = lost + vset1(rests[rows - 1]);
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        const vec high = vexp(vload(&sums[i]));
        vstore(&sums[i], vfma(high, vload(&rests[i]), high));
        vstore(&rests[i], vset1(1) / vload(&sums[i]));
    }
    for (ptrdiff_t i = 0; i < rows; i++) {
        vstore(&x->up.x[i * x->up.ld], vset1(sums[i]));
        vstore(&x->down.x[i * x->down.ld], vset1(rests[i]));
    }
    vstore(x->first, vexp(vset1(g[0])));
    vstore(x->last, vset1(sums[rows - 1]));
    for (ptrdiff_t col = 0; col < h->d; col += VL) {
        decay_by(sum, rest, &x->keep[col], &x->change[col]);
    }
    return rows;
}

/* The decays of the tokens t, or of the first of them; of how many. */
static ptrdiff_t
chunk_decay(const struct la_head *h, const struct decay *x, struct span t)
{
    return h->gate_channels ? channel_decay(h, x, t) : token_decay(h, x, t);
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
