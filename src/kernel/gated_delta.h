/* gated_delta.h: the delta rule on a state that decays, and DPLR, one head, in chunks.
 *
 *   R_i = exp(g_i) s_{i-1}             g a number a token, or one a key channel
 *   gated delta:  s_i = R_i + b_i u_i^T,  u_i = beta_i o (v_i - R_i^T e_i)
 *                 b = phi(k), e = b or the erase key     Yang et al. 2025, eq. 10
 *   DPLR:         s_i = R_i + b_i u_i^T + k_i v_i^T,  u_i = s_{i-1}^T a_i
 *                                                  Peng et al. 2025, eq. 15-17
 *   o_i = scale s_i^T phi(q_i)
 *
 * With the decays of a chunk (decay.h), s_i = first o up_i o x_i, and x knows no decay:
 * it is the delta rule's with down_i o b_i written, up_i o e_i and up_i o phi(q_i)
 * read. So the triangles and the substitution are those of delta.h, of such rows; those
 * that read the state itself are multiplied by first, those written to it by last. DPLR
 * writes two rows a token, K of the values given and B of those read, and reads them
 * before the token's decay.
 *
 * About 6 n d m flops (DPLR: 8 n d m) and the triangles.  Scratch: the state, d m
 * numbers, and a few chunks.  Nothing of row j > i reaches row i. */
#ifndef LA_GATED_DELTA_H
#define LA_GATED_DELTA_H

#include "decay.h"
#include "delta.h"

/* What the tokens of a chunk read with, [A; E], and write to: B, or [K; B]. */
struct gated_rows {
    struct block a, e, b;
    struct decay decay;
    int low_rank;
};

/* phi of the tokens t of x; 0 where they do not exist. */
static void
load_existing(struct block b, const struct la_head *h, const struct la_array *x,
              struct span t, enum la_map map)
{
    const ptrdiff_t all = round_up(t.rows, MR);
    t.rows = keys_left(h, t);
    load_mapped(b, x, t, h->d, map);
    clear_rows(b, t.rows, all);
}

/* Those that write, B or [K; B], down. */
static void
load_writers(const struct la_head *h, const struct gated_rows *x, struct span t)
{
    const struct block second = block_at(x->b, round_up(t.rows, MR), 0);
    load_existing(x->b, h, &h->k, t, h->map);
    fade_rows(x->b, x->decay.down, x->decay.step, t.rows, h->d);
    if (x->low_rank) {
        load_existing(second, h, &h->b, t, LA_MAP_identity);
        fade_rows(second, x->decay.down, x->decay.step, t.rows, h->d);
    }
}

/* E, up; DPLR's reads before the decay of its own token. */
static void
load_erasers(const struct la_head *h, const struct gated_rows *x, struct span t)
{
    const struct la_array *key = h->has_erase ? &h->erase : &h->k;
    const struct block next = block_at(x->e, 1, 0);
    if (x->low_rank) {
        load_existing(x->e, h, &h->a, t, LA_MAP_identity);
        fade_rows(next, x->decay.up, x->decay.step, t.rows - 1, h->d);
        return;
    }
    load_existing(x->e, h, key, t, h->has_erase ? LA_MAP_identity : h->map);
    fade_rows(x->e, x->decay.up, x->decay.step, t.rows, h->d);
}

/* A, up. */
static void
load_readers(const struct la_head *h, const struct gated_rows *x, struct span t)
{
    load_mapped(x->a, &h->q, t, h->d, h->map);
    fade_rows(x->a, x->decay.up, x->decay.step, t.rows, h->d);
}

/* A and E as they read the state before the chunk: times first. */
static void
readers_before(struct block a, const struct gated_rows *x, ptrdiff_t rows, ptrdiff_t d)
{
    fade_all(a, x->decay.first, x->decay.step, rows, d);
}

static void
erasers_before(struct block e, const struct gated_rows *x, ptrdiff_t rows, ptrdiff_t d)
{
    const ptrdiff_t from = x->low_rank; /* its first row reads before all decay */
    readers_before(block_at(e, from, 0), x, rows - from, d);
}

/* B, or [K; B], as they are written to the state after the chunk: times last. */
static void
writers_after(struct block b, const struct gated_rows *x, ptrdiff_t rows, ptrdiff_t d)
{
    const ptrdiff_t all = x->low_rank ? 2 * rows : rows;
    fade_all(b, x->decay.last, x->decay.step, all, d);
}

struct gated_delta_scratch {
    ptrdiff_t rows;             /* tokens a chunk, at most */
    struct block ea, b, v, vuo; /* [E; A]; writers; values; [(V;) U; O] */
    struct block l, p, lk, pk;
    struct decay decay;
    struct beta beta;
    T *s, *scale;
};

static struct gated_delta_scratch
rule_carve(const struct la_head *h, struct arena *arena, int low_rank)
{
    struct gated_delta_scratch r = {.rows = delta_chunk(h->d)};
    r.ea = take_block(arena, 2 * r.rows, h->d);
    r.b = take_block(arena, (1 + low_rank) * r.rows, h->d);
    r.vuo = take_block(arena, (2 + low_rank) * r.rows, h->m);
    r.l = take_block(arena, r.rows, r.rows);
    r.p = take_block(arena, r.rows, r.rows);
    if (low_rank) {
        r.lk = take_block(arena, r.rows, r.rows);
        r.pk = take_block(arena, r.rows, r.rows);
    }
    else {
        r.v = take_block(arena, r.rows, h->m);
        r.beta = take_beta(arena, h, r.rows);
    }
    r.decay = take_decay(arena, h, r.rows);
    r.s = take_state(arena, h->d, h->m);
    r.scale = take(arena, 1, r.rows);
    return r;
}

static struct gated_delta_scratch
gated_delta_carve(const struct la_head *h, struct arena *arena)
{
    return rule_carve(h, arena, 0);
}

static struct gated_delta_scratch
dplr_carve(const struct la_head *h, struct arena *arena)
{
    return rule_carve(h, arena, 1);
}

/* Reads the tokens t, and makes their triangles. */
static void
load_rule(const struct la_head *h, const struct gated_delta_scratch *r,
          struct gated_rows *x, struct writing *c, struct span t)
{
    const struct block b = x->low_rank ? block_at(r->b, c->rows, 0) : r->b;
    x->e = r->ea;
    x->a = block_at(r->ea, c->rows, 0);
    load_writers(h, x, t);
    load_erasers(h, x, t);
    if (x->low_rank) {
        struct span some = t;
        some.rows = c->keys;
        load_plain(r->vuo, &h->v, some, h->m);
        clear_rows(r->vuo, c->keys, c->rows);
    }
    else {
        c->v = values(h, t, r->v);
        load_beta(h, t, &r->beta);
    }
    load_readers(h, x, t);
    look_ahead(&h->o, t, h->m);
    triangle(r->l, x->e, b, c->rows, h->d);
    triangle(r->p, x->a, b, c->rows, h->d);
    if (x->low_rank) {
        triangle(r->lk, x->e, x->b, c->rows, h->d);
        triangle(r->pk, x->a, x->b, c->rows, h->d);
    }
    readers_before(x->a, x, c->rows, h->d);
    erasers_before(x->e, x, c->rows, h->d);
    writers_after(x->b, x, c->rows, h->d);
}

static int
run_rule(const struct la_head *h, int low_rank)
{
    struct arena arena = {h->scratch, 0};
    const struct gated_delta_scratch r = rule_carve(h, &arena, low_rank);
    struct la_fetch ahead = {0};
    const struct scan state = {
        .K = h->d, .W = round_up(h->m, VL), .s = r.s, .ahead = &ahead};
    struct gated_rows x = {.b = r.b, .decay = r.decay, .low_rank = low_rank};
    struct writing c = {.read = state,
                        .write = state,
                        .l = r.l,
                        .p = r.p,
                        .lk = r.lk,
                        .pk = r.pk,
                        .beta = r.beta};
    c.read.a = r.ea;
    c.write.b = r.b;
    c.write.v = r.vuo;
    c.write.keep = r.decay.keep;
    c.write.change = r.decay.change;
    load_state(r.s, &h->s0, h->d, h->m);
    factors(h, r.scale, r.rows, 0);
    for (ptrdiff_t i = 0; i < h->n;) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        struct span t = span(i, r.rows, i + r.rows, h->n, &ahead);
        t.rows = chunk_decay(h, &r.decay, t);
        t.next = i += t.rows;
        c.rows = round_up(t.rows, MR);
        c.keys = keys_left(h, t);
        c.read.rows = 2 * c.rows;
        c.write.rows = (1 + low_rank) * c.rows;
        c.read.o = c.u = block_at(r.vuo, low_rank ? c.rows : 0, 0);
        if (low_rank) {
            c.given = r.vuo;
        }
        load_rule(h, &r, &x, &c, t);
        delta_columns(&c);
        store_rows(&h->o, t, h->m, block_at(c.read.o, c.rows, 0), r.scale);
    }
    store_state(&h->s1, r.s, h->d, h->m);
    return 0;
}

static int
run_gated_delta(const struct la_head *h)
{
    return run_rule(h, 0);
}

static int
run_dplr(const struct la_head *h)
{
    return run_rule(h, 1);
}

#endif
