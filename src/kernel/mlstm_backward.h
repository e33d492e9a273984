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
 * F_i. The gradient of the equation does not depend on m, but for eps, which stands
 * beside a multiple of e^-m: dtop_i = eps e_i.  dwrite is the gradient of log write.
 * About 12 n d m flops plus the triangles.  Scratch: that of gated_backward.h. */
#ifndef LA_MLSTM_BACKWARD_H
#define LA_MLSTM_BACKWARD_H

#include "gated_backward.h"
#include "mlstm.h"

struct mlstm_backward_scratch {
    struct gated_backward_scratch gated; /* first: its parts get a pointer to it */
    const struct la_head *h;
    T *write, *top, *factor, *lift; /* (rows) */
    T *sums, *dots, *slope, *z;     /* z.q, g.(s^T q) and e; z, (d) */
};

INLINE const struct mlstm_backward_scratch *
mlstm_of(const struct gated_backward_scratch *r)
{
    return (const struct mlstm_backward_scratch *)r;
}

/* Column `col` of x = values, or 1. */
static void
set_column(struct block x, ptrdiff_t rows, ptrdiff_t col, const T *values)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        x.x[i * x.ld + col] = values == NULL ? 1 : values[i];
    }
}

/* b = write k and [v, 1] of the tokens t. */
static void
mlstm_keys(const struct la_head *h, const struct gated_backward_scratch *r,
           struct span t)
{
    const struct mlstm_backward_scratch *all = mlstm_of(r);
    const ptrdiff_t rows = round_up(t.rows, MR), keys = keys_left(h, t);
    load_features(h, t, r->b);
    load_token_row(all->write, &h->write, t);
    t.rows = keys;
    load_plain(r->v, &h->v, t, r->values);
    if (r->values < h->m) {
        set_column(r->v, keys, r->values, NULL);
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
                   ptrdiff_t tokens, T *s)
{
    const struct mlstm_backward_scratch *all = mlstm_of(r);
    const ptrdiff_t rows = round_up(tokens, MR), W = round_up(h->d, VL);
    const struct block z = {all->z, 0}, none = {NULL, 0};
    for (ptrdiff_t j = 0; j < W; j += VL) {
        vstore(&all->z[j], vload(state_at(s, h->m, W, r->values, j)));
    }
    row_dots(all->sums, r->far_a, z, rows, W);
    add_triangle_dots(all->sums, r->x, none, rows);
    row_dots(all->dots, r->far_a, r->da, rows, W);
    add_triangle_dots(all->dots, r->x, r->p, rows);
    mlstm_slopes(all->h, all, tokens);
}

/* The cotangents of a chunk, and its products with them. */
static void
mlstm_cotangents(const struct la_head *h, const struct gated_backward_scratch *r,
                 struct span t, T *s)
{
    const struct mlstm_backward_scratch *all = mlstm_of(r);
    const struct block given[] = {r->c, r->p, r->da};
    const ptrdiff_t rows = round_up(t.rows, MR);
    const int by_z = r->values < h->m;
    int lifted = 0;
    load_token_row(all->top, &h->top, t);
    if (by_z) {
        mlstm_denominators(h, r, t.rows, s);
    }
    else {
        lifted = mlstm_scales(all->h, all->factor, all->lift, all->top, t.rows);
    }
    for (int i = 0; i < 3; i++) {
        scale_rows(given[i], t.rows, all->factor);
        for (int times = 0; lifted && times < 2; times++) {
            lift_rows(given[i], t.rows, given[i].ld, all->lift);
        }
    }
    if (by_z) {
        add_outer(r->p, all->sums, NULL, t.rows, rows);
        add_outer(r->da, all->sums, all->z, t.rows, round_up(h->d, VL));
        set_column(r->c, t.rows, r->values, all->sums);
    }
}

/* dk from dB; the gradients of log write and m. */
static void
mlstm_finish(const struct la_head *h, const struct gated_backward_scratch *r,
             struct span t)
{
    const struct mlstm_backward_scratch *all = mlstm_of(r);
    row_dots(all->dots, r->b, r->db, t.rows, round_up(h->d, VL));
    for (ptrdiff_t i = 0; i < t.rows; i += VL) {
        const ivec writes = vload(&all->write[i]) != (vec){0};
        vstore(&all->dots[i], vkeep(writes, vload(&all->dots[i])));
    }
    scale_rows(r->db, t.rows, all->write);
    store_numbers(&h->dwrite, t, all->dots);
    store_numbers(&h->dtop, t, all->slope);
}

static const struct gated_backward_parts mlstm_parts = {mlstm_keys, mlstm_cotangents,
                                                        mlstm_finish};

/* The head that gated attention sees. */
static struct la_head
mlstm_head(const struct la_head *h)
{
    struct la_head one = *h;
    one.m = h->m + (h->by_z != 0);
    one.scale = 1;
    return one;
}

static struct mlstm_backward_scratch
mlstm_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct la_head one = *h;
    one.m = h->m + 1; /* scratch is measured without by_z */
    const ptrdiff_t rows = gated_backward_rows(h->d);
    struct mlstm_backward_scratch r = {.gated = gated_backward_carve(&one, arena)};
    T **const numbers[] = {&r.write, &r.top,  &r.factor, &r.lift,
                           &r.sums,  &r.dots, &r.slope};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        *numbers[i] = take_row(arena, rows);
    }
    r.z = take_row(arena, h->d);
    r.gated.parts = &mlstm_parts;
    r.gated.values = h->m;
    r.h = h;
    return r;
}

static int
run_mlstm_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct mlstm_backward_scratch r = mlstm_backward_carve(h, &arena);
    const struct la_head one = mlstm_head(h);
    clear(r.slope, row_step(r.gated.chunks.rows)); /* without by_z */
    return gated_gradients(&one, &r.gated);
}

#endif
