/* gated_delta.h: the delta rule on a state that decays, and DPLR, one head, in chunks.
 *
 *    M_i = exp(g_i) s_{i-1}             g a number per token, or one per key channel
 *    gated delta:  s_i = M_i + b_i u_i^T,  u_i = beta_i o (v_i - M_i^T e_i)
 *                  b = phi(k), e = b or the erase key     Yang et al. 2025, eq. 10
 *    DPLR:         s_i = M_i + b_i u_i^T + k_i v_i^T,  u_i = s_{i-1}^T a_i
 *                                                   Peng et al. 2025, eq. 15-17
 *    o_i = scale s_i^T phi(q_i)
 *
 * The triangles and the substitution are those of delta.h, with the decays of a chunk
 * (decay.h) between the readers, the rows of E and phi(Q), and the writers, the rows of
 * B. DPLR writes two rows per token, K with the given values and B with U, and its a
 * reads the state before the token's decay.
 *
 * About 6 n d m flops (DPLR: 8 n d m) plus the triangles.  Scratch: the state, d m
 * numbers, and a few chunks.  Rows j > i never affect row i. */
#ifndef LA_GATED_DELTA_H
#define LA_GATED_DELTA_H

#include "delta.h"
#include "../decays/decay.h"

/* The readers of a chunk, A and E, and its writers, B or [K; B], scaled for products
 * with each other. */
struct gated_rows {
    struct block a, e, b;
    const struct decay *decay;
    int dplr;
};

/* The writers, B or [K; B], unscaled. */
static void
load_writers(const struct la_head *h, struct block b, struct span t, int dplr)
{
    load_features(h, t, b);
    if (dplr) {
        load_existing(block_at(b, round_up(t.rows, MR), 0), h, &h->b, t, h->d,
                      LA_MAP_identity);
    }
}

/* Whether B is E itself: they are equal, and no decay per channel scales them
 * differently. */
INLINE int
writers_are_keys(const struct la_head *h, const struct decay *decay, int dplr)
{
    return !decay->channels && !la_is_given(&h->erase) && !dplr;
}

/* The rows of a chunk in the blocks a, e and b. */
static struct gated_rows
gated_rows(const struct la_head *h, const struct decay *decay, struct block a,
           struct block e, struct block b, int dplr)
{
    return (struct gated_rows){a, e, writers_are_keys(h, decay, dplr) ? e : b, decay,
                               dplr};
}

/* Loads B and E; if they are equal, the map is computed once. */
static void
load_rows_of_keys(const struct la_head *h, const struct gated_rows *x, struct span t)
{
    if (x->dplr || la_is_given(&h->erase)) {
        const struct block second = block_at(x->b, round_up(t.rows, MR), 0);
        load_writers(h, x->b, t, x->dplr);
        writers_meet(x->decay, x->b, x->b, t.rows, h->d);
        if (x->dplr) {
            writers_meet(x->decay, second, second, t.rows, h->d);
        }
        load_existing(x->e, h, x->dplr ? &h->a : &h->erase, t, h->d, LA_MAP_identity);
    }
    else {
        load_features(h, t, x->e);
        writers_meet(x->decay, x->b, x->e, t.rows, h->d);
    }
    readers_meet(x->decay, x->e, x->e, t.rows, h->d, x->dplr);
}

static void
load_readers(const struct la_head *h, const struct gated_rows *x, struct span t)
{
    load_mapped(x->a, &h->q, t, h->d, h->map);
    readers_meet(x->decay, x->a, x->a, t.rows, h->d, 0);
}

/* y = the triangle of the readers x and the writers b, with its decays. */
static void
gated_triangle_of(const struct decay *decay, struct block y, struct block x,
                  struct block b, ptrdiff_t rows, ptrdiff_t d, int before)
{
    triangle(y, x, b, rows, d);
    decay_triangle(decay, y, rows, before);
}

/* y = B, or [K; B], scaled for the state after the chunk. */
static void
writers_to_end(const struct gated_rows *x, struct block y, ptrdiff_t rows, ptrdiff_t d)
{
    to_end(x->decay, y, x->b, rows, d);
    if (x->dplr) {
        to_end(x->decay, block_at(y, rows, 0), block_at(x->b, rows, 0), rows, d);
    }
}

struct gated_delta_scratch {
    ptrdiff_t rows;             /* largest number of tokens per chunk */
    struct block ea, b, v, vuo; /* [E; A]; writers; values; [(V;) U; O] */
    struct block far;           /* U in the state, with one decay per token */
    struct block l, p, lk, pk;
    struct decay decay;
    struct beta beta;
    T *s, *lost, *scale; /* lost: what s has lost to rounding */
    struct pairs pairs;
    const T **held;
};

static struct gated_delta_scratch
carve_gated_delta(const struct la_head *h, struct arena *arena, int dplr)
{
    struct gated_delta_scratch r = {.rows = delta_rows(h)};
    r.ea = take_own_block(h, arena, 2 * r.rows, h->d);
    r.b = take_block(arena, (1 + dplr) * r.rows, h->d);
    r.vuo = take_block(arena, (2 + dplr) * r.rows, h->m);
    r.l = take_block(arena, r.rows, r.rows);
    r.p = take_block(arena, r.rows, r.rows);
    if (dplr) {
        r.lk = take_block(arena, r.rows, r.rows);
        r.pk = take_block(arena, r.rows, r.rows);
    }
    else {
        r.v = take_block(arena, r.rows, h->m);
        r.far = take_block(arena, r.rows, h->m);
        r.beta = take_beta(arena, h, r.rows);
    }
    r.decay = take_decay(arena, h, r.rows);
    r.s = take_state(arena, h->d, h->m);
    r.lost = take_state(arena, h->d, h->m);
    r.scale = take(arena, 1, r.rows);
    r.pairs = take_pairs(h, arena, 2 * r.rows, h->d, h->m);
    r.held = take_held(h, arena, h->m);
    return r;
}

static struct gated_delta_scratch
gated_delta_carve(const struct la_head *h, struct arena *arena)
{
    return carve_gated_delta(h, arena, 0);
}

static struct gated_delta_scratch
dplr_carve(const struct la_head *h, struct arena *arena)
{
    return carve_gated_delta(h, arena, 1);
}

/* Whether decays scale the products of rows with the state, and U, instead of the rows:
 * one per token does, which takes no longer and leaves keys as they are.  Gradients,
 * which have no outputs here, need the rows. */
INLINE int
scales_products(const struct delta_chunk *c, const struct decay *decay, int dplr)
{
    return c->p.x != NULL && !decay->channels && !dplr;
}

/* Sets this up for a chunk; ea: the rows of E, which are those of B unless these are
 * others. */
static void
scale_products(const struct la_head *h, struct delta_chunk *c,
               const struct decay *decay, int dplr, struct block ea, struct block far)
{
    if (scales_products(c, decay, dplr)) {
        c->start = start_of(decay, 0);
        c->end = decay->end;
        c->far = c->write.v = far;
        c->write.b = la_is_given(&h->erase) ? c->write.b : ea;
        take_own_pairs(h, c, ea);
    }
}

/* Loads the tokens t and computes their triangles; queries only if outputs are
 * wanted. */
static void
load_gated_delta(const struct la_head *h, const struct gated_delta_scratch *r, int dplr,
                 struct delta_chunk *c, struct span t)
{
    const ptrdiff_t rows = c->rows;
    const int reads = c->p.x != NULL;
    const struct gated_rows x =
        gated_rows(h, &r->decay, block_at(r->ea, rows, 0), r->ea, r->b, dplr);
    const struct block b = block_at(x.b, dplr ? rows : 0, 0);
    if (dplr) {
        struct span some = t;
        some.rows = c->keys;
        load_plain(r->vuo, &h->v, some, h->m);
        clear_rows(r->vuo, c->keys, rows);
    }
    else {
        c->v = values(h, t, r->v);
        load_beta(h, t, &r->beta);
    }
    if (c->read.own.rows) {
        load_delta_rows(h, c, r->l, t);
        decay_triangle(x.decay, r->l, rows, 0);
        decay_triangle(x.decay, c->p, rows, 0);
        return;
    }
    load_rows_of_keys(h, &x, t);
    gated_triangle_of(x.decay, r->l, x.e, b, rows, h->d, dplr);
    if (reads) {
        load_readers(h, &x, t);
        gated_triangle_of(x.decay, c->p, x.a, b, rows, h->d, 0);
    }
    if (scales_products(c, x.decay, dplr)) {
        return;
    }
    if (dplr) {
        gated_triangle_of(x.decay, r->lk, x.e, x.b, rows, h->d, 1);
    }
    if (dplr && reads) {
        gated_triangle_of(x.decay, c->pk, x.a, x.b, rows, h->d, 0);
    }
    writers_to_end(&x, r->b, rows, h->d);
    from_start(x.decay, x.e, x.e, rows, h->d, dplr);
    if (reads) {
        from_start(x.decay, x.a, x.a, rows, h->d, 0);
    }
}

/* U of the tokens t, the state after them and, without blocks, their outputs. */
static void
gated_delta_tokens(const struct la_head *h, const struct gated_delta_scratch *r,
                   int dplr, struct delta_chunk *c, struct span t)
{
    c->rows = round_up(t.rows, MR);
    c->keys = keys_left(h, t);
    c->read.rows = h->block > 0 ? c->rows : 2 * c->rows;
    c->write.rows = (1 + dplr) * c->rows;
    c->read.o = c->u = block_at(r->vuo, dplr ? c->rows : 0, 0);
    c->o = block_at(c->u, c->rows, 0);
    if (dplr) {
        c->given = r->vuo;
    }
    load_gated_delta(h, r, dplr, c, t);
    if (h->block == 0) {
        look_ahead(&h->o, t, h->m);
    }
    if (!dplr) {
        forget_state(&r->decay, &c->write);
    }
    delta_columns(c);
}

static int
compute_gated_delta(const struct la_head *h, int dplr)
{
    struct arena arena = {h->scratch, 0};
    const struct gated_delta_scratch r = carve_gated_delta(h, &arena, dplr);
    struct la_fetch own = {0}, *ahead = slice_fetch(h, &own);
    const struct sweep state = {.K = h->d,
                                .W = round_up(h->m, VL),
                                .s = r.s,
                                .ahead = ahead,
                                .pairs = r.pairs,
                                .held = r.held};
    struct delta_chunk c = {.read = state,
                            .write = state,
                            .l = r.l,
                            .p = h->block > 0 ? (struct block){0} : r.p,
                            .lk = r.lk,
                            .pk = r.pk,
                            .beta = r.beta};
    c.read.a = r.ea;
    c.write.b = r.b;
    c.write.v = r.vuo;
    scale_products(h, &c, &r.decay, dplr, r.ea, r.far);
    c.write.keep = r.decay.keep;
    c.write.change = r.decay.change;
    ptrdiff_t i = slice_begin(h);
    compensate_state(&c.write, h, r.lost, rows_in_block(h, r.rows));
    forget_pairs(&state);
    if (i == 0) {
        begin_state(h, r.s, c.write.lost);
        r.decay.keep[0] = (T)carries_lost(h); /* 0: nothing has been lost yet */
        factors(h, r.scale, r.rows, 0, NULL);
    }
    while (i < slice_end(h, h->n)) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        struct span t =
            span(i, up_to_cut(h, i, r.rows), i + r.rows, token_block_end(h, i), ahead);
        const int exact = keeps_nothing(&r.decay); /* the chunk before */
        t.rows = load_decays(h, t, &r.decay);
        c.write.fades = exact && keeps_nothing(&r.decay);
        t.next = i += t.rows;
        gated_delta_tokens(h, &r, dplr, &c, t);
        if (h->block == 0) {
            store_rows(&h->o, t, h->m, c.o, r.scale);
        }
        else if (ends_token_block(h, t) &&
                 read_token_block(h, c.read, r.scale, token_block_begin(h, t), i,
                                  r.rows)) {
            return 1;
        }
    }
    if (ends_last_pass(h, i, h->n)) {
        end_state(&h->s1, r.s, r.lost, h->d, h->m);
    }
    return 0;
}

static int
run_gated_delta(const struct la_head *h)
{
    return compute_gated_delta(h, 0);
}

static int
run_dplr(const struct la_head *h)
{
    return compute_gated_delta(h, 1);
}

#endif
