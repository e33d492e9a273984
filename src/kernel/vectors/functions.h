/* functions.h: sigmoid, log1p, sin and cos on vectors, within 2 ulp over the whole
 * range, and tanh, within 2.5.
 *
 * exp and softplus are in feature.h.  NaN stays NaN, and sin and cos of inf are NaN. */
#ifndef LA_FUNCTIONS_H
#define LA_FUNCTIONS_H

#include <math.h>

#include "feature.h"
#include "../table.h"

/* Of what the log scale of a state loses to rounding, no more than this counts: its
 * exponential is below u^2. */
#define LOST_MOST ((T)(1.4 * (MANTISSA_BITS + 1)))

/* x + y, and the rounding error, whichever operand is larger. */
INLINE vec
two_sum(vec x, vec y, vec *lost)
{
    const vec sum = x + y, part = sum - x;
    *lost = (x - (sum - part)) + (y - part);
    return sum;
}

INLINE vec
vsigmoid(vec x)
{
    return dphi_softplus(x, x);
}

/* (1 - e) / (1 + e) with e = e^-2|x|, whose rounding error counts where e is near 1. */
INLINE vec
vtanh(vec x)
{
    vec low;
    const vec e = vexp_parts(vset1(2) * vminus_abs(x), &low), one = vset1(1);
    const vec size = ((one - e) - low) / ((one + e) + low);
    const ivec sign = (ivec)x & (ivec)vset1((T)-0.0);
    return (vec)((ivec)size | sign);
}

/* log(1 + x) = k log 2 + log(m), 1 + x = 2^k m with m in [sqrt 1/2, sqrt 2).  The
 * rounding error of 1 + x is added back.  For |x| < 1/4 no split is needed. */
INLINE vec
vlog1p(vec x)
{
    const vec one = vset1(1), y = one + x;
    const ivec above = (ivec)y - (ivec)vset1((T)0.70710678118654752);
    const ivec k = above >> MANTISSA_BITS;
    const vec m = (vec)((ivec)y - (k << MANTISSA_BITS));
    const vec e = __builtin_convertvector(k, vec);
    const vec lost = vselect(x > one, one - (y - x), x - (y - one)) / y;
    const vec far =
        e * vset1(LN2_HIGH) + (vlog1p_near(m - one) + (e * vset1(LN2_LOW) + lost));
    const ivec near = (x > vset1((T)-0.25)) & (x < vset1((T)0.25));
    vec r = vselect(near, vlog1p_near(vkeep(near, x)), far);
    r = vselect(x - x == (vec){0}, r, x);
    r = vselect(y == (vec){0}, vset1(-(T)INFINITY), r);
    return vselect(y < (vec){0}, vset1((T)NAN), r);
}

/* x = k pi/2 + r + low, |r| <= pi/4, with pi/2 in four parts: three of 33 bits, whose
 * products with k < 2^20 are exact, and a fourth.  r may be tiny compared with each. */
#define FAR ((T)1e6)

#if MANTISSA_BITS == 52
/* x - y, and the rounding error. */
INLINE vec
vdifference(vec x, vec y, vec *lost)
{
    const vec d = x - y, t = d - x;
    *lost = (x - (d - t)) - (y + t);
    return d;
}

INLINE vec
vreduce(vec x, vec *low, ivec *quadrant)
{
    const vec turns = x * vset1(0x1.45f306dc9c883p-1) + vset1(ROUND_MAGIC);
    const vec k = turns - vset1(ROUND_MAGIC);
    vec lost2, lost3;
    *quadrant = (ivec)turns;
    const vec r1 = x - k * vset1(0x1.921fb544p0);
    const vec r2 = vdifference(r1, k * vset1(0x1.0b4611a6p-34), &lost2);
    const vec r3 = vdifference(r2, k * vset1(0x1.3198a2e0p-69), &lost3);
    const vec lost = (lost2 + lost3) - k * vset1(0x1.b839a252049c1p-104);
    const vec r = r3 + lost;
    *low = lost - (r - r3);
    return r;
}
#else
/* In double precision, where two parts of pi/2 suffice. */
INLINE vec
vreduce(vec x, vec *low, ivec *quadrant)
{
    typedef double wide __attribute__((vector_size(2 * LA_VBYTES)));
    typedef int64_t iwide __attribute__((vector_size(2 * LA_VBYTES)));
    const wide y = __builtin_convertvector(x, wide);
    const wide turns = y * 0x1.45f306dc9c883p-1 + 0x1.8p52, k = turns - 0x1.8p52;
    const wide r = (y - k * 0x1.921fb544p0) - k * 0x1.0b4611a626331p-34;
    *quadrant = __builtin_convertvector((iwide)turns, ivec);
    *low = (vec){0};
    return __builtin_convertvector(r, vec);
}
#endif

/* The polynomial c_0 + c_1 x + ... */
INLINE vec
vpolynomial(vec x, const T *c, const int terms)
{
    vec p = vset1(c[terms - 1]);
    LA_UNROLL
    for (int i = terms - 2; i >= 0; i--) {
        p = p * x + vset1(c[i]);
    }
    return p;
}

/* Lanes beyond FAR, with the C library. */
static __attribute__((noinline, cold)) void
sincos_far(const T *x, T *s, T *c)
{
    for (int i = 0; i < VL; i++) {
        if (!(x[i] <= FAR && x[i] >= -FAR)) {
            s[i] = (T)sin((double)x[i]);
            c[i] = (T)cos((double)x[i]);
        }
    }
}

INLINE void
vsincos(vec x, vec *s, vec *c)
{
    static const T in_sin[] = {SIN_COEFFICIENTS}, in_cos[] = {COS_COEFFICIENTS};
    const int terms = sizeof(in_sin) / sizeof(T);
    const ivec far = ~((x <= vset1(FAR)) & (x >= vset1(-FAR)));
    vec low;
    ivec quadrant;
    const vec r = vreduce(vkeep(~far, x), &low, &quadrant);
    const vec r2 = r * r, half = r2 * vset1((T)0.5), one = vset1(1);
    const vec sine = r + (r2 * r * vpolynomial(r2, in_sin, terms) + (low - half * low));
    const vec head = one - half;
    const vec cosine = head + (((one - head) - half) +
                               (r2 * r2 * vpolynomial(r2, in_cos, terms) - r * low));
    const ivec swap = (quadrant & 1) != 0;
    const ivec minus_s = (quadrant & 2) << (8 * (int)sizeof(T) - 2);
    const ivec minus_c = ((quadrant + 1) & 2) << (8 * (int)sizeof(T) - 2);
    *s = (vec)((ivec)vselect(swap, cosine, sine) ^ minus_s);
    *c = (vec)((ivec)vselect(swap, sine, cosine) ^ minus_c);
    *s = vselect(x == (vec){0}, x, *s);
    if (vany(far)) {
        _Alignas(LA_ALIGN) T lanes[3][VL];
        vstore(lanes[0], x);
        vstore(lanes[1], *s);
        vstore(lanes[2], *c);
        sincos_far(lanes[0], lanes[1], lanes[2]);
        *s = vload(lanes[1]);
        *c = vload(lanes[2]);
    }
}

#endif
