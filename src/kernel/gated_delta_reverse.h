/* gated_delta_reverse.h: gradients of the gated delta rule and of DPLR, one chunk on
 * its way back.
 *
 * Over the rows of a chunk as gated_delta.h has them, A and E up, B (DPLR: [K; B] with
 * [V; U]) down, and with A', E' times first, B' times last, delta_reverse.h becomes
 *
 *   dU = B' R + P^T G + L^T N by substitution, N = -beta o dU or, of DPLR, N = dU
 *   dA = up o (first o G S^T + X B),         X = tril(G U^T)
 *   dE = up o (first o N S^T + Y B),         Y = stril(N U^T)
 *   dB = down o (last o U R^T + X^T A + Y^T E)
 *   R <- first last o R + A'^T G + E'^T N
 *
 * and of DPLR likewise for K and V, but that N^T L_K is part of dV. */
#ifndef LA_GATED_DELTA_REVERSE_H
#define LA_GATED_DELTA_REVERSE_H

#include "gated_delta_gate.h"

/* The rows of a chunk of so many, and the places of B and U among the writers. */
static struct gated_rows
reverse_rows(const struct rule_reverse *r, ptrdiff_t rows)
{
    return (struct gated_rows){.a = r->base.ab,
                               .e = block_at(r->base.ab, rows, 0),
                               .b = r->b,
                               .decay = r->decay,
                               .low_rank = r->low_rank};
}

INLINE struct block
second(struct block x, ptrdiff_t rows, int low_rank)
{
    return block_at(x, low_rank ? rows : 0, 0);
}

/* B', of B, and U of the tokens t. */
static void
load_written(const struct la_head *h, const struct rule_reverse *r,
             const struct gated_rows *x, const struct la_array *errors, struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    writers_after(r->written, r->b, x, rows, h->d);
    if (!r->low_rank) {
        load_errors(h, &r->base, errors, t);
        return;
    }
    const struct block u = block_at(r->base.u, rows, 0);
    t.rows = keys_left(h, t);
    load_plain(r->base.u, &h->v, t, h->m);
    load_plain(u, errors, t, h->m);
    clear_rows(r->base.u, t.rows, rows);
    clear_rows(u, t.rows, rows);
}

/* dV of one column tile, of DPLR: what dU does not pass on. */
INLINE void
values_back(const struct reverse *c, const struct rule_reverse *r, ptrdiff_t col,
            const int nr)
{
    const struct block g = block_at(c->g, 0, col), n = block_at(c->n, 0, col);
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        const ptrdiff_t next = i + MR, left = c->rows - next;
        const struct block dv = block_at(r->base.du, i, col);
        const struct block l = block_at(r->lk, i, i), p = block_at(r->pk, i, i);
        vec y[MR][NR];
        tile_load(y, nr, dv);
        tile(y, MR, nr, block_at(p, MR, 0), 1, block_at(g, next, 0), left);
        tile(y, MR, nr, block_at(l, MR, 0), 1, block_at(n, next, 0), left);
        diagonal_up(y, nr, p, block_at(g, i, 0), 0);
        diagonal_up(y, nr, l, block_at(n, i, 0), 1);
        tile_store(dv, y, nr);
    }
}

INLINE void
gated_value_tile(const struct reverse *c, const struct rule_reverse *r, ptrdiff_t col,
                 const int nr, const int low_rank)
{
    sweep_tile(&c->read, col, LA_READ, nr);
    substitute_back(c, col, nr, low_rank);
    if (low_rank) {
        values_back(c, r, col, nr);
    }
    sweep_tile(&c->write, col, LA_WRITE, nr);
}

/* x += X B from the rows of a writer, or stril. */
INLINE void
add_reads(struct block dx, struct block x, struct block b, ptrdiff_t i, ptrdiff_t col,
          const int nr, const int strict)
{
    const struct block to = block_at(dx, i, col), from = block_at(b, 0, col);
    vec y[MR][NR];
    tile_load(y, nr, to);
    tile(y, MR, nr, block_at(x, i, 0), 0, from, i);
    diagonal_down(y, nr, block_at(x, i, i), block_at(from, i, 0), strict);
    tile_store(to, y, nr);
}

/* db += X^T A + Y^T E */
INLINE void
add_writes(const struct reverse *c, struct block db, struct block x, struct block y,
           ptrdiff_t i, ptrdiff_t col, const int nr)
{
    const ptrdiff_t next = i + MR, left = c->rows - next;
    const struct block to = block_at(db, i, col);
    const struct block a = block_at(c->a, i, col), e = block_at(c->b, i, col);
    const struct block xi = block_at(x, i, i), yi = block_at(y, i, i);
    vec d[MR][NR];
    tile_load(d, nr, to);
    tile(d, MR, nr, block_at(xi, MR, 0), 1, block_at(a, MR, 0), left);
    tile(d, MR, nr, block_at(yi, MR, 0), 1, block_at(e, MR, 0), left);
    diagonal_up(d, nr, xi, a, 0);
    diagonal_up(d, nr, yi, e, 1);
    tile_store(to, d, nr);
}

/* What the triangles add to dA, dE and dB of one column tile of the features. */
INLINE void
gated_feature_tile(const struct reverse *c, const struct rule_reverse *r, ptrdiff_t col,
                   const int nr)
{
    const struct reverse_scratch *base = &r->base;
    const struct block da = base->dab, de = block_at(base->dab, c->rows, 0);
    const struct block b = second(r->b, c->rows, r->low_rank);
    const struct block db = second(base->db, c->rows, r->low_rank);
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        add_reads(da, base->x, b, i, col, nr, 0);
        add_reads(de, base->y, b, i, col, nr, 1);
        add_writes(c, db, base->x, base->y, i, col, nr);
        if (r->low_rank) {
            add_reads(da, r->xk, r->b, i, col, nr, 0);
            add_reads(de, r->yk, r->b, i, col, nr, 1);
            add_writes(c, base->db, r->xk, r->yk, i, col, nr);
        }
    }
}

/* Reads all that the way back through the tokens t needs. */
static void
load_rule_reverse(const struct la_head *h, const struct reverse *c,
                  const struct rule_reverse *r, const struct la_array *errors,
                  struct span t)
{
    const struct gated_rows x = reverse_rows(r, c->rows);
    chunk_decay(h, &r->decay, t);
    load_readers(h, &x, t);
    load_rows_of_keys(h, &x, t);
    readers_before(r->ends, x.a, &x, c->rows, h->d);
    erasers_before(block_at(r->ends, c->rows, 0), x.e, &x, c->rows, h->d);
    load_written(h, r, &x, errors, t);
    load_plain(c->g, &h->g, t, h->m);
    look_ahead(&h->dq, t, h->d);
    look_ahead(&h->dk, t, h->d);
    look_ahead(&h->dv, t, h->m);
    if (h->scale != 1) {
        scale_rows(c->g, t.rows, r->base.scale);
    }
}

/* dA, dE and dB with their decays, of the keys as they are given. */
static void
fade_gradients(const struct la_head *h, const struct reverse *c,
               const struct rule_reverse *r, ptrdiff_t rows)
{
    const struct decay *x = &r->decay;
    const struct block de = block_at(r->base.dab, c->rows + r->low_rank, 0);
    fade_rows(r->base.dab, x->up, x->step, rows, h->d);
    fade_rows(de, x->up, x->step, rows - r->low_rank, h->d);
    fade_rows(r->base.db, x->down, x->step, rows, h->d);
    if (r->low_rank) {
        fade_rows(block_at(r->base.db, c->rows, 0), x->down, x->step, rows, h->d);
    }
}

static void
add_block(struct block x, struct block y, ptrdiff_t rows)
{
    for (ptrdiff_t l = 0; l < rows * x.ld; l += VL) {
        vstore(&x.x[l], vload(&x.x[l]) + vload(&y.x[l]));
    }
}

/* Rows t of x = src, 0 where no key exists. */
static void
store_existing(const struct la_array *x, struct span t, ptrdiff_t cols,
               struct block src, ptrdiff_t keys)
{
    clear_rows(src, keys, t.rows);
    store_rows(x, t, cols, src, NULL);
}

/* Writes the gradients of the tokens t. */
static void
store_rule_reverse(const struct la_head *h, const struct reverse *c,
                   const struct rule_reverse *r, struct span t)
{
    const struct reverse_scratch *base = &r->base;
    const struct block de = block_at(base->dab, c->rows, 0);
    fade_gradients(h, c, r, t.rows);
    if (h->gate_channels) {
        store_existing(&h->dgate, t, h->d, r->dg, c->keys);
    }
    else {
        store_numbers(&h->dgate, t, base->sums);
    }
    if (r->low_rank) {
        const struct block db = block_at(base->db, c->rows, 0);
        store_rows(&h->dq, t, h->d, base->dab, NULL);
        store_existing(&h->dk, t, h->d, base->db, c->keys);
        store_existing(&h->dv, t, h->m, base->du, c->keys);
        store_existing(&h->da, t, h->d, de, c->keys);
        store_existing(&h->db, t, h->d, db, c->keys);
        return;
    }
    if (!h->has_erase) {
        add_block(base->db, de, t.rows);
    }
    if (h->map != LA_MAP_identity) { /* its slope is 1 */
        load_mapped(c->a, &h->q, t, h->d, h->map);
        load_mapped(c->b, &h->k, t, h->d, h->map);
        chain(base->dab, &h->q, t, h->d, c->a, h->map);
        chain(base->db, &h->k, t, h->d, c->b, h->map);
    }
    store_rows(&h->dq, t, h->d, base->dab, NULL);
    store_existing(&h->dk, t, h->d, base->db, c->keys);
    store_rows(&h->dv, t, h->m, base->e, NULL);
    if (h->has_erase) {
        store_existing(&h->derase, t, h->d, de, c->keys);
    }
    clear_rows(base->du, c->keys, t.rows);
    store_strengths(h, base, t);
}

/* The triangles of a chunk, and dU, N and R before it. */
static void
reverse_values(const struct la_head *h, struct reverse *c, const struct rule_reverse *r,
               struct la_fetch *ahead)
{
    const struct reverse_scratch *base = &r->base;
    const struct block b = second(r->b, c->rows, r->low_rank);
    const struct scan state = {
        .K = h->d, .W = round_up(h->m, VL), .s = base->r, .ahead = ahead};
    triangle(base->l, c->b, b, c->rows, h->d);
    triangle(base->p, c->a, b, c->rows, h->d);
    c->read = c->write = state;
    c->read.rows = (1 + r->low_rank) * c->rows;
    c->read.a = r->written;
    c->read.o = base->du;
    c->write.rows = 2 * c->rows;
    c->write.b = r->ends;
    c->write.v = base->gn;
    c->write.keep = r->decay.keep;
    c->write.change = r->decay.change;
    if (r->low_rank) {
        triangle(r->lk, c->b, r->b, c->rows, h->d);
        triangle(r->pk, c->a, r->b, c->rows, h->d);
        LA_BY_TILES(state.W, gated_value_tile(c, r, col, nr, 1));
    }
    else {
        LA_BY_TILES(state.W, gated_value_tile(c, r, col, nr, 0));
    }
}

/* dA, dE, dB and dg, but for the decays of the rows. */
static void
reverse_features(const struct la_head *h, struct reverse *c,
                 const struct rule_reverse *r, struct span t, T *s)
{
    const struct reverse_scratch *base = &r->base;
    const struct gated_rows x = reverse_rows(r, c->rows);
    const struct block u = second(base->u, c->rows, r->low_rank);
    const struct block de = block_at(base->dab, c->rows, 0);
    const ptrdiff_t D = round_up(h->d, VL);
    const struct scan state = {
        .rows = 2 * c->rows, .K = h->m, .W = D, .s = s, .ahead = t.ahead};
    triangle(base->x, c->g, u, c->rows, h->m);
    triangle(base->y, c->n, u, c->rows, h->m);
    if (r->low_rank) {
        triangle(r->xk, c->g, base->u, c->rows, h->m);
        triangle(r->yk, c->n, base->u, c->rows, h->m);
    }
    c->read = c->write = state;
    c->read.a = base->gn;
    c->read.o = base->dab;
    c->write.rows = (1 + r->low_rank) * c->rows;
    c->write.a = base->u;
    c->write.o = base->db;
    c->write.s = base->rt;
    sweep(&c->read, LA_READ);
    sweep(&c->write, LA_READ);
    if (!h->gate_channels) {
        dgate_tokens(h, c, r, t, s);
    }
    for (ptrdiff_t col = 0; h->gate_channels && col < D; col += VL) {
        dgate_channels(h, c, r, t, s, col);
    }
    readers_before(base->dab, base->dab, &x, c->rows, h->d);
    erasers_before(de, de, &x, c->rows, h->d);
    writers_after(base->db, base->db, &x, c->rows, h->d);
    LA_BY_TILES(D, gated_feature_tile(c, r, col, nr));
}

/* The reverse scan over the tokens t; s is S^T before them. */
static void
rule_reverse(const struct la_head *h, const struct rule_reverse *r,
             const struct la_array *errors, struct span t, T *s)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    struct reverse c = {
        .rows = rows,
        .keys = keys_left(h, t),
        .a = r->base.ab,
        .b = block_at(r->base.ab, rows, 0),
        .g = r->base.gn,
        .n = block_at(r->base.gn, rows, 0),
        .du = second(r->base.du, rows, r->low_rank),
        .r = &r->base,
    };
    load_rule_reverse(h, &c, r, errors, t);
    reverse_values(h, &c, r, t.ahead);
    reverse_features(h, &c, r, t, s);
    store_rule_reverse(h, &c, r, t);
    transpose_state(r->base.rt, r->base.r, h->d, h->m);
}

#endif
