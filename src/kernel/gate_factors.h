/* gate_factors.h: the factors of a chunk's gates, as gate.h says and uses them. */
#ifndef LA_GATE_FACTORS_H
#define LA_GATE_FACTORS_H

#include "scan.h"

struct gate {
    int channels;          /* one number a key channel, not one a token */
    struct block g;        /* (rows, d), or one row */
    T *keep, *change;      /* of the state's rows, over the chunk; (d) */
    T *bonus;              /* (d) u: rows read before their decay; NULL: after it */
    struct block pairs;    /* one a token: E_ij; (rows + 1, rows) */
    T *start, *end;        /* exp(G_i), exp(G_last - G_j); (rows) */
    struct block to, from; /* one a channel, MR rows at a time: from their first token
                              on to row i, from after row j on to the last */
    struct block within;   /* and of the sums g1, g1 + g2, g2 */
    struct block whole;    /* all of the MR rows; a row for each of them */
    T *before;             /* all blocks passed on the way; (d) */
    T *total, *lost;       /* sum of g, and what rounding kept from it; (d) */
};

static struct gate
take_gate(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    struct gate r = {.channels = h->gate_channels};
    r.g = take_block(arena, r.channels ? rows : 1, r.channels ? h->d : rows);
    r.keep = take_row(arena, h->d);
    r.change = take_row(arena, h->d);
    if (h->has_bonus) {
        r.bonus = take_row(arena, h->d);
    }
    if (r.channels) {
        r.to = take_block(arena, rows, h->d);
        r.from = take_block(arena, rows, h->d);
        r.within = take_block(arena, rows, h->d);
        r.whole = take_block(arena, rows / MR, h->d);
        r.before = take_row(arena, h->d);
        r.total = take_row(arena, h->d);
        r.lost = take_row(arena, h->d);
    }
    else {
        r.pairs = take_block(arena, rows + 1, rows);
        r.start = take_row(arena, rows);
        r.end = take_row(arena, rows);
    }
    return r;
}

static void
load_bonus(const struct la_head *h, const struct gate *gate)
{
    if (gate->bonus != NULL) {
        load_vector(gate->bonus, &h->bonus, h->d);
    }
}

/* --- factors -------------------------------------------------------------- */

/* exp(total) in two parts. */
INLINE void
decay_parts(vec total, T *keep, T *change)
{
    const vec one = vset1(1);
    vec low;
    const vec e = vexp_parts(vmin(vset1(EXP_MAX), total), &low);
    const ivec near = (e > vset1((T)0.5)) & (e < vset1(2));
    vstore(keep, vkeep(near, one));
    vstore(change, (e - vkeep(near, one)) + low);
}

/* One number a token: E_ij of columns [j, j + VL). */
INLINE void
pair_factors(const struct gate *gate, ptrdiff_t rows, ptrdiff_t j)
{
    const struct block e = gate->pairs;
    const ptrdiff_t next = gate->bonus != NULL; /* row i + 1 reads what i leaves */
    vec sum = (vec){0};
    for (ptrdiff_t i = j; i < rows; i++) {
        const ivec earlier = viota() < (ivec)((ivec){0} + (INT)(i - j));
        sum = vkeep(earlier, sum + vset1(gate->g.x[i]));
        vstore(&e.x[(i + next) * e.ld + j], vexp(sum));
    }
}

/* exp(G_i), and the pairs. */
static void
token_readers(const struct gate *gate, ptrdiff_t rows)
{
    const int next = gate->bonus != NULL;
    T sum = 0;
    for (ptrdiff_t i = 0; i < rows; i++) {
        const T before = sum;
        sum += gate->g.x[i];
        gate->start[i] = next ? before : sum;
    }
    for (ptrdiff_t j = 0; j < rows; j += VL) {
        pair_factors(gate, rows, j);
        vstore(&gate->start[j], vexp(vload(&gate->start[j])));
    }
}

/* exp(G_last - G_j), and the state's decay: its sum in four parts, which rounds less.
 */
static void
token_ends(const struct gate *gate, ptrdiff_t rows, ptrdiff_t d)
{
    T sum = 0, part[MR] = {0};
    for (ptrdiff_t i = rows; i-- > 0;) {
        gate->end[i] = sum;
        sum += gate->g.x[i];
        part[i % MR] += gate->g.x[i];
    }
    const vec total = vset1((part[0] + part[1]) + (part[2] + part[3]));
    for (ptrdiff_t j = 0; j < rows; j += VL) {
        vstore(&gate->end[j], vexp(vload(&gate->end[j])));
    }
    for (ptrdiff_t l = 0; l < d; l += VL) {
        decay_parts(total, &gate->keep[l], &gate->change[l]);
    }
}

/* One number a channel: factors of the MR rows from i on, columns [l, l + VL), for
 * readers and, with their sum, which is compensated, for the state. */
INLINE void
channel_readers(const struct gate *gate, ptrdiff_t i, ptrdiff_t l)
{
    const struct block at = block_at(gate->g, i, l);
    T *to = gate->to.x + i * at.ld + l, *within = gate->within.x + i * at.ld + l;
    const vec g0 = vload(at.x), g1 = vload(at.x + at.ld), g2 = vload(at.x + 2 * at.ld);
    const vec g01 = g0 + g1;
    const ptrdiff_t next = gate->bonus != NULL ? at.ld : 0;
    vstore(to, vset1(1));
    vstore(to + next, vexp(g0));
    vstore(to + at.ld + next, vexp(g01));
    vstore(to + 2 * at.ld + next, vexp(g01 + g2));
    if (!next) {
        vstore(to + 3 * at.ld, vload(&gate->whole.x[i / MR * at.ld + l]));
    }
    vstore(within, vexp(g1));
    vstore(within + at.ld, vexp(g1 + g2));
    vstore(within + 2 * at.ld, vexp(g2));
}

INLINE void
channel_ends(const struct gate *gate, ptrdiff_t i, ptrdiff_t l)
{
    const struct block at = block_at(gate->g, i, l);
    T *from = gate->from.x + i * at.ld + l;
    const vec g0 = vload(at.x), g1 = vload(at.x + at.ld), g2 = vload(at.x + 2 * at.ld);
    const vec g3 = vload(at.x + 3 * at.ld), g23 = g2 + g3, all = (g0 + g1) + g23;
    vstore(&gate->whole.x[i / MR * at.ld + l], vexp(all));
    vstore(from, vexp(g1 + g23));
    vstore(from + at.ld, vexp(g23));
    vstore(from + 2 * at.ld, vexp(g3));
    vstore(from + 3 * at.ld, vset1(1));
    add_to_sum(&gate->total[l], &gate->lost[l], all);
}

/* Gates of the tokens t, 0 where no key exists: their row, or rows. */
static void
read_gates(const struct la_head *h, struct span t, const struct gate *gate)
{
    struct span some = t;
    some.rows = keys_left(h, t);
    if (gate->channels) {
        load_plain(gate->g, &h->gate, some, h->d);
        clear_rows(gate->g, some.rows, round_up(t.rows, MR));
        return;
    }
    const struct la_array row = {h->gate.data + t.first * h->gate.rs, 0, h->gate.rs,
                                 h->gate.type};
    load_row(gate->g.x, gate->g.ld, row.data, row.cs, some.rows, phi_identity,
             LA_NATIVE);
}

/* The factors that the state after the tokens t needs: of its own rows, and of what
 * they write. */
static void
load_gate_ends(const struct la_head *h, struct span t, const struct gate *gate)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    read_gates(h, t, gate);
    if (!gate->channels) {
        token_ends(gate, rows, h->d);
        return;
    }
    clear(gate->total, gate->g.ld);
    clear(gate->lost, gate->g.ld);
    for (ptrdiff_t l = 0; l < h->d; l += VL) {
        for (ptrdiff_t i = 0; i < rows; i += MR) {
            channel_ends(gate, i, l);
        }
        decay_parts(vload(&gate->total[l]), &gate->keep[l], &gate->change[l]);
    }
}

/* All factors of the tokens t. */
static void
load_gate(const struct la_head *h, struct span t, const struct gate *gate)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    load_gate_ends(h, t, gate);
    if (!gate->channels) {
        token_readers(gate, rows);
        return;
    }
    for (ptrdiff_t i = 0; i < rows; i += MR) {
        for (ptrdiff_t l = 0; l < h->d; l += VL) {
            channel_readers(gate, i, l);
        }
    }
}

#endif
