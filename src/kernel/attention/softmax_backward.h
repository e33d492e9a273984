/* softmax_backward.h: gradients of softmax.h, with g the cotangent of o:
 *
 *    D_i = g_i.o_i,  e_ij = p_ij (g_i.v_j - D_i),  dv_j = sum_i p_ij g_i,
 *    dk_j = sum_i e_ij (scale q_i),  dq_i = scale sum_j e_ij k_j
 *                                                        Dao et al. 2022, algorithm 4
 *
 * The forward pass is repeated for m_i, l_i and D_i.  Then each block of keys is
 * combined with all blocks of queries; scores have the same bits as in the forward
 * pass, so that p_ij never exceeds 1.  5 n s d + 2 n s m flops plus those of the
 * forward pass.  Sums over blocks are compensated.  Scratch: twice dq, three numbers
 * per query, and blocks of LA_BLOCK rows.  If causal, blocks on the diagonal are
 * computed row by row, so that a NaN of a later key or an earlier cotangent is never
 * multiplied by zero. */
#ifndef LA_SOFTMAX_BACKWARD_H
#define LA_SOFTMAX_BACKWARD_H

#include "softmax.h"

struct softmax_backward_scratch {
    struct softmax_scratch forward;
    T *dq, *running_max, *inverse, *mean; /* for all queries: dq, m, 1 / l, D */
    T *dq_lost;                           /* what dq has lost to rounding */
    T *q, *grad_out, *p, *e, *part;       /* a block of queries, with q times scale */
    T *k, *v, *vt, *dks, *dvs;            /* a block of keys: rows, states */
    T *dks_lost, *dvs_lost;
    T *dk, *dv; /* rows of the diagonal blocks' contributions */
};

static struct softmax_backward_scratch
softmax_backward_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t n = h->n, d = h->d, m = h->m;
    struct softmax_backward_scratch r = {.forward = softmax_carve(h, arena)};
    const ptrdiff_t ldd = r.forward.ldd, ldm = r.forward.ldm;
    r.dq = take(arena, n + LA_BLOCK, ldd);
    r.dq_lost = take(arena, n + LA_BLOCK, ldd);
    r.running_max = take(arena, 1, n + LA_QUERIES);
    r.inverse = take(arena, 1, n + LA_QUERIES);
    r.mean = take(arena, 1, n + LA_QUERIES);
    r.q = take(arena, LA_BLOCK, ldd);
    r.grad_out = take(arena, LA_QUERIES, ldm);
    r.p = take(arena, LA_BLOCK, LA_BLOCK);
    r.e = take(arena, LA_BLOCK, LA_BLOCK);
    r.part = take(arena, LA_BLOCK, ldd);
    r.k = take(arena, LA_BLOCK, ldd);
    r.vt = take_state(arena, m, LA_BLOCK);
    r.v = take_state(arena, LA_BLOCK, m);
    r.dks = take_state(arena, LA_BLOCK, d);
    r.dvs = take_state(arena, LA_BLOCK, m);
    r.dks_lost = take_state(arena, LA_BLOCK, d);
    r.dvs_lost = take_state(arena, LA_BLOCK, m);
    r.dk = take(arena, LA_BLOCK, ldd);
    r.dv = take(arena, LA_BLOCK, ldm);
    return r;
}

/* m_i, 1 / l_i and D_i of all queries. */
static int
softmax_again(const struct la_head *h, const struct softmax_backward_scratch *r)
{
    for (ptrdiff_t i = 0; i < h->n; i += LA_QUERIES) {
        const ptrdiff_t rows = h->n - i < LA_QUERIES ? h->n - i : LA_QUERIES;
        if (softmax_rows(h, &r->forward, i, rows)) {
            return 1;
        }
        load_plain((struct block){r->grad_out, r->forward.ldm}, &h->grad_out,
                   rows_from(i, rows), h->m);
        row_dots(&r->mean[i], (struct block){r->grad_out, r->forward.ldm},
                 (struct block){r->forward.o, r->forward.ldm}, rows, r->forward.ldm);
        for (ptrdiff_t l = 0; l < rows; l++) {
            const T sum = sum_lanes(vload(&r->forward.sum[l * VL]));
            r->inverse[i + l] = sum == 0 ? 0 : 1 / sum;
            r->running_max[i + l] = r->forward.running_max[l];
            r->mean[i + l] *= r->inverse[i + l];
        }
    }
    return 0;
}

/* p and e from the scores and the products g.v of queries [i, i + rows), with 0 from
 * key `end` on; on the diagonal, row l has the keys up to l. */
static void
weigh(const struct softmax_backward_scratch *r, ptrdiff_t i, ptrdiff_t rows,
      ptrdiff_t end, int diagonal)
{
    for (ptrdiff_t l = 0; l < round_up(rows, MR); l++) {
        const vec running_max = vset1(r->running_max[i + l]),
                  inverse = vset1(r->inverse[i + l]);
        const vec mean = vset1(r->mean[i + l]);
        const ptrdiff_t keys = l >= rows ? 0 : diagonal ? l + 1 : end;
        for (ptrdiff_t j = 0; j < LA_BLOCK; j += LA_MAPPED * VL) {
            T *p = &r->p[l * LA_BLOCK + j], *e = &r->e[l * LA_BLOCK + j];
            vec x[LA_MAPPED];
            LA_EACH(c, LA_MAPPED) {
                x[c] = vload(&p[c * VL]) - running_max;
            }
            map_exp(x, LA_MAPPED);
            LA_EACH(c, LA_MAPPED) {
                const ptrdiff_t left = keys - j - c * VL;
                const ivec there = first_lanes(left);
                const vec weight = x[c] * inverse;
                const vec slope = weight * (vload(&e[c * VL]) - mean);
                vstore(&p[c * VL], vkeep(there, weight));
                vstore(&e[c * VL], vkeep(there, slope));
            }
        }
    }
}

/* out_i += sum_{j <= i} x_ij y_j or, if `transposed`, out_j += sum_{i >= j} x_ij
 * y_i. */
static void
add_triangle(T *out, const T *x, ptrdiff_t ldx, const T *y, ptrdiff_t ld,
             ptrdiff_t rows, int transposed)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j <= i; j++) {
            T *to = out + (transposed ? j : i) * ld;
            const T *from = y + (transposed ? i : j) * ld;
            const vec weight = vset1(x[i * ldx + j]);
            for (ptrdiff_t l = 0; l < ld; l += VL) {
                *at(&to[l]) += weight * vload(&from[l]);
            }
        }
    }
}

/* dq of the queries [i, i + rows) += part, D numbers each. */
static void
add_part(const struct softmax_backward_scratch *r, ptrdiff_t i, ptrdiff_t rows,
         ptrdiff_t D)
{
    const ptrdiff_t ldd = r->forward.ldd;
    for (ptrdiff_t l = 0; l < rows; l++) {
        for (ptrdiff_t j = 0; j < D; j += VL) {
            const ptrdiff_t to = (i + l) * ldd + j;
            add_to_sum(&r->dq[to], &r->dq_lost[to], vload(&r->part[l * ldd + j]));
        }
    }
}

/* The gradients from one block of queries and one block of keys. */
static void
block_gradient(const struct la_head *h, const struct softmax_backward_scratch *r,
               ptrdiff_t i, ptrdiff_t keys, int diagonal, int far_keys)
{
    const ptrdiff_t d = h->d, m = h->m, ldd = r->forward.ldd, ldm = r->forward.ldm;
    const ptrdiff_t rows = h->n - i < LA_BLOCK ? h->n - i : LA_BLOCK;
    const ptrdiff_t D = round_up(d, VL), M = round_up(m, VL);
    const int far =
        load_queries(r->q, ldd, &h->q, rows_from(i, rows), d, (T)h->scale) || far_keys;
    load_plain((struct block){r->grad_out, ldm}, &h->grad_out, rows_from(i, rows), m);
    for (ptrdiff_t l = 0; l < rows; l += MR) {
        strip_scores(&r->forward, r->p + l * LA_BLOCK, r->q + l * ldd, d, far);
    }
    struct sweep c = {.rows = rows,
                      .K = m,
                      .W = LA_BLOCK,
                      .a = {r->grad_out, ldm},
                      .o = {r->e, LA_BLOCK},
                      .s = r->vt};
    sweep(&c, LA_READ);
    weigh(r, i, rows, keys, diagonal);
    if (diagonal) {
        clear(r->part, rows * ldd);
        add_triangle(r->part, r->e, LA_BLOCK, r->k, ldd, rows, 0);
        add_triangle(r->dk, r->e, LA_BLOCK, r->q, ldd, rows, 1);
        add_triangle(r->dv, r->p, LA_BLOCK, r->grad_out, ldm, rows, 1);
        add_part(r, i, rows, D);
        return;
    }
    c = (struct sweep){.rows = rows,
                       .K = LA_BLOCK,
                       .W = M,
                       .b = {r->p, LA_BLOCK},
                       .v = {r->grad_out, ldm},
                       .s = r->dvs,
                       .lost = r->dvs_lost};
    sweep(&c, LA_WRITE);
    c = (struct sweep){.rows = rows,
                       .K = LA_BLOCK,
                       .W = D,
                       .b = {r->e, LA_BLOCK},
                       .v = {r->q, ldd},
                       .s = r->dks,
                       .lost = r->dks_lost};
    sweep(&c, LA_WRITE);
    c = (struct sweep){.rows = rows,
                       .K = LA_BLOCK,
                       .W = D,
                       .a = {r->e, LA_BLOCK},
                       .o = {r->part, ldd},
                       .s = r->forward.rows};
    sweep(&c, LA_READ);
    add_part(r, i, rows, D);
}

/* sum (rows, ld) += the state (LA_BLOCK, cols); stores the result in x. */
static void
store_block(const struct la_array *x, ptrdiff_t first, ptrdiff_t rows, ptrdiff_t cols,
            T *sum, ptrdiff_t ld, T *state)
{
    const ptrdiff_t W = round_up(cols, VL);
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j < W; j += VL) {
            *at(&sum[i * ld + j]) += vload(state_at(state, LA_BLOCK, W, i, j));
        }
    }
    store_rows(x, rows_from(first, rows), cols, (struct block){sum, ld}, NULL);
}

static int
run_softmax_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct softmax_backward_scratch r = softmax_backward_carve(h, &arena);
    const ptrdiff_t n = h->n, d = h->d, s = h->s, m = h->m;
    const ptrdiff_t ldd = r.forward.ldd, ldm = r.forward.ldm;
    const int causal = h->causal != 0;
    if (softmax_again(h, &r)) {
        return 1;
    }
    clear(r.dq, (n + LA_BLOCK) * ldd);
    clear(r.dq_lost, (n + LA_BLOCK) * ldd);
    for (ptrdiff_t j = 0; j < s; j += LA_BLOCK) {
        const ptrdiff_t keys = s - j < LA_BLOCK ? s - j : LA_BLOCK;
        const struct la_array k = rows_after(&h->k, j), v = rows_after(&h->v, j);
        load_plain((struct block){r.k, ldd}, &k, rows_from(0, keys), d);
        load_block(r.forward.rows, &k, keys, d);
        load_block(r.v, &v, keys, m);
        const int far = transpose_keys(&r.forward, d);
        transpose_state(r.vt, r.v, LA_BLOCK, m);
        clear(r.dks, state_size(LA_BLOCK, d));
        clear(r.dvs, state_size(LA_BLOCK, m));
        clear(r.dks_lost, state_size(LA_BLOCK, d));
        clear(r.dvs_lost, state_size(LA_BLOCK, m));
        clear(r.dk, LA_BLOCK * ldd);
        clear(r.dv, LA_BLOCK * ldm);
        for (ptrdiff_t i = causal ? j : 0; i < n; i += LA_BLOCK) {
            if (h->poll(h->poll_arg)) {
                return 1;
            }
            block_gradient(h, &r, i, keys, causal && i == j, far);
        }
        store_block(&h->dk, j, keys, d, r.dk, ldd, r.dks);
        store_block(&h->dv, j, keys, m, r.dv, ldm, r.dvs);
    }
    const vec scale = vset1((T)h->scale);
    for (ptrdiff_t i = 0; i < n * ldd; i += VL) {
        *at(&r.dq[i]) *= scale;
    }
    store_rows(&h->dq, rows_from(0, n), d, (struct block){r.dq, ldd}, NULL);
    return 0;
}

#endif
