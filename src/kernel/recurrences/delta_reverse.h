/* delta_reverse.h: gradients of the delta rule, one chunk of the reverse scan.
 *
 * Over the rows of a chunk (delta.h; L = stril(B B^T), P = tril(A B^T)), with S the
 * state before it, R the gradient of the state after it, G scale times the cotangent,
 * and N = -dE:
 *
 *    dU = B R + P^T G + L^T N,  N = -beta o dU         by substitution, last row first
 *    dV = -N,  dbeta = dU o E
 *    dA = G S^T + X B,                                   X = tril(G U^T)
 *    dB = U R^T + N S^T + X^T A + (Y + Y^T) B,           Y = stril(N U^T)
 *    R <- R + A^T G + B^T N */
#ifndef LA_DELTA_REVERSE_H
#define LA_DELTA_REVERSE_H

#include "delta.h"

/* What one chunk needs.  DPLR: see gated_delta_reverse.h. */
struct reverse_scratch {
    /* Kept from the loads to the gradients: [A; B], [G; N], U, E, dU, L, P. */
    struct block ab, gn, u, e, du, l, p;
    struct block dv, dbeta; /* replace E and dU, tile by tile */
    struct beta beta;
    /* Partial sums of [dA; dB], U R^T, X, Y. */
    struct block dab, db, x, y;
    T *after, *r, *rt, *lost; /* R after the chunk and before it; R^T after it; what R
                                 has lost to rounding */
    T *scale, *ones, *sums;
    struct pairs pairs, other; /* of two sweeps side by side */
};

static void
take_reverse_record(const struct la_head *h, ptrdiff_t rows, struct arena *arena,
                    int dplr, struct reverse_scratch *r)
{
    const ptrdiff_t writers = (1 + dplr) * rows;
    r->ab = take_block(arena, 2 * rows, h->d);
    r->gn = take_block(arena, 2 * rows, h->m);
    r->u = take_block(arena, writers, h->m);
    r->du = take_block(arena, writers, h->m);
    r->l = take_block(arena, rows, rows);
    r->p = take_block(arena, rows, rows);
    if (dplr) {
        r->dv = r->du; /* its first half; the others are not needed */
        r->e = r->dbeta = r->du;
        return;
    }
    r->e = take_block(arena, rows, h->m);
    r->beta = take_beta(arena, h, rows);
    r->dv = r->e;
    r->dbeta = r->du;
}

static void
take_reverse_tiles(const struct la_head *h, ptrdiff_t rows, struct arena *arena,
                   int dplr, struct reverse_scratch *r)
{
    r->dab = take_block(arena, 2 * rows, h->d);
    r->db = take_block(arena, (1 + dplr) * rows, h->d);
    r->x = take_block(arena, rows, rows);
    r->y = take_block(arena, rows, rows);
    r->rt = take_state(arena, h->d, h->m);
    r->scale = take(arena, 1, rows);
    r->ones = take_row(arena, h->m);
    r->sums = take(arena, 1, rows);
    r->pairs =
        take_pairs(h, arena, 2 * rows, wider_of(h->d, h->m), wider_of(h->d, h->m));
    r->other = take_other_pairs(r->pairs, arena, 2 * rows, wider_of(h->d, h->m));
}

static void
take_gradient_of_state(const struct la_head *h, struct arena *arena,
                       struct reverse_scratch *r)
{
    r->r = r->after = take_state(arena, h->d, h->m);
    r->lost = take_state(arena, h->d, h->m);
}

/* Sets up what is the same for all chunks. */
static void
reverse_constants(const struct la_head *h, const struct reverse_scratch *r,
                  ptrdiff_t rows)
{
    factors(h, r->scale, rows, 0, NULL);
    for (ptrdiff_t j = 0; j < row_step(h->m); j++) {
        r->ones[j] = 1;
    }
}

/* Sets R to the gradient of the last state. */
static void
reverse_begin(const struct la_head *h, const struct reverse_scratch *r)
{
    load_state(r->r, &h->grad_s, h->d, h->m);
    clear(r->lost, state_size(h->d, h->m));
}

/* E, beta and U = beta o E of the tokens t. */
static void
load_errors(const struct la_head *h, const struct reverse_scratch *r,
            const struct la_array *errors, struct span t)
{
    const ptrdiff_t all = round_up(t.rows, MR);
    load_beta(h, t, &r->beta);
    load_existing(r->e, h, errors, t, h->m, LA_MAP_identity);
    for (ptrdiff_t i = 0; i < all; i++) {
        const T *e = r->e.x + i * r->e.ld;
        T *u = r->u.x + i * r->u.ld;
        for (ptrdiff_t j = 0; j < h->m; j += VL) {
            vstore(&u[j], beta_at(&r->beta, i, j) * vload(&e[j]));
        }
    }
}

/* Operands of the tiles of a chunk. */
struct reverse {
    struct sweep read;              /* B R; or [G; N] S^T */
    struct sweep write;             /* R += [A; B]^T [G; N]; or, as a read, U R^T */
    ptrdiff_t rows, keys;           /* tokens, rounded up to MR; those with a key */
    ptrdiff_t readers;              /* rows of A and G: none of tokens in blocks */
    struct block a, b, grad_out, n; /* A, B, G, N */
    struct block du;
    const struct reverse_scratch *r;
};

/* dU and N of one column tile of the values, from the last row to the first.  For DPLR
 * (`dplr`, gated_delta_reverse.h), N is dU. */
INLINE void
substitute_back(const struct reverse *c, ptrdiff_t col, const int nr, const int dplr)
{
    const struct block grad_out = block_at(c->grad_out, 0, col),
                       n = block_at(c->n, 0, col);
    const struct block du = block_at(c->du, 0, col), e = block_at(c->r->e, 0, col);
    const struct block dbeta = du, dv = e; /* they share memory (reverse_scratch) */
    for (ptrdiff_t i = c->rows - MR; i >= 0; i -= MR) {
        const ptrdiff_t next = i + MR, left = c->rows - next;
        const struct block l = block_at(c->r->l, i, i), p = block_at(c->r->p, i, i);
        vec y[MR][NR];
        tile_load(y, nr, block_at(du, i, 0));
        if (c->readers > 0) {
            tile(y, MR, nr, block_at(p, MR, 0), 1, block_at(grad_out, next, 0), left);
        }
        tile(y, MR, nr, block_at(l, MR, 0), 1, block_at(n, next, 0), left);
        LA_UNROLL
        for (int r = MR - 1; r >= 0; r--) {
            const int exists = i + r < c->keys;
            LA_UNROLL
            for (int t = 0; t <= r; t++) {
                if (c->readers == 0) {
                    continue;
                }
                const vec x = vset1(p.x[r * p.ld + t]);
                LA_EACH(j, nr) {
                    y[t][j] = vfma(
                        x, vload(&grad_out.x[(i + r) * grad_out.ld + j * VL]), y[t][j]);
                }
            }
            LA_EACH(j, nr) {
                const ptrdiff_t at = (i + r) * n.ld + j * VL;
                if (dplr) {
                    y[r][j] = exists ? y[r][j] : (vec){0};
                    vstore(&n.x[at], y[r][j]);
                    continue;
                }
                const vec beta = beta_at(&c->r->beta, i + r, col + j * VL);
                const vec value = exists ? beta * y[r][j] : (vec){0};
                vstore(&dbeta.x[at], y[r][j] * vload(&e.x[at]));
                vstore(&dv.x[at], value);
                y[r][j] = -value;
                vstore(&n.x[at], y[r][j]);
            }
            LA_EACH(t, r) {
                const vec x = vset1(l.x[r * l.ld + t]);
                LA_EACH(j, nr) {
                    y[t][j] = vfma(x, y[r][j], y[t][j]);
                }
            }
        }
    }
}

INLINE void
reverse_value_tile(const struct reverse *c, ptrdiff_t col, const int nr)
{
    sweep_tile(&c->read, col, LA_READ, nr);
    substitute_back(c, col, nr, 0);
    sweep_tile(&c->write, col, LA_WRITE, nr);
}

/* dA and dB of one column tile of the features. */
INLINE void
reverse_feature_tile(const struct reverse *c, ptrdiff_t col, const int nr)
{
    const struct block a = block_at(c->a, 0, col), b = block_at(c->b, 0, col);
    const struct block x = c->r->x, y = c->r->y;
    sweep_tile(&c->read, col, LA_READ, nr);
    sweep_tile(&c->write, col, LA_READ, nr);
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        const ptrdiff_t next = i + MR, left = c->rows - next;
        const struct block da = block_at(c->read.o, i, col);
        const struct block db = block_at(c->read.o, c->readers + i, col);
        const struct block ai = block_at(a, i, 0), bi = block_at(b, i, 0);
        const struct block xi = block_at(x, i, i), yi = block_at(y, i, i);
        vec d[MR][NR], more[MR][NR];
        if (c->readers > 0) {
            tile_load(d, nr, da);
            tile(d, MR, nr, block_at(x, i, 0), 0, b, i);
            diagonal_down(d, nr, xi, bi, 0);
            tile_store(da, d, nr);
        }

        tile_load(d, nr, db);
        tile_load(more, nr, block_at(c->write.o, i, col));
        LA_EACH(r, MR) {
            LA_EACH(j, nr) {
                d[r][j] += more[r][j];
            }
        }
        if (c->readers > 0) {
            tile(d, MR, nr, block_at(xi, MR, 0), 1, block_at(a, next, 0), left);
        }
        tile(d, MR, nr, block_at(yi, MR, 0), 1, block_at(b, next, 0), left);
        tile(d, MR, nr, block_at(y, i, 0), 0, b, i);
        if (c->readers > 0) {
            diagonal_up(d, nr, xi, ai, 0);
        }
        diagonal_up(d, nr, yi, bi, 1);
        diagonal_down(d, nr, yi, bi, 1);
        tile_store(db, d, nr);
    }
}

/* Loads everything that the gradients of the tokens t need. */
static void
load_reverse(const struct la_head *h, const struct reverse *c,
             const struct la_array *errors, struct span t)
{
    load_features(h, t, c->b);
    load_errors(h, c->r, errors, t);
    look_ahead(&h->dk, t, h->d);
    look_ahead(&h->dv, t, h->m);
    triangle(c->r->l, c->b, c->b, c->rows, h->d);
    if (c->readers > 0) {
        load_mapped(c->a, &h->q, t, h->d, h->map);
        load_scaled_cotangents(h, c->grad_out, c->r->scale, t);
        look_ahead(&h->dq, t, h->d);
        triangle(c->r->p, c->a, c->b, c->rows, h->d);
    }
}

/* Writes dbeta of the tokens t. */
static void
store_strengths(const struct la_head *h, const struct reverse_scratch *r, struct span t)
{
    if (h->beta.has_channels) {
        store_rows(&h->dbeta, t, h->m, r->dbeta, NULL);
        return;
    }
    row_dots(r->sums, r->dbeta, (struct block){r->ones, 0}, t.rows, round_up(h->m, VL));
    store_numbers(&h->dbeta, t, r->sums);
}

/* Writes the gradients of the tokens t. */
static void
store_reverse(const struct la_head *h, const struct reverse *c, struct span t)
{
    const struct reverse_scratch *r = c->r;
    const struct block da = r->dab, db = block_at(r->dab, c->readers, 0);
    if (c->readers > 0) {
        chain(da, &h->q, t, h->d, c->a, h->map);
        store_rows(&h->dq, t, h->d, da, NULL);
    }
    chain(db, &h->k, t, h->d, c->b, h->map);
    clear_rows(db, c->keys, t.rows);
    clear_rows(r->dbeta, c->keys, t.rows);
    store_rows(&h->dk, t, h->d, db, NULL);
    store_rows(&h->dv, t, h->m, r->dv, NULL);
    store_strengths(h, r, t);
}

/* The tokens t of a chunk in its blocks. */
static struct reverse
reverse_chunk(const struct la_head *h, const struct reverse_scratch *r, struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR), readers = h->block > 0 ? 0 : rows;
    return (struct reverse){
        .rows = rows,
        .keys = keys_left(h, t),
        .readers = readers,
        .a = r->ab,
        .b = block_at(r->ab, readers, 0),
        .grad_out = r->gn,
        .n = block_at(r->gn, readers, 0),
        .du = r->du,
        .r = r,
    };
}

/* Sets up the sweeps over `width` columns of R: a product of `reads` rows of a with R
 * after the chunk, and what b adds to R. */
static void
sweep_gradient(const struct la_head *h, struct reverse *c, ptrdiff_t width,
               struct block a, ptrdiff_t reads, struct block b, struct la_fetch *ahead)
{
    const struct reverse_scratch *r = c->r;
    const struct sweep state = {
        .K = h->d, .W = width, .ahead = ahead, .pairs = r->pairs};
    c->read = c->write = state;
    c->read.s = r->after;
    c->read.rows = reads;
    c->read.a = a;
    c->read.o = r->du;
    c->write.from = r->after;
    c->write.s = r->r;
    c->write.rows = c->readers + c->rows;
    c->write.b = b;
    c->write.v = r->gn;
    compensate_state(&c->write, h, r->lost, rows_in_block(h, delta_rows(h)));
    pair_operands(&c->read, LA_READ);
    pair_operands(&c->write, LA_WRITE);
}

/* dU and N, and R before the chunk, of `width` columns of the values. */
static void
delta_values_back(const struct la_head *h, struct reverse *c, ptrdiff_t width,
                  struct la_fetch *ahead)
{
    sweep_gradient(h, c, width, c->b, c->rows, c->a, ahead);
    LA_BY_TILES(width, reverse_value_tile(c, col, nr));
}

/* dA, dB and what follows from them, from S^T before the tokens t and R^T after
 * them. */
static void
delta_features_back(const struct la_head *h, struct reverse *c, struct span t, T *s)
{
    const struct reverse_scratch *r = c->r;
    const ptrdiff_t width = round_up(h->d, VL);
    const struct sweep state = {
        .K = h->m, .W = width, .ahead = t.ahead, .pairs = r->pairs};
    if (c->readers > 0) {
        triangle(r->x, c->grad_out, r->u, c->rows, h->m);
    }
    triangle(r->y, c->n, r->u, c->rows, h->m);
    c->read = c->write = state;
    c->read.rows = c->readers + c->rows;
    c->read.a = r->gn;
    c->read.o = r->dab;
    c->read.s = s;
    c->write.rows = c->rows;
    c->write.a = r->u;
    c->write.o = r->db;
    c->write.s = r->rt;
    c->write.pairs = r->other;
    pair_operands(&c->read, LA_READ);
    pair_operands(&c->write, LA_READ);
    LA_BY_TILES(width, reverse_feature_tile(c, col, nr));
    store_reverse(h, c, t);
}

/* Gradients of the tokens t, and R before them; s is S^T before them. */
static void
delta_reverse(const struct la_head *h, const struct reverse_scratch *r,
              const struct la_array *errors, struct span t, T *s)
{
    struct reverse c = reverse_chunk(h, r, t);
    transpose_state(r->rt, r->r, h->d, h->m);
    load_reverse(h, &c, errors, t);
    delta_values_back(h, &c, round_up(h->m, VL), t.ahead);
    delta_features_back(h, &c, t, s);
}

#endif
