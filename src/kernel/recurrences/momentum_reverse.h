/* momentum_reverse.h: one token of the delta rule with momentum on its way back, in
 * some columns of its state (momentum_panel.h).
 *
 * The equations are those of momentum_delta_backward.h: one pass over a panel of R and
 * N for what precedes dv, one for what follows from it. */
#ifndef LA_MOMENTUM_REVERSE_H
#define LA_MOMENTUM_REVERSE_H

#include "momentum_panel.h"

/* A token on its way back, with its factors and rows. */
struct momentum_back {
    struct momentum_token token;
    const T *p;             /* its own */
    ptrdiff_t momentum;     /* where M begins in a panel */
    const T *before, *here; /* the panel before it, and after it */
    vec g[LA_MOMENTUM_NR], e[LA_MOMENTUM_NR], dv[LA_MOMENTUM_NR];
    vec dg, dmu, dbeta; /* sums in every lane */
};

/* The sum of the vectors x y over a row of a panel. */
INLINE vec
row_product(const T *x, const vec y[], const int nr)
{
    vec sum = vload(x) * y[0];
    LA_EACH(j, nr - 1) {
        sum = vfma(vload(&x[(j + 1) * VL]), y[j + 1], sum);
    }
    return sum;
}

/* row_l += the sums of the lanes of x_l, for VL rows */
INLINE void
add_lane_sums(T *row, vec x[])
{
    vstore(row, vload(row) + lane_sums(x));
}

/* One row before dv is known: R and N as they are at the token. */
INLINE void
momentum_row_until(struct momentum_back *b, ptrdiff_t i, T *s, T *m, ptrdiff_t row,
                   const int nr)
{
    const vec q = vset1(b->token.q[i]), k = vset1(b->token.k[i]);
    LA_EACH(j, nr) {
        const ptrdiff_t at = row + j * VL;
        const vec R = vfma(q, b->g[j], vload(&s[at]));
        const vec N = vfma(b->token.write, R, vload(&m[at]));
        vstore(&s[at], R);
        vstore(&m[at], N);
        b->dbeta = vfma(R, vload(&b->here[b->momentum + at]), b->dbeta);
        b->dg = vfma(R, vload(&b->before[at]), b->dg);
        b->dmu = vfma(N, vload(&b->before[b->momentum + at]), b->dmu);
        b->dv[j] = vfma(k, N, b->dv[j]);
    }
}

/* What needs no dv: dq and dk += their sums over the panel's columns, the sums of the
 * gates' gradients, and dv. */
INLINE void
momentum_until(struct momentum_back *back, T *grad, T *dq, T *dk, ptrdiff_t d,
               const int nr)
{
    struct momentum_back b = *back; /* in registers */
    T *const s = grad, *const m = grad + b.momentum;
    for (ptrdiff_t l = 0; l < d; l += VL) {
        vec reads[VL], writes[VL];
        LA_EACH(r, VL) {
            const ptrdiff_t i = l + r, row = i * nr * VL;
            reads[r] = writes[r] = (vec){0};
            if (i < d) {
                momentum_row_until(&b, i, s, m, row, nr);
                reads[r] = row_product(b.here + row, b.g, nr);
                writes[r] = row_product(m + row, b.e, nr);
            }
        }
        add_lane_sums(&dq[l], reads);
        add_lane_sums(&dk[l], writes);
    }
    *back = b;
}

/* What follows from dv: dp += its sums, and R and N before the token. */
INLINE void
momentum_past(const struct momentum_back *back, T *grad, T *dp, ptrdiff_t d,
              const int nr, const int weak)
{
    const struct momentum_back b = *back;
    const struct momentum_token t = b.token;
    vec dv[LA_MOMENTUM_NR];
    LA_EACH(j, nr) {
        dv[j] = -b.dv[j];
    }
    for (ptrdiff_t l = 0; l < d; l += VL) {
        vec erases[VL];
        LA_EACH(r, VL) {
            const ptrdiff_t i = l + r, row = i * nr * VL;
            erases[r] = (vec){0};
            if (i < d) {
                const vec p = vset1(b.p[i]);
                erases[r] = row_product(b.before + row, dv, nr);
                LA_EACH(j, nr) {
                    T *const s = grad + row + j * VL, *const m = s + b.momentum;
                    const vec R = faded(vload(s), t.keep_s, t.change_s, weak);
                    vstore(s, vfma(p, dv[j], R));
                    vstore(m, faded(vload(m), t.keep_m, t.change_m, weak));
                }
            }
        }
        add_lane_sums(&dp[l], erases);
    }
}

/* A token without a key: dq, and R. */
INLINE void
momentum_read_back(const struct momentum_back *b, T *grad, T *dq, ptrdiff_t d,
                   const int nr)
{
    for (ptrdiff_t l = 0; l < d; l += VL) {
        vec reads[VL];
        LA_EACH(r, VL) {
            const ptrdiff_t i = l + r, row = i * nr * VL;
            reads[r] = (vec){0};
            if (i < d) {
                const vec q = vset1(b->token.q[i]);
                reads[r] = row_product(b->here + row, b->g, nr);
                LA_EACH(j, nr) {
                    T *const s = grad + row + j * VL;
                    vstore(s, vfma(q, b->g[j], vload(s)));
                }
            }
        }
        add_lane_sums(&dq[l], reads);
    }
}

#endif
