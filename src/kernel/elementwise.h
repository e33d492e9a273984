/* elementwise.h: ufuncs on numbers: the maps and their chain rule, gates, sin and cos.
 *
 * One pass over memory, reading each operand once; in place is fine. */
#ifndef LA_ELEMENTWISE_H
#define LA_ELEMENTWISE_H

#include "functions.h"
#include "half.h"

/* Numbers first, first + 1, ... (count of them, at most VL) of an operand. */
INLINE vec
get(const struct la_array *x, ptrdiff_t first, ptrdiff_t count)
{
    const char *p = x->data + first * x->rs;
    if (x->rs == (ptrdiff_t)sizeof(T) && count >= VL) {
        return vload_any(p);
    }
    return vread_part(p, x->rs, count < VL ? count : VL, LA_NATIVE);
}

INLINE void
put(const struct la_array *x, ptrdiff_t first, ptrdiff_t count, vec y)
{
    char *p = x->data + first * x->rs;
    if (x->rs == (ptrdiff_t)sizeof(T) && count >= VL) {
        *(vec_any *)p = (vec_any)y;
        return;
    }
    vwrite_part(p, x->rs, count < VL ? count : VL, y, LA_NATIVE);
}

/* y = f(x) for the task's numbers, nin operands to nout. */
INLINE int
each(const struct la_task *t, const int nin, const int nout,
     void (*f)(vec *y, const vec *x))
{
    for (ptrdiff_t i = 0; i < t->rows; i += VL) {
        vec x[3], y[2];
        LA_EACH(a, nin) {
            x[a] = get(&t->x[a], t->first + i, t->rows - i);
        }
        f(y, x);
        LA_EACH(a, nout) {
            put(&t->x[nin + a], t->first + i, t->rows - i, y[a]);
        }
    }
    return 0;
}

/* Defines the task `name` as the body, which sets y from x. */
#define LA_ELEMENTWISE(name, nin, nout, ...)                                           \
    INLINE void each_##name(vec *y, const vec *x)                                      \
    {                                                                                  \
        __VA_ARGS__                                                                    \
    }                                                                                  \
    static int task_##name(const struct la_task *t)                                    \
    {                                                                                  \
        return each(t, nin, nout, each_##name);                                        \
    }

#define LA_OP(op)
#define LA_MAP(map)                                                                    \
    LA_ELEMENTWISE(map, 1, 1, y[0] = phi_##map(x[0]);)                                 \
    LA_ELEMENTWISE(map##_backward, 2, 1,                                               \
                   y[0] = x[1] * dphi_##map(x[0], phi_##map(x[0]));)
#include "ops.def"

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

static size_t
no_scratch(const struct la_task *t)
{
    (void)t;
    return 0;
}

#endif
