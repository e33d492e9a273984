/* gated_backward.h: gradients of gated linear attention, one head, chunks in reverse.
 *
 * Over the rows of a chunk (gated.h), with S the state before it, R the gradient of the
 * state after it, C scale times the cotangent and P = tril(C V^T):
 *
 *   dV = X^T C + (exp(G_last - G) o B) R
 *   dA = exp(G) o (C S^T) + (P o E) B,  dB = exp(G_last - G) o (V R^T) + (P o E)^T A
 *   R <- exp(G_last) R + (exp(G) o A)^T C
 *   dg as gate_backward.h has it;  du = sum p_ii a_i o b_i
 *
 * A forward scan leaves the state before every stretch of about sqrt(chunks) chunks, a
 * checkpoint; from there the states of one stretch are summed up again when the
 * reverse scan comes to it.  About 12 n d m flops and the triangles.  Scratch:
 * 2 sqrt(n / chunk) + 4 states, and some chunks. */
#ifndef LA_GATED_BACKWARD_H
#define LA_GATED_BACKWARD_H

#include "gate_backward.h"
#include "gated.h"

struct gated_backward_scratch {
    ptrdiff_t rows, stretch; /* tokens a chunk, chunks a stretch */
    struct block a, b, v, c;
    struct block decayed_a, decayed_b;
    struct block x, p, turned;
    struct block da, db, far_a, far_b, dv;
    struct gate gate;
    struct gate_gradient gradient;
    T *scale, *own; /* (rows); own: p_ii */
    T *du, *du_lost;
    T *r, *rt, *r_lost; /* R, R^T */
    T *s_lost;
    T *checkpoints, *states; /* S^T before each stretch, and before each chunk of one */
};

/* Longer chunks than forward, for each takes five sweeps over a state, a copy and a
 * transposition; measured. */
static ptrdiff_t
gated_backward_rows(ptrdiff_t d)
{
    return d <= 192 ? 32 : 64;
}

static struct gated_backward_scratch
gated_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct gated_backward_scratch r = {.rows = gated_backward_rows(h->d)};
    const ptrdiff_t chunks = (h->n + r.rows - 1) / r.rows;
    struct block *const keys[] = {&r.a,  &r.b,  &r.decayed_a, &r.decayed_b,
                                  &r.da, &r.db, &r.far_a,     &r.far_b};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        *keys[i] = take_block(arena, r.rows, h->d);
    }
    r.stretch = stretch_chunks(chunks);
    r.v = take_block(arena, r.rows, h->m);
    r.c = take_block(arena, r.rows, h->m);
    r.dv = take_block(arena, r.rows, h->m);
    r.x = take_block(arena, r.rows, r.rows);
    r.p = take_block(arena, r.rows, r.rows);
    r.turned = take_block(arena, r.rows, r.rows);
    r.gate = take_gate(arena, h, r.rows);
    r.gradient = take_gate_gradient(arena, h, r.rows);
    r.scale = take(arena, 1, r.rows);
    r.own = take(arena, 1, r.rows);
    r.du = take_row(arena, h->d);
    r.du_lost = take_row(arena, h->d);
    r.r = take_state(arena, h->d, h->m);
    r.rt = take_state(arena, h->d, h->m);
    r.r_lost = take_state(arena, h->d, h->m);
    r.s_lost = take_state(arena, h->d, h->m);
    r.checkpoints =
        take_states(arena, (chunks + r.stretch - 1) / r.stretch, h->d, h->m);
    r.states = take_states(arena, r.stretch, h->d, h->m);
    return r;
}

/* S^T (m, d) as it is summed up. */
static struct scan
gated_state(const struct la_head *h, const struct gated_backward_scratch *r)
{
    return (struct scan){
        .K = h->m,
        .W = round_up(h->d, VL),
        .b = r->v,
        .v = r->b,
        .keep = r->gate.keep,
        .change = r->gate.change,
        .turned = 1,
    };
}

/* S^T after the tokens t. */
static void
gated_forward(const struct la_head *h, const struct gated_backward_scratch *r,
              struct scan *c, struct span t)
{
    c->rows = t.rows;
    c->ahead = t.ahead;
    load_gate_ends(h, t, &r->gate);
    load_keys(h, t, r->b, r->v);
    to_end(&r->gate, r->b, round_up(t.rows, MR), h->d);
    sweep(c, LA_WRITE);
}

/* The forward scan: S^T before every stretch. */
static int
gated_checkpoints(const struct la_head *h, const struct gated_backward_scratch *r)
{
    const ptrdiff_t size = state_size(h->d, h->m);
    const struct la_array s0_transposed = {h->s0.data, h->s0.cs, h->s0.rs, h->s0.type};
    struct la_fetch ahead = {0};
    struct scan c = gated_state(h, r);
    c.s = r->rt; /* free until the reverse scan */
    load_state(c.s, &s0_transposed, h->m, h->d);
    compensate(&c, r->s_lost, h->n, r->rows);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        if (i / r->rows % r->stretch == 0) {
            memcpy(r->checkpoints + i / r->rows / r->stretch * size, c.s,
                   (size_t)size * sizeof(T));
        }
        gated_forward(h, r, &c, span(i, r->rows, i + r->rows, h->n, &ahead));
    }
    return 0;
}

/* S^T before each chunk of the stretch from token `first` on. */
static int
gated_states(const struct la_head *h, const struct gated_backward_scratch *r,
             ptrdiff_t first)
{
    const ptrdiff_t size = state_size(h->d, h->m);
    const size_t bytes = (size_t)size * sizeof(T);
    struct la_fetch ahead = {0};
    struct scan c = gated_state(h, r);
    c.s = r->states;
    compensate(&c, r->s_lost, r->stretch * r->rows, r->rows);
    memcpy(c.s, r->checkpoints + first / r->rows / r->stretch * size, bytes);
    for (ptrdiff_t chunk = 1; chunk < r->stretch; chunk++, first += r->rows) {
        if (first + r->rows >= h->n) {
            break;
        }
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        memcpy(c.s + size, c.s, bytes);
        c.s += size;
        gated_forward(h, r, &c, span(first, r->rows, first + r->rows, h->n, &ahead));
    }
    return 0;
}

/* Reads all that the way back through the tokens t needs. */
static void
load_gated(const struct la_head *h, const struct gated_backward_scratch *r,
           struct span t)
{
    load_gate(h, t, &r->gate);
    load_mapped(r->a, &h->q, t, h->d, h->map);
    load_keys(h, t, r->b, r->v);
    load_plain(r->c, &h->g, t, h->m);
    look_ahead(&h->dq, t, h->d);
    look_ahead(&h->dk, t, h->d);
    look_ahead(&h->dv, t, h->m);
    if (h->scale != 1) {
        scale_rows(r->c, t.rows, r->scale);
    }
}

static void
copy_block(struct block dst, struct block src, ptrdiff_t rows)
{
    memcpy(dst.x, src.x, (size_t)(rows * src.ld) * sizeof(T));
}

/* dV and the next R. */
static void
gated_values(const struct la_head *h, const struct gated_backward_scratch *r,
             struct scan *dv, ptrdiff_t rows)
{
    const struct reader q = {r->decayed_a, r->x};
    copy_block(r->decayed_a, r->a, rows);
    copy_block(r->decayed_b, r->b, rows);
    gated_triangles(&r->gate, &q, 1, r->decayed_b, rows, h->d, dv->ahead);
    turn(r->turned, r->x, rows);
    sweep(dv, LA_READ | LA_WRITE);
}

/* What reaches dA and dB through S and R. */
static void
gated_far(const struct la_head *h, const struct gated_backward_scratch *r, T *s,
          struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    struct scan c = {.rows = rows,
                     .K = h->m,
                     .W = round_up(h->d, VL),
                     .a = r->c,
                     .o = r->far_a,
                     .s = s,
                     .ahead = t.ahead};
    sweep(&c, LA_READ);
    from_start(&r->gate, r->far_a, rows, h->d);
    c.a = r->v;
    c.o = r->far_b;
    c.s = r->rt;
    sweep(&c, LA_READ);
    to_end(&r->gate, r->far_b, rows, h->d);
}

/* What reaches them within the chunk, and dg. */
static void
gated_near(const struct la_head *h, const struct gated_backward_scratch *r,
           struct span t)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    const struct scan p = {
        .rows = rows, .K = h->m, .a = r->c, .b = r->v, .dots = r->p, .ahead = t.ahead};
    const struct pairs pairs = {.gate = &r->gate,
                                .rows = rows,
                                .d = h->d,
                                .p = r->p,
                                .turned = r->turned,
                                .a = r->a,
                                .b = r->b,
                                .dg = r->gradient.dg,
                                .across = r->gradient.across};
    const struct gate_pass pass = {r->a, r->far_a, r->b, r->far_b};
    scores(&p);
    for (ptrdiff_t i = 0; i < rows; i++) {
        r->own[i] = r->p.x[i * r->p.ld + i];
    }
    copy_block(r->decayed_a, r->a, rows);
    copy_block(r->decayed_b, r->b, rows);
    if (h->gate_channels) {
        pair_products(&pairs, r->da, r->db, r->decayed_a, r->decayed_b);
        channel_gradient(&r->gate, &r->gradient, &pass, rows, h->d);
        return;
    }
    within_gradient(&r->gate, &r->gradient, r->x, r->p, rows);
    pair_products(&pairs, r->da, r->db, r->decayed_a, r->decayed_b);
    token_gradient(&r->gate, &r->gradient, &pass, rows, h->d);
}

/* dA and dB in all, with each token's own p_ii (u o) b_i and a_i, and du. */
static void
gated_sums(const struct la_head *h, const struct gated_backward_scratch *r,
           ptrdiff_t rows)
{
    const T *u = r->gate.bonus;
    for (ptrdiff_t l = 0; l < h->d; l += VL) {
        const vec bonus = u != NULL ? vload(&u[l]) : vset1(1);
        vec du = (vec){0};
        for (ptrdiff_t i = 0; i < rows; i++) {
            const ptrdiff_t at = i * r->a.ld + l;
            const vec own = vset1(r->own[i]), weight = own * bonus;
            const vec a = vload(&r->a.x[at]), b = vload(&r->b.x[at]);
            const vec da = vload(&r->da.x[at]) + vload(&r->far_a.x[at]);
            const vec db = vload(&r->db.x[at]) + vload(&r->far_b.x[at]);
            vstore(&r->da.x[at], vfma(weight, b, da));
            vstore(&r->db.x[at], vfma(weight, a, db));
            du = vfma(own * a, b, du);
        }
        add_to_sum(&r->du[l], &r->du_lost[l], du);
    }
}

static void
store_gated(const struct la_head *h, const struct gated_backward_scratch *r,
            struct span t)
{
    const ptrdiff_t keys = keys_left(h, t);
    if (h->map != LA_MAP_identity) { /* its slope is 1 */
        chain(r->da, &h->q, t, h->d, r->a, h->map);
        chain(r->db, &h->k, t, h->d, r->b, h->map);
    }
    clear_rows(r->db, keys, t.rows);
    clear_rows(r->dv, keys, t.rows);
    store_rows(&h->dq, t, h->d, r->da, NULL);
    store_rows(&h->dk, t, h->d, r->db, NULL);
    store_rows(&h->dv, t, h->m, r->dv, NULL);
    store_gate_gradient(h, &r->gradient, t);
}

/* The reverse scan over the tokens t; s is S^T before them. */
static void
gated_reverse(const struct la_head *h, const struct gated_backward_scratch *r,
              struct scan *dv, struct span t, T *s)
{
    const ptrdiff_t rows = round_up(t.rows, MR);
    dv->rows = rows;
    dv->ahead = t.ahead;
    load_gated(h, r, t);
    state_gradient(&r->gate, &r->gradient, s, r->rt, h->m, h->d);
    gated_values(h, r, dv, rows);
    gated_far(h, r, s, t);
    gated_near(h, r, t);
    gated_sums(h, r, rows);
    store_gated(h, r, t);
    transpose_state(r->rt, r->r, h->d, h->m);
}

/* R of the last chunk, and the constants. */
static void
gated_begin(const struct la_head *h, const struct gated_backward_scratch *r)
{
    load_state(r->r, &h->gs, h->d, h->m);
    transpose_state(r->rt, r->r, h->d, h->m);
    factors(h, r->scale, r->rows, 0);
    load_bonus(h, &r->gate);
    clear(r->du, r->a.ld);
    clear(r->du_lost, r->a.ld);
    for (ptrdiff_t j = 0; j < r->a.ld || j < r->x.ld; j++) {
        r->gradient.ones[j] = 1;
    }
}

static int
run_gated_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct gated_backward_scratch r = gated_backward_carve(h, &arena);
    const ptrdiff_t chunks = (h->n + r.rows - 1) / r.rows;
    struct la_fetch ahead = {0};
    struct scan dv = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r.decayed_b,
        .b = r.decayed_a,
        .v = r.c,
        .dots = r.turned,
        .o = r.dv,
        .s = r.r,
        .keep = r.gate.keep,
        .change = r.gate.change,
        .upper = 1,
    };
    if (gated_checkpoints(h, &r)) {
        return 1;
    }
    gated_begin(h, &r);
    compensate(&dv, r.r_lost, h->n, r.rows);
    for (ptrdiff_t chunk = chunks - 1; chunk >= 0; chunk--) {
        const ptrdiff_t place = chunk % r.stretch, i = chunk * r.rows;
        const int begins = chunk == chunks - 1 || place == r.stretch - 1;
        if (h->poll(h->poll_arg) ||
            (begins && gated_states(h, &r, i - place * r.rows))) {
            return 1;
        }
        gated_reverse(h, &r, &dv, span(i, r.rows, i - r.rows, h->n, &ahead),
                      r.states + place * state_size(h->d, h->m));
    }
    store_state(&h->ds0, r.r, h->d, h->m);
    store_vector(&h->dbonus, r.du, h->d);
    return 0;
}

#endif
