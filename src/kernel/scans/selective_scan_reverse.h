/* selective_scan_reverse.h: gradients of a panel of channels over one block of tokens
 * (selective_scan_backward.h), from the state before it.
 *
 * States and decays of MR states of one vector of channels at a time are computed
 * again, saved, and swept in reverse. */
#ifndef LA_SELECTIVE_SCAN_REVERSE_H
#define LA_SELECTIVE_SCAN_REVERSE_H

#include "selective_scan.h"

struct selective_scan_backward_scratch {
    struct selective_scan_scratch scan;
    ptrdiff_t rows; /* tokens from one checkpoint to the next */
    struct block grad, c, du, ddt, dB, dC;
    struct block group_dB, group_dC; /* sums over a group of channels */
    T *checkpoints;                  /* tiles */
    T *r, *dA, *dA_lost;             /* tiles; r: what later tokens give the state */
    T *dD, *dD_lost, *ddt_bias, *ddt_bias_lost;
    T *saved; /* of each token of a block, MR vectors of e and as many of h */
    T *met;   /* as many of r u and of c h, summed over a panel */
};

/* n vectors: g and z become g o silu(z) and g o silu'(z). */
INLINE void
gate_cotangents(T *g, T *z, const int n)
{
    vec value[LA_MAPPED], slope[LA_MAPPED];
    LA_EACH(c, n) {
        value[c] = slope[c] = vload(&z[c * VL]);
    }
    vsilu_each(value, n);
    vsilu_slope_each(slope, n);
    LA_EACH(c, n) {
        const vec before = vload(&g[c * VL]);
        vstore(&g[c * VL], before * value[c]);
        vstore(&z[c * VL], before * slope[c]);
    }
}

/* c, and D o x and D o c as p and dx begin; g o silu'(z), which dz is p times. */
static void
load_cotangents(const struct la_head *h,
                const struct selective_scan_backward_scratch *r, struct span t,
                ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array g = shifted(&h->grad_out, col * h->grad_out.cs);
    const struct la_array z = shifted(&h->gate, col * h->gate.cs);
    load_plain(r->c, &g, rows_from(t.first, t.rows), cols);
    if (z.data == NULL) {
        return;
    }
    load_plain(r->grad, &z, rows_from(t.first, t.rows), cols);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        T *c = &r->c.x[i * r->c.ld], *z_row = &r->grad.x[i * r->grad.ld];
        LA_TOGETHER(LA_MAPPED, cols, gate_cotangents(&c[j], &z_row[j], n));
    }
}

/* States and decays of `count` states of one vector of channels: row i of `saved` has
 * h_{i-1} and e_i.  Adds what is read of them to p. */
INLINE void
keep_states(const struct selective_scan_backward_scratch *r, const T *A, const T *s,
            ptrdiff_t j, ptrdiff_t l, const int count, ptrdiff_t rows,
            struct la_fetch *ahead)
{
    const struct selective_scan_scratch *f = &r->scan;
    const struct block B = block_at(f->B, 0, l), C = block_at(f->C, 0, l);
    const struct block delta = block_at(f->delta, 0, j), u = block_at(f->u, 0, j);
    const struct block p = block_at(f->y, 0, j);
    vec a[MR], state[MR];
    T *saved = r->saved;
    LA_EACH(k, count) {
        a[k] = vload(&A[(l + k) * VL]);
        state[k] = vload(&s[(l + k) * VL]);
    }
    for (ptrdiff_t i = 0; i < rows; i++, saved += 2 * MR * VL) {
        if (i % MR == 0) {
            la_fetch_some(ahead);
        }
        const vec d = vload(&delta.x[i * delta.ld]), w = vload(&u.x[i * u.ld]);
        vec y = vload(&p.x[i * p.ld]), e[MR];
        decays_of(e, a, d, count);
        LA_EACH(k, count) {
            vstore(&saved[k * VL], state[k]);
            vstore(&saved[(MR + k) * VL], e[k]);
            state[k] = vfma(e[k], state[k], w * vset1(B.x[i * B.ld + k]));
            y = vfma(vset1(C.x[i * C.ld + k]), state[k], y);
        }
        vstore(&p.x[i * p.ld], y);
    }
    LA_EACH(k, count) {
        vstore(&saved[k * VL], state[k]);
    }
}

/* Back over them: adds to du, to ddt what is not of du, to dA log2(e), and to what the
 * lanes of dB and dC sum up to. */
INLINE void
sweep_back(const struct selective_scan_backward_scratch *b, const T *A, ptrdiff_t tile,
           ptrdiff_t j, ptrdiff_t l, const int count, ptrdiff_t rows,
           struct la_fetch *ahead)
{
    const struct selective_scan_scratch *f = &b->scan;
    const struct block B = block_at(f->B, 0, l), C = block_at(f->C, 0, l);
    const struct block delta = block_at(f->delta, 0, j), u = block_at(f->u, 0, j);
    const struct block cotangent = block_at(b->c, 0, j);
    const struct block du_rows = block_at(b->du, 0, j),
                       ddt_rows = block_at(b->ddt, 0, j);
    const T *all_saved = b->saved;
    T *all_met = b->met;
    vec a[MR], r[MR], dA[MR], after[MR];
    LA_EACH(k, count) {
        a[k] = vload(&A[(l + k) * VL]);
        r[k] = vload(&b->r[tile + (l + k) * VL]);
        after[k] = vload(&all_saved[rows * 2 * MR * VL + k * VL]);
        dA[k] = (vec){0};
    }
    for (ptrdiff_t i = rows - 1; i >= 0; i--) {
        const T *saved = all_saved + i * 2 * MR * VL;
        T *met = all_met + i * 2 * MR * VL;
        T *to_du = &du_rows.x[i * du_rows.ld], *to_ddt = &ddt_rows.x[i * ddt_rows.ld];
        if (i % MR == 0) {
            la_fetch_some(ahead);
        }
        const vec d = vload(&delta.x[i * delta.ld]), w = vload(&u.x[i * u.ld]);
        const vec c = vload(&cotangent.x[i * cotangent.ld]);
        vec du = vload(to_du), ddt = vload(to_ddt);
        LA_EACH(k, count) {
            T *dB = &met[k * VL], *dC = &met[(MR + k) * VL];
            r[k] = vfma(c, vset1(C.x[i * C.ld + k]), r[k]);
            vstore(dB, vfma(r[k], w, vload(dB)));
            vstore(dC, vfma(c, after[k], vload(dC)));
            du = vfma(r[k], vset1(B.x[i * B.ld + k]), du);
            r[k] *= vload(&saved[(MR + k) * VL]);
            after[k] = vload(&saved[k * VL]);
            const vec q = r[k] * after[k];
            ddt = vfma(a[k], q, ddt);
            dA[k] = vfma(d, q, dA[k]);
        }
        vstore(to_du, du);
        vstore(to_ddt, ddt);
    }
    LA_EACH(k, count) {
        const ptrdiff_t at = tile + (l + k) * VL;
        vstore(&b->r[at], r[k]);
        add_to_sum(&b->dA[at], &b->dA_lost[at], dA[k]);
    }
}

/* Columns l to l + MR - 1 of the group's dB and dC += sums of the lanes of `met`. */
static void
add_lanes(const struct selective_scan_backward_scratch *r, ptrdiff_t l, ptrdiff_t rows)
{
    T *met = r->met;
    const ptrdiff_t count = round_up(rows * 2 * MR, VL);
    for (ptrdiff_t first = 0; first < count; first += VL) {
        vec part[VL];
        LA_EACH(i, VL) {
            part[i] = vload(&met[(first + i) * VL]);
        }
        vstore(&met[first], lane_sums(part)); /* where all has been read */
    }
    for (ptrdiff_t i = 0; i < rows; i++, met += 2 * MR) {
        LA_EACH(k, MR) {
            r->group_dB.x[i * r->group_dB.ld + l + k] += met[k];
            r->group_dC.x[i * r->group_dC.ld + l + k] += met[MR + k];
        }
    }
}

static void
panel_back(const struct la_head *h, const struct selective_scan_backward_scratch *r,
           const T *s, struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    for (ptrdiff_t l = 0; l < h->f; l += MR) {
        clear(r->met, round_up(t.rows, MR) * 2 * MR * VL);
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const ptrdiff_t tile = tile_rows(h) * (col + j);
            LA_WITH_STATES(
                h->f - l, keep_states(r, r->scan.A + tile, s + tile, j, l, count,
                                      t.rows, t.ahead);
                sweep_back(r, r->scan.A + tile, tile, j, l, count, t.rows, t.ahead));
        }
        add_lanes(r, l, t.rows);
    }
}

/* sum += the sum of the rows of x, `cols` of its columns */
static void
add_columns(T *sum, T *lost, struct block x, ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        vec more = (vec){0};
        for (ptrdiff_t i = 0; i < rows; i++) {
            more += vload(&x.x[i * x.ld + j]);
        }
        add_to_sum(&sum[j], &lost[j], more);
    }
}

/* dx and x o c of the tokens without a key, of which D x is all there is, into the
 * blocks of u and of delta; ddt is 0. */
static void
skip_gradients(const struct selective_scan_backward_scratch *r, struct block x,
               ptrdiff_t keys, ptrdiff_t rows, ptrdiff_t col, ptrdiff_t cols)
{
    const struct selective_scan_scratch *f = &r->scan;
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        const vec D = vload(&f->D[col + j]);
        for (ptrdiff_t i = keys; i < rows; i++) {
            const vec c = vload(&r->c.x[i * r->c.ld + j]);
            vstore(&f->u.x[i * f->u.ld + j], vkeep(D != (vec){0}, D * c));
            vstore(&f->delta.x[i * f->delta.ld + j], load_near(x, i, j) * c);
        }
    }
    clear_rows(r->ddt, keys, rows);
}

/* ddt of the tokens that have a key, from du and what else there is; the blocks of u
 * and of delta become dx and x o c. */
static void
input_gradients(const struct la_head *h,
                const struct selective_scan_backward_scratch *r, struct block x,
                struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    const struct selective_scan_scratch *f = &r->scan;
    const struct la_array dt = shifted(&h->dt, col * h->dt.cs);
    const ptrdiff_t keys = keys_left(h, t);
    const vec log2 = vset1(LOG_2);
    const struct block raw = panel_or_copy(f->u, &dt, rows_from(t.first, keys), cols);
    for (ptrdiff_t i = 0; i < keys; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            T *ddt = &r->ddt.x[i * r->ddt.ld + j], *u = &f->u.x[i * f->u.ld + j];
            T *delta = &f->delta.x[i * f->delta.ld + j];
            const vec du = vload(&r->du.x[i * r->du.ld + j]);
            const vec x1 = load_near(x, i, j), c = vload(&r->c.x[i * r->c.ld + j]);
            const vec before = load_near(raw, i, j) + vload(&f->dt_bias[col + j]);
            const vec D = vload(&f->D[col + j]);
            const vec dx = du * (log2 * vload(delta)) + vkeep(D != (vec){0}, D * c);
            vec dd = vfma(du, x1, vload(ddt));
            if (h->softplus != 0) {
                dd *= vsigmoid(before);
            }
            vstore(ddt, dd);
            vstore(u, dx);
            vstore(delta, x1 * c);
        }
    }
    skip_gradients(r, x, keys, t.rows, col, cols);
    add_columns(r->ddt_bias + col, r->ddt_bias_lost + col, r->ddt, keys, cols);
    add_columns(r->dD + col, r->dD_lost + col, f->delta, t.rows, cols);
}

static void
store_gradients(const struct la_head *h,
                const struct selective_scan_backward_scratch *r, struct block x,
                struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array dx = shifted(&h->dx, col * h->dx.cs);
    const struct la_array ddt = shifted(&h->ddt, col * h->ddt.cs);
    const struct la_array dz = shifted(&h->dgate, col * h->dgate.cs);
    input_gradients(h, r, x, t, col, cols);
    stream_rows(&dx, t, cols, r->scan.u, h->large);
    stream_rows(&ddt, t, cols, r->ddt, h->large);
    if (dz.data != NULL) {
        multiply_rows(r->grad, r->grad, r->scan.y, t.rows, cols);
        stream_rows(&dz, t, cols, r->grad, h->large);
    }
}

#endif
