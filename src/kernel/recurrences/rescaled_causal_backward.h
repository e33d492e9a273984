/* rescaled_causal_backward.h: gradients of rescaled_causal.h, in two scans as in
 * causal_backward.h, with g the cotangent:
 *
 *    forward    u_i = s_i g_i
 *               da_i from u_i and z_i (recurrence.h), which also gives r_i and w_i
 *               dc_i = w_i eps / scale
 *               dq_i = t omega (a_i da_i + dc_i at the feature whose term is c_i)
 *    reverse    R_j = sum_{i >= j} a_i (r_i g_i)^T,  M's gradient likewise from dc
 *               dv_j = R_j^T b_j
 *               de_j = b_j (R_j v_j + sum_{i >= j} w_i a_i)
 *                      + M's where e_j is the largest
 *               dk_j = t omega de_j - t^2 k_j sum(de_j)
 *
 * The scales K cancel.  c_i cancels except for eps, since the quotient is
 *
 *    scale N_i / (scale D_i + eps e^c_i)
 *
 * of plain sums N and D.  If s0 and z0 are plain sums, M is log z0, and the gradient of
 * M contributes to that of z0.
 *
 * About 10 n f m + 10 n d f flops.  Scratch: two states, omega twice, about f /
 * LA_RESCALED_ROWS_MAX numbers per token, and some chunks. */
#ifndef LA_RESCALED_CAUSAL_BACKWARD_H
#define LA_RESCALED_CAUSAL_BACKWARD_H

#include "rescaled_causal.h"

struct rescaled_causal_backward_scratch {
    ptrdiff_t rows; /* tokens per chunk */
    struct rescaled_features f;
    struct block a, b, v, grad_out, dots, da, dv, zs, dx;
    struct block running_maxima;               /* M before each chunk */
    T *s, *t, *lost, *z, *z_lost, *transposed; /* transposed: t omega^T (f,d) */
    T *den, *weight;                           /* r and w of one piece */
    T *r, *w;                                  /* one number for every token */
    T *drunning_max;                           /* M's gradient */
};

static struct rescaled_causal_backward_scratch
rescaled_causal_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct rescaled_causal_backward_scratch r = {.rows = chunk_rows(h->f)};
    r.f = rescaled_features_carve(h, arena, r.rows);
    r.a = take_block(arena, r.rows, h->f);
    r.b = take_block(arena, r.rows, h->f);
    r.v = take_block(arena, r.rows + MR, h->m);
    r.grad_out = take_block(arena, r.rows + MR, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.da = take_block(arena, r.rows, h->f);
    r.dv = take_block(arena, r.rows, h->m);
    r.zs = take_block(arena, r.rows, h->f);
    r.dx = take_block(arena, r.rows, h->d);
    r.running_maxima = take_block(arena, h->n / r.rows + 1, h->f);
    r.s = take_state(arena, h->f, h->m);
    r.t = take_state(arena, h->m, h->f);
    r.lost = take_state(arena, h->f, h->m);
    r.transposed = take_state(arena, h->f, h->d);
    r.z = take_row(arena, h->f);
    r.z_lost = take_row(arena, h->f);
    r.den = take(arena, 1, r.rows);
    r.weight = take(arena, 1, r.rows);
    r.r = take(arena, 1, h->n);
    r.w = take(arena, 1, h->n);
    r.drunning_max = take_row(arena, h->f);
    return r;
}

/* The gradient of c_i, from w_i. */
static T
gradient_of_c(const struct la_head *h, T w)
{
    return h->scale != 0 ? w * (T)(h->eps / h->scale) : 0;
}

/* dx = t omega du for some rows. */
static void
pull(const struct la_head *h, const struct rescaled_causal_backward_scratch *r,
     struct block du, ptrdiff_t rows)
{
    const struct sweep c = {
        .rows = rows,
        .K = h->f,
        .W = round_up(h->d, VL),
        .a = du,
        .o = r->dx,
        .s = r->transposed,
    };
    sweep(&c, LA_READ);
}

/* x = x y for some rows. */
static void
times_rows(struct block x, struct block y, ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t l = 0; l < cols; l += VL) {
            T *p = &x.x[i * x.ld + l];
            vstore(p, vload(p) * vload(&y.x[i * y.ld + l]));
        }
    }
}

/* v and grad_out of the chunk t. */
static void
load_columns(const struct la_head *h, const struct rescaled_causal_backward_scratch *r,
             struct span t)
{
    load_values(h, t, r->v);
    load_plain(r->grad_out, &h->grad_out, t, h->m);
    clear_after(r->v, t.rows);
    clear_after(r->grad_out, t.rows);
}

/* --- the forward scan ------------------------------------------------------- */

/* dq, r and w of the rows [from, to) of the chunk t, which have the same scale. */
static void
rescaled_dq_piece(const struct la_head *inner,
                  const struct rescaled_causal_backward_scratch *r, struct sweep *c,
                  struct span t, ptrdiff_t from, ptrdiff_t to, int keyless)
{
    const struct rescaled_features *f = &r->f;
    const ptrdiff_t rows = to - from, first = t.first + from;
    if (scale_change(f, running_max_after(f, from), running_max_after(f, from + 1))) {
        scale_sums(f, c, r->z, r->z_lost, 1);
    }
    rescaled_rows(f, r->a, r->b, from, to, keys_left(inner, t));
    c->rows = rows;
    c->a = block_at(r->grad_out, from, 0);
    c->b = block_at(r->v, from, 0);
    scores(c);
    sweep(c, LA_READ | LA_WRITE);
    running_sums(r->zs, r->z, r->z_lost, r->b, rows);
    query_gradient(inner, r->da, r->a, r->zs, rows, r->den, r->weight, keyless, NULL);
    memcpy(r->r + first, r->den, (size_t)rows * sizeof(T));
    memcpy(r->w + first, r->weight, (size_t)rows * sizeof(T));
    times_rows(r->da, r->a, rows, f->width);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const ptrdiff_t l =
            largest_feature(f, from + i, running_max_after(f, from + i + 1));
        if (l >= 0) {
            r->da.x[i * r->da.ld + l] += gradient_of_c(inner, r->weight[i]);
        }
    }
}

static int
rescaled_dq(const struct la_head *h, const struct rescaled_causal_backward_scratch *r)
{
    const struct la_head inner = head_of_features(h);
    const struct la_array s0_transposed = transposed(h->s0);
    struct la_fetch ahead = {0};
    struct sweep c = {
        .K = h->m,
        .W = r->f.width,
        .v = r->b,
        .dots = r->dots,
        .o = r->da,
        .s = r->t,
        .ahead = &ahead,
    };
    load_state(r->t, &s0_transposed, h->m, h->f);
    compensate(&c, h, r->lost, r->rows);
    load_vector(r->z, &h->z0, h->f);
    clear(r->z_lost, r->a.ld);
    if (load_running_max(h, &r->f, r->z) &&
        scale_change(&r->f, NULL, r->f.running_max.x)) {
        scale_sums(&r->f, &c, r->z, r->z_lost, 1);
    }
    const int keyless = no_keys(&inner, r->z);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        const struct span t = span(i, r->rows, i + r->rows, h->n, &ahead);
        const size_t row = (size_t)r->running_maxima.ld * sizeof(T);
        memcpy(r->running_maxima.x + i / r->rows * r->running_maxima.ld,
               r->f.running_max.x, row);
        rescaled_chunk(h, &r->f, t, keys_left(h, t));
        load_columns(h, r, t);
        look_ahead(&h->dq, t, h->d);
        for (ptrdiff_t from = 0, to; from < t.rows; from = to) {
            if (h->poll(h->poll_arg)) {
                return 1;
            }
            to = piece_end(&r->f, from, t.rows);
            rescaled_dq_piece(&inner, r, &c, t, from, to, keyless);
            pull(h, r, r->da, to - from);
            store_rows(&h->dq, rows_from(i + from, to - from), h->d, r->dx, NULL);
        }
        memcpy(r->f.running_max.x, running_max_after(&r->f, t.rows), row);
    }
    return 0;
}

/* --- the reverse scan ------------------------------------------------------- */

/* M's gradient over the rows [from, to) of the chunk t.  If a key increases M, the
 * gradient from later queries belongs to its exponent and moves to de. */
static void
gradient_of_running_max(const struct la_head *h,
                        const struct rescaled_causal_backward_scratch *r, struct span t,
                        ptrdiff_t from, ptrdiff_t to)
{
    const struct rescaled_features *f = &r->f;
    for (ptrdiff_t i = to - 1; i >= from; i--) {
        const T *before = running_max_after(f, i), *after = running_max_after(f, i + 1);
        const ptrdiff_t argmax = largest_feature(f, i, after);
        T *de = r->da.x + (i - from) * r->da.ld;
        if (argmax >= 0 && isfinite(after[argmax])) {
            r->drunning_max[argmax] += gradient_of_c(h, r->w[t.first + i]);
        }
        for (ptrdiff_t j = 0; j < f->width; j += VL) {
            const ivec grew = vload(&after[j]) > vload(&before[j]);
            const vec drunning_max = vload(&r->drunning_max[j]);
            vstore(&de[j], vload(&de[j]) + vkeep(grew, drunning_max));
            vstore(&r->drunning_max[j], vkeep(~grew, drunning_max));
        }
    }
}

/* dx = dk of the rows [from, to) of the chunk, from de; the first `keys` rows of the
 * chunk have keys. */
static void
rescaled_dk(const struct la_head *h, const struct rescaled_causal_backward_scratch *r,
            ptrdiff_t from, ptrdiff_t to, ptrdiff_t keys)
{
    const struct rescaled_features *f = &r->f;
    pull(h, r, r->da, to - from);
    for (ptrdiff_t i = from; i < to && i < keys; i++) {
        const T *de = r->da.x + (i - from) * r->da.ld, *x = f->x.x + i * f->x.ld;
        T *dx = r->dx.x + (i - from) * r->dx.ld, total = 0;
        vec sum = (vec){0};
        for (ptrdiff_t j = 0; j < h->f; j += VL) {
            sum += vkeep(first_lanes(h->f - j), vload(&de[j]));
        }
        for (int lane = 0; lane < VL; lane++) {
            total += sum[lane];
        }
        const vec factor = vset1(-f->t * f->t * total);
        for (ptrdiff_t l = 0; l < h->d; l += VL) {
            vstore(&dx[l], vfma(factor, vload(&x[l]), vload(&dx[l])));
        }
    }
    clear_rows(r->dx, keys > from ? keys - from : 0, to - from);
}

/* dv and de of the rows [from, to) of the chunk t, which have the same scale; s holds R
 * under that scale. */
static void
rescaled_dkv_piece(const struct la_head *h,
                   const struct rescaled_causal_backward_scratch *r, struct sweep *dv,
                   struct sweep *db, struct span t, ptrdiff_t from, ptrdiff_t to)
{
    const ptrdiff_t rows = to - from, keys = keys_left(h, t);
    const T *w = r->w + t.first + from;
    set_scale(&r->f, running_max_after(&r->f, from + 1));
    rescaled_rows(&r->f, r->a, r->b, from, to, keys);
    transpose_state(r->t, r->s, h->f, h->m);
    dv->rows = db->rows = rows;
    dv->v = db->b = block_at(r->grad_out, from, 0);
    db->a = block_at(r->v, from, 0);
    scores(dv);
    sweep(dv, LA_READ | LA_WRITE);
    scores(db);
    add_to_rows(r->dots, rows, w);
    sweep(db, LA_READ);
    add_weighted(r->z, r->z_lost, r->a, w, rows);
    times_rows(r->da, r->b, rows, r->f.width);
    clear_rows(r->da, keys > from ? keys - from : 0, rows);
    clear_rows(r->dv, keys > from ? keys - from : 0, rows);
    gradient_of_running_max(h, r, t, from, to);
}

/* The pieces of the chunk t, in reverse; returns 0, or nonzero if poll asked to
 * stop. */
static int
rescaled_dkv_chunk(const struct la_head *h,
                   const struct rescaled_causal_backward_scratch *r, struct sweep *dv,
                   struct sweep *db, struct span t)
{
    ptrdiff_t ends[LA_RESCALED_ROWS_MAX + 1] = {0}, pieces = 0;
    while (ends[pieces] < t.rows) {
        ends[pieces + 1] = piece_end(&r->f, ends[pieces], t.rows);
        pieces++;
    }
    for (; pieces > 0; pieces--) {
        const ptrdiff_t from = ends[pieces - 1], to = ends[pieces];
        const struct span rows = rows_from(t.first + from, to - from);
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        rescaled_dkv_piece(h, r, dv, db, t, from, to);
        rescaled_dk(h, r, from, to, keys_left(h, t));
        store_rows(&h->dk, rows, h->d, r->dx, NULL);
        store_rows(&h->dv, rows, h->m, r->dv, NULL);
        if (scale_change(&r->f, running_max_after(&r->f, from),
                         running_max_after(&r->f, from + 1))) {
            scale_sums(&r->f, dv, r->z, r->z_lost, 0);
        }
    }
    return 0;
}

/* Stores the gradient of the first state: R and the sums with it, which have the
 * state's scale by now; if the state is plain sums, the gradient of those. */
static void
store_state_gradient(const struct la_head *h,
                     const struct rescaled_causal_backward_scratch *r,
                     const struct sweep *dv)
{
    T *const z0 = r->zs.x, *const running_max = r->f.running_max.x;
    load_vector(z0, &h->z0, h->f);
    if (load_running_max(h, &r->f, z0)) {
        if (scale_change(&r->f, NULL, running_max)) {
            scale_sums(&r->f, dv, r->z, r->z_lost, 0);
        }
        for (ptrdiff_t l = 0; l < h->f; l++) {
            r->z[l] += isfinite(running_max[l]) ? r->drunning_max[l] / z0[l] : 0;
        }
        clear(r->drunning_max, r->a.ld);
    }
    store_state(&h->ds0, r->s, h->f, h->m);
    store_vector(&h->dz0, r->z, h->f);
    store_vector(&h->drunning_max, r->drunning_max, h->f);
}

static int
rescaled_dkv(const struct la_head *h, const struct rescaled_causal_backward_scratch *r)
{
    struct la_fetch ahead = {0};
    struct sweep dv = {
        .K = h->f,
        .W = round_up(h->m, VL),
        .a = r->b,
        .b = r->a,
        .dots = r->dots,
        .o = r->dv,
        .s = r->s,
        .upper = 1,
        .ahead = &ahead,
    };
    struct sweep db = {
        .K = h->m,
        .W = r->f.width,
        .v = r->a,
        .dots = r->dots,
        .o = r->da,
        .s = r->t,
        .bias = r->z,
        .upper = 1,
        .ahead = &ahead,
    };
    load_state(r->s, &h->grad_s, h->f, h->m);
    compensate(&dv, h, r->lost, r->rows);
    load_vector(r->z, &h->grad_z, h->f);
    clear(r->z_lost, r->a.ld);
    load_vector(r->drunning_max, &h->grad_running_max, h->f);
    for (ptrdiff_t i = (h->n - 1) / r->rows * r->rows; i >= 0 && h->n > 0;
         i -= r->rows) {
        const struct span t = span(i, r->rows, i - r->rows, h->n, &ahead);
        memcpy(r->f.running_max.x,
               r->running_maxima.x + i / r->rows * r->running_maxima.ld,
               (size_t)r->running_maxima.ld * sizeof(T));
        rescaled_chunk(h, &r->f, t, keys_left(h, t));
        load_columns(h, r, t);
        look_ahead(&h->dk, t, h->d);
        look_ahead(&h->dv, t, h->m);
        scale_rows(r->grad_out, t.rows, r->r + i);
        if (rescaled_dkv_chunk(h, r, &dv, &db, t)) {
            return 1;
        }
    }
    store_state_gradient(h, r, &dv);
    return 0;
}

static int
run_rescaled_causal_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct rescaled_causal_backward_scratch r =
        rescaled_causal_backward_carve(h, &arena);
    load_directions(h, &r.f);
    transpose_state(r.transposed, r.f.omega, h->d, h->f);
    return rescaled_dq(h, &r) || rescaled_dkv(h, &r);
}

#endif
