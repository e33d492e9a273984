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
 * What does depend on m is eps, which stands beside a multiple of e^-m, dm_i = eps e_i,
 * and the last state, whose log_scale has the gradient grad_log_scale - <grad_s, s> -
 * <grad_z, z> at constant memory.  These follow the larger of log sigma(f_t) + m_{t-1}
 * and i_t, token by token, to the first log_scale.  About 12 n d m flops plus the
 * triangles.  Scratch: that of gated_backward.h, two states, seven numbers a token. */
#ifndef LA_MLSTM_BACKWARD_H
#define LA_MLSTM_BACKWARD_H

#include "gated_backward.h"
#include "mlstm.h"

struct mlstm_backward_scratch {
    struct gated_backward_scratch gated; /* first: its parts get a pointer to it */
    const struct la_head *h;
    T *write, *top, *factor, *lift; /* (rows) */
    T *sums, *dots, *slope, *z;     /* z.q, g.(s^T q) and e; z, (d) */
    struct mlstm_gates gates;
    T *da, *di, *dm;          /* (n): of log sigma(f), log write and m */
    struct block first, last; /* [s, z] before all tokens; the gradient of those after
                                 all, then of those before */
    double *at_last; /* <grad_s, s> + <grad_z, z>, of the state after all tokens */
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
    const struct la_array write = in_scratch(all->gates.write);
    load_token_row(all->write, &write, t);
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
    const struct la_array top = in_scratch(all->gates.top);
    const int by_z = r->values < h->m;
    int lifted = 0;
    load_token_row(all->top, &top, t);
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
    memcpy(all->di + t.first, all->dots, (size_t)t.rows * sizeof(T));
    memcpy(all->dm + t.first, all->slope, (size_t)t.rows * sizeof(T));
}

/* The product of the last state with its gradient. */
static void
mlstm_last(const struct la_head *h, const struct gated_backward_scratch *r)
{
    const ptrdiff_t width = round_up(h->m, VL), depth = round_up(h->d, VL);
    double sum = 0;
    for (ptrdiff_t l = 0; la_is_given(&h->grad_s) && l < h->d; l++) {
        for (ptrdiff_t j = 0; j < h->m; j++) {
            const T *grad = state_at(r->r, h->d, width, l, j / VL * VL);
            const T *s = state_at(r->rt, h->m, depth, j, l / VL * VL);
            sum += (double)grad[j % VL] * (double)s[l % VL];
        }
    }
    *mlstm_of(r)->at_last = sum;
}

static const struct gated_backward_parts mlstm_parts = {mlstm_keys, mlstm_cotangents,
                                                        mlstm_finish, mlstm_last};

/* [s, z] as one operand in x, without z where there is none; nothing of nothing. */
static struct la_array
joined(const struct la_head *h, struct block x, const struct la_array *s,
       const struct la_array *z, T *row)
{
    if (!la_is_given(s) && !la_is_given(z)) {
        return *s;
    }
    clear_rows(x, 0, h->d);
    if (la_is_given(s)) {
        load_plain(x, s, rows_from(0, h->d), h->m);
    }
    if (h->normalize) {
        load_vector(row, z, h->d);
        set_column(x, h->d, h->m, row);
    }
    return block_array(x);
}

/* The head that gated attention sees. */
static struct la_head
mlstm_head(const struct la_head *h, const struct mlstm_backward_scratch *r)
{
    struct la_head one = *h;
    one.m = h->m + h->normalize;
    one.scale = 1;
    one.g = in_scratch(r->gates.g);
    one.dg = in_scratch(r->da);
    one.s0 = joined(h, r->first, &h->s0, &h->z0, r->z);
    one.grad_s = joined(h, r->last, &h->grad_s, &h->grad_z, r->z);
    one.ds0 = block_array(r->last);
    return one;
}

static struct mlstm_backward_scratch
mlstm_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct la_head one = *h;
    one.m = h->m + h->normalize;
    const ptrdiff_t rows = gated_backward_rows(h->d);
    struct mlstm_backward_scratch r = {.gated = gated_backward_carve(&one, arena)};
    T **const numbers[] = {&r.write, &r.top,  &r.factor, &r.lift,
                           &r.sums,  &r.dots, &r.slope};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        *numbers[i] = take_row(arena, rows);
    }
    r.z = take_row(arena, h->d);
    r.gates = take_mlstm_gates(h, arena);
    r.gates.carries = (unsigned char *)take(arena, h->n / (ptrdiff_t)sizeof(T) + 1, 1);
    r.da = take_row(arena, h->n);
    r.di = take_row(arena, h->n);
    r.dm = take_row(arena, h->n);
    r.first = take_block(arena, round_up(h->d, MR), one.m);
    r.last = take_block(arena, round_up(h->d, MR), one.m);
    r.gated.parts = &mlstm_parts;
    r.gated.values = h->m;
    r.h = h;
    return r;
}

/* Adds the gradients of m to those of the gates, from that of m after the last token
 * on; returns what is left for the first m. */
static double
through_maximum(const struct la_head *h, const struct mlstm_backward_scratch *r,
                double m)
{
    for (ptrdiff_t t = h->n - 1; t >= 0; t--) {
        m += h->eps != 0 ? (double)r->dm[t] : 0;
        if (!r->gates.carries[t]) {
            r->di[t] = (T)(r->di[t] + m);
            m = 0;
        }
        else if (t < h->keys) {
            r->da[t] = (T)(r->da[t] + m);
        }
    }
    return m;
}

/* df = da (1 - sigma(f)), and di. */
static void
store_gate_gradients(const struct la_head *h, const struct mlstm_backward_scratch *r)
{
    const struct span all = rows_from(0, h->n);
    T *const f = r->gates.top; /* unused by now */
    load_token_row(f, &h->f_gate, all);
    for (ptrdiff_t t = keys_left(h, all); t < h->n; t++) {
        f[t] = r->da[t] = 0;
    }
    for (ptrdiff_t t = 0; t < h->n; t += VL) {
        vstore(&r->da[t], vload(&r->da[t]) * vsigmoid(-vload(&f[t])));
    }
    store_numbers(&h->df_gate, all, r->da);
    store_numbers(&h->di_gate, all, r->di);
}

/* The gradient of the first state, of whose log_scale `m` is what came through m. */
static void
store_first_gradient(const struct la_head *h, const struct mlstm_backward_scratch *r,
                     double m)
{
    const int begins = la_is_given(&h->s0) || la_is_given(&h->z0);
    for (ptrdiff_t l = 0; l < h->d; l++) {
        const T *grad = &r->last.x[l * r->last.ld], *s = &r->first.x[l * r->first.ld];
        for (ptrdiff_t j = 0; begins && j < h->m + h->normalize; j++) {
            m += (double)grad[j] * (double)s[j];
        }
        r->z[l] = h->normalize ? grad[h->m] : 0;
    }
    const T log_scale = (T)m;
    if (la_is_given(&h->ds0)) {
        store_rows(&h->ds0, rows_from(0, h->d), h->m, r->last, NULL);
    }
    store_vector(&h->dz0, r->z, h->d);
    if (la_is_given(&h->dlog_scale0)) {
        memcpy(h->dlog_scale0.data, &log_scale, sizeof(log_scale));
    }
}

static int
run_mlstm_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct mlstm_backward_scratch r = mlstm_backward_carve(h, &arena);
    const struct la_head one = mlstm_head(h, &r);
    double at_last = 0;
    T last = 0;
    r.at_last = &at_last;
    clear(r.slope, row_step(r.gated.chunks.rows)); /* without z */
    if (load_mlstm_gates(h, &r.gates) || gated_gradients(&one, &r.gated)) {
        return 1;
    }
    if (la_is_given(&h->grad_log_scale)) {
        memcpy(&last, h->grad_log_scale.data, sizeof(last));
    }
    const double first = through_maximum(h, &r, last - at_last);
    store_gate_gradients(h, &r);
    store_first_gradient(h, &r, first);
    return 0;
}

#endif
