/* gated_backward.h: gradients of gated linear attention, one head, chunks in reverse.
 *
 * Over the rows of a chunk (gated.h), with S the state before it, R the gradient of the
 * state after it, C scale times the cotangent and P = tril(C V^T):
 *
 *    dV = X^T C + (exp(G_last - G) o B) R
 *    dA = exp(G) o (C S^T) + (P o E) B,  dB = exp(G_last - G) o (V R^T) + (P o E)^T A
 *    R <- exp(G_last) R + (exp(G) o A)^T C
 *    dg as in decay_backward.h;  du = sum p_ii a_i o b_i;  dw, dD as in writes.h
 *
 * States are recomputed in gated_states.h.  About 12 n d m flops plus the triangles.
 * Scratch: the states of checkpoints.h, as many losses as checkpoints and 4 states
 * more, and some chunks. */
#ifndef LA_GATED_BACKWARD_H
#define LA_GATED_BACKWARD_H

#include "gated_sums.h"

/* Loads everything that the gradients of the tokens t need. */
static void
load_gated(const struct la_head *h, const struct gated_backward_scratch *r,
           struct span t)
{
    load_decays(h, t, &r->decay);
    load_mapped(r->a, &h->q, t, h->d, h->map);
    r->parts->keys(h, r, t);
    load_plain(r->c, &h->grad_out, t, value_channels(h));
    look_ahead(&h->dq, t, h->d);
    look_ahead(&h->dk, t, h->d);
    look_ahead(&h->dv, t, value_channels(h));
    if (h->scale != 1) {
        scale_rows(r->c, t.rows, r->scale);
    }
    if (la_is_given(&h->bonus)) {
        row_dots(r->own_p, r->c, r->v, t.rows, round_up(h->m, VL));
    }
}

/* dst = src transposed, (rows, rows), both padded to whole vectors. */
static void
transpose_block(struct block dst, struct block src, ptrdiff_t rows)
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

/* Scaled A and B, and X. */
static void
gated_scores(const struct la_head *h, const struct gated_backward_scratch *r,
             struct span t)
{
    const struct decay *decay = &r->decay;
    const ptrdiff_t rows = round_up(t.rows, MR);
    const struct sweep x = {.rows = rows,
                            .K = h->d,
                            .a = r->met_a,
                            .b = r->met_b,
                            .dots = r->x,
                            .ahead = t.ahead,
                            .pairs = r->factors};
    readers_meet(decay, r->met_a, r->a, t.rows, h->d, la_is_given(&h->bonus));
    writers_meet(decay, r->met_b, r->b, t.rows, h->d);
    scores(&x);
    decay_triangle(decay, r->x, rows, la_is_given(&h->bonus));
    if (la_is_given(&h->bonus)) {
        own_scores(r->own, r->bonus, r->a, r->b, rows, h->d);
        set_diagonal(r->x, r->own, rows);
    }
    from_start(decay, r->far_a, r->met_a, rows, h->d, la_is_given(&h->bonus));
    to_end(decay, r->far_b, r->met_b, rows, h->d);
}

/* dV and, by `what`, the next R. */
static void
gated_values(const struct la_head *h, const struct gated_backward_scratch *r,
             struct sweep *dv, int what)
{
    transpose_block(r->transposed, r->x, dv->rows);
    if (what & LA_WRITE && la_is_given(&h->bonus)) {
        sweep_decayed(&r->decay, dv, LA_READ | LA_WRITE, 1);
        return;
    }
    sweep(dv, what);
    if (what & LA_WRITE) {
        forget_state(&r->decay, dv);
    }
}

/* P, and what dA gets through the state. */
static void
gated_reader_products(const struct la_head *h, const struct gated_backward_scratch *r,
                      T *s, struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    const struct sweep p = {.rows = rows,
                            .K = h->m,
                            .a = r->c,
                            .b = r->v,
                            .dots = r->p,
                            .ahead = t.ahead,
                            .pairs = r->factors};
    const struct sweep da = {.rows = rows,
                             .K = h->m,
                             .W = round_up(h->d, VL),
                             .a = r->c,
                             .o = r->da,
                             .s = s,
                             .ahead = t.ahead,
                             .pairs = r->factors,
                             .scored = 1};
    scores(&p);
    sweep(&da, LA_READ);
}

/* What dB gets. */
static void
gated_writer_products(const struct la_head *h, const struct gated_backward_scratch *r,
                      struct span t)
{
    const struct sweep db = {.rows = round_up(t.rows, MR),
                             .K = h->m,
                             .W = round_up(h->d, VL),
                             .a = r->v,
                             .o = r->db,
                             .s = r->rt,
                             .ahead = t.ahead,
                             .pairs = r->factors};
    sweep(&db, LA_READ);
}

/* dA, dB and dg, without the contributions of a bonus. */
static void
gated_features(const struct la_head *h, const struct gated_backward_scratch *r,
               struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    struct decay_pairs pairs = r->pairs;
    pairs.decay = &r->decay;
    pairs.tokens = t.rows;
    pairs.rows = rows;
    pairs.d = h->d;
    pairs.readers = h->block == 0; /* a block's tokens read after its last chunk */
    pairs.writers = 1;
    pairs.reader[0] = (struct decay_reader){r->met_a, r->da, la_is_given(&h->bonus),
                                            la_is_given(&h->bonus)};
    pairs.writer[0] = (struct decay_writer){r->met_b, r->db};
    pairs.p[0][0] = r->x;
    pairs.x[0][0] = r->p;
    decay_gradients(&pairs);
}

/* Adds the contributions of a bonus, p_ii u o b_i and p_ii u o a_i, to dA and dB. */
static void
bonus_features(const struct la_head *h, const struct gated_backward_scratch *r,
               ptrdiff_t tokens)
{
    for (ptrdiff_t i = 0; i < tokens; i++) {
        for (ptrdiff_t l = 0; l < h->d; l += VL) {
            const ptrdiff_t at = i * r->a.ld + l;
            const vec weight = vset1(r->own_p[i]) * vload(&r->bonus[l]);
            const vec a = vload(&r->a.x[at]), b = vload(&r->b.x[at]);
            vstore(&r->da.x[at], vfma(weight, b, vload(&r->da.x[at])));
            vstore(&r->db.x[at], vfma(weight, a, vload(&r->db.x[at])));
        }
    }
}

/* Writes the gradients of what the tokens t write. */
static void
store_gated_writers(const struct la_head *h, const struct gated_backward_scratch *r,
                    struct span t)
{
    const ptrdiff_t keys = keys_left(h, t);
    clear_rows(r->db, keys, t.rows);
    clear_rows(r->dv, keys, t.rows);
    store_rows(&h->dk, t, h->d, r->db, NULL);
    store_rows(&h->dv, t, value_channels(h), r->dv, NULL);
    store_decay_gradient(h, &r->decay, &r->pairs, t);
}

static void
store_gated(const struct la_head *h, const struct gated_backward_scratch *r,
            struct span t)
{
    chain(r->da, &h->q, t, h->d, r->a, h->map);
    chain(r->db, &h->k, t, h->d, r->b, h->map);
    if (r->parts->finish != NULL) {
        r->parts->finish(h, r, t);
    }
    if (r->writes.strength != NULL) {
        load_unscaled(h, &r->writes, t);
        gradients_of_writes(h, &r->writes, t, r->dv);
    }
    store_rows(&h->dq, t, h->d, r->da, NULL);
    store_gated_writers(h, r, t);
}

/* Gradients of the tokens t, from R after them, and by `what` R before them; s is S^T
 * before them. */
static void
gated_reverse(const struct la_head *h, const struct gated_backward_scratch *r,
              struct sweep *dv, struct span t, T *s, int what)
{
    dv->rows = round_up(t.rows, MR);
    dv->ahead = t.ahead;
    transpose_state(r->rt, dv->s, h->d, h->m);
    load_gated(h, r, t);
    if (!la_is_given(&h->bonus)) {
        forget(&r->decay, s, h->m, round_up(h->d, VL), 1);
    }
    state_gradient(&r->decay, r->pairs.state, s, r->rt, h->m, h->d);
    gated_scores(h, r, t);
    gated_reader_products(h, r, s, t);
    gated_writer_products(h, r, t);
    if (r->parts->cotangents != NULL) {
        r->parts->cotangents(h, r, t, s);
    }
    gated_values(h, r, dv, what);
    gated_features(h, r, t);
    if (la_is_given(&h->bonus)) {
        bonus_features(h, r, t.rows);
    }
    store_gated(h, r, t);
}

/* Gradients of the keys, values and decays of the tokens t, of which no query reads
 * within the chunk, and R before them; s is S^T before them. */
static void
gated_writers_reverse(const struct la_head *h, const struct gated_backward_scratch *r,
                      struct sweep *dv, struct span t, T *s)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    transpose_state(r->rt, dv->s, h->d, h->m);
    load_decays(h, t, &r->decay);
    load_keys(h, t, r->b, r->v);
    look_ahead(&h->dk, t, h->d);
    look_ahead(&h->dv, t, h->m);
    forget(&r->decay, s, h->m, round_up(h->d, VL), 1);
    state_gradient(&r->decay, r->pairs.state, s, r->rt, h->m, h->d);
    writers_meet(&r->decay, r->met_b, r->b, t.rows, h->d);
    to_end(&r->decay, r->far_b, r->met_b, rows, h->d);
    dv->rows = rows;
    sweep(dv, LA_READ);
    dv->rows = 0; /* R only decays */
    sweep(dv, LA_WRITE);
    forget_state(&r->decay, dv);
    gated_writer_products(h, r, t);
    gated_features(h, r, t);
    chain(r->db, &h->k, t, h->d, r->b, h->map);
    store_gated_writers(h, r, t);
}

/* The same, and what the queries of a block that ends with the tokens t add to R. */
static int
gated_block_reverse(const struct la_head *h, const struct gated_backward_scratch *r,
                    struct sweep *dv, struct span t, T *s)
{
    struct sweep readers = *dv;
    readers.ahead = dv->ahead = t.ahead;
    readers.b = r->a;
    dv->dots.x = NULL;
    if (ends_token_block(h, t) &&
        add_token_block_readers(h, readers, r->scale, token_block_begin(h, t),
                                t.first + t.rows, r->chunks.rows)) {
        return 1;
    }
    gated_writers_reverse(h, r, dv, t, s);
    return 0;
}

/* What is the same for all chunks. */
static void
gated_constants(const struct la_head *h, const struct gated_backward_scratch *r)
{
    factors(h, r->scale, r->chunks.rows, 0, NULL);
    if (la_is_given(&h->bonus)) {
        load_vector(r->bonus, &h->bonus, h->d);
    }
    load_skip(h, &r->writes);
}

/* Sets R to the gradient of the last state, and the sum to 0. */
static void
gated_begin(const struct la_head *h, const struct gated_backward_scratch *r)
{
    load_state(r->r, &h->grad_s, h->d, h->m);
    if (r->parts->last != NULL) {
        r->parts->last(h, r, r->rt, r->r);
    }
    clear(r->sum, width_of_sum(h));
    clear(r->lost_of_sum, width_of_sum(h));
}

/* The sweep of dV, and of R (d, m). */
static struct sweep
gated_value_sweep(const struct la_head *h, const struct gated_backward_scratch *r, T *s)
{
    return (struct sweep){
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->far_b,
        .b = r->far_a,
        .v = r->c,
        .dots = r->transposed,
        .o = r->dv,
        .s = s,
        .keep = r->decay.keep,
        .change = r->decay.change,
        .upper = 1,
        .pairs = r->factors,
    };
}

/* Everything but dbonus and dD. */
static int
gated_gradients(const struct la_head *h, struct gated_backward_scratch *r)
{
    const struct checkpoints *x = &r->chunks;
    struct la_fetch ahead = {0};
    count_chunks(&r->chunks, h, &r->decay);
    struct sweep dv = gated_value_sweep(h, r, r->r);
    gated_constants(h, r);
    const ptrdiff_t chunks = gated_checkpoints(h, r);
    gated_begin(h, r);
    compensate(&dv, h, r->r_lost, rows_in_block(h, x->rows));
    struct span t = {.first = h->n};
    for (ptrdiff_t chunk = chunks - 1; chunk >= 0; chunk--) {
        const ptrdiff_t place = chunk % x->interval;
        const int begins = chunk == chunks - 1 || place == x->interval - 1;
        t = chunk_until(h, x, t.first, &ahead);
        if (h->poll(h->poll_arg) ||
            (begins && gated_states(h, r, chunk / x->interval, place + 1,
                                    chunks_before(x, place, t.first)))) {
            return 1;
        }
        if (h->block > 0) {
            if (gated_block_reverse(h, r, &dv, t, state_of(x->states, h, place))) {
                return 1;
            }
            continue;
        }
        gated_reverse(h, r, &dv, t, state_of(x->states, h, place), LA_READ | LA_WRITE);
        add_to_gradient_sum(h, r, t);
    }
    store_state(&h->ds0, r->r, h->d, h->m);
    return chunks < 0;
}

static int
run_gated_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct gated_backward_scratch r = gated_backward_carve(h, &arena);
    const int stopped = gated_gradients(h, &r);
    if (!stopped) {
        store_gradient_sum(h, r.sum);
    }
    return stopped;
}

#endif
