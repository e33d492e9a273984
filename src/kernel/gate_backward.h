/* gate_backward.h: gradients through the gates of a chunk (gate.h).
 *
 * A chunk's triangle is x_ij = sum_l a_il E_ijl b_jl, and p_ij its gradient.  Then
 *
 *   da_i = sum_{j < i} p_ij E_ij o b_j,   db_j = sum_{i > j} p_ij E_ij o a_i
 *
 * and g_t stands in every E_ij with j < t <= i (t < i for those that read before their
 * decay), in the decay of the state S before the chunk that later rows read, in that of
 * earlier rows on their way to the state after it, whose gradient is R, and in that of
 * S to there:
 *
 *   dg_t = sum_{j < t <= i} p_ij a_i E_ij b_j               within the chunk
 *        + sum_{i >= t} a_i o dA_i + sum_{j < t} b_j o dB_j  dA, dB through S and R
 *        + exp(G_last) o (S o R) 1
 *
 * Numerics.  Nothing cancels: the sums are taken as they stand, so that the error of dg
 * is in proportion to the magnitude of its terms, as for other gradients, and no pair
 * of tokens on one side of t touches it.  With one number a token that is a running sum
 * over rows of p o x.  With one a channel the pairs of rows of two blocks of MR rows
 * that have t's block between them are added up while da is: each partial sum of da
 * over the first blocks of keys is what the rows see of all keys before the next block.
 */
#ifndef LA_GATE_BACKWARD_H
#define LA_GATE_BACKWARD_H

#include "gate.h"

/* dst = src transposed, rows by rows, of which whole vectors are there. */
static void
turn(struct block dst, struct block src, ptrdiff_t rows)
{
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        for (ptrdiff_t j = 0; j < rows; j += VL) {
            vec x[VL];
            LA_EACH(r, VL) {
                x[r] = vload(&src.x[(i + r) * src.ld + j]);
            }
            vtranspose(x);
            LA_EACH(r, VL) {
                vstore(&dst.x[(j + r) * dst.ld + i], x[r]);
            }
        }
    }
}

/* --- products with the triangle's gradient -------------------------------- */

/* What the two products of a chunk need, and what they leave for the gradient of g. */
struct pairs {
    const struct gate *gate;
    ptrdiff_t rows, d;
    struct block p, turned; /* (rows, rows); its diagonal counts for nothing */
    struct block a, b;      /* (rows, d) */
    struct block dg;     /* one a channel: pairs with a row in t's block, (rows, d) */
    struct block across; /* and those that have it between them; a row a block */
};

/* y = what MR rows from i on get from the blocks before them, but for the decay from
 * their first token on; to `across` on the way. */
INLINE void
lower_sums(const struct pairs *c, vec y[][NR], struct block b, ptrdiff_t i,
           ptrdiff_t col, const int nr)
{
    const struct block a = block_at(c->a, i, col), to = block_at(c->gate->to, i, col);
    clear_tile(y, MR, nr);
    for (ptrdiff_t first = 0; first < i; first += MR) {
        T *sum = c->across.x + (first / MR + 1) * c->across.ld + col;
        tile(y, MR, nr, block_at(c->p, i, first), 0, block_at(b, first, 0), MR);
        LA_EACH(j, nr) {
            vec all = vload(&sum[j * VL]);
            LA_EACH(r, MR) {
                const ptrdiff_t at = r * a.ld + j * VL;
                all = vfma(vload(&a.x[at]) * vload(&to.x[at]), y[r][j], all);
            }
            if (first + MR < i) { /* there is a block between */
                vstore(&sum[j * VL], all);
            }
        }
    }
}

/* One column tile of da, MR rows from i on; b as channel_triangles has it there.  And
 * of dg: their pairs with keys before them, and with each other. */
INLINE void
lower_rows(const struct pairs *c, struct block o, struct block b, ptrdiff_t i,
           ptrdiff_t col, const int nr, const int next)
{
    const struct block p = block_at(c->p, i, i), to = block_at(c->gate->to, i, col);
    const struct block a = block_at(c->a, i, col), dg = block_at(c->dg, i, col);
    vec y[MR][NR];
    lower_sums(c, y, b, i, col, nr);
    LA_EACH(j, nr) {
        vec near[MR];
        LA_EACH(s, MR) {
            near[s] = (vec){0};
        }
        LA_EACH(r, MR) {
            const vec row = vload(&a.x[r * a.ld + j * VL]);
            vec sum = y[r][j] * vload(&to.x[r * to.ld + j * VL]);
            LA_EACH(s, r + 1 - next) {
                near[s] += row * sum;
            }
            LA_EACH(t, r) {
                const vec e = factor_within(c->gate, i, col + j * VL, r, t, next);
                const vec key = vload(&b.x[(i + t) * b.ld + j * VL]);
                const vec x = vset1(p.x[r * p.ld + t]) * (e * key);
                sum += x;
                LA_UNROLL
                for (int s = t + 1; s <= r - next; s++) {
                    near[s] += row * x;
                }
            }
            vstore(&o.x[(i + r) * o.ld + j * VL], sum);
        }
        LA_EACH(s, MR) {
            vstore(&dg.x[s * dg.ld + j * VL], near[s]);
        }
    }
}

INLINE void
lower_tile(const struct pairs *c, struct block o, struct block b, ptrdiff_t col,
           const int nr)
{
    o = block_at(o, 0, col);
    b = block_at(b, 0, col);
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        if (c->gate->bonus != NULL) {
            lower_rows(c, o, b, i, col, nr, 1);
        }
        else {
            lower_rows(c, o, b, i, col, nr, 0);
        }
        decay_rows(b, 0, i, c->gate->whole.x + i / MR * c->gate->whole.ld + col,
                   nr * VL);
        multiply_rows(b, block_at(c->gate->from, 0, col), i, nr * VL);
    }
}

/* One column tile of db, MR rows from i on; later rows of a as decayed from there.  And
 * of dg: their pairs with readers after them. */
INLINE void
upper_rows(const struct pairs *c, struct block o, struct block a, ptrdiff_t i,
           ptrdiff_t col, const int nr, const int next)
{
    const struct block p = block_at(c->p, i, i), from = block_at(c->gate->from, i, col);
    const struct block b = block_at(c->b, i, col), dg = block_at(c->dg, i, col);
    const ptrdiff_t later = i + MR;
    vec y[MR][NR];
    clear_tile(y, MR, nr);
    tile(y, MR, nr, block_at(p, MR, 0), 1, block_at(a, later, 0), c->rows - later);
    LA_EACH(j, nr) {
        vec before = vload(&c->across.x[i / MR * c->across.ld + col + j * VL]);
        LA_EACH(r, MR) {
            const ptrdiff_t at = r * b.ld + j * VL;
            vec sum = y[r][j] * vload(&from.x[at]);
            vstore(&dg.x[at], vload(&dg.x[at]) + before);
            before = vfma(vload(&b.x[at]), sum, before);
            LA_UNROLL
            for (int t = r + 1; t < MR; t++) {
                const vec e = factor_within(c->gate, i, col + j * VL, t, r, next);
                const vec row = vload(&a.x[(i + t) * a.ld + j * VL]);
                sum = vfma(vset1(p.x[t * p.ld + r]), e * row, sum);
            }
            vstore(&o.x[(i + r) * o.ld + j * VL], sum);
        }
    }
}

INLINE void
upper_tile(const struct pairs *c, struct block o, struct block a, ptrdiff_t col,
           const int nr)
{
    o = block_at(o, 0, col);
    a = block_at(a, 0, col);
    for (ptrdiff_t i = c->rows - MR; i >= 0; i -= MR) {
        if (c->gate->bonus != NULL) {
            upper_rows(c, o, a, i, col, nr, 1);
        }
        else {
            upper_rows(c, o, a, i, col, nr, 0);
        }
        decay_rows(a, i + MR, c->rows,
                   c->gate->whole.x + i / MR * c->gate->whole.ld + col, nr * VL);
        multiply_rows(a, block_at(c->gate->to, 0, col), i, nr * VL);
    }
}

/* p o E below the diagonal, 0 on it, and that turned: the same for all channels. */
static void
token_pairs(const struct pairs *c)
{
    for (ptrdiff_t i = 0; i < c->rows; i++) {
        const struct block e = c->gate->pairs;
        decay_rows(block_at(c->p, i, 0), 0, 1, e.x + i * e.ld, i + 1);
        c->p.x[i * c->p.ld + i] = 0;
    }
    turn(c->turned, c->p, c->rows);
}

/* da_i = sum_{j < i} p_ij E_ij o b_j and db_j = sum_{i > j} p_ij E_ij o a_i; a, b and p
 * hold something else after that. */
static void
pair_products(const struct pairs *c, struct block da, struct block db, struct block a,
              struct block b)
{
    const ptrdiff_t cols = round_up(c->d, VL);
    if (c->gate->channels) {
        clear(c->across.x, c->rows / MR * c->across.ld);
        LA_BY_TILES(cols, lower_tile(c, da, b, col, nr));
        LA_BY_TILES(cols, upper_tile(c, db, a, col, nr));
        return;
    }
    token_pairs(c);
    const struct scan lower = {
        .rows = c->rows, .W = cols, .a = b, .v = b, .dots = c->p, .o = da};
    const struct scan upper = {.rows = c->rows,
                               .W = cols,
                               .a = a,
                               .v = a,
                               .dots = c->turned,
                               .o = db,
                               .upper = 1};
    sweep(&lower, LA_READ);
    sweep(&upper, LA_READ);
}

/* --- the gradient of g ---------------------------------------------------- */

/* What becomes of the gates of a chunk: rows of dg, (rows, d), or numbers, (rows). */
struct gate_gradient {
    struct block dg, across; /* one a channel (struct pairs) */
    struct block rest;       /* (rows, rows), one a token */
    T *sums, *by_a, *by_b, *ones;
    T *state; /* exp(G_last) o (S o R) 1, (d) */
};

static struct gate_gradient
take_gate_gradient(struct arena *arena, const struct la_head *h, ptrdiff_t rows)
{
    struct gate_gradient r = {0};
    r.dg = take_block(arena, rows, h->gate_channels ? h->d : 1);
    r.across = take_block(arena, rows / MR, h->gate_channels ? h->d : 1);
    r.rest = take_block(arena, rows, rows);
    r.sums = take_row(arena, rows);
    r.by_a = take_row(arena, rows);
    r.by_b = take_row(arena, rows);
    r.ones = take_row(arena, rows > h->d ? rows : h->d);
    r.state = take_row(arena, h->d);
    return r;
}

/* state = exp(G_last) o (sum over rows of s o r), s and r (K, d) by column tiles. */
static void
state_gradient(const struct gate *gate, const struct gate_gradient *r, T *s, T *rt,
               ptrdiff_t K, ptrdiff_t d)
{
    const ptrdiff_t W = round_up(d, VL);
    for (ptrdiff_t j = 0; j < W; j += VL) {
        vec sum = (vec){0};
        for (ptrdiff_t i = 0; i < K; i += LA_BLOCK) {
            const ptrdiff_t end = K - i < LA_BLOCK ? K : i + LA_BLOCK;
            vec part = (vec){0};
            for (ptrdiff_t l = i; l < end; l++) {
                part = vfma(vload(state_at(s, K, W, l, j)),
                            vload(state_at(rt, K, W, l, j)), part);
            }
            sum += part;
        }
        vstore(&r->state[j], (vload(&gate->keep[j]) + vload(&gate->change[j])) * sum);
    }
}

/* sums_t = sum_{j < t <= i} x_ij p_ij, or of t < i. */
static void
within_gradient(const struct gate *gate, const struct gate_gradient *r, struct block x,
                struct block p, ptrdiff_t rows)
{
    const int next = gate->bonus != NULL;
    for (ptrdiff_t j = 0; j < rows; j += VL) {
        vec sum = (vec){0};
        for (ptrdiff_t i = rows - 1; i >= 0; i--) {
            const ivec earlier = viota() < (ivec)((ivec){0} + (INT)(i - j));
            const vec more = vload(&x.x[i * x.ld + j]) * vload(&p.x[i * p.ld + j]);
            const vec before = sum;
            sum += vkeep(earlier, more);
            vstore(&r->rest.x[i * r->rest.ld + j], vkeep(earlier, next ? before : sum));
        }
    }
    row_dots(r->sums, r->rest, (struct block){r->ones, 0}, rows, rows);
}

/* The rows of a chunk, and what reaches them through the states; all (rows, d). */
struct gate_pass {
    struct block a, far_a; /* of the readers */
    struct block b, far_b; /* of the keys */
};

/* dg, to what holds the pairs within the chunk. */
static void
channel_gradient(const struct gate *gate, const struct gate_gradient *r,
                 const struct gate_pass *x, ptrdiff_t rows, ptrdiff_t d)
{
    const int next = gate->bonus != NULL;
    const ptrdiff_t ld = x->a.ld; /* of them all */
    for (ptrdiff_t l = 0; l < d; l += VL) {
        vec after = (vec){0}, before = vload(&r->state[l]);
        for (ptrdiff_t i = rows - 1; i >= 0; i--) {
            const ptrdiff_t at = i * ld + l;
            const vec old = after;
            after = vfma(vload(&x->a.x[at]), vload(&x->far_a.x[at]), after);
            vstore(&r->dg.x[at], vload(&r->dg.x[at]) + (next ? old : after));
        }
        for (ptrdiff_t i = 0; i < rows; i++) {
            const ptrdiff_t at = i * ld + l;
            vstore(&r->dg.x[at], vload(&r->dg.x[at]) + before);
            before = vfma(vload(&x->b.x[at]), vload(&x->far_b.x[at]), before);
        }
    }
}

static void
token_gradient(const struct gate *gate, const struct gate_gradient *r,
               const struct gate_pass *x, ptrdiff_t rows, ptrdiff_t d)
{
    _Alignas(LA_ALIGN) T all[VL];
    const int next = gate->bonus != NULL;
    const ptrdiff_t cols = round_up(d, VL);
    const struct block state = {r->state, 0}, ones = {r->ones, 0};
    row_dots(r->by_a, x->a, x->far_a, rows, cols);
    row_dots(r->by_b, x->b, x->far_b, rows, cols);
    row_dots(all, state, ones, 1, cols);
    T far = 0, before = all[0];
    for (ptrdiff_t i = rows - 1; i >= 0; i--) {
        r->sums[i] += next ? far : far + r->by_a[i];
        far += r->by_a[i];
    }
    for (ptrdiff_t i = 0; i < rows; i++) {
        r->sums[i] += before;
        before += r->by_b[i];
    }
}

/* dg of the tokens t, 0 for those that have no key, to the caller's array. */
static void
store_gate_gradient(const struct la_head *h, const struct gate_gradient *r,
                    struct span t)
{
    const ptrdiff_t keys = keys_left(h, t);
    if (h->gate_channels) {
        clear_rows(r->dg, keys, t.rows);
        store_rows(&h->dgate, t, h->d, r->dg, NULL);
        return;
    }
    for (ptrdiff_t i = keys; i < t.rows; i++) {
        r->sums[i] = 0;
    }
    const struct la_array row = {h->dgate.data + t.first * h->dgate.rs, 0, h->dgate.rs,
                                 h->dgate.type};
    store_rows(&row, rows_from(0, 1), t.rows, (struct block){r->sums, 0}, NULL);
}

#endif
