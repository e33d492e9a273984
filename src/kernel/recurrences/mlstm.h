/* mlstm.h: mLSTM with gates under a running maximum m, one head, in chunks.
 *
 *   s_t = exp(g_t) s_{t-1} + write_t k_t v_t^T,  z_t likewise      Beck et al. 2024,
 *   o_t = scale s_t^T q_t / (max(|scale z_t.q_t|, e^-m) + eps)     eq. 19-27
 *
 * g, write and m, called top, are those of mlstm_gates.h; s and z are the memory times
 * exp(-m).  Without z o_t = scale e^m s_t^T q_t.  This is gated.h with keys times
 * write and a sum of scores a row: 4 n d m flops and the triangles. Nothing of row j >
 * t reaches row t. */
#ifndef LA_MLSTM_H
#define LA_MLSTM_H

#include "gated.h"
#include "mlstm_gates.h"

struct mlstm_scratch {
    struct gated_scratch gated;
    struct mlstm_gates gates;
    T *z, *z_lost, *write, *top, *lift;
};

static struct mlstm_scratch
mlstm_carve(const struct la_head *h, struct arena *arena)
{
    struct mlstm_scratch r = {.gated = gated_carve(h, arena),
                              .gates = take_mlstm_gates(h, arena)};
    r.z = take_row(arena, h->d);
    r.z_lost = take_row(arena, h->d);
    r.write = take_row(arena, r.gated.rows);
    r.top = take_row(arena, r.gated.rows);
    r.lift = take_row(arena, r.gated.rows);
    return r;
}

/* b_i <- write_i b_i.  What nothing is written of, v too, becomes 0, whatever it is. */
static void
write_rows(struct block b, struct block v, ptrdiff_t rows, const T *write)
{
    scale_rows(b, rows, write);
    for (ptrdiff_t i = 0; i < rows; i++) {
        if (write[i] == 0) {
            clear_rows(b, i, i + 1);
            clear_rows(v, i, i + 1);
        }
    }
}

/* den_i <- scale / (max(|scale den_i|, e^-m) + eps).  A floor e^-m that vanishes must
 * not make outputs of 0 NaN. */
static void
mlstm_factors(const struct la_head *h, T *den, const T *top, ptrdiff_t rows)
{
    const vec scale = vset1((T)h->scale), eps = vset1((T)h->eps);
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        const vec floor = vexp(-vload(&top[i]));
        const vec y = vmax(floor, -vminus_abs(scale * vload(&den[i]))) + eps;
        vstore(&den[i], scale / vmax(vset1(LA_SMALLEST), y));
    }
}

/* scale e^m as factor_i lift_i lift_i, since e^m may be infinite, or 0, where its
 * product with a row is not.  Returns whether any lift_i is not 1. */
static int
mlstm_scales(const struct la_head *h, T *factor, T *lift, const T *top, ptrdiff_t rows)
{
    const vec scale = vset1((T)h->scale), far = vset1(EXP_MAX / 2);
    ivec lifted = {0};
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        const vec m = vload(&top[i]), near = vmin(far, vmax(-far, m));
        const vec rest = vset1((T)0.5) * (m - near);
        lifted |= first_lanes(rows - i) & (rest != (vec){0});
        vstore(&lift[i], vmin(vset1(LARGEST), vexp(rest)));
        vstore(&factor[i], scale * vexp(near));
    }
    return vany(lifted);
}

/* The factors of the rows o, from den = z.q where they are divided by it; multiplies
 * o by what these leave. */
static void
mlstm_outputs(const struct la_head *h, struct block o, T *den, T *lift, const T *top,
              ptrdiff_t rows)
{
    if (h->normalize) {
        mlstm_factors(h, den, top, rows);
    }
    else if (mlstm_scales(h, den, lift, top, rows)) {
        lift_rows(o, rows, h->m, lift);
        lift_rows(o, rows, h->m, lift);
    }
}

/* z <- exp(G_last) z + sum_j b_j, of rows that go to the end.  `carries`: z decays a
 * little at every cut, and what that loses is kept, too. */
static void
next_sums(const struct mlstm_scratch *r, ptrdiff_t rows, ptrdiff_t d, int carries)
{
    const struct decay *decay = &r->gated.decay;
    for (ptrdiff_t l = 0; l < d; l += VL) {
        const vec z = vload(&r->z[l]), lost = vload(&r->z_lost[l]);
        const vec keep = vload(&decay->keep[l]), change = vload(&decay->change[l]);
        const vec old = keep * z, new = vfma(change, z, old);
        vstore(&r->z[l], new);
        vstore(&r->z_lost[l], vfma(change, lost, keep * lost));
        if (carries) {
            const vec more = vfma(change, z, old - new);
            vstore(&r->z_lost[l], vload(&r->z_lost[l]) + vnumber(more));
        }
    }
    add_rows(r->z, r->z_lost, r->gated.b, rows);
}

/* The denominators of a chunk, into r.scale; z after it. */
static void
mlstm_sums(const struct la_head *h, const struct mlstm_scratch *r,
           const struct sweep *c)
{
    if (!h->normalize) {
        return;
    }
    if (forgets(&r->gated.decay, h->d)) {
        clear(r->z, row_step(h->d));
        clear(r->z_lost, row_step(h->d));
    }
    score_sums(r->gated.scale, c, r->z);
    next_sums(r, c->rows, h->d, carries_lost(h));
}

/* o, s and z of a head with g. */
static int
mlstm_chunks(const struct la_head *h, const struct mlstm_scratch *all)
{
    const struct gated_scratch r = all->gated;
    const struct la_array write = in_scratch(all->gates.write),
                          top = in_scratch(all->gates.top);
    struct la_fetch ahead = {0};
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r.a,
        .b = r.b,
        .v = r.v,
        .dots = r.dots,
        .o = r.o,
        .s = r.s,
        .keep = r.decay.keep,
        .change = r.decay.change,
        .ahead = &ahead,
    };
    compensate_state(&c, h, r.lost, r.rows);
    begin_state(h, r.s, c.lost);
    begin_vector(h, all->z, all->z_lost);
    for (ptrdiff_t i = 0; i < h->n; i += c.rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        struct span t = span(i, up_to_cut(h, i, r.rows), i + r.rows, h->n, &ahead);
        c.rows = t.rows = load_decays(h, t, &r.decay);
        t.next = i + t.rows;
        load_keys(h, t, r.b, r.v);
        load_token_row(all->write, &write, t);
        load_token_row(all->top, &top, t);
        write_rows(r.b, r.v, keys_left(h, t), all->write);
        load_mapped(r.a, &h->q, t, h->d, h->map);
        look_ahead(&h->o, t, h->m);
        gated_triangle(h, &r, r.a, r.b, &ahead, t.rows);
        mlstm_sums(h, all, &c);
        sweep_decayed(&r.decay, &c, LA_READ | LA_WRITE, 0);
        mlstm_outputs(h, r.o, r.scale, all->lift, all->top, t.rows);
        store_rows(&h->o, t, h->m, r.o, r.scale);
    }
    end_state(&h->s1, r.s, r.lost, h->d, h->m);
    end_vector(&h->z1, all->z, all->z_lost, h->d);
    return 0;
}

static int
run_mlstm(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct mlstm_scratch r = mlstm_carve(h, &arena);
    struct la_head one = *h;
    one.g = in_scratch(r.gates.g);
    return load_mlstm_gates(h, &r.gates) || mlstm_chunks(&one, &r);
}

#endif
