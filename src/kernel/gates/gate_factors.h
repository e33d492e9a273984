/* gate_factors.h: the factors of a chunk's gates, defined in gate.h. */
#ifndef LA_GATE_FACTORS_H
#define LA_GATE_FACTORS_H

#include "../vectors/functions.h"
#include "../tiles/recurrence.h"

struct gate {
    int channels;       /* one number per key channel instead of one per token */
    struct block g;     /* (rows, d), or one row */
    T *keep, *change;   /* factors of the state's rows over the chunk, (d) */
    struct block pairs; /* one gate per token: E_ij, with that of a row that reads
                           before its decay in row i - 1; (rows, rows) */
    T *start, *end;     /* exp(G_i), preceded by VL numbers of which the last is 1; and
                           exp(G_last - G_j); (rows) */
    struct block up, down; /* one gate per channel; (rows, d) */
    T *first, *last;       /* (d) */
};

static struct gate
take_gate(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    struct gate r = {.channels = h->channels[LA_AT_g]};
    r.g = take_block(arena, r.channels ? rows : MR, r.channels ? h->d : rows);
    r.keep = take_row(arena, h->d > 0 ? h->d : 1);
    r.change = take_row(arena, h->d);
    if (r.channels) {
        r.up = take_block(arena, rows, h->d);
        r.down = take_block(arena, rows, h->d);
        r.first = take_row(arena, h->d);
        r.last = take_row(arena, h->d);
    }
    else {
        r.pairs = take_block(arena, rows, rows);
        r.end = take_row(arena, rows);
        r.start = take(arena, 1, VL + round_up(rows, VL));
    }
    return r;
}

/* exp(sum + rest) in two parts, where rest is what the sum lost to rounding. */
INLINE void
decay_parts(vec sum, vec rest, T *keep, T *change)
{
    const vec one = vset1(1);
    vec low;
    const vec e = vexp_parts(vmin(vset1(EXP_MAX), sum), &low);
    const vec near = vkeep((e > vset1((T)0.5)) & (e < vset1(2)), one);
    vstore(keep, near);
    vstore(change,
           vfma(vmin(vset1(LARGEST), e), vkeep(rest == rest, rest), (e - near) + low));
}

/* --- where a chunk ends --------------------------------------------------- */

/* Whether exp(g) is 0. */
INLINE ivec
is_reset(vec g)
{
    return g <= vset1(EXP_MIN);
}

/* Whether the chunk's first gates reset the state before it, or some of its rows. */
INLINE int
forgets(const struct gate *gate, ptrdiff_t d)
{
    ivec any = {0};
    for (ptrdiff_t l = 0; l < (gate->channels ? d : 1); l += VL) {
        any |= is_reset(gate->channels ? vload(&gate->g.x[l]) : vset1(gate->g.x[0]));
    }
    return vany(any);
}

/* The number of rows of the chunk, with one gate per token.  The next chunk begins at a
 * reset, or at a token up to which gates of this chunk grow by more than
 * LA_DECAY_MAX. */
static ptrdiff_t
token_rows(const struct gate *gate, ptrdiff_t rows)
{
    const T *g = gate->g.x;
    vec growth = (vec){0};
    ivec odd = {0};
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        const vec x = vload(&g[i]);
        growth += vmax((vec){0}, x);
        odd |= ~(x > vset1(EXP_MIN));
    }
    if (!vany(odd | (growth > vset1(LA_DECAY_MAX / VL)))) {
        return rows; /* all growth together is below the limit */
    }
    T max = g[0]; /* largest sum of gates that ends here */
    for (ptrdiff_t i = 1; i < rows; i++) {
        max = (max > 0 ? max : 0) + g[i];
        if (g[i] <= EXP_MIN || max > LA_DECAY_MAX) {
            return i;
        }
    }
    return rows;
}

/* --- one gate per token ------------------------------------------------------ */

/* E_ij of columns [j, j + VL). */
INLINE void
pair_factors(const struct gate *gate, ptrdiff_t rows, ptrdiff_t j)
{
    const struct block e = gate->pairs;
    vec sum = (vec){0};
    for (ptrdiff_t i = j; i < rows; i++) {
        const ivec earlier = viota() < (ivec)((ivec){0} + (INT)(i - j));
        sum = vkeep(earlier, sum + vset1(gate->g.x[i]));
        vstore(&e.x[i * e.ld + j], vexp(sum));
    }
}

/* sum + rest += g, in two numbers. */
INLINE void
add_gate(T *sum, T *rest, T g)
{
    const T old = *sum, all = old + g, part = all - old;
    *rest += (old - (all - part)) + (g - part);
    *sum = all;
}

/* keep and change, the same for all channels. */
static void
token_decay(const struct gate *gate, T sum, T rest, ptrdiff_t d)
{
    _Alignas(LA_ALIGN) T keep[VL], change[VL];
    decay_parts(vset1(sum), vset1(rest), keep, change);
    for (ptrdiff_t l = 0; l < d; l += VL) {
        vstore(&gate->keep[l], vload(keep));
        vstore(&gate->change[l], vload(change));
    }
}

/* All factors of a chunk. */
static void
token_factors(const struct gate *gate, ptrdiff_t rows, ptrdiff_t d)
{
    T *const start = gate->start + VL, sum = 0, rest = 0;
    start[-1] = 1;
    for (ptrdiff_t i = 0; i < rows; i++) {
        add_gate(&sum, &rest, gate->g.x[i]);
        start[i] = sum;
    }
    token_decay(gate, sum, rest, d);
    for (ptrdiff_t j = 0; j < rows; j += VL) {
        pair_factors(gate, rows, j);
        vstore(&start[j], vexp(vload(&start[j])));
        vstore(&gate->end[j], vload(&gate->pairs.x[(rows - 1) * gate->pairs.ld + j]));
    }
}

/* Only the factors of the state after the chunk. */
static void
token_ends(const struct gate *gate, ptrdiff_t rows, ptrdiff_t d)
{
    T sum = 0, rest = 0;
    for (ptrdiff_t i = rows; i-- > 0;) {
        gate->end[i] = sum;
        add_gate(&sum, &rest, gate->g.x[i]);
    }
    token_decay(gate, sum, rest, d);
    for (ptrdiff_t j = 0; j < rows; j += VL) {
        vstore(&gate->end[j], vexp(vload(&gate->end[j])));
    }
}

/* --- one gate per channel ---------------------------------------------------- */

/* H of the VL channels from col on, in two numbers, stored in up and down.  Returns the
 * number of rows until H leaves the range. */
INLINE ptrdiff_t
channel_sums(const struct gate *gate, ptrdiff_t col, ptrdiff_t rows)
{
    const vec min = vset1(LA_DECAY_MIN), max = vset1(LA_DECAY_MAX);
    vec sum = (vec){0}, rest = (vec){0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        const ptrdiff_t at = i * gate->g.ld + col;
        vec lost = (vec){0};
        if (i > 0) {
            sum = two_sum(sum, vload(&gate->g.x[at]), &lost);
        }
        if (vany(~((sum <= max) & (sum >= min)))) {
            return i; /* also for NaN and resets */
        }
        rest += lost;
        vstore(&gate->up.x[at], sum);
        vstore(&gate->down.x[at], rest);
    }
    return rows;
}

/* exp(sum + rest) */
INLINE vec
exp_of_sums(vec sum, vec rest)
{
    const vec high = vexp_bounded(sum);
    return vfma(high, rest, high);
}

/* keep and change of the VL channels from col on, from the sums in up and down. */
INLINE void
channel_decay(const struct gate *gate, ptrdiff_t col, ptrdiff_t rows)
{
    const ptrdiff_t end = (rows - 1) * gate->up.ld + col;
    vec lost;
    const vec sum = two_sum(vload(&gate->g.x[col]), vload(&gate->up.x[end]), &lost);
    decay_parts(sum, lost + vload(&gate->down.x[end]), &gate->keep[col],
                &gate->change[col]);
}

/* up and down of the VL channels from col on, from the sums stored in them. */
INLINE void
channel_factors(const struct gate *gate, ptrdiff_t col, ptrdiff_t rows)
{
    const ptrdiff_t ld = gate->up.ld;
    const vec scale = vset1(LA_DECAY_SCALE);
    T *const up = gate->up.x + col, *const down = gate->down.x + col;
    channel_decay(gate, col, rows);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const vec e = exp_of_sums(vload(&up[i * ld]), vload(&down[i * ld]));
        const vec all = scale * e;
        vstore(&up[i * ld], all);
        vstore(&down[i * ld], vset1(1) / all);
    }
    vstore(&gate->first[col], vexp(vload(&gate->g.x[col])) * (vset1(1) / scale));
    vstore(&gate->last[col], vload(&up[(rows - 1) * ld]));
}

/* down = exp(H_last - H_j), from the sums in up and down. */
INLINE void
channel_ends(const struct gate *gate, ptrdiff_t col, ptrdiff_t rows)
{
    const ptrdiff_t ld = gate->up.ld, end = (rows - 1) * ld;
    T *const sums = gate->up.x + col, *const rests = gate->down.x + col;
    const vec sum = vload(&sums[end]), rest = vload(&rests[end]);
    channel_decay(gate, col, rows);
    for (ptrdiff_t i = 0; i < rows; i++) {
        vec lost;
        const vec left = two_sum(sum, -vload(&sums[i * ld]), &lost);
        vstore(&rests[i * ld],
               exp_of_sums(left, lost + (rest - vload(&rests[i * ld]))));
    }
}

/* Loads the gates of the tokens t, 0 where no key exists, as one row or as rows. */
static void
read_gates(const struct la_head *h, struct span t, const struct gate *gate)
{
    const ptrdiff_t rows = t.rows;
    t.rows = keys_left(h, t);
    if (gate->channels) {
        load_plain(gate->g, &h->g, t, h->d);
        clear_rows(gate->g, t.rows, rows);
        return;
    }
    const struct la_array row = {h->g.data + t.first * h->g.rs, 0, h->g.rs, h->g.type};
    load_plain(gate->g, &row, rows_from(0, 1), t.rows);
}

/* Loads the gates of a chunk that begins with the tokens t, and H; returns the number
 * of its rows. */
static ptrdiff_t
load_sums(const struct la_head *h, struct span t, const struct gate *gate)
{
    ptrdiff_t rows = t.rows;
    read_gates(h, t, gate);
    if (la_is_given(&h->bonus) && forgets(gate, h->d)) {
        rows = 1;
    }
    if (!gate->channels) {
        rows = token_rows(gate, rows);
        clear(gate->g.x + rows, gate->g.ld - rows);
    }
    for (ptrdiff_t col = 0; gate->channels && col < h->d; col += VL) {
        rows = channel_sums(gate, col, rows);
    }
    return rows;
}

/* Computes the factors of a chunk that begins with the tokens t; returns the number of
 * its rows. */
static ptrdiff_t
load_gate(const struct la_head *h, struct span t, const struct gate *gate)
{
    const ptrdiff_t rows = load_sums(h, t, gate);
    if (!gate->channels) {
        token_factors(gate, round_up(rows, MR), h->d);
    }
    for (ptrdiff_t col = 0; gate->channels && col < h->d; col += VL) {
        channel_factors(gate, col, rows);
    }
    return rows;
}

/* load_gate for given_to_end, which needs only the factors of the state after the
 * chunk. */
static ptrdiff_t
load_gate_ends(const struct la_head *h, struct span t, const struct gate *gate)
{
    const ptrdiff_t rows = load_sums(h, t, gate);
    if (!gate->channels) {
        token_ends(gate, round_up(rows, MR), h->d);
    }
    for (ptrdiff_t col = 0; gate->channels && col < h->d; col += VL) {
        channel_ends(gate, col, rows);
    }
    return rows;
}

/* exp(G_i), or exp(G_{i-1}) for rows that read before their decay; one gate per
 * token. */
INLINE const T *
start_of(const struct gate *gate, int before)
{
    return gate->start + VL - before;
}

#endif
