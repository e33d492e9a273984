/* mlstm_backward.h: gradients of mLSTM with its gates under a running maximum, one
 * head, chunks in reverse.
 *
 * This is gated_backward.h with keys b = write k and one more value channel, of ones,
 * whose sum is z: S, of d rows and m + 1 columns, holds s and z.  With y_i the
 * denominator of row i (mlstm.h) and g_i its cotangent, the cotangents of what gated
 * attention gives are
 *
 *    c_i = F_i g_i,  F_i = scale / y_i        of s_i^T q_i
 *    e_i = -(F_i g_i.(s_i^T q_i)) / y_i       of y_i
 *    b_i = sign(z_i.q_i) |scale| e_i, or 0 where e^-m is the larger one      of z_i.q_i
 *
 * Since g_i.(s_i^T q_i) = q_i.(s_i g_i), which dA has anyway, neither the output nor
 * another scan is needed: P and C S^T are those of g_i until they are multiplied by
 * F_i. The gradient of the equation does not depend on m, which is a constant
 * therefore: log sigma(f) has that of gated attention's gate, and i that of log write.
 * mlstm_sequence.h adds what does depend on it.  About 12 n d m flops plus the
 * triangles.  Scratch: that of gated_backward.h, two states, seven numbers a token. */
#ifndef LA_MLSTM_BACKWARD_H
#define LA_MLSTM_BACKWARD_H

#include "gated_backward.h"
#include "mlstm_sequence.h"

struct mlstm_backward_scratch {
    struct gated_backward_scratch gated; /* first: its parts get a pointer to it */
    const struct la_head *h;
    T *write, *top, *factor, *lift; /* (rows) */
    T *sums, *dots, *slope, *z;     /* z.q, g.(s^T q) and e; z, (d) */
    struct mlstm_sequence all;
};

INLINE const struct mlstm_backward_scratch *
mlstm_gradient_of(const struct gated_backward_scratch *r)
{
    return (const struct mlstm_backward_scratch *)r;
}

/* b = write k and [v, 1] of the tokens t. */
static void
mlstm_gradient_keys(const struct la_head *h, const struct gated_backward_scratch *r,
                    struct span t)
{
    const struct mlstm_backward_scratch *all = mlstm_gradient_of(r);
    const ptrdiff_t rows = round_up(t.rows, MR), keys = keys_left(h, t);
    load_features(h, t, r->b);
    const struct la_array write = in_scratch(all->all.gates.write);
    load_token_row(all->write, &write, t);
    t.rows = keys;
    load_plain(r->v, &h->v, t, value_channels(h));
    if (h->normalize) {
        set_column(r->v, keys, value_channels(h), NULL);
    }
    write_rows(r->b, r->v, keys, all->write);
    clear_rows(r->v, keys, rows);
}

/* sum_i += x_ij p_ij over j <= i, or x_ij without p */
static void
add_triangle_dots(T *sum, struct block x, struct block p, ptrdiff_t rows)
{
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        vec part[VL];
        for (ptrdiff_t l = 0; l < VL; l++) {
            const ptrdiff_t i = first + l < rows ? first + l : rows - 1;
            part[l] = (vec){0};
            for (ptrdiff_t j = 0; j <= i; j += VL) {
                const ivec some = first_lanes(i + 1 - j);
                const vec y =
                    p.x == NULL ? vset1(1) : vkeep(some, vload(&p.x[i * p.ld + j]));
                part[l] = vfma(vkeep(some, vload(&x.x[i * x.ld + j])), y, part[l]);
            }
        }
        vstore(&sum[first], vload(&sum[first]) + lane_sums(part));
    }
}

/* F, b in place of z.q, and e. */
static void
mlstm_slopes(const struct la_head *h, const struct mlstm_backward_scratch *r,
             ptrdiff_t rows)
{
    const vec zero = (vec){0}, scale = vset1((T)h->scale), eps = vset1((T)h->eps);
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        const vec seen = scale * vload(&r->sums[i]), floor = vexp(-vload(&r->top[i]));
        const vec size = -vminus_abs(seen), larger = vmax(floor, size);
        const vec y = vmax(vset1(LA_SMALLEST), larger + eps), factor = scale / y;
        const vec slope = -(factor * vload(&r->dots[i])) / y;
        const vec sign = vselect(seen < zero, -scale, vkeep(seen > zero, scale));
        vstore(&r->factor[i], factor);
        vstore(&r->slope[i], vkeep(y - y == zero, eps * slope));
        vstore(&r->sums[i], vkeep(size >= floor, sign * slope));
    }
}

/* x_ij += w_i z_j */
static void
add_outer(struct block x, const T *w, const T *z, ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const vec more = z == NULL ? vset1(1) : vload(&z[j]);
            T *at = &x.x[i * x.ld + j];
            vstore(at, vfma(vset1(w[i]), more, vload(at)));
        }
    }
}

/* Those of z.q, for P, C S^T and C; all of them are products with g_i so far. */
static void
mlstm_denominators(const struct la_head *h, const struct gated_backward_scratch *r,
                   struct span t, T *s)
{
    const struct mlstm_backward_scratch *all = mlstm_gradient_of(r);
    const struct la_array top = in_scratch(all->all.gates.top);
    const ptrdiff_t rows = round_up(t.rows, MR), W = round_up(h->d, VL);
    const struct block z = {all->z, 0}, none = {NULL, 0};
    load_token_row(all->top, &top, t);
    for (ptrdiff_t j = 0; j < W; j += VL) {
        vstore(&all->z[j], vload(state_at(s, h->m, W, value_channels(h), j)));
    }
    row_dots(all->sums, r->far_a, z, rows, W);
    add_triangle_dots(all->sums, r->x, none, rows);
    row_dots(all->dots, r->far_a, r->da, rows, W);
    add_triangle_dots(all->dots, r->x, r->p, rows);
    mlstm_slopes(all->h, all, t.rows);
}

/* The factors of cotangents without z; whether they leave some to r->lift. */
static int
mlstm_plain_factors(const struct mlstm_backward_scratch *r, struct span t)
{
    const struct la_array top = in_scratch(r->all.gates.top);
    load_token_row(r->top, &top, t);
    return mlstm_scales(r->h, r->factor, r->lift, r->top, t.rows);
}

static void
scale_cotangents(const struct mlstm_backward_scratch *r, struct block x, ptrdiff_t rows,
                 int lifted)
{
    scale_rows(x, rows, r->factor);
    for (int times = 0; lifted && times < 2; times++) {
        lift_rows(x, rows, x.ld, r->lift);
    }
}

/* The cotangents of a chunk, and its products with them. */
static void
mlstm_cotangents(const struct la_head *h, const struct gated_backward_scratch *r,
                 struct span t, T *s)
{
    const struct mlstm_backward_scratch *all = mlstm_gradient_of(r);
    const struct block given[] = {r->c, r->p, r->da};
    int lifted = 0;
    if (h->normalize) {
        mlstm_denominators(h, r, t, s);
    }
    else {
        lifted = mlstm_plain_factors(all, t);
    }
    for (int i = 0; i < 3; i++) {
        scale_cotangents(all, given[i], t.rows, lifted);
    }
    if (h->normalize) {
        add_outer(r->p, all->sums, NULL, t.rows, round_up(t.rows, MR));
        add_outer(r->da, all->sums, all->z, t.rows, round_up(h->d, VL));
        set_column(r->c, t.rows, value_channels(h), all->sums);
    }
}

static void
note_mlstm(const struct la_head *h, const struct gated_backward_scratch *r,
           struct span t, T *s)
{
    const struct mlstm_backward_scratch *all = mlstm_gradient_of(r);
    mlstm_denominators(h, r, t, s);
    memcpy(all->all.factors + t.first, all->factor, (size_t)t.rows * sizeof(T));
    memcpy(all->all.of_z + t.first, all->sums, (size_t)t.rows * sizeof(T));
}

/* The cotangents alone, where those of z.q have been noted. */
static void
noted_cotangents(const struct la_head *h, const struct gated_backward_scratch *r,
                 struct span t)
{
    const struct mlstm_backward_scratch *all = mlstm_gradient_of(r);
    int lifted = 0;
    if (h->normalize) {
        memcpy(all->factor, all->all.factors + t.first, (size_t)t.rows * sizeof(T));
    }
    else {
        lifted = mlstm_plain_factors(all, t);
    }
    scale_cotangents(all, r->c, t.rows, lifted);
    if (h->normalize) {
        set_column(r->c, t.rows, value_channels(h), all->all.of_z + t.first);
    }
}

/* dk from dB; the gradients of log write and m. */
static void
mlstm_finish(const struct la_head *h, const struct gated_backward_scratch *r,
             struct span t)
{
    const struct mlstm_backward_scratch *all = mlstm_gradient_of(r);
    row_dots(all->dots, r->b, r->db, t.rows, round_up(h->d, VL));
    for (ptrdiff_t i = 0; i < t.rows; i += VL) {
        const ivec writes = vload(&all->write[i]) != (vec){0};
        vstore(&all->dots[i], vkeep(writes, vload(&all->dots[i])));
    }
    scale_rows(r->db, t.rows, all->write);
    memcpy(all->all.di + t.first, all->dots, (size_t)t.rows * sizeof(T));
    memcpy(all->all.dm + t.first, all->slope, (size_t)t.rows * sizeof(T));
}

/* The product of the last state with its gradient. */
static void
mlstm_last(const struct la_head *h, const struct gated_backward_scratch *r, T *s,
           T *grad)
{
    const ptrdiff_t width = round_up(h->m, VL), depth = round_up(h->d, VL);
    double sum = 0;
    for (ptrdiff_t l = 0; la_is_given(&h->grad_s) && l < h->d; l++) {
        for (ptrdiff_t j = 0; j < h->m; j++) {
            const T *by = state_at(grad, h->d, width, l, j / VL * VL);
            const T *last = state_at(s, h->m, depth, j, l / VL * VL);
            sum += (double)by[j % VL] * (double)last[l % VL];
        }
    }
    *mlstm_gradient_of(r)->all.at_last = sum;
}

static const struct gated_backward_parts mlstm_gradient_parts = {
    mlstm_gradient_keys, mlstm_cotangents, mlstm_finish,
    mlstm_last,          note_mlstm,       noted_cotangents,
};

/* What a chunk needs, beside what it needs of gated attention. */
static struct mlstm_backward_scratch
mlstm_rows(const struct la_head *h, struct arena *arena,
           struct gated_backward_scratch gated)
{
    struct mlstm_backward_scratch r = {.gated = gated, .h = h};
    T **const numbers[] = {&r.write, &r.top,  &r.factor, &r.lift,
                           &r.sums,  &r.dots, &r.slope};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        *numbers[i] = take_row(arena, gated.chunks.rows);
    }
    r.z = take_row(arena, h->d);
    r.gated.parts = &mlstm_gradient_parts;
    return r;
}

static struct mlstm_backward_scratch
mlstm_backward_carve(const struct la_head *h, struct arena *arena)
{
    const struct la_head one = with_z(h);
    struct mlstm_backward_scratch r =
        mlstm_rows(h, arena, gated_backward_carve(&one, arena));
    r.all = take_mlstm_sequence(h, arena);
    return r;
}

static int
run_mlstm_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct mlstm_backward_scratch r = mlstm_backward_carve(h, &arena);
    const struct la_head one = mlstm_gradient_head(h, &r.all);
    clear(r.slope, row_step(r.gated.chunks.rows)); /* without z */
    return begin_mlstm_gradient(h, &r.all, r.z) || gated_gradients(&one, &r.gated) ||
           end_mlstm_gradient(h, &r.all, r.z);
}

#endif
