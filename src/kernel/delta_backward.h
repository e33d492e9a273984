/* delta_backward.h: gradients of the delta rule, one head, chunks in reverse.
 *
 * Over the rows of a chunk (delta.h; L = stril(B B^T), P = tril(A B^T)), with S and R
 * the state before it and the gradient of the state behind it, G scale times the
 * cotangent, and N = -dE:
 *
 *   dU = B R + P^T G + L^T N,  N = -beta o dU         by substitution, last row first
 *   dV = -N,  dbeta = dU o E
 *   dA = G S^T + X B,                                   X = tril(G U^T)
 *   dB = U R^T + N S^T + X^T A + (Y + Y^T) B,           Y = stril(N U^T)
 *   R <- R + A^T G + B^T N
 *
 * S is needed last chunk first.  A forward scan leaves E of every row in the place of
 * dV, whose turn comes later, and the state at the head of every segment of about
 * sqrt(chunks) chunks; from there the states of one segment are summed up again, by
 * U = beta o E, when the reverse scan comes to it.  About 18 n d m flops.  Scratch:
 * 2 sqrt(n / chunk) + 3 states, a few chunks, and E where dV has only 16 bits. */
#ifndef LA_DELTA_BACKWARD_H
#define LA_DELTA_BACKWARD_H

#include "delta.h"

struct delta_backward_room {
    ptrdiff_t rows, ldd, ldm, segment; /* tokens a chunk, chunks a segment */
    T *ab, *v, *u, *e, *gn, *du, *l, *p, *dx, *dy, *da, *db, *s, *r, *rt;
    T *heads, *states; /* S^T before each segment, and before each chunk of one */
    T *scale, *ones, *sums;
    struct strength beta;
    struct la_array errors; /* E, (n,m) */
    size_t bytes;
};

/* Chunks a segment, the square root of their number, rounded up. */
static ptrdiff_t
segment_chunks(ptrdiff_t chunks)
{
    ptrdiff_t c = 1;
    while (c * c < chunks) {
        c++;
    }
    return c;
}

static struct delta_backward_room
delta_backward_room(const struct la_head *h, void *scratch)
{
    struct delta_backward_room r;
    struct arena arena = {scratch, 0};
    r.rows = delta_chunk(h->d);
    r.ldd = row_step(h->d);
    r.ldm = row_step(h->m);
    const ptrdiff_t chunks = (h->n + r.rows - 1) / r.rows;
    r.segment = segment_chunks(chunks);
    r.ab = take(&arena, 2 * r.rows, r.ldd);
    r.v = take(&arena, r.rows, r.ldm);
    r.u = take(&arena, r.rows, r.ldm);
    r.e = take(&arena, r.rows, r.ldm);
    r.gn = take(&arena, 2 * r.rows, r.ldm);
    r.du = take(&arena, r.rows, r.ldm);
    r.l = take(&arena, r.rows, r.rows);
    r.p = take(&arena, r.rows, r.rows);
    r.dx = take(&arena, r.rows, r.rows);
    r.dy = take(&arena, r.rows, r.rows);
    r.da = take(&arena, 2 * r.rows, r.ldd);
    r.db = take(&arena, r.rows, r.ldd);
    r.s = take_state(&arena, h->d, h->m);
    r.r = take_state(&arena, h->d, h->m);
    r.rt = take_state(&arena, h->d, h->m);
    r.heads = take_states(&arena, (chunks + r.segment - 1) / r.segment, h->d, h->m);
    r.states = take_states(&arena, r.segment, h->d, h->m);
    r.scale = take(&arena, 1, r.rows);
    r.ones = take(&arena, 1, r.ldm);
    r.sums = take(&arena, 1, r.rows);
    r.beta = take_strength(&arena, h, r.rows);
    r.errors = h->dv;
    if (h->dv.type != LA_NATIVE) {
        T *const e = take(&arena, h->n, h->m);
        r.errors = (struct la_array){(char *)e, h->m * (ptrdiff_t)sizeof(T), sizeof(T),
                                     LA_NATIVE};
    }
    r.bytes = arena.used;
    return r;
}

static size_t
delta_backward_scratch(const struct la_head *h)
{
    return delta_backward_room(h, NULL).bytes;
}

/* The forward scan: E of every row, and S^T before every segment. */
static int
delta_errors(const struct la_head *h, const struct delta_backward_room *r)
{
    struct la_fetch ahead = {0};
    const ptrdiff_t size = state_size(h->d, h->m);
    const struct scan state = {
        .K = h->d, .W = round_up(h->m, VL), .s = r->s, .ahead = &ahead};
    struct writing c = {
        .read = state,
        .write = state,
        .l = r->l,
        .ldx = r->rows,
        .u = r->u,
        .e = r->e,
        .ldm = r->ldm,
        .beta = r->beta,
    };
    c.read.a = c.write.b = r->ab;
    c.read.lda = c.write.ldb = r->ldd;
    c.read.o = r->du;
    c.read.ldo = c.write.ldv = r->ldm;
    c.write.v = r->u;
    load_state(r->s, &h->s0, h->d, h->m);
    for (ptrdiff_t i = 0, chunk = 0; i < h->n; i += r->rows, chunk++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        if (chunk % r->segment == 0) {
            transpose_state(r->heads + chunk / r->segment * size, r->s, h->d, h->m);
        }
        const struct span t = span(i, r->rows, i + r->rows, h->n, &ahead);
        c.rows = c.read.rows = c.write.rows = round_up(t.rows, MR);
        c.keys = keys_left(h, t);
        load_features(h, t, r->ab, r->ldd);
        c.v = values(h, t, r->v, r->ldm);
        load_strength(h, t, &r->beta);
        triangle(r->l, r->rows, r->ab, r->ab, r->ldd, c.rows, h->d);
        delta_columns(&c);
        store_rows(&r->errors, t, h->m, r->e, r->ldm, NULL);
    }
    return 0;
}

/* B, E, beta and U = beta o E of the tokens t. */
static void
load_errors(const struct la_head *h, const struct delta_backward_room *r, struct span t,
            T *b)
{
    const ptrdiff_t all = round_up(t.rows, MR);
    load_features(h, t, b, r->ldd);
    load_strength(h, t, &r->beta);
    t.rows = keys_left(h, t);
    load_plain(r->e, r->ldm, &r->errors, t, h->m);
    clear_rows(r->e, r->ldm, t.rows, all);
    for (ptrdiff_t i = 0; i < all; i++) {
        const T *e = r->e + i * r->ldm;
        T *u = r->u + i * r->ldm;
        for (ptrdiff_t j = 0; j < h->m; j += VL) {
            vstore(&u[j], strength_at(&r->beta, i, j) * vload(&e[j]));
        }
    }
}

/* S^T before each chunk of the segment from token `first` on. */
static int
delta_states(const struct la_head *h, const struct delta_backward_room *r,
             ptrdiff_t first)
{
    struct la_fetch ahead = {0};
    struct scan c = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .b = r->u,
        .v = r->ab,
        .ldb = r->ldm,
        .ldv = r->ldd,
        .s = r->states,
        .ahead = &ahead,
    };
    const ptrdiff_t size = state_size(h->d, h->m);
    const size_t bytes = (size_t)size * sizeof(T);
    memcpy(c.s, r->heads + first / r->rows / r->segment * size, bytes);
    for (ptrdiff_t chunk = 1; chunk < r->segment; chunk++, first += r->rows) {
        if (first + r->rows >= h->n) {
            break;
        }
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        c.rows = r->rows;
        memcpy(c.s + size, c.s, bytes);
        c.s += size;
        const ptrdiff_t next = first + r->rows;
        load_errors(h, r, span(first, r->rows, next, h->n, &ahead), r->ab);
        sweep(&c, LA_WRITE);
    }
    return 0;
}

/* One chunk on its way back: what its tiles need. */
struct unwriting {
    struct scan read;         /* B R; or [G; N] S^T */
    struct scan write;        /* R += [A; B]^T [G; N]; or, as a read, U R^T */
    ptrdiff_t rows, keys;     /* tokens, a multiple of MR; those that have a key */
    const T *l, *p, *dx, *dy; /* L, P, X, Y, (rows, ldx) */
    ptrdiff_t ldx;
    T *e, *du, *gn; /* E, then dV; dU, then dbeta; [G; N] */
    ptrdiff_t ldm;
    const T *ab; /* [A; B] */
    ptrdiff_t ldd;
    struct strength beta;
};

/* dU and N of one column tile of the values, from the last row to the first. */
INLINE void
substitute_back(const struct unwriting *c, ptrdiff_t col, const int nr)
{
    const T *g = c->gn + col;
    T *n = c->gn + c->rows * c->ldm + col;
    for (ptrdiff_t i = c->rows - MR; i >= 0; i -= MR) {
        const ptrdiff_t next = i + MR, left = c->rows - next;
        const T *l = c->l + i * c->ldx + i, *p = c->p + i * c->ldx + i;
        vec y[MR][NR];
        tile_load(y, nr, c->du + i * c->ldm + col, c->ldm);
        tile(y, MR, nr, p + MR * c->ldx, 1, c->ldx, g + next * c->ldm, c->ldm, left);
        tile(y, MR, nr, l + MR * c->ldx, 1, c->ldx, n + next * c->ldm, c->ldm, left);
        LA_UNROLL
        for (int r = MR - 1; r >= 0; r--) {
            const ptrdiff_t row = (i + r) * c->ldm;
            const int exists = i + r < c->keys;
            LA_UNROLL
            for (int t = 0; t <= r; t++) {
                const vec x = vset1(p[r * c->ldx + t]);
                LA_EACH(j, nr) {
                    y[t][j] = vfma(x, vload(&g[row + j * VL]), y[t][j]);
                }
            }
            LA_EACH(j, nr) {
                const ptrdiff_t at = row + col + j * VL;
                const vec beta = strength_at(&c->beta, i + r, col + j * VL);
                const vec dv = exists ? beta * y[r][j] : (vec){0};
                vstore(&c->du[at], y[r][j] * vload(&c->e[at]));
                vstore(&c->e[at], dv);
                y[r][j] = -dv;
                vstore(&n[row + j * VL], y[r][j]);
            }
            LA_EACH(t, r) {
                const vec x = vset1(l[r * c->ldx + t]);
                LA_EACH(j, nr) {
                    y[t][j] = vfma(x, y[r][j], y[t][j]);
                }
            }
        }
    }
}

INLINE void
delta_value_tile(const struct unwriting *c, ptrdiff_t col, const int nr)
{
    sweep_tile(&c->read, col, LA_READ, nr);
    substitute_back(c, col, nr);
    sweep_tile(&c->write, col, LA_WRITE, nr);
}

/* y (MR, nr) += the rows t of b (k, nr) times x_ti, for every i <= t or, strict,
 * i < t; x is the MR x MR block on the diagonal, down its columns. */
INLINE void
diagonal_up(vec y[][NR], const int nr, const T *x, ptrdiff_t ldx, const T *b,
            ptrdiff_t ldb, const int strict)
{
    LA_EACH(t, MR) {
        LA_UNROLL
        for (int i = 0; i <= t - strict; i++) {
            LA_EACH(j, nr) {
                y[i][j] =
                    vfma(vset1(x[t * ldx + i]), vload(&b[t * ldb + j * VL]), y[i][j]);
            }
        }
    }
}

/* The same along its rows: the rows t of b times x_it, for every i >= t or i > t. */
INLINE void
diagonal_down(vec y[][NR], const int nr, const T *x, ptrdiff_t ldx, const T *b,
              ptrdiff_t ldb, const int strict)
{
    LA_EACH(t, MR) {
        LA_UNROLL
        for (int i = t + strict; i < MR; i++) {
            LA_EACH(j, nr) {
                y[i][j] =
                    vfma(vset1(x[i * ldx + t]), vload(&b[t * ldb + j * VL]), y[i][j]);
            }
        }
    }
}

/* dA and dB of one column tile of the features. */
INLINE void
delta_feature_tile(const struct unwriting *c, ptrdiff_t col, const int nr)
{
    const ptrdiff_t rows = c->rows, ldx = c->ldx, ldd = c->ldd;
    const T *a = c->ab + col, *b = a + rows * ldd;
    T *da = c->read.o + col, *db = da + rows * ldd;
    sweep_tile(&c->read, col, LA_READ, nr);
    sweep_tile(&c->write, col, LA_READ, nr);
    for (ptrdiff_t i = 0; i < rows; i += MR) {
        const ptrdiff_t next = i + MR, left = rows - next, at = i * ldx + i;
        vec y[MR][NR], more[MR][NR];
        tile_load(y, nr, da + i * ldd, ldd);
        tile(y, MR, nr, c->dx + i * ldx, ldx, 1, b, ldd, i);
        diagonal_down(y, nr, c->dx + at, ldx, b + i * ldd, ldd, 0);
        tile_store(da + i * ldd, ldd, y, nr);

        tile_load(y, nr, db + i * ldd, ldd);
        tile_load(more, nr, c->write.o + i * ldd + col, ldd);
        LA_EACH(r, MR) {
            LA_EACH(j, nr) {
                y[r][j] += more[r][j];
            }
        }
        tile(y, MR, nr, c->dx + at + MR * ldx, 1, ldx, a + next * ldd, ldd, left);
        tile(y, MR, nr, c->dy + at + MR * ldx, 1, ldx, b + next * ldd, ldd, left);
        tile(y, MR, nr, c->dy + i * ldx, ldx, 1, b, ldd, i);
        diagonal_up(y, nr, c->dx + at, ldx, a + i * ldd, ldd, 0);
        diagonal_up(y, nr, c->dy + at, ldx, b + i * ldd, ldd, 1);
        diagonal_down(y, nr, c->dy + at, ldx, b + i * ldd, ldd, 1);
        tile_store(db + i * ldd, ldd, y, nr);
    }
}

/* Reads all that the way back through the tokens t needs. */
static void
load_reverse(const struct la_head *h, const struct delta_backward_room *r,
             struct span t, T *b)
{
    load_mapped(r->ab, r->ldd, &h->q, t, h->d, h->map);
    load_errors(h, r, t, b);
    load_plain(r->gn, r->ldm, &h->g, t, h->m);
    look_ahead(&h->dq, t, h->d);
    look_ahead(&h->dk, t, h->d);
    look_ahead(&h->dv, t, h->m);
    if (h->scale != 1) {
        scale_rows(r->gn, r->ldm, t.rows, r->scale);
    }
}

/* Writes the gradients of the tokens t. */
static void
store_reverse(const struct la_head *h, const struct delta_backward_room *r,
              struct span t, const T *b)
{
    const ptrdiff_t some = keys_left(h, t);
    T *const db = r->da + round_up(t.rows, MR) * r->ldd;
    if (h->map != LA_identity) { /* its slope is 1 */
        chain(r->da, &h->q, t, h->d, r->ab, r->ldd, h->map);
        chain(db, &h->k, t, h->d, b, r->ldd, h->map);
    }
    clear_rows(db, r->ldd, some, t.rows);
    clear_rows(r->du, r->ldm, some, t.rows);
    store_rows(&h->dq, t, h->d, r->da, r->ldd, NULL);
    store_rows(&h->dk, t, h->d, db, r->ldd, NULL);
    store_rows(&h->dv, t, h->m, r->e, r->ldm, NULL);
    if (!h->channels) {
        row_dots(r->sums, r->du, r->ldm, r->ones, 0, t.rows, round_up(h->m, VL));
        const struct la_array row = {h->dbeta.data + t.first * h->dbeta.rs, 0,
                                     h->dbeta.rs, h->dbeta.type};
        store_rows(&row, rows_from(0, 1), t.rows, r->sums, 0, NULL);
    }
    else {
        store_rows(&h->dbeta, t, h->m, r->du, r->ldm, NULL);
    }
}

/* The reverse scan over the tokens t; s is S^T before them. */
static void
delta_back(const struct la_head *h, const struct delta_backward_room *r, struct span t,
           T *s)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    const ptrdiff_t D = round_up(h->d, VL), W = round_up(h->m, VL);
    T *const b = r->ab + rows * r->ldd, *const n = r->gn + rows * r->ldm;
    struct unwriting c = {
        .rows = rows,
        .keys = keys_left(h, t),
        .l = r->l,
        .p = r->p,
        .dx = r->dx,
        .dy = r->dy,
        .ldx = r->rows,
        .e = r->e,
        .du = r->du,
        .gn = r->gn,
        .ldm = r->ldm,
        .ab = r->ab,
        .ldd = r->ldd,
        .beta = r->beta,
    };
    load_reverse(h, r, t, b);
    triangle(r->l, r->rows, b, b, r->ldd, rows, h->d);
    triangle(r->p, r->rows, r->ab, b, r->ldd, rows, h->d);
    c.read = (struct scan){.rows = rows,
                           .K = h->d,
                           .W = W,
                           .a = b,
                           .lda = r->ldd,
                           .o = r->du,
                           .ldo = r->ldm,
                           .s = r->r,
                           .ahead = t.ahead};
    c.write = (struct scan){.rows = 2 * rows,
                            .K = h->d,
                            .W = W,
                            .b = r->ab,
                            .ldb = r->ldd,
                            .v = r->gn,
                            .ldv = r->ldm,
                            .s = r->r,
                            .ahead = t.ahead};
    LA_BY_TILES(W, delta_value_tile(&c, col, nr));
    triangle(r->dx, r->rows, r->gn, r->u, r->ldm, rows, h->m);
    triangle(r->dy, r->rows, n, r->u, r->ldm, rows, h->m);
    c.read = (struct scan){.rows = 2 * rows,
                           .K = h->m,
                           .W = D,
                           .a = r->gn,
                           .lda = r->ldm,
                           .o = r->da,
                           .ldo = r->ldd,
                           .s = s,
                           .ahead = t.ahead};
    c.write = (struct scan){.rows = rows,
                            .K = h->m,
                            .W = D,
                            .a = r->u,
                            .lda = r->ldm,
                            .o = r->db,
                            .ldo = r->ldd,
                            .s = r->rt,
                            .ahead = t.ahead};
    LA_BY_TILES(D, delta_feature_tile(&c, col, nr));
    store_reverse(h, r, t, b);
    transpose_state(r->rt, r->r, h->d, h->m);
}

static int
delta_backward(const struct la_head *h)
{
    const struct delta_backward_room r = delta_backward_room(h, h->scratch);
    const ptrdiff_t chunks = (h->n + r.rows - 1) / r.rows;
    struct la_fetch ahead = {0};
    if (delta_errors(h, &r)) {
        return 1;
    }
    load_state(r.r, &h->gs, h->d, h->m);
    transpose_state(r.rt, r.r, h->d, h->m);
    factors(h, r.scale, r.rows, 0);
    for (ptrdiff_t j = 0; j < r.ldm; j++) {
        r.ones[j] = 1;
    }
    for (ptrdiff_t chunk = chunks - 1; chunk >= 0; chunk--) {
        const ptrdiff_t place = chunk % r.segment, i = chunk * r.rows;
        const int begins = chunk == chunks - 1 || place == r.segment - 1;
        if (h->poll(h->poll_arg) ||
            (begins && delta_states(h, &r, i - place * r.rows))) {
            return 1;
        }
        delta_back(h, &r, span(i, r.rows, i - r.rows, h->n, &ahead),
                   r.states + place * state_size(h->d, h->m));
    }
    store_state(&h->ds0, r.r, h->d, h->m);
    return 0;
}

#endif
