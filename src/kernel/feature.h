/* feature.h: the elementwise feature maps phi and their derivatives, on vectors.
 *
 * A map is two lines here, phi_NAME(x) and dphi_NAME(x, y) with y = phi(x), and
 * one line in ops.def.  exp and log1p are within 1 ulp over the whole range:
 * overflow gives inf, underflow passes through the subnormals to 0, NaN stays. */

/* e^x for x <= EXP_MAX: 2^k e^r with |r| <= log(2)/2.  log(2) is split so that k
 * times its high part is exact, with or without a fused multiply-add. */
INLINE vec
FN(exp_bounded)(vec x)
{
    const vec magic = FN(set1)(ROUND_MAGIC); /* x + magic - magic rounds to even */
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
    p = (p * r + FN(set1)(1)) * r + FN(set1)(1);
    return FN(scale2)(p, k);
}

INLINE vec
FN(exp)(vec x)
{
    return FN(exp_bounded)(FN(min)(FN(set1)(EXP_MAX), x));
}

/* log(1 + t) = 2 atanh(w), w = t / (2 + t), for 0 <= t <= 1. */
INLINE vec
FN(log1p_unit)(vec t)
{
    const vec w = t / (t + FN(set1)(2)), w2 = w * w;
    static const T c[] = {LOG1P_COEFFICIENTS};
    const int degree = sizeof(c) / sizeof(c[0]);
    vec p = FN(set1)(c[degree - 1]);
    LA_UNROLL
    for (int i = degree - 2; i >= 0; i--) {
        p = p * w2 + FN(set1)(c[i]);
    }
    const vec w_twice = w + w;
    return w_twice + w_twice * w2 * p;
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

/* The sigmoid, from e^-|x| so that neither end overflows. */
INLINE vec
FN(dphi_softplus)(vec x, vec y)
{
    (void)y;
    const vec e = FN(exp_bounded)(FN(minus_abs)(x)), one = FN(set1)(1);
    return FN(select)(x < (vec){0}, e, one) / (one + e);
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
