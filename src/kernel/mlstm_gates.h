/* mlstm_gates.h: the gates of mLSTM under a running maximum, one sequence.
 *
 *   m_t = max(log sigma(f_t) + m_{t-1}, i_t)            Beck et al. 2024, eq. 15-17
 *   g_t = log sigma(f_t) + m_{t-1} - m_t,  write_t = exp(i_t - m_t),  top_t = m_t
 *
 * i, f, called x, x1, and g, write, top (n), the state log_scale is m.  One of g_t and
 * i_t - m_t is 0, the other at most 0, and m is no difference of long sums.  A token
 * without a key has g = write = 0 and leaves m.  Nothing of token j > t reaches token
 * t. */
#ifndef LA_MLSTM_GATES_H
#define LA_MLSTM_GATES_H

#include "functions.h"
#include "recurrence.h"

struct mlstm_gates_scratch {
    T *i, *f, *top;
};

static struct mlstm_gates_scratch
mlstm_gates_carve(const struct la_head *h, struct arena *arena)
{
    struct mlstm_gates_scratch r;
    (void)h;
    r.i = take_row(arena, LA_CHUNK_MAX);
    r.f = take_row(arena, LA_CHUNK_MAX);
    r.top = take_row(arena, LA_CHUNK_MAX);
    return r;
}

/* f <- log sigma(f) */
static void
log_sigmoids(T *f, ptrdiff_t rows)
{
    for (ptrdiff_t t = 0; t < rows; t += VL) {
        vstore(&f[t], -phi_softplus(-vload(&f[t])));
    }
}

/* x - y, and 0 where both are the same infinity. */
INLINE double
gate_difference(double x, double y)
{
    return x == y ? 0 : x - y;
}

/* m_t of one token, from log f and i; *log_f <- g_t, *i <- i_t - m_t.  In double
 * precision: a rounding of m is one of all that was written before.  Where m is to be
 * kept in single precision, `rounded`, the gates are relative to what is kept. */
INLINE double
gate_token(double m, T *log_f, T *i, const int rounded)
{
    const double least = -INFINITY, in = *i;
    const double kept = *log_f == least ? least : *log_f + m;
    const double top = in > kept ? in : kept, next = rounded ? (T)top : top;
    *log_f = (T)(kept == least ? least : gate_difference(kept, next));
    *i = (T)(in == least ? least : gate_difference(in, next));
    return next;
}

/* g, i - m and m of so many tokens, and the last m. */
static double
gate_tokens(const struct mlstm_gates_scratch *r, ptrdiff_t keys, ptrdiff_t rows,
            double m)
{
    for (ptrdiff_t t = 0; t < rows; t++) {
        if (t < keys) {
            m = gate_token(m, &r->f[t], &r->i[t], 0);
        }
        else {
            r->f[t] = 0;
            r->i[t] = -(T)INFINITY;
        }
        r->top[t] = (T)m;
    }
    return m;
}

static void
gate_exponentials(T *x, ptrdiff_t rows)
{
    for (ptrdiff_t t = 0; t < rows; t += VL) {
        vstore(&x[t], vexp(vload(&x[t])));
    }
}

static int
run_mlstm_gates(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct mlstm_gates_scratch r = mlstm_gates_carve(h, &arena);
    T first = 0, last;
    ptrdiff_t until_poll = 0;
    if (h->log_scale0.data != NULL) {
        memcpy(&first, h->log_scale0.data, sizeof(first));
    }
    double m = first;
    for (ptrdiff_t i = 0; i < h->n; i += LA_CHUNK_MAX) {
        const struct span t = span(i, LA_CHUNK_MAX, i, h->n, NULL);
        if (give_up(h, &until_poll, LA_WKV_WORK * t.rows)) {
            return 1;
        }
        load_token_row(r.i, &h->x, t);
        load_token_row(r.f, &h->x1, t);
        log_sigmoids(r.f, t.rows);
        m = gate_tokens(&r, keys_left(h, t), t.rows, m);
        gate_exponentials(r.i, t.rows);
        store_numbers(&h->g, t, r.f);
        store_numbers(&h->write, t, r.i);
        store_numbers(&h->top, t, r.top);
    }
    last = (T)m;
    if (h->log_scale.data != NULL) {
        memcpy(h->log_scale.data, &last, sizeof(last));
    }
    return 0;
}

#endif
