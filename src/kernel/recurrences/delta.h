/* delta.h: fast weights with the delta rule, one head, in chunks.
 *
 *    s_i = s_{i-1} + b_i u_i^T,  u_i = beta_i o (v_i - s_{i-1}^T b_i),  b = phi(k)
 *    o_i = scale s_i^T phi(q_i)                    Schlag et al. 2021, eq. 24-25
 *
 * Over the rows of a chunk, with S the state before it, A = phi(Q), B = phi(K):
 *
 *    E = V - B S - stril(B B^T) U,  U = beta o E       by forward substitution
 *    O = A S + tril(A B^T) U,       S <- S + B^T U
 *
 * beta is one number per row or one per channel; columns of V are independent.  About 6
 * n d m flops plus the triangles.  Scratch: the state, d m numbers, and a few chunks.
 * Rows j > i never affect row i. */
#ifndef LA_DELTA_H
#define LA_DELTA_H

#include "../tiles/own_rows.h"
#include "../tiles/token_blocks.h"
#include "../tiles/triangle.h"

/* beta of some tokens.  With one number per token, one vector that holds it in every
 * lane serves all columns (step 0). */
struct beta {
    struct block rows;
    ptrdiff_t step;
};

INLINE vec
beta_at(const struct beta *beta, ptrdiff_t i, ptrdiff_t col)
{
    return vload(&beta->rows.x[i * beta->rows.ld + col * beta->step]);
}

/* beta of the tokens t, and 0 where no key exists. */
static void
load_beta(const struct la_head *h, struct span t, const struct beta *beta)
{
    _Alignas(LA_ALIGN) T numbers[MR * LA_CHUNK_MAX];
    const ptrdiff_t all = round_up(t.rows, MR);
    t.rows = keys_left(h, t);
    if (h->beta.has_channels) {
        load_plain(beta->rows, &h->beta, t, h->m);
    }
    else {
        load_numbers(numbers, &h->beta, t);
    }
    for (ptrdiff_t i = 0; !h->beta.has_channels && i < t.rows; i++) {
        vstore(beta->rows.x + i * beta->rows.ld, vset1(numbers[i]));
    }
    clear_rows(beta->rows, t.rows, all);
}

static struct beta
take_beta(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    return (struct beta){take_block(arena, rows, h->beta.has_channels ? h->m : 1),
                         h->beta.has_channels};
}

/* Whether the values of the tokens t can be read in the caller's array: rows are whole
 * vectors, and all keys exist. */
INLINE int
reads_values_in_place(const struct la_head *h, struct span t)
{
    return h->v.type == LA_NATIVE && h->v.cs == (ptrdiff_t)sizeof(T) &&
           h->m % VL == 0 && keys_left(h, t) == t.rows && t.rows % MR == 0;
}

/* The values of the tokens t: in the caller's array, or in a copy. */
INLINE struct la_array
values_at(const struct la_head *h, struct span t, struct block copy)
{
    return reads_values_in_place(h, t) ? shifted(&h->v, t.first * h->v.rs)
                                       : block_array(copy);
}

/* Makes the copy if it is needed. */
static struct la_array
values(const struct la_head *h, struct span t, struct block copy)
{
    if (reads_values_in_place(h, t)) {
        look_ahead(&h->v, t, h->m);
    }
    else {
        load_values(h, t, copy);
    }
    return values_at(h, t, copy);
}

/* One chunk, while it passes through the columns of the state.  It writes B and U or,
 * for DPLR, also K and V, whose rows precede those of B and U. */
struct delta_chunk {
    struct sweep read;    /* E S, with A S below it if outputs are wanted */
    struct sweep write;   /* S += B^T U */
    ptrdiff_t rows, keys; /* tokens, rounded up to MR; those with a key */
    struct block l, p;    /* stril(E B^T); tril(A B^T) or NULL; (rows, rows) */
    struct block lk, pk;  /* DPLR: stril(E K^T), tril(A K^T) */
    struct la_array v;    /* rows of whole vectors */
    struct block given;   /* DPLR: V */
    struct block u, e;    /* e.x is NULL if errors are not wanted */
    struct block o;       /* A S, then O, if outputs are wanted */
    struct beta beta;
    /* With one decay per token: factors of rows of [E; A] S and of U in the state, for
     * which `far` holds them; or NULL. */
    const T *start, *end;
    struct block far;
};

/* y (MR, nr) o the factors of its rows. */
INLINE void
scale_tile(vec y[][NR], const int nr, const T *factor)
{
    LA_EACH(r, MR) {
        const vec x = vset1(factor[r]);
        LA_EACH(j, nr) {
            y[r][j] *= x;
        }
    }
}

/* MR rows of A S or E S, from row i on, with their decays. */
INLINE void
load_product(vec y[][NR], const int nr, const struct delta_chunk *c, struct block rows,
             ptrdiff_t i)
{
    tile_load(y, nr, rows);
    if (c->start != NULL) {
        scale_tile(y, nr, c->start + i);
    }
}

/* U, and E, of one column tile, MR rows at a time: subtract the product with earlier
 * rows, then solve among the MR rows in registers.  For DPLR (`dplr`), U is the product
 * of a and the state. */
INLINE void
substitute(const struct delta_chunk *c, ptrdiff_t col, const int nr, const int dplr)
{
    const struct block u = block_at(c->u, 0, col), e = c->e;
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        const struct block l = block_at(c->l, i, i);
        const char *v = c->v.data + i * c->v.rs + col * (ptrdiff_t)sizeof(T);
        vec y[MR][NR];
        load_product(y, nr, c, block_at(c->read.o, i, col), i);
        tile(y, MR, nr, block_at(c->l, i, 0), 0, u, i);
        if (dplr) {
            const struct block given = block_at(c->given, 0, col);
            tile(y, MR, nr, block_at(c->lk, i, 0), 0, given, i);
            diagonal_down(y, nr, block_at(c->lk, i, i), block_at(given, i, 0), 1);
        }
        LA_EACH(r, MR) {
            LA_EACH(j, nr) {
                if (!dplr) {
                    const vec error =
                        vload_any(v + r * c->v.rs + j * LA_VBYTES) - y[r][j];
                    if (e.x != NULL) {
                        vstore(&e.x[(i + r) * e.ld + col + j * VL], error);
                    }
                    y[r][j] = beta_at(&c->beta, i + r, col + j * VL) * error;
                }
                if (i + r >= c->keys) {
                    y[r][j] = (vec){0}; /* otherwise NaN if an earlier row is inf */
                }
            }
            LA_UNROLL
            for (int t = r + 1; t < MR; t++) {
                const vec x = vset1(l.x[t * l.ld + r]);
                LA_EACH(j, nr) {
                    y[t][j] = vfma(x, y[r][j], y[t][j]);
                }
            }
        }
        tile_store(block_at(u, i, 0), y, nr);
        if (c->end != NULL) {
            scale_tile(y, nr, c->end + i);
            tile_store(block_at(c->far, i, col), y, nr);
        }
    }
}

/* y += rows [i, i + MR) of tril(P) U.  Later rows are skipped, not multiplied by zero:
 * they may hold a NaN. */
INLINE void
attend_to(vec y[][NR], const int nr, struct block p, struct block u, ptrdiff_t i)
{
    tile(y, MR, nr, block_at(p, i, 0), 0, u, i);
    diagonal_down(y, nr, block_at(p, i, i), block_at(u, i, 0), 0);
}

/* O of one column tile: A S, which is there already, plus tril(A B^T) U and, for DPLR,
 * tril(A K^T) V. */
INLINE void
attend(const struct delta_chunk *c, ptrdiff_t col, const int nr, const int dplr)
{
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        const struct block o = block_at(c->o, i, col);
        vec y[MR][NR];
        load_product(y, nr, c, o, i);
        attend_to(y, nr, c->p, block_at(c->u, 0, col), i);
        if (dplr) {
            attend_to(y, nr, c->pk, block_at(c->given, 0, col), i);
        }
        tile_store(o, y, nr);
    }
}

INLINE void
delta_tile(const struct delta_chunk *c, ptrdiff_t col, const int nr, const int dplr)
{
    sweep_tile(&c->read, col, LA_READ, nr);
    substitute(c, col, nr, dplr);
    if (c->p.x != NULL) {
        attend(c, col, nr, dplr);
    }
    sweep_tile(&c->write, col, LA_WRITE, nr);
}

/* E and U of a chunk, its outputs if wanted, and the state after it. */
static void
delta_columns(const struct delta_chunk *c)
{
    pair_operands(&c->read, LA_READ);
    pair_operands(&c->write, LA_WRITE);
    if (c->given.x != NULL) {
        LA_BY_TILES(c->read.W, delta_tile(c, col, nr, 1));
    }
    else {
        LA_BY_TILES(c->read.W, delta_tile(c, col, nr, 0));
    }
}

struct delta_scratch {
    ptrdiff_t rows;               /* tokens per chunk */
    struct block ba, v, bo, l, p; /* [B; A]; values; [B S, then U; O]; L, P */
    struct beta beta;
    T *s, *lost, *scale; /* lost: what s has lost to rounding */
    struct pairs pairs;
    const T **held;
};

static struct delta_scratch
delta_carve(const struct la_head *h, struct arena *arena)
{
    struct delta_scratch r = {.rows = delta_rows(h)};
    r.ba = take_own_block(h, arena, 2 * r.rows, h->d);
    r.v = take_block(arena, r.rows, h->m);
    r.bo = take_block(arena, 2 * r.rows, h->m);
    r.l = take_block(arena, r.rows, r.rows);
    r.p = take_block(arena, r.rows, r.rows);
    r.beta = take_beta(arena, h, r.rows);
    r.s = take_state(arena, h->d, h->m);
    r.lost = take_state(arena, h->d, h->m);
    r.scale = take(arena, 1, r.rows);
    r.pairs = take_pairs(h, arena, 2 * r.rows, h->d, h->m);
    r.held = take_held(h, arena, h->m);
    return r;
}

/* Takes the rows of keys and queries in pairs, at ba, if they can be.  Blocks, and
 * gradients, which have no outputs here, need them as floats. */
static void
take_own_pairs(const struct la_head *h, struct delta_chunk *c, struct block ba)
{
    const int own =
        h->block == 0 && c->p.x != NULL && !la_is_given(&h->erase) && are_own_rows(h);
    if (own) {
        c->read.own.rows = c->write.own.rows = 1;
        c->read.a = ba;
        c->write.scored = 1;
    }
}

/* Loads them, and computes the triangles l and c->p. */
static void
load_delta_rows(const struct la_head *h, struct delta_chunk *c, struct block l,
                struct span t)
{
    struct sweep x = {.rows = c->rows,
                      .K = h->d,
                      .a = c->read.a,
                      .b = c->read.a,
                      .dots = l,
                      .pairs = c->read.pairs,
                      .own = c->read.own};
    const struct block a = block_at(x.b, c->rows, 0);
    load_own_pairs(x.b, &h->k, t, c->keys, h->d, x.pairs.by);
    load_own_pairs(a, &h->q, t, t.rows, h->d, x.pairs.by);
    scores(&x);
    x.a = a;
    x.dots = c->p;
    scores_of_pairs(&x);
}

/* Loads what the tokens t write and, if outputs are wanted, what they read; and their
 * triangles. */
static void
load_delta(const struct la_head *h, const struct delta_scratch *r,
           struct delta_chunk *c, struct span t)
{
    c->rows = c->write.rows = round_up(t.rows, MR);
    c->keys = keys_left(h, t);
    c->v = values(h, t, r->v);
    load_beta(h, t, &r->beta);
    if (c->read.own.rows) {
        load_delta_rows(h, c, r->l, t);
        return;
    }
    load_features(h, t, r->ba);
    triangle(r->l, r->ba, r->ba, c->rows, h->d);
    if (c->p.x != NULL) {
        const struct block a = block_at(r->ba, c->rows, 0);
        load_mapped(a, &h->q, t, h->d, h->map);
        triangle(c->p, a, r->ba, c->rows, h->d);
    }
}

/* The tokens from i on.  Returns where the scan continues, or -1 to stop. */
static ptrdiff_t
delta_chunks(const struct la_head *h, const struct delta_scratch *r,
             struct delta_chunk *c, ptrdiff_t i)
{
    for (; i < slice_end(h, h->n); i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        const struct span t = span(i, r->rows, i + r->rows, h->n, c->read.ahead);
        load_delta(h, r, c, t);
        c->read.rows = 2 * c->rows;
        c->o = block_at(r->bo, c->rows, 0);
        look_ahead(&h->o, t, h->m);
        delta_columns(c);
        store_rows(&h->o, t, h->m, c->o, r->scale);
    }
    return i;
}

/* The same, of all tokens, which are in blocks (token_blocks.h). */
static ptrdiff_t
delta_blocks(const struct la_head *h, const struct delta_scratch *r,
             struct delta_chunk *c)
{
    struct span t;
    c->p.x = NULL; /* no query reads within a chunk */
    for (ptrdiff_t i = 0; i < h->n; i += t.rows) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        t = span(i, r->rows, i + r->rows, token_block_end(h, i), c->read.ahead);
        load_delta(h, r, c, t);
        c->read.rows = c->rows;
        delta_columns(c);
        if (ends_token_block(h, t) &&
            read_token_block(h, c->read, r->scale, token_block_begin(h, t), i + t.rows,
                             r->rows)) {
            return -1;
        }
    }
    return h->n;
}

static int
run_delta(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct delta_scratch r = delta_carve(h, &arena);
    struct la_fetch own = {0};
    const struct sweep state = {.K = h->d,
                                .W = round_up(h->m, VL),
                                .s = r.s,
                                .ahead = slice_fetch(h, &own),
                                .pairs = r.pairs,
                                .held = r.held};
    struct delta_chunk c = {
        .read = state,
        .write = state,
        .l = r.l,
        .p = r.p,
        .u = r.bo, /* replaces B S */
        .beta = r.beta,
    };
    c.read.a = c.write.b = r.ba;
    c.read.o = c.write.v = r.bo;
    take_own_pairs(h, &c, r.ba);
    ptrdiff_t i = slice_begin(h);
    compensate_state(&c.write, h, r.lost, rows_in_block(h, r.rows));
    forget_pairs(&state);
    if (i == 0) {
        begin_state(h, r.s, c.write.lost);
        factors(h, r.scale, r.rows, 0, NULL);
    }
    i = h->block > 0 ? delta_blocks(h, &r, &c) : delta_chunks(h, &r, &c, i);
    if (i >= 0 && ends_last_pass(h, i, h->n)) {
        end_state(&h->s1, r.s, r.lost, h->d, h->m);
    }
    return i < 0;
}

#endif
