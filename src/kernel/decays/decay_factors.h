/* decay_factors.h: the factors of a chunk's decays, defined in decay.h. */
#ifndef LA_DECAY_FACTORS_H
#define LA_DECAY_FACTORS_H

#include "../vectors/functions.h"
#include "../tiles/recurrence.h"

struct decay {
    int channels;       /* one number per key channel instead of one per token */
    struct block g;     /* (rows, d), or one row */
    T *keep, *change;   /* factors of the state's rows over the chunk, (d) */
    struct block pairs; /* one decay per token: E_ij, with that of a row that reads
                           before its decay in row i - 1; (rows, rows) */
    T *start, *end;     /* exp(G_i), preceded by VL numbers of which the last is 1; and
                           exp(G_last - G_j); (rows) */
    struct block up, down; /* one decay per channel; (rows, d) */
    T *first, *last;       /* (d) */
};

static struct decay
take_decay(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    struct decay r = {.channels = h->g.has_channels};
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
    vstore(change, vfma(vmin(vset1(LARGEST), e), vnumber(rest), (e - near) + low));
}

/* --- where a chunk ends --------------------------------------------------- */

/* Whether exp(g) is 0. */
INLINE ivec
is_reset(vec g)
{
    return g <= vset1(EXP_MIN);
}

/* Whether the chunk's first decays reset the state before it, or some of its rows. */
INLINE int
forgets(const struct decay *decay, ptrdiff_t d)
{
    ivec any = {0};
    for (ptrdiff_t l = 0; l < (decay->channels ? d : 1); l += VL) {
        any |= is_reset(decay->channels ? vload(&decay->g.x[l]) : vset1(decay->g.x[0]));
    }
    return vany(any);
}

/* The tokens of a chunk at token i, of up to `rows`: if the call carries what sums
 * lose, it ends where the sequence may be cut, also after chunks that ended early.
 * Tokens in blocks are cut where a block ends, and there a chunk ends anyway. */
INLINE ptrdiff_t
up_to_cut(const struct la_head *h, ptrdiff_t i, ptrdiff_t rows)
{
    const ptrdiff_t left = LA_CUT_TOKENS - i % LA_CUT_TOKENS;
    return carries_lost(h) && h->block == 0 && left < rows ? left : rows;
}

/* The number of rows of the chunk, with one decay per token.  The next chunk begins at
 * a reset, or at a token up to which g of this chunk grows by more than
 * LA_DECAY_MAX. */
static ptrdiff_t
token_rows(const struct decay *decay, ptrdiff_t rows)
{
    const T *g = decay->g.x;
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
    T max = g[0]; /* largest sum of g that ends here */
    for (ptrdiff_t i = 1; i < rows; i++) {
        max = (max > 0 ? max : 0) + g[i];
        if (g[i] <= EXP_MIN || max > LA_DECAY_MAX) {
            return i;
        }
    }
    return rows;
}

/* --- one decay per token ------------------------------------------------------ */

/* sum + g in the first `count` lanes, which are of earlier tokens, and 0 in others. */
INLINE vec
add_earlier(vec sum, T g, ptrdiff_t count)
{
    const ivec earlier = first_lanes(count);
    return vkeep(earlier, sum + vset1(g));
}

/* E_ij of columns [j, j + VL). */
INLINE void
pair_factors(const struct decay *decay, ptrdiff_t rows, ptrdiff_t j)
{
    const struct block e = decay->pairs;
    vec sum = (vec){0};
    for (ptrdiff_t i = j; i < rows; i++) {
        sum = add_earlier(sum, decay->g.x[i], i - j);
        vstore(&e.x[i * e.ld + j], vexp(sum));
    }
}

/* sum + rest += g, in two numbers. */
INLINE void
add_decay(T *sum, T *rest, T g)
{
    const T old = *sum, all = old + g, part = all - old;
    *rest += (old - (all - part)) + (g - part);
    *sum = all;
}

/* keep and change, the same for all channels. */
static void
token_decay(const struct decay *decay, T sum, T rest, ptrdiff_t d)
{
    _Alignas(LA_ALIGN) T keep[VL], change[VL];
    decay_parts(vset1(sum), vset1(rest), keep, change);
    for (ptrdiff_t l = 0; l < d; l += VL) {
        vstore(&decay->keep[l], vload(keep));
        vstore(&decay->change[l], vload(change));
    }
}

/* G, into start, and the decay of the state. */
static void
token_sums(const struct decay *decay, ptrdiff_t rows, ptrdiff_t d)
{
    T *const start = decay->start + VL, sum = 0, rest = 0;
    start[-1] = 1;
    for (ptrdiff_t i = 0; i < rows; i++) {
        add_decay(&sum, &rest, decay->g.x[i]);
        start[i] = sum;
    }
    token_decay(decay, sum, rest, d);
}

/* All factors of a chunk. */
static void
token_factors(const struct decay *decay, ptrdiff_t rows, ptrdiff_t d)
{
    T *const start = decay->start + VL;
    token_sums(decay, rows, d);
    for (ptrdiff_t j = 0; j < rows; j += VL) {
        pair_factors(decay, rows, j);
        vstore(&start[j], vexp(vload(&start[j])));
        vstore(&decay->end[j],
               vload(&decay->pairs.x[(rows - 1) * decay->pairs.ld + j]));
    }
}

/* The same from the last token on, without G. */
static void
token_ends(const struct decay *decay, ptrdiff_t rows, ptrdiff_t d)
{
    T sum = 0, rest = 0;
    for (ptrdiff_t i = rows; i-- > 0;) {
        decay->end[i] = sum;
        add_decay(&sum, &rest, decay->g.x[i]);
    }
    token_decay(decay, sum, rest, d);
    for (ptrdiff_t j = 0; j < rows; j += VL) {
        vstore(&decay->end[j], vexp(vload(&decay->end[j])));
    }
}

/* --- one decay per channel ---------------------------------------------------- */

/* H of the VL channels from col on, in two numbers, stored in up and down.  Returns the
 * number of rows until H leaves the range. */
INLINE ptrdiff_t
channel_sums(const struct decay *decay, ptrdiff_t col, ptrdiff_t rows)
{
    const vec min = vset1(LA_DECAY_MIN), max = vset1(LA_DECAY_MAX);
    vec sum = (vec){0}, rest = (vec){0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        const ptrdiff_t at = i * decay->g.ld + col;
        vec lost = (vec){0};
        if (i > 0) {
            sum = two_sum(sum, vload(&decay->g.x[at]), &lost);
        }
        if (vany(~((sum <= max) & (sum >= min)))) {
            return i; /* also for NaN and resets */
        }
        rest += lost;
        vstore(&decay->up.x[at], sum);
        vstore(&decay->down.x[at], rest);
    }
    return rows;
}

/* to = exp(sum + rest) for VL channels of n tokens. */
INLINE void
exp_of_some(T *to, const T *sum, const T *rest, ptrdiff_t ld, const int n)
{
    vec e[LA_MAPPED];
    LA_EACH(i, n) {
        e[i] = vload(&sum[i * ld]);
    }
    vexp_up_to(e, n, 1);
    LA_EACH(i, n) {
        vstore(&to[i * ld], vfma(e[i], vload(&rest[i * ld]), e[i]));
    }
}

/* The same for a chunk's tokens, several at a time, as maps do (feature.h). */
INLINE void
exp_of_sums(T *to, const T *sum, const T *rest, ptrdiff_t ld, ptrdiff_t rows)
{
    ptrdiff_t i = 0;
    for (; i + LA_MAPPED <= rows; i += LA_MAPPED) {
        exp_of_some(&to[i * ld], &sum[i * ld], &rest[i * ld], ld, LA_MAPPED);
    }
    for (; i < rows; i++) {
        exp_of_some(&to[i * ld], &sum[i * ld], &rest[i * ld], ld, 1);
    }
}

/* keep and change of the VL channels from col on, from the sums in up and down. */
INLINE void
channel_decay(const struct decay *decay, ptrdiff_t col, ptrdiff_t rows)
{
    const ptrdiff_t end = (rows - 1) * decay->up.ld + col;
    vec lost;
    const vec sum = two_sum(vload(&decay->g.x[col]), vload(&decay->up.x[end]), &lost);
    decay_parts(sum, lost + vload(&decay->down.x[end]), &decay->keep[col],
                &decay->change[col]);
}

/* up and down of the VL channels from col on, from the sums stored in them. */
INLINE void
channel_factors(const struct decay *decay, ptrdiff_t col, ptrdiff_t rows)
{
    const ptrdiff_t ld = decay->up.ld;
    const vec scale = vset1(LA_DECAY_SCALE);
    T *const up = decay->up.x + col, *const down = decay->down.x + col;
    channel_decay(decay, col, rows);
    exp_of_sums(up, up, down, ld, rows);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const vec all = scale * vload(&up[i * ld]);
        vstore(&up[i * ld], all);
        vstore(&down[i * ld], vset1(1) / all);
    }
    vstore(&decay->first[col], vexp(vload(&decay->g.x[col])) * (vset1(1) / scale));
    vstore(&decay->last[col], vload(&up[(rows - 1) * ld]));
}

/* down = exp(H_last - H_j), from the sums in up and down; up is used for it. */
INLINE void
channel_ends(const struct decay *decay, ptrdiff_t col, ptrdiff_t rows)
{
    const ptrdiff_t ld = decay->up.ld, end = (rows - 1) * ld;
    T *const sums = decay->up.x + col, *const rests = decay->down.x + col;
    const vec sum = vload(&sums[end]), rest = vload(&rests[end]);
    channel_decay(decay, col, rows);
    for (ptrdiff_t i = 0; i < rows; i++) {
        vec lost;
        vstore(&sums[i * ld], two_sum(sum, -vload(&sums[i * ld]), &lost));
        vstore(&rests[i * ld], lost + (rest - vload(&rests[i * ld])));
    }
    exp_of_sums(rests, sums, rests, ld, rows);
}

/* Loads the decays of the tokens t, 0 where no key exists, as one row or as rows. */
static void
read_decays(const struct la_head *h, struct span t, const struct decay *decay)
{
    const ptrdiff_t rows = t.rows;
    t.rows = keys_left(h, t);
    if (decay->channels) {
        load_plain(decay->g, &h->g, t, h->d);
        clear_rows(decay->g, t.rows, rows);
        return;
    }
    const struct la_array row = transposed(shifted(&h->g, t.first * h->g.rs));
    load_plain(decay->g, &row, rows_from(0, 1), t.rows);
}

/* Loads the decays of a chunk that begins with the tokens t, and H; returns the number
 * of its rows. */
static ptrdiff_t
load_sums(const struct la_head *h, struct span t, const struct decay *decay)
{
    ptrdiff_t rows = t.rows;
    read_decays(h, t, decay);
    if (la_is_given(&h->bonus) && forgets(decay, h->d)) {
        rows = 1;
    }
    if (!decay->channels) {
        rows = token_rows(decay, rows);
        clear(decay->g.x + rows, decay->g.ld - rows);
    }
    for (ptrdiff_t col = 0; decay->channels && col < h->d; col += VL) {
        rows = channel_sums(decay, col, rows);
    }
    return rows;
}

/* All factors of a chunk, from what load_sums leaves. */
static void
all_factors(const struct la_head *h, const struct decay *decay, ptrdiff_t rows)
{
    if (!decay->channels) {
        token_factors(decay, round_up(rows, MR), h->d);
    }
    for (ptrdiff_t col = 0; decay->channels && col < h->d; col += VL) {
        channel_factors(decay, col, rows);
    }
}

/* Computes the factors of a chunk that begins with the tokens t; returns the number of
 * its rows. */
static ptrdiff_t
load_decays(const struct la_head *h, struct span t, const struct decay *decay)
{
    const ptrdiff_t rows = load_sums(h, t, decay);
    all_factors(h, decay, rows);
    return rows;
}

/* load_decays for given_to_end, which needs only the factors of the state after the
 * chunk. */
static ptrdiff_t
load_decay_ends(const struct la_head *h, struct span t, const struct decay *decay)
{
    const ptrdiff_t rows = load_sums(h, t, decay);
    if (!decay->channels) {
        token_ends(decay, round_up(rows, MR), h->d);
    }
    for (ptrdiff_t col = 0; decay->channels && col < h->d; col += VL) {
        channel_ends(decay, col, rows);
    }
    return rows;
}

#endif
