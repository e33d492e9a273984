/* elementwise.h: ufuncs: the elementwise maps and their derivatives, gates, sin and
 * cos.
 *
 * Each operand is read once, in one pass over memory.  Outputs may be the inputs. */
#ifndef LA_ELEMENTWISE_H
#define LA_ELEMENTWISE_H

#include "../tiles/block.h"
#include "../vectors/functions.h"
#include "../vectors/half.h"

/* Up to VL numbers of an operand, [first, first + count). */
INLINE vec
get(const struct la_array *x, ptrdiff_t first, ptrdiff_t count)
{
    const char *p = x->data + first * x->rs;
    if (x->rs == size_of(x->type) && count >= VL) {
        return vread(p, x->type);
    }
    return vread_part(p, x->rs, count < VL ? count : VL, x->type);
}

INLINE void
put(const struct la_array *x, ptrdiff_t first, ptrdiff_t count, vec y)
{
    char *p = x->data + first * x->rs;
    if (x->rs == size_of(x->type) && count >= VL) {
        vwrite(p, y, x->type);
        return;
    }
    vwrite_part(p, x->rs, count < VL ? count : VL, y, x->type);
}

/* y = f(x) for all numbers of the head, with nin inputs and nout outputs. */
INLINE int
each(const struct la_head *h, const int nin, const int nout,
     void (*f)(vec *y, const vec *x))
{
    for (ptrdiff_t i = 0; i < h->n; i += VL) {
        vec x[5], y[2];
        LA_EACH(a, nin) {
            x[a] = get(&h->arrays[LA_AT_x + a], i, h->n - i);
        }
        f(y, x);
        LA_EACH(a, nout) {
            put(&h->arrays[LA_AT_y + a], i, h->n - i, y[a]);
        }
    }
    return 0;
}

/* Defines the operator `name`; the body sets y from x. */
#define LA_ELEMENTWISE(name, nin, nout, ...)                                           \
    INLINE void each_##name(vec *y, const vec *x)                                      \
    {                                                                                  \
        __VA_ARGS__                                                                    \
    }                                                                                  \
    static void name##_carve(const struct la_head *h, struct arena *arena)             \
    {                                                                                  \
        (void)h, (void)arena;                                                          \
    }                                                                                  \
    static int run_##name(const struct la_head *h)                                     \
    {                                                                                  \
        return each(h, nin, nout, each_##name);                                        \
    }

#define LA_MAP(map, is_signed)                                                         \
    LA_ELEMENTWISE(map, 1, 1, y[0] = phi_##map(x[0]);)                                 \
    LA_ELEMENTWISE(map##_backward, 2, 1,                                               \
                   y[0] = x[1] * dphi_##map(x[0], phi_##map(x[0]));)
#include "../maps.def"

LA_ELEMENTWISE(sigmoid, 1, 1, y[0] = vsigmoid(x[0]);)
LA_ELEMENTWISE(log1p, 1, 1, y[0] = vlog1p(x[0]);)
LA_ELEMENTWISE(sin, 1, 1, vec c; vsincos(x[0], &y[0], &c);)
LA_ELEMENTWISE(cos, 1, 1, vec s; vsincos(x[0], &s, &y[0]);)

/* f(a) sigmoid(b), and its gradients f'(a) sigmoid(b) g and f(a) sigmoid'(b) g, where
 * sigmoid'(b) = sigmoid(b) sigmoid(-b). */
LA_ELEMENTWISE(gate, 2, 1, y[0] = x[0] * vsigmoid(x[1]);)
LA_ELEMENTWISE(softplus_gate, 2, 1, y[0] = phi_softplus(x[0]) * vsigmoid(x[1]);)
LA_ELEMENTWISE(gate_backward, 3, 2, const vec open = x[2] * vsigmoid(x[1]); y[0] = open;
               y[1] = x[0] * open * vsigmoid(-x[1]);)
LA_ELEMENTWISE(softplus_gate_backward, 3, 2, const vec open = x[2] * vsigmoid(x[1]);
               y[0] = open * vsigmoid(x[0]);
               y[1] = phi_softplus(x[0]) * open * vsigmoid(-x[1]);)

/* Beyond these, e^x is near the limits of the range. */
#define EXP_SAFE (EXP_MAX - 9)

/* e^a z, which is 0 if z is 0, for any a, and if e^a rounds to 0, for any z. */
INLINE vec
times_rate(vec z, vec a)
{
    const ivec far = ~((a <= vset1(EXP_SAFE)) & (a >= vset1(-EXP_SAFE)));
    vec y = vexp(a) * z;
    if (vany(far)) { /* in two factors */
        const vec half = vmin(vset1(LARGEST), vexp(a * vset1((T)0.5)));
        y = vselect(far, half * z * half, y);
    }
    return y;
}

/* e^a g y with y >= 0.  For z below -EXP_SAFE, y is e^z up to rounding.  There e^a may
 * be inf and y 0, so e^(a + z) is computed instead. */
INLINE vec
times_decay(vec a, vec g, vec y, vec z)
{
    const vec safe = vset1(EXP_SAFE);
    const ivec deep = z < -safe;
    vec r = vexp(a) * g * y;
    if (vany(deep | (a > safe) | (a < -safe))) {
        vec lost;
        const vec sum = two_sum(a, z, &lost);
        const vec one = vset1(1) + vkeep(lost == lost, lost);
        const vec half = vexp(vselect(deep, sum, a) * vset1((T)0.5));
        const vec all = half * vselect(deep, one, y) * g * half;
        r = vselect(deep | (a > safe) | (a < -safe), all, r);
    }
    return r;
}

/* The logarithms of decays: -e^A softplus(z), z = x + b, of x, A, b; and L sigmoid(e^A
 * z) of x, A, b, L.  The backward operators take the same operands, with the gradient
 * of the result before L, and give the gradients of x (which is also that of b) and of
 * A. */
LA_ELEMENTWISE(log_decay, 3, 1, const vec z = x[0] + x[2];
               y[0] = times_decay(x[1], vset1(-1), phi_softplus(z), z);)
LA_ELEMENTWISE(log_decay_backward, 4, 2, const vec z = x[0] + x[2];
               y[0] = times_decay(x[1], -x[3], vsigmoid(z), z);
               y[1] = times_decay(x[1], -x[3], phi_softplus(z), z);)
LA_ELEMENTWISE(bounded_log_decay, 4, 1,
               y[0] = x[3] * vsigmoid(times_rate(x[0] + x[2], x[1]));)
LA_ELEMENTWISE(bounded_log_decay_backward, 5, 2,
               const vec u = times_rate(x[0] + x[2], x[1]), outer = x[4] * x[3];
               const vec slope = vsigmoid(u) * vsigmoid(-u), limit = vset1(LARGEST);
               y[0] = times_decay(x[1], outer, slope, vminus_abs(u));
               y[1] = outer * slope * vmax(-limit, vmin(limit, u));)

#endif
