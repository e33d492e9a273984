/* delta.h: fast weights with the delta rule, one head, in chunks.
 *
 *   s_i = s_{i-1} + b_i u_i^T,  u_i = beta_i o (v_i - s_{i-1}^T b_i),  b = phi(k)
 *   o_i = scale s_i^T phi(q_i)                    Schlag et al. 2021, eq. 24-25
 *
 * Over the rows of a chunk, with S the state before it, A = phi(Q), B = phi(K):
 *
 *   E = V - B S - stril(B B^T) U,  U = beta o E       by forward substitution
 *   O = A S + tril(A B^T) U,       S <- S + B^T U
 *
 * beta is a number a row or one a channel; columns of V never meet.  About 6 n d m
 * flops and the triangles.  Scratch: the state, d m numbers, and a few chunks.
 * Nothing of row j > i reaches row i. */
#ifndef LA_DELTA_H
#define LA_DELTA_H

#include "scan.h"

/* Short chunks, for the triangles cost rows (2 d + 2 m) a token.  Of d alone, for a
 * panel must give the bits of the whole. */
static ptrdiff_t
delta_chunk(ptrdiff_t d)
{
    return d <= 128 ? 16 : 32;
}

INLINE void
tile_load(vec c[][NR], const int nr, const T *x, ptrdiff_t ld)
{
    LA_EACH(i, MR) {
        LA_EACH(j, nr) {
            c[i][j] = vload(&x[i * ld + j * VL]);
        }
    }
}

INLINE void
tile_store(T *x, ptrdiff_t ld, vec c[][NR], const int nr)
{
    LA_EACH(i, MR) {
        LA_EACH(j, nr) {
            vstore(&x[i * ld + j * VL], c[i][j]);
        }
    }
}

/* Rows of a block that are write strengths: per token, one vector that holds the
 * number in every lane stands for all columns (step 0). */
struct strength {
    T *x;
    ptrdiff_t ld, step;
};

INLINE vec
strength_at(const struct strength *beta, ptrdiff_t i, ptrdiff_t col)
{
    return vload(&beta->x[i * beta->ld + col * beta->step]);
}

/* beta of the tokens t; 0 where no key exists. */
static void
load_strength(const struct la_head *h, struct span t, const struct strength *beta)
{
    const ptrdiff_t all = round_up(t.rows, MR);
    t.rows = keys_left(h, t);
    load_plain(beta->x, beta->ld, &h->beta, t, beta->step ? h->m : 1);
    for (ptrdiff_t r = 0; beta->step == 0 && r < t.rows; r++) {
        T *row = beta->x + r * beta->ld;
        vstore(row, vset1(row[0]));
    }
    clear_rows(beta->x, beta->ld, t.rows, all);
}

static struct strength
take_strength(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    const ptrdiff_t ld = h->channels ? row_step(h->m) : VL;
    return (struct strength){take(arena, rows, ld), ld, h->channels};
}

/* b = phi(k) of the tokens t; 0 where no key exists. */
static void
load_features(const struct la_head *h, struct span t, T *b, ptrdiff_t ldd)
{
    const ptrdiff_t all = round_up(t.rows, MR);
    t.rows = keys_left(h, t);
    load_mapped(b, ldd, &h->k, t, h->d, h->map);
    clear_rows(b, ldd, t.rows, all);
}

/* The values of the tokens t: where they lie, if that is as whole vectors and all
 * exist, or their copy in the block. */
static struct la_array
values(const struct la_head *h, struct span t, T *block, ptrdiff_t ldm)
{
    struct la_array v = h->v;
    struct span some = t;
    some.rows = keys_left(h, t);
    if (v.type == LA_NATIVE && v.cs == (ptrdiff_t)sizeof(T) && h->m % VL == 0 &&
        some.rows == t.rows && t.rows % MR == 0) {
        look_ahead(&v, t, h->m);
        v.data += t.first * v.rs;
        return v;
    }
    load_plain(block, ldm, &h->v, some, h->m);
    clear_rows(block, ldm, some.rows, round_up(t.rows, MR));
    return (struct la_array){(char *)block, ldm * (ptrdiff_t)sizeof(T), sizeof(T),
                             LA_NATIVE};
}

/* One chunk on its way through the columns of the state. */
struct writing {
    struct scan read;     /* B S, with A S below it where outputs are wanted */
    struct scan write;    /* S += B^T U */
    ptrdiff_t rows, keys; /* tokens, a multiple of MR; those that have a key */
    const T *l, *p;       /* stril(B B^T), tril(A B^T) or NULL; (rows, ldx) */
    ptrdiff_t ldx;
    struct la_array v; /* its rows, by whole vectors */
    T *u, *e;          /* (rows, ldm); e is NULL where errors are not wanted */
    ptrdiff_t ldm;
    struct strength beta;
};

/* U, and E, of one column tile, MR rows at a time: what earlier rows take away as a
 * product, then the MR rows among themselves, in registers. */
INLINE void
substitute(const struct writing *c, ptrdiff_t col, const int nr)
{
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        const T *l = c->l + i * c->ldx;
        const char *v = c->v.data + i * c->v.rs + col * (ptrdiff_t)sizeof(T);
        vec y[MR][NR];
        tile_load(y, nr, c->read.o + i * c->read.ldo + col, c->read.ldo);
        tile(y, MR, nr, l, c->ldx, 1, c->u + col, c->ldm, i);
        LA_EACH(r, MR) {
            LA_EACH(j, nr) {
                const vec e = vload_any(v + r * c->v.rs + j * LA_VBYTES) - y[r][j];
                if (c->e != NULL) {
                    vstore(&c->e[(i + r) * c->ldm + col + j * VL], e);
                }
                y[r][j] = strength_at(&c->beta, i + r, col + j * VL) * e;
                if (i + r >= c->keys) {
                    y[r][j] = (vec){0}; /* 0 times what an earlier row blew up */
                }
            }
            LA_UNROLL
            for (int t = r + 1; t < MR; t++) {
                const vec x = vset1(l[t * c->ldx + i + r]);
                LA_EACH(j, nr) {
                    y[t][j] = vfma(x, y[r][j], y[t][j]);
                }
            }
        }
        tile_store(c->u + i * c->ldm + col, c->ldm, y, nr);
    }
}

/* O of one column tile: what it holds, A S, plus tril(A B^T) U.  A later row is
 * skipped, not multiplied by zero: it may hold a NaN. */
INLINE void
attend(const struct writing *c, ptrdiff_t col, const int nr)
{
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        const T *p = c->p + i * c->ldx, *u = c->u + i * c->ldm + col;
        T *o = c->read.o + (c->rows + i) * c->read.ldo + col;
        vec y[MR][NR];
        tile_load(y, nr, o, c->read.ldo);
        tile(y, MR, nr, p, c->ldx, 1, c->u + col, c->ldm, i);
        LA_EACH(t, MR) {
            LA_UNROLL
            for (int r = t; r < MR; r++) {
                const vec x = vset1(p[r * c->ldx + i + t]);
                LA_EACH(j, nr) {
                    y[r][j] = vfma(x, vload(&u[t * c->ldm + j * VL]), y[r][j]);
                }
            }
        }
        tile_store(o, c->read.ldo, y, nr);
    }
}

INLINE void
delta_tile(const struct writing *c, ptrdiff_t col, const int nr)
{
    sweep_tile(&c->read, col, LA_READ, nr);
    substitute(c, col, nr);
    if (c->p != NULL) {
        attend(c, col, nr);
    }
    sweep_tile(&c->write, col, LA_WRITE, nr);
}

/* E and U of a chunk, its outputs where wanted, and the state behind it. */
static void
delta_columns(const struct writing *c)
{
    LA_BY_TILES(c->read.W, delta_tile(c, col, nr));
}

struct delta_room {
    ptrdiff_t rows, ldd, ldm;
    T *ba, *v, *o, *l, *p, *s, *scale;
    struct strength beta;
    size_t bytes;
};

static struct delta_room
delta_room(const struct la_head *h, void *scratch)
{
    struct delta_room r;
    struct arena arena = {scratch, 0};
    r.rows = delta_chunk(h->d);
    r.ldd = row_step(h->d);
    r.ldm = row_step(h->m);
    r.ba = take(&arena, 2 * r.rows, r.ldd);
    r.v = take(&arena, r.rows, r.ldm);
    r.o = take(&arena, 2 * r.rows, r.ldm);
    r.l = take(&arena, r.rows, r.rows);
    r.p = take(&arena, r.rows, r.rows);
    r.s = take_state(&arena, h->d, h->m);
    r.scale = take(&arena, 1, r.rows);
    r.beta = take_strength(&arena, h, r.rows);
    r.bytes = arena.used;
    return r;
}

static size_t
delta_scratch(const struct la_head *h)
{
    return delta_room(h, NULL).bytes;
}

/* x = tril(a b^T), (rows, rows); its upper half holds anything. */
static void
triangle(T *x, ptrdiff_t ldx, const T *a, const T *b, ptrdiff_t ld, ptrdiff_t rows,
         ptrdiff_t cols)
{
    const struct scan c = {
        .rows = rows,
        .K = cols,
        .a = a,
        .b = b,
        .lda = ld,
        .ldb = ld,
        .x = x,
        .ldx = ldx,
    };
    scores(&c);
}

static int
delta(const struct la_head *h)
{
    const struct delta_room r = delta_room(h, h->scratch);
    struct la_fetch ahead = {0};
    const struct scan state = {
        .K = h->d, .W = round_up(h->m, VL), .s = r.s, .ahead = &ahead};
    struct writing c = {
        .read = state,
        .write = state,
        .l = r.l,
        .p = r.p,
        .ldx = r.rows,
        .u = r.o,
        .ldm = r.ldm,
        .beta = r.beta, /* U in the place of B S */
    };
    c.read.a = c.write.b = r.ba;
    c.read.lda = c.write.ldb = r.ldd;
    c.read.o = r.o;
    c.read.ldo = c.write.ldv = r.ldm;
    c.write.v = r.o;
    load_state(r.s, &h->s0, h->d, h->m);
    factors(h, r.scale, r.rows, 0);
    for (ptrdiff_t i = 0; i < h->n; i += r.rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r.rows, i + r.rows, h->n, &ahead);
        c.rows = c.write.rows = round_up(t.rows, MR);
        c.read.rows = 2 * c.rows;
        c.keys = keys_left(h, t);
        T *const a = r.ba + c.rows * r.ldd;
        load_features(h, t, r.ba, r.ldd);
        c.v = values(h, t, r.v, r.ldm);
        load_strength(h, t, &r.beta);
        load_mapped(a, r.ldd, &h->q, t, h->d, h->map);
        look_ahead(&h->o, t, h->m);
        triangle(r.l, r.rows, r.ba, r.ba, r.ldd, c.rows, h->d);
        triangle(r.p, r.rows, a, r.ba, r.ldd, c.rows, h->d);
        delta_columns(&c);
        store_rows(&h->o, t, h->m, r.o + c.rows * r.ldm, r.ldm, r.scale);
    }
    store_state(&h->s1, r.s, h->d, h->m);
    return 0;
}

#endif
