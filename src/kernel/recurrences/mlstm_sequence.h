/* mlstm_sequence.h: what the gradients of mLSTM (mlstm_backward.h) need of a whole
 * sequence: its gates and their gradients, and its states as gated attention sees them.
 *
 * What depends on m is eps, which stands beside a multiple of e^-m, dm_i = eps e_i, and
 * the last state, whose log_scale has the gradient grad_log_scale - <grad_s, s> -
 * <grad_z, z> at constant memory.  These follow the larger of log sigma(f_t) + m_{t-1}
 * and i_t, token by token, to the first log_scale. */
#ifndef LA_MLSTM_SEQUENCE_H
#define LA_MLSTM_SEQUENCE_H

#include "mlstm.h"

struct mlstm_sequence {
    struct mlstm_gates gates;
    T *da, *di, *dm;          /* (n): of log sigma(f), log write and m */
    T *factors, *of_z;        /* (n): of cotangents; in stages, of normalized outputs */
    struct block first, last; /* [s, z] before all tokens; the gradient of those after
                                 all, then of those before */
    double *at_last; /* <grad_s, s> + <grad_z, z>, of the state after all tokens */
};

static struct mlstm_sequence
take_mlstm_sequence(const struct la_head *h, struct arena *arena)
{
    struct mlstm_sequence x = {.gates = take_mlstm_gates(h, arena)};
    x.gates.carries = (unsigned char *)take(arena, h->n / (ptrdiff_t)sizeof(T) + 1, 1);
    x.da = take_row(arena, h->n);
    x.di = take_row(arena, h->n);
    x.dm = take_row(arena, h->n);
    if (h->chunks != NULL && h->normalize) {
        x.factors = take_row(arena, h->n);
        x.of_z = take_row(arena, h->n);
    }
    x.first = take_block(arena, round_up(h->d, MR), h->m + h->normalize);
    x.last = take_block(arena, round_up(h->d, MR), h->m + h->normalize);
    x.at_last = (double *)take(arena, 1, sizeof(double) / sizeof(T));
    return x;
}

/* The sizes of the head that gated attention sees, if outputs are normalized. */
static struct la_head
with_z(const struct la_head *h)
{
    struct la_head one = *h;
    one.m = h->m + h->normalize;
    return one;
}

/* [s, z] as one operand in x; nothing of nothing. */
static struct la_array
joined(const struct block x, const struct la_array *s, const struct la_array *z)
{
    return la_is_given(s) || la_is_given(z) ? block_array(x) : *s;
}

/* That head. */
static struct la_head
mlstm_gradient_head(const struct la_head *h, const struct mlstm_sequence *x)
{
    struct la_head one = with_z(h);
    one.scale = 1;
    one.g = in_scratch(x->gates.g);
    one.dg = in_scratch(x->da);
    one.s0 = joined(x->first, &h->s0, &h->z0);
    one.grad_s = joined(x->last, &h->grad_s, &h->grad_z);
    one.ds0 = block_array(x->last);
    return one;
}

/* Column `col` of x = values, or 1. */
static void
set_column(struct block x, ptrdiff_t rows, ptrdiff_t col, const T *values)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        x.x[i * x.ld + col] = values == NULL ? 1 : values[i];
    }
}

/* x = [s, z], without z where there is none; row: for d numbers. */
static void
join(const struct la_head *h, struct block x, const struct la_array *s,
     const struct la_array *z, T *row)
{
    clear_rows(x, 0, h->d);
    if (la_is_given(s)) {
        load_plain(x, s, rows_from(0, h->d), h->m);
    }
    if (h->normalize) {
        load_vector(row, z, h->d);
        set_column(x, h->d, h->m, row);
    }
}

/* Before all tokens.  Returns nonzero to stop. */
static int
begin_mlstm_gradient(const struct la_head *h, const struct mlstm_sequence *x, T *row)
{
    join(h, x->first, &h->s0, &h->z0, row);
    join(h, x->last, &h->grad_s, &h->grad_z, row);
    return load_mlstm_gates(h, &x->gates);
}

/* Adds the gradients of m to those of the gates, from that of m after the last token
 * on; returns what is left for the first m. */
static double
through_maximum(const struct la_head *h, const struct mlstm_sequence *x, double m)
{
    for (ptrdiff_t t = h->n - 1; t >= 0; t--) {
        m += h->eps != 0 ? (double)x->dm[t] : 0;
        if (!x->gates.carries[t]) {
            x->di[t] = (T)(x->di[t] + m);
            m = 0;
        }
        else if (t < h->keys) {
            x->da[t] = (T)(x->da[t] + m);
        }
    }
    return m;
}

/* df = da (1 - sigma(f)), and di. */
static void
store_gate_gradients(const struct la_head *h, const struct mlstm_sequence *x)
{
    const struct span all = rows_from(0, h->n);
    T *const f = x->gates.top; /* unused by now */
    load_token_row(f, &h->f_gate, all);
    for (ptrdiff_t t = keys_left(h, all); t < h->n; t++) {
        f[t] = x->da[t] = 0;
    }
    for (ptrdiff_t t = 0; t < h->n; t += VL) {
        vstore(&x->da[t], vload(&x->da[t]) * vsigmoid(-vload(&f[t])));
    }
    store_numbers(&h->df_gate, all, x->da);
    store_numbers(&h->di_gate, all, x->di);
}

/* The gradient of the first state, of whose log_scale `m` is what came through m. */
static void
store_first_gradient(const struct la_head *h, const struct mlstm_sequence *x, double m,
                     T *row)
{
    const int begins = la_is_given(&h->s0) || la_is_given(&h->z0);
    for (ptrdiff_t l = 0; l < h->d; l++) {
        const T *grad = &x->last.x[l * x->last.ld], *s = &x->first.x[l * x->first.ld];
        for (ptrdiff_t j = 0; begins && j < h->m + h->normalize; j++) {
            m += (double)grad[j] * (double)s[j];
        }
        row[l] = h->normalize ? grad[h->m] : 0;
    }
    const T log_scale = (T)m;
    if (la_is_given(&h->ds0)) {
        store_rows(&h->ds0, rows_from(0, h->d), h->m, x->last, NULL);
    }
    store_vector(&h->dz0, row, h->d);
    if (la_is_given(&h->dlog_scale0)) {
        memcpy(h->dlog_scale0.data, &log_scale, sizeof(log_scale));
    }
}

/* After all tokens. */
static int
end_mlstm_gradient(const struct la_head *h, const struct mlstm_sequence *x, T *row)
{
    T last = 0;
    if (la_is_given(&h->grad_log_scale)) {
        memcpy(&last, h->grad_log_scale.data, sizeof(last));
    }
    const double first = through_maximum(h, x, last - *x->at_last);
    store_gate_gradients(h, x);
    store_first_gradient(h, x, first, row);
    return 0;
}

#endif
