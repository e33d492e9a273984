/* gated_delta_reverse.h: gradients of the gated delta rule and of DPLR, one chunk of
 * the reverse scan.
 *
 * Over the rows of a chunk (gated_delta.h), with the decays of decay.h, A' and E' the
 * readers scaled from the chunk's start, and B' the writers scaled to its end (DPLR:
 * [K; B] with [V; U]), delta_reverse.h becomes
 *
 *    dU = B' R + P^T G + L^T N by substitution, N = -beta o dU or, for DPLR, N = dU
 *    R <- exp(G_last) R + A'^T G + E'^T N
 *
 * decay_backward.h gives dA, dE, dB and dg, from the triangles' gradients X = tril(G
 * U^T), Y = stril(N U^T) and the products with the states: G S^T, N S^T and U R^T.  For
 * DPLR, dK and dV are computed as dB and dU are, except that dV is not substituted: it
 * only adds L_K^T N. */
#ifndef LA_GATED_DELTA_REVERSE_H
#define LA_GATED_DELTA_REVERSE_H

#include "delta_reverse.h"
#include "../decays/decay_backward.h"
#include "gated_delta.h"

struct gated_delta_reverse {
    /* ab: [A; E].  DPLR: u: [V; U], du: [dV; dU], db: [dK; dB]. */
    struct reverse_scratch base;
    /* Kept like those of the base. */
    struct decay decay;
    struct block ends;       /* [A'; E'] */
    struct block b, written; /* B or [K; B], scaled for products with A and E; B' */
    struct block lk, pk;
    /* Of the gradients. */
    struct decay_pairs pairs;
    struct block xk, yk;
    int dplr;
};

static struct gated_delta_reverse
take_gated_reverse_record(const struct la_head *h, ptrdiff_t rows, struct arena *arena,
                          int dplr, struct decay decay)
{
    struct gated_delta_reverse r = {.decay = decay, .dplr = dplr};
    take_reverse_record(h, rows, arena, dplr, &r.base);
    r.ends = take_block(arena, 2 * rows, h->d);
    r.b = take_block(arena, (1 + dplr) * rows, h->d);
    r.written = take_block(arena, (1 + dplr) * rows, h->d);
    if (dplr) {
        r.lk = take_block(arena, rows, rows);
        r.pk = take_block(arena, rows, rows);
    }
    return r;
}

static void
take_gated_reverse_tiles(const struct la_head *h, ptrdiff_t rows, struct arena *arena,
                         struct gated_delta_reverse *r)
{
    take_reverse_tiles(h, rows, arena, r->dplr, &r->base);
    take_decay_gradient(arena, h, rows, &r->pairs);
    if (r->dplr) {
        r->xk = take_block(arena, rows, rows);
        r->yk = take_block(arena, rows, rows);
    }
}

/* The rows of a chunk of `rows` rows. */
static struct gated_rows
reverse_rows(const struct la_head *h, const struct gated_delta_reverse *r,
             ptrdiff_t rows)
{
    return gated_rows(h, &r->decay, r->base.ab, block_at(r->base.ab, rows, 0), r->b,
                      r->dplr);
}

INLINE struct block
second(struct block x, ptrdiff_t rows, int dplr)
{
    return block_at(x, dplr ? rows : 0, 0);
}

/* Loads U of the tokens t; if E was stored, loads E and computes U. */
static void
load_written(const struct la_head *h, const struct gated_delta_reverse *r,
             const struct la_array *errors, struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    if (!r->dplr) {
        load_errors(h, &r->base, errors, t);
        return;
    }
    const struct block u = block_at(r->base.u, rows, 0);
    load_values(h, t, r->base.u);
    load_existing(u, h, errors, t, h->m, LA_MAP_identity);
}

/* DPLR: dV of one column tile; unlike dU, it is not substituted. */
INLINE void
values_back(const struct reverse *c, const struct gated_delta_reverse *r, ptrdiff_t col,
            const int nr)
{
    const struct block grad_out = block_at(c->grad_out, 0, col),
                       n = block_at(c->n, 0, col);
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        const ptrdiff_t next = i + MR, left = c->rows - next;
        const struct block dv = block_at(r->base.dv, i, col);
        const struct block l = block_at(r->lk, i, i), p = block_at(r->pk, i, i);
        vec y[MR][NR];
        tile_load(y, nr, dv);
        tile(y, MR, nr, block_at(p, MR, 0), 1, block_at(grad_out, next, 0), left);
        tile(y, MR, nr, block_at(l, MR, 0), 1, block_at(n, next, 0), left);
        diagonal_up(y, nr, p, block_at(grad_out, i, 0), 0);
        diagonal_up(y, nr, l, block_at(n, i, 0), 1);
        tile_store(dv, y, nr);
    }
}

INLINE void
gated_value_tile(const struct reverse *c, const struct gated_delta_reverse *r,
                 ptrdiff_t col, const int nr, const int dplr)
{
    sweep_tile(&c->read, col, LA_READ, nr);
    substitute_back(c, col, nr, dplr);
    if (dplr) {
        values_back(c, r, col, nr);
    }
    sweep_tile(&c->write, col, LA_WRITE, nr);
}

/* The triangles of a chunk, from rows that are scaled for products with each other. */
static void
reverse_triangles(const struct la_head *h, const struct gated_delta_reverse *r,
                  const struct gated_rows *x, const struct reverse *c)
{
    const ptrdiff_t rows = c->rows;
    const struct block b = second(x->b, rows, r->dplr);
    gated_triangle_of(x->decay, r->base.l, x->e, b, rows, h->d, r->dplr);
    if (c->readers > 0) {
        gated_triangle_of(x->decay, r->base.p, x->a, b, rows, h->d, 0);
    }
    if (r->dplr) {
        gated_triangle_of(x->decay, r->lk, x->e, x->b, rows, h->d, 1);
        gated_triangle_of(x->decay, r->pk, x->a, x->b, rows, h->d, 0);
    }
}

/* Loads everything that the gradients of the tokens t need. */
static void
load_gated_delta_reverse(const struct la_head *h, const struct reverse *c,
                         const struct gated_delta_reverse *r,
                         const struct la_array *errors, struct span t)
{
    const struct gated_rows rows = reverse_rows(h, r, c->readers), *x = &rows;
    load_decays(h, t, &r->decay);
    load_rows_of_keys(h, x, t);
    from_start(&r->decay, block_at(r->ends, c->readers, 0), x->e, c->rows, h->d,
               r->dplr);
    writers_to_end(x, r->written, c->rows, h->d);
    load_written(h, r, errors, t);
    look_ahead(&h->dk, t, h->d);
    look_ahead(&h->dv, t, h->m);
    if (c->readers > 0) {
        load_readers(h, x, t);
        from_start(&r->decay, r->ends, x->a, c->rows, h->d, 0);
        load_scaled_cotangents(h, c->grad_out, r->base.scale, t);
        look_ahead(&h->dq, t, h->d);
    }
    reverse_triangles(h, r, x, c);
}

static void
add_block(struct block x, struct block y, ptrdiff_t rows)
{
    for (ptrdiff_t l = 0; l < rows * x.ld; l += VL) {
        vstore(&x.x[l], vload(&x.x[l]) + vload(&y.x[l]));
    }
}

/* Rows t of x = src, and 0 where no key exists. */
static void
store_existing(const struct la_array *x, struct span t, ptrdiff_t cols,
               struct block src, ptrdiff_t keys)
{
    clear_rows(src, keys, t.rows);
    store_rows(x, t, cols, src, NULL);
}

/* Writes the gradients of the tokens t. */
static void
store_gated_delta_reverse(const struct la_head *h, const struct reverse *c,
                          const struct gated_delta_reverse *r, struct span t)
{
    const struct reverse_scratch *base = &r->base;
    const struct block de = block_at(base->dab, c->readers, 0);
    store_decay_gradient(h, &r->decay, &r->pairs, t);
    if (r->dplr) {
        const struct block db = block_at(base->db, c->rows, 0);
        store_rows(&h->dq, t, h->d, base->dab, NULL);
        store_existing(&h->dk, t, h->d, base->db, c->keys);
        store_existing(&h->dv, t, h->m, base->dv, c->keys);
        store_existing(&h->da, t, h->d, de, c->keys);
        store_existing(&h->db, t, h->d, db, c->keys);
        return;
    }
    if (!la_is_given(&h->erase)) {
        add_block(base->db, de, t.rows);
    }
    if (h->map != LA_MAP_identity) { /* phi' is 1 */
        load_mapped(c->b, &h->k, t, h->d, h->map);
        chain(base->db, &h->k, t, h->d, c->b, h->map);
    }
    if (h->map != LA_MAP_identity && c->readers > 0) {
        load_mapped(c->a, &h->q, t, h->d, h->map);
        chain(base->dab, &h->q, t, h->d, c->a, h->map);
    }
    if (c->readers > 0) {
        store_rows(&h->dq, t, h->d, base->dab, NULL);
    }
    store_existing(&h->dk, t, h->d, base->db, c->keys);
    store_rows(&h->dv, t, h->m, base->dv, NULL);
    if (la_is_given(&h->erase)) {
        store_existing(&h->derase, t, h->d, de, c->keys);
    }
    clear_rows(base->dbeta, c->keys, t.rows);
    store_strengths(h, base, t);
}

/* dU and N, and R before the chunk, of `width` columns of the values. */
static void
gated_values_back(const struct la_head *h, struct reverse *c,
                  const struct gated_delta_reverse *r, ptrdiff_t width,
                  struct la_fetch *ahead)
{
    sweep_gradient(h, c, width, r->written, (1 + r->dplr) * c->rows, r->ends, ahead);
    c->write.keep = r->decay.keep;
    c->write.change = r->decay.change;
    if (r->dplr) {
        LA_BY_TILES(width, gated_value_tile(c, r, col, nr, 1));
    }
    else {
        LA_BY_TILES(width, gated_value_tile(c, r, col, nr, 0));
    }
}

/* The operands for decay_backward.h. */
static struct decay_pairs
gated_delta_pairs(const struct la_head *h, const struct reverse *c,
                  const struct gated_delta_reverse *r, const struct gated_rows *x,
                  ptrdiff_t tokens)
{
    const struct reverse_scratch *base = &r->base;
    const ptrdiff_t rows = c->rows;
    const int erases = c->readers > 0; /* the place of E: after A, if that reads */
    struct decay_pairs y = r->pairs;
    y.decay = &r->decay;
    y.tokens = tokens;
    y.rows = rows;
    y.d = h->d;
    y.readers = 1 + erases;
    y.writers = 1 + r->dplr;
    y.reader[0] = (struct decay_reader){x->a, base->dab, 0, 0};
    y.reader[erases] =
        (struct decay_reader){x->e, block_at(base->dab, c->readers, 0), 1, r->dplr};
    y.writer[0] = (struct decay_writer){second(x->b, rows, r->dplr),
                                        second(base->db, rows, r->dplr)};
    y.writer[1] = (struct decay_writer){x->b, base->db};
    const struct block p[2][2] = {{base->p, r->pk}, {base->l, r->lk}};
    const struct block dp[2][2] = {{base->x, r->xk}, {base->y, r->yk}};
    const int first = 1 - erases;
    memcpy(y.p, p[first], (size_t)y.readers * sizeof(p[0]));
    memcpy(y.x, dp[first], (size_t)y.readers * sizeof(dp[0]));
    return y;
}

/* dA, dE, dB, dg and what follows from them, from S^T before the tokens t and R^T after
 * them. */
static void
gated_features_back(const struct la_head *h, struct reverse *c,
                    const struct gated_delta_reverse *r, struct span t, T *s)
{
    const struct reverse_scratch *base = &r->base;
    const struct block u = second(base->u, c->rows, r->dplr);
    const struct gated_rows x = reverse_rows(h, r, c->readers);
    const struct decay_pairs pairs = gated_delta_pairs(h, c, r, &x, t.rows);
    const struct sweep state = {.rows = c->readers + c->rows,
                                .K = h->m,
                                .W = round_up(h->d, VL),
                                .s = s,
                                .ahead = t.ahead,
                                .pairs = base->pairs};
    if (!r->dplr) {
        forget(&r->decay, s, h->m, round_up(h->d, VL), 1);
    }
    state_gradient(&r->decay, r->pairs.state, s, base->rt, h->m, h->d);
    if (c->readers > 0) {
        triangle(base->x, c->grad_out, u, c->rows, h->m);
    }
    triangle(base->y, c->n, u, c->rows, h->m);
    if (r->dplr) {
        triangle(r->xk, c->grad_out, base->u, c->rows, h->m);
        triangle(r->yk, c->n, base->u, c->rows, h->m);
    }
    c->read = c->write = state;
    c->read.a = base->gn;
    c->read.o = base->dab;
    c->write.rows = (1 + r->dplr) * c->rows;
    c->write.a = base->u;
    c->write.o = base->db;
    c->write.s = base->rt;
    sweep(&c->read, LA_READ);
    sweep(&c->write, LA_READ);
    decay_gradients(&pairs);
    store_gated_delta_reverse(h, c, r, t);
}

/* The tokens t of a chunk in its blocks. */
static struct reverse
gated_reverse_chunk(const struct la_head *h, const struct gated_delta_reverse *r,
                    struct span t)
{
    struct reverse c = reverse_chunk(h, &r->base, t);
    c.du = second(r->base.du, c.rows, r->dplr);
    return c;
}

/* Gradients of the tokens t, and R before them; s is S^T before them. */
static void
gated_delta_reverse(const struct la_head *h, const struct gated_delta_reverse *r,
                    const struct la_array *errors, struct span t, T *s)
{
    struct reverse c = gated_reverse_chunk(h, r, t);
    transpose_state(r->base.rt, r->base.r, h->d, h->m);
    load_gated_delta_reverse(h, &c, r, errors, t);
    gated_values_back(h, &c, r, round_up(h->m, VL), t.ahead);
    if (!r->dplr) {
        forget(&r->decay, r->base.r, h->d, round_up(h->m, VL), 0);
    }
    gated_features_back(h, &c, r, t, s);
}

#endif
