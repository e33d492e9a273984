/* feature.h: the elementwise feature maps phi and their derivatives, on vectors.
 *
 * A map has two functions here, map_NAME(x, n), of n vectors in place, and
 * dphi_NAME(x, y) with y = phi(x), and one row in maps.def.  phi_NAME(x) is that of one
 * vector.  All are within 2 ulp over the whole range: overflow gives inf,
 * underflow goes through the subnormals to 0, and NaN stays NaN. */
#ifndef LA_FEATURE_H
#define LA_FEATURE_H

#include "vec.h"

/* e^x = 2^k e^r with |r| <= log(2)/2, for x <= EXP_MAX; *low is what the last sum lost
 * to rounding.  log(2) is split so that k times its high part is exact, with or without
 * a fused multiply-add. */
INLINE vec
vexp_parts(vec x, vec *low)
{
    const vec magic = vset1(ROUND_MAGIC); /* x + magic - magic rounds to even */
    const vec one = vset1(1);
    x = vmax(vset1(EXP_MIN), x);
    const vec k = vfma(x, vset1(LOG2_E), magic) - magic;
    const vec r = vfma(k, vset1(-LN2_LOW), vfma(k, vset1(-LN2_HIGH), x));
    static const T c[] = {EXP_COEFFICIENTS};
    const int terms = sizeof(c) / sizeof(c[0]);
    vec p = vset1(c[terms - 1]);
    LA_UNROLL
    for (int i = terms - 2; i >= 0; i--) {
        p = vfma(p, r, vset1(c[i]));
    }
    p = vfma(p, r, one) * r;
    const vec sum = p + one;
    *low = vscale2(p - (sum - one), k);
    return vscale2(sum, k);
}

/* x[i] = e^x[i] for n vectors with x[i] <= EXP_MAX, or EXP_NEAR unless `far`, all of
 * them step by step: each step waits for the one before, and a core looks ahead by only
 * two or three such chains. */
INLINE void
vexp_up_to(vec x[], const int n, const int far)
{
    static const T c[] = {EXP_COEFFICIENTS};
    const int terms = sizeof(c) / sizeof(c[0]);
    const vec magic = vset1(ROUND_MAGIC), one = vset1(1);
    vec k[LA_CHAINS], p[LA_CHAINS];
    LA_EACH(i, n) {
        x[i] = vmax(vset1(EXP_MIN), x[i]);
    }
    LA_EACH(i, n) {
        k[i] = vfma(x[i], vset1(LOG2_E), magic);
    }
    LA_EACH(i, n) {
        k[i] -= magic;
    }
    LA_EACH(i, n) {
        x[i] = vfma(k[i], vset1(-LN2_HIGH), x[i]);
    }
    LA_EACH(i, n) {
        x[i] = vfma(k[i], vset1(-LN2_LOW), x[i]);
        p[i] = vset1(c[terms - 1]);
    }
    LA_UNROLL
    for (int t = terms - 2; t >= -2; t--) {
        LA_EACH(i, n) {
            p[i] = vfma(p[i], x[i], t < 0 ? one : vset1(c[t]));
        }
    }
    LA_EACH(i, n) {
        x[i] = far ? vscale2(p[i], k[i]) : vscale2_near(p[i], k[i]);
    }
}

/* x[i] = e^x[i] for n vectors with x[i] <= EXP_NEAR. */
INLINE void
vexp_each(vec x[], const int n)
{
    vexp_up_to(x, n, 0);
}

INLINE vec
vexp_near(vec x)
{
    vexp_each(&x, 1);
    return x;
}

INLINE vec
vexp(vec x)
{
    x = vmin(vset1(EXP_MAX), x);
    vexp_up_to(&x, 1, 1);
    return x;
}

/* log(1 + f) = f - (f^2/2 - w (f^2/2 + R)), w = f / (2 + f), for |f| below 0.42:
 * rounded terms are small relative to f. */
INLINE vec
vlog1p_near(vec f)
{
    const vec w = f / (f + vset1(2)), w2 = w * w, half = vset1((T)0.5) * f;
    static const T c[] = {LOG1P_COEFFICIENTS};
    const int degree = sizeof(c) / sizeof(c[0]);
    vec p = vset1(c[degree - 1]);
    LA_UNROLL
    for (int i = degree - 2; i >= 0; i--) {
        p = vfma(p, w2, vset1(c[i]));
    }
    return f - vfma(half, f, -w * vfma(half, f, (w2 + w2) * p));
}

/* log(1 + t) for 0 <= t <= 1, beyond sqrt(2) - 1 as log(2) + log(1 + (t - 1) / 2). */
INLINE vec
vlog1p_unit(vec t)
{
    const ivec far = t > vset1((T)0.41421356);
    const vec f = vselect(far, (t - vset1(1)) * vset1((T)0.5), t);
    const vec low = vlog1p_near(f) + vkeep(far, vset1(LN2_LOW));
    return low + vkeep(far, vset1(LN2_HIGH));
}

INLINE vec
vminus_abs(vec x)
{
    return (vec)((ivec)x | (ivec)vset1((T)-0.0));
}

INLINE void
map_identity(vec x[], const int n)
{
    (void)x, (void)n;
}

INLINE vec
dphi_identity(vec x, vec y)
{
    (void)x, (void)y;
    return vset1(1);
}

INLINE void
map_relu(vec x[], const int n)
{
    LA_EACH(i, n) {
        x[i] = vmax((vec){0}, x[i]);
    }
}

INLINE vec
dphi_relu(vec x, vec y)
{
    (void)y;
    return vkeep(x > (vec){0}, vset1(1));
}

/* elu(x) + 1, as a sum of which one term is always trivial (1 or 0). */
INLINE void
map_elu(vec x[], const int n)
{
    vec e[LA_CHAINS];
    LA_EACH(i, n) {
        e[i] = vmin((vec){0}, x[i]);
    }
    vexp_each(e, n);
    LA_EACH(i, n) {
        x[i] = e[i] + vmax((vec){0}, x[i]);
    }
}

INLINE vec
dphi_elu(vec x, vec y)
{
    (void)x;
    return vmin(vset1(1), y);
}

INLINE void
map_softplus(vec x[], const int n)
{
    vec e[LA_CHAINS];
    LA_EACH(i, n) {
        e[i] = vminus_abs(x[i]);
    }
    vexp_each(e, n);
    LA_EACH(i, n) {
        x[i] = vmax((vec){0}, x[i]) + vlog1p_unit(e[i]);
    }
}

/* The sigmoid n / d, from e^-|x| so that nothing overflows.  The rounding errors of e
 * and d = 1 + e are corrected to first order; n and 1/d are y and 1 - y, in an order
 * that depends on the sign of x. */
INLINE vec
dphi_softplus(vec x, vec y)
{
    vec low;
    const vec e = vexp_parts(vminus_abs(x), &low), one = vset1(1), d = one + e;
    const ivec left = x < (vec){0};
    const vec lost = (e - (d - one)) + low;
    y = vselect(left, e, one) / d;
    const vec more = vfma(-y, lost, vkeep(left, low));
    return vfma(more, vselect(left, one - y, y), y);
}

INLINE void
map_exp(vec x[], const int n)
{
    LA_EACH(i, n) {
        x[i] = vmin(vset1(EXP_MAX), x[i]);
    }
    vexp_up_to(x, n, 1);
}

INLINE vec
dphi_exp(vec x, vec y)
{
    (void)x;
    return y;
}

#define LA_MAP(map, is_signed)                                                         \
    INLINE vec phi_##map(vec x)                                                        \
    {                                                                                  \
        map_##map(&x, 1);                                                              \
        return x;                                                                      \
    }
#include "../maps.def"

#endif
