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

/* Defines the operator `name`, whose body computes as many numbers of each output, OUT,
 * from those of the inputs, IN. */
#define LA_ELEMENTWISE(name, ...)                                                      \
    static void name##_carve(const struct la_head *h, struct arena *arena)             \
    {                                                                                  \
        (void)h, (void)arena;                                                          \
    }                                                                                  \
    static int run_##name(const struct la_head *h)                                     \
    {                                                                                  \
        for (ptrdiff_t at = 0; at < h->n; at += VL) {                                  \
            __VA_ARGS__                                                                \
        }                                                                              \
        return 0;                                                                      \
    }
#define IN(operand) get(&h->operand, at, h->n - at)
#define OUT(operand, y) put(&h->operand, at, h->n - at, y)

#define LA_MAP(map, is_signed)                                                         \
    LA_ELEMENTWISE(map, OUT(y, phi_##map(IN(x)));)                                     \
    LA_ELEMENTWISE(map##_backward, const vec x = IN(x);                                \
                   OUT(dx, IN(grad_out) * dphi_##map(x, phi_##map(x)));)
#include "../maps.def"

LA_ELEMENTWISE(sigmoid, OUT(y, vsigmoid(IN(x)));)
LA_ELEMENTWISE(log1p, OUT(y, vlog1p(IN(x)));)
LA_ELEMENTWISE(sin, vec y, c; vsincos(IN(x), &y, &c); OUT(y, y);)
LA_ELEMENTWISE(cos, vec s, y; vsincos(IN(x), &s, &y); OUT(y, y);)

/* f(x) sigmoid(gate), and its gradients f'(x) sigmoid(gate) g and f(x) sigmoid'(gate)
 * g, where sigmoid'(gate) = sigmoid(gate) sigmoid(-gate). */
LA_ELEMENTWISE(gate, OUT(y, IN(x) * vsigmoid(IN(gate)));)
LA_ELEMENTWISE(softplus_gate, OUT(y, phi_softplus(IN(x)) * vsigmoid(IN(gate)));)
LA_ELEMENTWISE(gate_backward, const vec x = IN(x), gate = IN(gate);
               const vec open = IN(grad_out) * vsigmoid(gate); OUT(dx, open);
               OUT(dgate, x * open * vsigmoid(-gate));)
LA_ELEMENTWISE(softplus_gate_backward, const vec x = IN(x), gate = IN(gate);
               const vec open = IN(grad_out) * vsigmoid(gate);
               OUT(dx, (open * vsigmoid(x)));
               OUT(dgate, phi_softplus(x) * open * vsigmoid(-gate));)

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
        const vec one = vset1(1) + vnumber(lost);
        const vec half = vexp(vselect(deep, sum, a) * vset1((T)0.5));
        const vec all = half * vselect(deep, one, y) * g * half;
        r = vselect(deep | (a > safe) | (a < -safe), all, r);
    }
    return r;
}

/* The logarithm of a decay: -e^A softplus(x + shift), A = log_rate. */
INLINE vec
log_decay_of(vec x, vec log_rate, vec shift)
{
    const vec z = x + shift;
    return times_decay(log_rate, vset1(-1), phi_softplus(z), z);
}

/* Between 0 and `bound`: bound sigmoid(e^A (x + shift)). */
INLINE vec
bounded_log_decay_of(vec x, vec log_rate, vec shift, vec bound)
{
    return bound * vsigmoid(times_rate(x + shift, log_rate));
}

/* These, and the gradients of x (which is also that of shift) and of log_rate. */
LA_ELEMENTWISE(log_decay, OUT(y, log_decay_of(IN(x), IN(log_rate), IN(shift)));)
LA_ELEMENTWISE(log_decay_backward, const vec z = IN(x) + IN(shift);
               const vec log_rate = IN(log_rate), outer = -IN(grad_out);
               OUT(dx, times_decay(log_rate, outer, vsigmoid(z), z));
               OUT(dlog_rate, times_decay(log_rate, outer, phi_softplus(z), z));)
LA_ELEMENTWISE(bounded_log_decay,
               OUT(y, bounded_log_decay_of(IN(x), IN(log_rate), IN(shift), IN(bound)));)
LA_ELEMENTWISE(bounded_log_decay_backward, const vec log_rate = IN(log_rate);
               const vec u = times_rate(IN(x) + IN(shift), log_rate);
               const vec outer = IN(bound) * IN(grad_out);
               const vec slope = vsigmoid(u) * vsigmoid(-u), limit = vset1(LARGEST);
               OUT(dx, times_decay(log_rate, outer, slope, vminus_abs(u)));
               OUT(dlog_rate, outer * slope * vmax(-limit, vmin(limit, u)));)

#undef IN
#undef OUT

#endif
