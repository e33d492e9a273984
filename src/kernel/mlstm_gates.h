/* mlstm_gates.h: the gates of mLSTM under a running maximum, one sequence.
 *
 *   m_t = max(log sigma(f_t) + m_{t-1}, i_t)            Beck et al. 2024, eq. 15-17
 *   g_t = log sigma(f_t) + m_{t-1} - m_t,  write_t = exp(i_t - m_t),  top_t = m_t
 *
 * i, f, called x, x1, and g, write, top (n), the state log_scale is m.  One of g_t and
 * i_t - m_t is 0, the other at most 0, and m is no difference of long sums.  At the
 * last token with a key both are relative to m as the state holds it, which is rounded:
 * what is written to the state is, too.  A token without a key has g = write = 0 and
 * leaves m.  Nothing of token j > t reaches token t. */
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

/* m = top + (since + lost): top the input gate that was the last maximum, the others
 * the sum of the log f since then, compensated.  A rounding of m would be one of all
 * that was written before; here only differences of gates are rounded. */
struct running_maximum {
    double top, since, lost;
};

/* x + y, and the rounding error. */
INLINE double
two_sum_double(double x, double y, double *lost)
{
    const double sum = x + y, part = sum - x;
    *lost = (x - (sum - part)) + (y - part);
    return sum;
}

/* m after one token, from log f and i; *log_f <- g_t, *i <- i_t - m_t. */
INLINE void
gate_token(struct running_maximum *m, T *log_f, T *i)
{
    const double least = -INFINITY, in = *i;
    if (*log_f == least || m->top == least) { /* nothing is kept */
        *m = (struct running_maximum){in > least ? in : least, 0, 0};
        *log_f = -(T)INFINITY;
        *i = in > least ? 0 : *i;
        return;
    }
    double lost;
    const double since = two_sum_double(m->since, *log_f, &lost);
    lost += m->lost;
    const double lead = gate_difference(m->top, in) + (since + lost);
    const int is_in = lead < 0;
    *log_f = is_in ? (T)lead : 0;
    *i = is_in ? 0 : (T)-lead;
    m->top = is_in ? in : m->top;
    m->since = is_in ? 0 : since;
    m->lost = is_in ? 0 : lost;
}

/* Rounds m to what a state holds, and makes the gates of the token after which it is m
 * relative to that.  What one number cannot hold at all is cut off. */
INLINE T
settle_maximum(struct running_maximum *m, T *g, T *write)
{
    const double most = LOST_MOST;
    double lost;
    const double sum = two_sum_double(m->top, m->since + m->lost, &lost);
    const T rounded = (T)sum;
    lost += sum - (double)rounded;
    lost = lost > most ? most : lost < -most ? -most : lost == lost ? lost : 0;
    *g = (T)(*g + lost);
    *write = (T)(*write + lost);
    *m = (struct running_maximum){rounded, 0, 0};
    return rounded;
}

/* g, i - m and m of so many tokens.  After token `last`, the last one with a key, m is
 * what the state holds. */
static void
gate_tokens(const struct mlstm_gates_scratch *r, ptrdiff_t last, ptrdiff_t rows,
            struct running_maximum *m)
{
    for (ptrdiff_t t = 0; t < rows; t++) {
        if (t <= last) {
            gate_token(m, &r->f[t], &r->i[t]);
        }
        else {
            r->f[t] = 0;
            r->i[t] = -(T)INFINITY;
        }
        r->top[t] = t == last ? settle_maximum(m, &r->f[t], &r->i[t])
                              : (T)(m->top + (m->since + m->lost));
    }
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
    T first = 0;
    ptrdiff_t until_poll = 0;
    if (h->log_scale0.data != NULL) {
        memcpy(&first, h->log_scale0.data, sizeof(first));
    }
    struct running_maximum m = {first, 0, 0};
    const ptrdiff_t last = (h->keys < h->n ? h->keys : h->n) - 1;
    for (ptrdiff_t i = 0; i < h->n; i += LA_CHUNK_MAX) {
        const struct span t = span(i, LA_CHUNK_MAX, i, h->n, NULL);
        if (give_up(h, &until_poll, LA_WKV_WORK * t.rows)) {
            return 1;
        }
        load_token_row(r.i, &h->x, t);
        load_token_row(r.f, &h->x1, t);
        log_sigmoids(r.f, t.rows);
        gate_tokens(&r, last - i, t.rows, &m);
        gate_exponentials(r.i, t.rows);
        store_numbers(&h->g, t, r.f);
        store_numbers(&h->write, t, r.i);
        store_numbers(&h->top, t, r.top);
    }
    if (h->log_scale.data != NULL) {
        const T settled = (T)m.top;
        memcpy(h->log_scale.data, &settled, sizeof(settled));
    }
    return 0;
}

#endif
