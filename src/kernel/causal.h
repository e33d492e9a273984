/* causal.h: causal linear attention, one head, forward and backward, in chunks.
 *
 *   s_i = s_{i-1} + phi(k_i) v_i^T,  z_i = z_{i-1} + phi(k_i)
 *   o_i = scale phi(q_i)^T s_i / (scale phi(q_i).z_i + eps)
 *                                            Katharopoulos et al. 2020, eq. 9-12
 * About 4 n d m flops.  Scratch: the state, d m numbers, and a few chunks.
 * Nothing of row j > i reaches row i.
 *
 * A long sequence is a row of segments (segments.c): the state before each of them plus
 * what the segment adds, summed by itself.  So a segment whose start is known gives the
 * same bits alone; what it adds costs some traffic, about 10 %. */
#ifndef LA_CAUSAL_H
#define LA_CAUSAL_H

#include "scan.h"

struct causal_scratch {
    ptrdiff_t rows; /* tokens a chunk */
    struct block a, b, v, dots, o;
    T *s, *e, *z, *ze, *den;
    T *base, *sum, *z_base, *z_sum; /* where there are segments */
};

static struct causal_scratch
causal_carve(const struct la_head *h, struct arena *arena)
{
    struct causal_scratch r = {.rows = chunk_rows(h->d)};
    r.a = take_block(arena, r.rows, h->d);
    r.b = take_block(arena, r.rows, h->d);
    r.v = take_block(arena, r.rows, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.o = take_block(arena, r.rows, h->m);
    r.s = take_state(arena, h->d, h->m);
    r.e = take_state(arena, h->d, h->m);
    r.z = take_row(arena, h->d);
    r.ze = take_row(arena, h->d);
    r.den = take(arena, 1, r.rows);
    if (h->segment > 0) {
        r.base = take_state(arena, h->d, h->m);
        r.sum = take_state(arena, h->d, h->m);
        r.z_base = take_row(arena, h->d);
        r.z_sum = take_row(arena, h->d);
    }
    return r;
}

/* z = z_base + z_sum */
static void
add_base(const struct causal_scratch *r)
{
    for (ptrdiff_t l = 0; l < r->a.ld; l += VL) {
        vstore(&r->z[l], vload(&r->z_base[l]) + vload(&r->z_sum[l]));
    }
}

static int
run_causal(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct causal_scratch r = causal_carve(h, &arena);
    struct la_fetch ahead = {0};
    struct scan c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r.a,
        .b = r.b,
        .v = r.v,
        .dots = r.dots,
        .o = r.o,
        .s = r.s,
        .ahead = &ahead,
    };
    load_state(r.s, &h->s0, h->d, h->m);
    compensate(&c, r.e, h->n, r.rows);
    load_vector(r.z, &h->z0, h->d);
    clear(r.ze, r.a.ld);
    const int keyless = no_keys(h, r.s, r.z);
    for (ptrdiff_t i = 0; i < h->n; i += r.rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r.rows, i + r.rows, h->n, &ahead);
        c.rows = t.rows;
        if (h->segment > 0 && i % h->segment == 0 &&
            i / h->segment < LA_SEGMENT_COUNT) {
            begin_segment(&c, r.base, r.sum, r.e);
            memcpy(r.z_base, r.z, (size_t)r.a.ld * sizeof(T));
            clear(r.z_sum, r.a.ld);
            clear(r.ze, r.a.ld);
        }
        /* A sum by itself has nothing of chunks without keys. */
        const int writes = h->segment == 0 || keys_left(h, t) > 0 ? LA_WRITE : 0;
        load_keys(h, t, r.b, r.v);
        for (ptrdiff_t g = 0; g < h->group; g++) {
            const struct la_array q = shifted(&h->q, g * h->q_step);
            const struct la_array o = shifted(&h->o, g * h->o_step);
            load_mapped(r.a, &q, t, h->d, h->map);
            look_ahead(&o, t, h->m);
            scores(&c);
            if (h->normalize) {
                score_sums(r.den, &c, r.z);
            }
            factors(h, r.den, c.rows, keyless);
            sweep(&c, g + 1 < h->group ? LA_READ : LA_READ | writes);
            store_rows(&o, t, h->m, r.o, r.den);
        }
        if (h->normalize && writes) {
            add_rows(h->segment > 0 ? r.z_sum : r.z, r.ze, r.b, c.rows);
            if (h->segment > 0) {
                add_base(&r);
            }
        }
    }
    store_states(h, r.s, r.z);
    return 0;
}

/* Backward, in two scans (g is the cotangent, a = phi(q), b = phi(k)):
 *
 * forward    u_i = s_i g_i, which is causal attention of g to v and b;
 *            dq_i from u_i, z_i (scan.h), which leaves r_i and w_i, two numbers a
 *            token, for the second scan
 * reverse    R_j = sum_{i >= j} a_i (r_i g_i)^T
 *            dv_j = R_j^T b_j
 *            db_j = R_j v_j + sum_{i >= j} w_i a_i
 *
 * About 10 n d m flops.  Scratch: 2 d m + 2 n numbers, and a few chunks. */
struct causal_backward_scratch {
    ptrdiff_t rows; /* tokens a chunk */
    struct block a, b, v, g, dots, da, dv, zs;
    T *s, *t, *e, *z, *ze;
    T *r, *w; /* of every token */
};

static struct causal_backward_scratch
causal_backward_carve(const struct la_head *h, struct arena *arena)
{
    struct causal_backward_scratch r = {.rows = chunk_rows(h->d)};
    r.a = take_block(arena, r.rows, h->d);
    r.b = take_block(arena, r.rows, h->d);
    r.v = take_block(arena, r.rows, h->m);
    r.g = take_block(arena, r.rows, h->m);
    r.dots = take_block(arena, r.rows, r.rows);
    r.da = take_block(arena, r.rows, h->d);
    r.dv = take_block(arena, r.rows, h->m);
    r.zs = take_block(arena, r.rows, h->d);
    r.s = take_state(arena, h->d, h->m);
    r.t = take_state(arena, h->m, h->d);
    r.e = take_state(arena, h->d, h->m);
    r.z = take_row(arena, h->d);
    r.ze = take_row(arena, h->d);
    r.r = take(arena, 1, h->n + r.rows);
    r.w = take(arena, 1, h->n + r.rows);
    return r;
}

/* The forward scan: dq, and r_i, w_i of every token. */
static int
causal_dq(const struct la_head *h, const struct causal_backward_scratch *r)
{
    struct la_fetch ahead = {0};
    struct scan c = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->g,
        .b = r->v,
        .v = r->b,
        .dots = r->dots,
        .o = r->da,
        .s = r->t,
        .ahead = &ahead,
    };
    const struct la_array s0_transposed = {h->s0.data, h->s0.cs, h->s0.rs, h->s0.type};
    load_state(r->t, &s0_transposed, h->m, h->d);
    compensate(&c, r->e, h->n, r->rows);
    load_vector(r->z, &h->z0, h->d);
    clear(r->ze, r->a.ld);
    const int keyless = no_keys(h, r->t, r->z);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i + r->rows, h->n, &ahead);
        c.rows = t.rows;
        load_mapped(r->a, &h->q, t, h->d, h->map);
        load_keys(h, t, r->b, r->v);
        load_plain(r->g, &h->g, t, h->m);
        look_ahead(&h->dq, t, h->d);
        scores(&c);
        sweep(&c, LA_READ | LA_WRITE);
        if (h->normalize) {
            running_sums(r->zs, r->z, r->ze, r->b, c.rows);
        }
        query_gradient(h, r->da, r->a, r->zs, c.rows, r->r + i, r->w + i, keyless);
        chain(r->da, &h->q, t, h->d, r->a, h->map);
        store_rows(&h->dq, t, h->d, r->da, NULL);
    }
    return 0;
}

/* The reverse scan: dk and dv.  s holds R and t its transpose. */
static int
causal_dkv(const struct la_head *h, const struct causal_backward_scratch *r)
{
    struct la_fetch ahead = {0};
    struct scan dv = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->b,
        .b = r->a,
        .v = r->g,
        .dots = r->dots,
        .o = r->dv,
        .s = r->s,
        .upper = 1,
        .ahead = &ahead,
    };
    struct scan db = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .a = r->v,
        .b = r->g,
        .v = r->a,
        .dots = r->dots,
        .o = r->da,
        .s = r->t,
        .bias = r->z,
        .upper = 1,
        .ahead = &ahead,
    };
    load_state(r->s, &h->gs, h->d, h->m);
    transpose_state(r->t, r->s, h->d, h->m);
    compensate(&dv, r->e, h->n, r->rows);
    load_vector(r->z, &h->gz, h->d);
    clear(r->ze, r->a.ld);
    for (ptrdiff_t i = (h->n - 1) / r->rows * r->rows; i >= 0 && h->n > 0;
         i -= r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = span(i, r->rows, i - r->rows, h->n, &ahead);
        dv.rows = db.rows = t.rows;
        load_mapped(r->a, &h->q, t, h->d, h->map);
        load_keys(h, t, r->b, r->v);
        load_plain(r->g, &h->g, t, h->m);
        look_ahead(&h->dk, t, h->d);
        look_ahead(&h->dv, t, h->m);
        scale_rows(r->g, t.rows, r->r + i);
        scores(&dv);
        sweep(&dv, LA_READ | LA_WRITE);
        scores(&db);
        if (h->normalize) {
            add_to_rows(r->dots, t.rows, r->w + i);
        }
        sweep(&db, LA_READ);
        transpose_state(r->t, r->s, h->d, h->m);
        if (h->normalize) {
            add_weighted(r->z, r->ze, r->a, r->w + i, t.rows);
        }
        chain(r->da, &h->k, t, h->d, r->b, h->map);
        clear_rows(r->da, keys_left(h, t), t.rows);
        clear_rows(r->dv, keys_left(h, t), t.rows);
        store_rows(&h->dk, t, h->d, r->da, NULL);
        store_rows(&h->dv, t, h->m, r->dv, NULL);
    }
    store_state(&h->ds0, r->s, h->d, h->m);
    store_vector(&h->dz0, r->z, h->d);
    return 0;
}

static int
run_causal_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct causal_backward_scratch r = causal_backward_carve(h, &arena);
    return causal_dq(h, &r) || causal_dkv(h, &r);
}

#endif
