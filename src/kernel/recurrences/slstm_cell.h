/* slstm_cell.h: the cell of sLSTM (slstm.h), each number by itself, and its gradient.
 *
 * One of the weights e^(i - m) and e^(log sigma(f) + m_before - m) is 1, since m is the
 * larger exponent: a single exponential gives both.  Where nothing has been written, n
 * is 0, and what c and m hold has no effect. */
#ifndef LA_SLSTM_CELL_H
#define LA_SLSTM_CELL_H

#include "../tiles/chunk.h"
#include "../vectors/functions.h"

/* A row of numbers of a sequence's cell. */
struct slstm_rows {
    T *c, *n, *m;
};

/* The factors of a token: c <- forget c + input value, n alike; m; whether m is i. */
struct slstm_token {
    vec value, input, forget, m;
    ivec is_input;
};

INLINE struct slstm_token
slstm_token(vec i, vec f, vec z, vec n, vec m)
{
    const vec least = vset1(-(T)INFINITY), zero = (vec){0}, one = vset1(1);
    const vec past = vselect(n == zero, least, m - phi_softplus(-f));
    const vec lead = vselect(i == past, zero, i - past);
    const vec weight = vexp_near(vminus_abs(lead));
    const ivec is_input = lead > zero;
    struct slstm_token t;
    t.value = vtanh(z);
    t.input = vkeep(i != least, vselect(lead >= zero, one, weight));
    t.forget = vkeep(past != least, vselect(lead <= zero, one, weight));
    t.m = vselect(is_input, i, past);
    t.is_input = is_input;
    return t;
}

/* The cell after a token of these gates (4, step), with `bias` alike, and its output
 * `h`; `to` may be `from`. */
INLINE void
slstm_update(const T *gates, const T *bias, ptrdiff_t step, struct slstm_rows from,
             struct slstm_rows to, T *h)
{
    const T *i = gates, *f = i + step, *z = f + step, *o = z + step;
    for (ptrdiff_t j = 0; j < step; j += VL) {
        const vec n = vload(&from.n[j]), m = vload(&from.m[j]);
        const struct slstm_token t = slstm_token(
            vload(&i[j]) + vload(&bias[j]), vload(&f[j]) + vload(&bias[step + j]),
            vload(&z[j]) + vload(&bias[2 * step + j]), n, m);
        const vec c = vfma(t.forget, vload(&from.c[j]), t.input * t.value);
        const vec all = vfma(t.forget, n, t.input);
        const vec mean = vkeep(all != (vec){0}, c / all);
        vstore(&to.c[j], c);
        vstore(&to.n[j], all);
        vstore(&to.m[j], t.m);
        vstore(&h[j], vsigmoid(vload(&o[j]) + vload(&bias[3 * step + j])) * mean);
    }
}

/* Turns a token's gates into their gradients, and the gradients `d` of the cell after
 * it into those of the cell before it; dh is that of its output.
 *
 *    dc += dh sigma(o) / n,  dn -= dh sigma(o) c / n^2,  do = dh sigma'(o) c / n
 *    p = e^(i - m) (dc tanh z + dn),  q = forget (dc c_before + dn n_before)
 *    the larger exponent gets dm - p - q, di = p + ..,  dm_before = q + ..
 *    df = dm_before sigma(-f),  dz = dc e^(i - m) (1 - tanh^2 z)
 *    dc_before = forget dc,  dn_before = forget dn
 */
INLINE void
slstm_reverse(T *gates, const T *bias, ptrdiff_t step, struct slstm_rows before,
              struct slstm_rows after, struct slstm_rows d, const T *dh)
{
    T *gi = gates, *gf = gi + step, *gz = gf + step, *go = gz + step;
    const vec zero = (vec){0}, one = vset1(1);
    for (ptrdiff_t j = 0; j < step; j += VL) {
        const vec n0 = vload(&before.n[j]), n = vload(&after.n[j]);
        const vec f = vload(&gf[j]) + vload(&bias[step + j]);
        const vec o = vsigmoid(vload(&go[j]) + vload(&bias[3 * step + j]));
        const struct slstm_token t = slstm_token(
            vload(&gi[j]) + vload(&bias[j]), f,
            vload(&gz[j]) + vload(&bias[2 * step + j]), n0, vload(&before.m[j]));
        const vec g = vkeep(n != zero, vload(&dh[j]) / n), c = vload(&after.c[j]);
        const vec mean = vkeep(n != zero, c / n);
        const vec dc = vfma(g, o, vload(&d.c[j]));
        const vec dn = vfma(-g * o, mean, vload(&d.n[j]));
        const vec p = t.input * vfma(dc, t.value, dn);
        const vec q = t.forget * vfma(dc, vload(&before.c[j]), dn * n0);
        const vec rest = vload(&d.m[j]) - p - q;
        const vec dm = vkeep(n0 != zero, q + vkeep(~t.is_input, rest));
        vstore(&gi[j], p + vkeep(t.is_input, rest));
        vstore(&gf[j], dm * vsigmoid(-f));
        vstore(&gz[j], dc * t.input * (one - t.value * t.value));
        vstore(&go[j], vload(&dh[j]) * mean * o * (one - o));
        vstore(&d.c[j], t.forget * dc);
        vstore(&d.n[j], t.forget * dn);
        vstore(&d.m[j], dm);
    }
}

#endif
