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
    struct gated_scratch gated; /* first: its parts get a pointer to it */
    struct mlstm_gates gates;
    T *write, *top, *lift; /* of a chunk */
};

INLINE const struct mlstm_scratch *
mlstm_of(const struct gated_scratch *r)
{
    return (const struct mlstm_scratch *)r;
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

static void
mlstm_keys(const struct gated_scratch *r, struct span t, ptrdiff_t keys, struct block b,
           struct block v)
{
    const struct mlstm_scratch *all = mlstm_of(r);
    const struct la_array write = in_scratch(all->gates.write);
    load_token_row(all->write, &write, t);
    write_rows(b, v, keys, all->write);
}

static void
store_mlstm(const struct la_head *h, const struct gated_scratch *r, struct span t)
{
    const struct mlstm_scratch *all = mlstm_of(r);
    const struct la_array top = in_scratch(all->gates.top);
    load_token_row(all->top, &top, t);
    mlstm_outputs(h, r->o, r->scale, all->lift, all->top, t.rows);
    store_rows(&h->o, t, h->m, r->o, r->scale);
}

static const struct gated_parts mlstm_parts = {mlstm_keys, store_mlstm};

/* What the stages of a group need. */
static struct mlstm_scratch
take_mlstm(const struct la_head *h, struct arena *arena)
{
    struct mlstm_scratch r = {.gated = gated_carve(h, arena)};
    r.gated.parts = &mlstm_parts;
    r.write = take_row(arena, r.gated.rows);
    r.top = take_row(arena, r.gated.rows);
    r.lift = take_row(arena, r.gated.rows);
    return r;
}

static struct mlstm_scratch
mlstm_carve(const struct la_head *h, struct arena *arena)
{
    struct mlstm_scratch r = take_mlstm(h, arena);
    r.gates = take_mlstm_gates(h, arena);
    return r;
}

/* The head that gated attention sees. */
static struct la_head
mlstm_head(const struct la_head *h, const struct mlstm_scratch *r)
{
    struct la_head one = *h;
    one.g = in_scratch(r->gates.g);
    return one;
}

static int
run_mlstm(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct mlstm_scratch r = mlstm_carve(h, &arena);
    const struct la_head one = mlstm_head(h, &r);
    return load_mlstm_gates(h, &r.gates) || gated_head(&one, &r.gated);
}

#endif
