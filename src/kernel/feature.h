/* feature.h: the elementwise feature maps phi and their derivatives, on vectors.
 *
 * A map is two lines here, phi_NAME(x) and dphi_NAME(x, y) with y = phi(x), and
 * one line in ops.def.  All are within 2 ulp over the whole range:
 * overflow gives inf, underflow passes through the subnormals to 0, NaN stays. */

/* e^x = 2^k e^r with |r| <= log(2)/2 for x <= EXP_MAX, and in *low what rounding the
 * last sum lost.  log(2) is split so that k times its high part is exact, with or
 * without a fused multiply-add. */
INLINE vec
FN(exp_parts)(vec x, vec *low)
{
    const vec magic = FN(set1)(ROUND_MAGIC); /* x + magic - magic rounds to even */
    const vec one = FN(set1)(1);
    x = FN(max)(FN(set1)(EXP_MIN), x);
    const vec k = (x * FN(set1)(LOG2_E) + magic) - magic;
    const vec r = (x - k * FN(set1)(LN2_HIGH)) - k * FN(set1)(LN2_LOW);
    static const T c[] = {EXP_COEFFICIENTS};
    const int terms = sizeof(c) / sizeof(c[0]);
    vec p = FN(set1)(c[terms - 1]);
    LA_UNROLL
    for (int i = terms - 2; i >= 0; i--) {
        p = p * r + FN(set1)(c[i]);
    }
    p = (p * r + one) * r;
    const vec sum = p + one;
    *low = FN(scale2)(p - (sum - one), k);
    return FN(scale2)(sum, k);
}

/* e^x for x <= EXP_MAX. */
INLINE vec
FN(exp_bounded)(vec x)
{
    vec low;
    return FN(exp_parts)(x, &low);
}

INLINE vec
FN(exp)(vec x)
{
    return FN(exp_bounded)(FN(min)(FN(set1)(EXP_MAX), x));
}

/* log(1 + f) = f - (f^2/2 - w (f^2/2 + R)), w = f / (2 + f), for |f| below 0.42: what
 * is rounded is small beside f. */
INLINE vec
FN(log1p_near)(vec f)
{
    const vec w = f / (f + FN(set1)(2)), w2 = w * w, half = FN(set1)((T)0.5) * f * f;
    static const T c[] = {LOG1P_COEFFICIENTS};
    const int degree = sizeof(c) / sizeof(c[0]);
    vec p = FN(set1)(c[degree - 1]);
    LA_UNROLL
    for (int i = degree - 2; i >= 0; i--) {
        p = p * w2 + FN(set1)(c[i]);
    }
    return f - (half - w * (half + (w2 + w2) * p));
}

/* log(1 + t) for 0 <= t <= 1: beyond sqrt 2 as log(2) + log(1 + (t - 1) / 2). */
INLINE vec
FN(log1p_unit)(vec t)
{
    const ivec far = t > FN(set1)((T)0.41421356);
    const vec f = FN(select)(far, (t - FN(set1)(1)) * FN(set1)((T)0.5), t);
    const vec low = FN(log1p_near)(f) + FN(keep)(far, FN(set1)(LN2_LOW));
    return low + FN(keep)(far, FN(set1)(LN2_HIGH));
}

INLINE vec
FN(minus_abs)(vec x)
{
    return (vec)((ivec)x | (ivec)FN(set1)((T)-0.0));
}

INLINE vec
FN(phi_identity)(vec x)
{
    return x;
}

INLINE vec
FN(dphi_identity)(vec x, vec y)
{
    (void)x, (void)y;
    return FN(set1)(1);
}

INLINE vec
FN(phi_relu)(vec x)
{
    return FN(max)((vec){0}, x);
}

INLINE vec
FN(dphi_relu)(vec x, vec y)
{
    (void)y;
    return FN(keep)(x > (vec){0}, FN(set1)(1));
}

/* elu(x) + 1, as one sum of which either term is trivial. */
INLINE vec
FN(phi_elu)(vec x)
{
    return FN(exp_bounded)(FN(min)((vec){0}, x)) + FN(max)((vec){0}, x);
}

INLINE vec
FN(dphi_elu)(vec x, vec y)
{
    (void)x;
    return FN(min)(FN(set1)(1), y);
}

INLINE vec
FN(phi_softplus)(vec x)
{
    return FN(max)((vec){0}, x) + FN(log1p_unit)(FN(exp_bounded)(FN(minus_abs)(x)));
}

/* The sigmoid n / d, from e^-|x| so that neither end overflows.  What rounding lost in
 * e and in d = 1 + e is put back: n and 1/d are y and 1 - y, one way or the other. */
INLINE vec
FN(dphi_softplus)(vec x, vec y)
{
    vec low;
    const vec e = FN(exp_parts)(FN(minus_abs)(x), &low), one = FN(set1)(1), d = one + e;
    const ivec left = x < (vec){0};
    const vec lost = (e - (d - one)) + low;
    y = FN(select)(left, e, one) / d;
    return y + (FN(keep)(left, low) - y * lost) * FN(select)(left, one - y, y);
}

INLINE vec
FN(phi_exp)(vec x)
{
    return FN(exp)(x);
}

INLINE vec
FN(dphi_exp)(vec x, vec y)
{
    (void)x;
    return y;
}
