/* elementwise.h: ufuncs on numbers: the maps and their chain rule, gates, sin and cos.
 *
 * One pass over memory, reading each operand once; in place is fine. */

/* Numbers first, first + 1, ... (count of them, at most VL) of an operand. */
INLINE vec
FN(get)(const struct la_array *x, ptrdiff_t first, ptrdiff_t count)
{
    const char *p = x->data + first * x->rs;
    if (x->rs == (ptrdiff_t)sizeof(T) && count >= VL) {
        return FN(load_any)(p);
    }
    return FN(read_part)(p, x->rs, count < VL ? count : VL, LA_NATIVE);
}

INLINE void
FN(put)(const struct la_array *x, ptrdiff_t first, ptrdiff_t count, vec y)
{
    char *p = x->data + first * x->rs;
    if (x->rs == (ptrdiff_t)sizeof(T) && count >= VL) {
        *(FN(vec_any) *)p = (FN(vec_any))y;
        return;
    }
    FN(write_part)(p, x->rs, count < VL ? count : VL, y, LA_NATIVE);
}

/* y = f(x) for the task's numbers, nin operands to nout. */
INLINE int
FN(each)(const struct la_task *t, const int nin, const int nout,
         void (*f)(vec *y, const vec *x))
{
    for (ptrdiff_t i = 0; i < t->rows; i += VL) {
        vec x[3], y[2];
        LA_EACH(a, nin) {
            x[a] = FN(get)(&t->x[a], t->first + i, t->rows - i);
        }
        f(y, x);
        LA_EACH(a, nout) {
            FN(put)(&t->x[nin + a], t->first + i, t->rows - i, y[a]);
        }
    }
    return 0;
}

/* Defines the task `name` as the body, which sets y from x. */
#define LA_ELEMENTWISE(name, nin, nout, ...)                                           \
    INLINE void FN(each_##name)(vec * y, const vec *x)                                 \
    {                                                                                  \
        __VA_ARGS__                                                                    \
    }                                                                                  \
    static int FN(task_##name)(const struct la_task *t)                                \
    {                                                                                  \
        return FN(each)(t, nin, nout, FN(each_##name));                                \
    }

#define LA_OP(op)
#define LA_MAP(map)                                                                    \
    LA_ELEMENTWISE(map, 1, 1, y[0] = FN(phi_##map)(x[0]);)                             \
    LA_ELEMENTWISE(map##_backward, 2, 1,                                               \
                   y[0] = x[1] * FN(dphi_##map)(x[0], FN(phi_##map)(x[0]));)
#include "ops.def"

LA_ELEMENTWISE(sigmoid, 1, 1, y[0] = FN(sigmoid)(x[0]);)
LA_ELEMENTWISE(log1p, 1, 1, y[0] = FN(log1p)(x[0]);)
LA_ELEMENTWISE(sin, 1, 1, vec c; FN(sincos)(x[0], &y[0], &c);)
LA_ELEMENTWISE(cos, 1, 1, vec s; FN(sincos)(x[0], &s, &y[0]);)

/* f(a) sigmoid(b), and its gradients f'(a) sigmoid(b) g and f(a) sigmoid'(b) g, where
 * sigmoid'(b) = sigmoid(b) sigmoid(-b). */
LA_ELEMENTWISE(gate, 2, 1, y[0] = x[0] * FN(sigmoid)(x[1]);)
LA_ELEMENTWISE(softplus_gate, 2, 1, y[0] = FN(phi_softplus)(x[0]) * FN(sigmoid)(x[1]);)
LA_ELEMENTWISE(gate_backward, 3, 2, const vec open = x[2] * FN(sigmoid)(x[1]);
               y[0] = open; y[1] = x[0] * open * FN(sigmoid)(-x[1]);)
LA_ELEMENTWISE(softplus_gate_backward, 3, 2, const vec open = x[2] * FN(sigmoid)(x[1]);
               y[0] = open * FN(sigmoid)(x[0]);
               y[1] = FN(phi_softplus)(x[0]) * open * FN(sigmoid)(-x[1]);)

static size_t
FN(no_room)(const struct la_task *t)
{
    (void)t;
    return 0;
}
