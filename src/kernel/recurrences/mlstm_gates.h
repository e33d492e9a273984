/* mlstm_gates.h: the gates of mLSTM under a running maximum, one sequence.
 *
 *   m_t = max(log sigma(f_t) + m_{t-1}, i_t)            Beck et al. 2024, eq. 15-17
 *   g_t = log sigma(f_t) + m_{t-1} - m_t,  write_t = exp(i_t - m_t),  top_t = m_t
 *
 * i, f (n), and g, write, top in scratch; the state's log_scale is m.  One of g_t and
 * i_t - m_t is 0, the other at most 0, and m is no difference of long sums.  At the
 * last token with a key both are relative to m as the state holds it, which is rounded:
 * what is written to the state is, too.  A token without a key has g = write = 0 and
 * leaves m.  Nothing of token j > t reaches token t. */
#ifndef LA_MLSTM_GATES_H
#define LA_MLSTM_GATES_H

#include "../vectors/functions.h"
#include "../tiles/recurrence.h"

/* Of all tokens, (n) each. */
struct mlstm_gates {
    T *g, *write, *top;
    unsigned char *carries; /* whether m_t is log sigma(f_t) + m_{t-1}; NULL: unknown */
};

static struct mlstm_gates
take_mlstm_gates(const struct la_head *h, struct arena *arena)
{
    struct mlstm_gates r = {.carries = NULL};
    r.g = take_row(arena, h->n);
    r.write = take_row(arena, h->n);
    r.top = take_row(arena, h->n);
    return r;
}

/* Numbers of tokens in scratch, as an operand. */
INLINE struct la_array
in_scratch(T *numbers)
{
    return transposed(block_array((struct block){numbers, 0}));
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
    if (*log_f == least || m->top == least) { /* nothing is carried over */
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

/* g, i - m, in place of write, and m of so many tokens.  After token `last`, the last
 * one with a key, m is what the state holds. */
static void
gate_tokens(const struct mlstm_gates *r, ptrdiff_t last, ptrdiff_t rows,
            struct running_maximum *m)
{
    for (ptrdiff_t t = 0; t < rows; t++) {
        if (t <= last) {
            gate_token(m, &r->g[t], &r->write[t]);
        }
        else {
            r->g[t] = 0;
            r->write[t] = -(T)INFINITY;
        }
        r->top[t] = t == last ? settle_maximum(m, &r->g[t], &r->write[t])
                              : (T)(m->top + (m->since + m->lost));
        if (r->carries != NULL) {
            r->carries[t] = r->g[t] > -(T)INFINITY && r->g[t] >= r->write[t];
        }
    }
}

static void
gate_exponentials(T *x, ptrdiff_t rows)
{
    for (ptrdiff_t t = 0; t < rows; t += VL) {
        vstore(&x[t], vexp(vload(&x[t])));
    }
}

/* The gates of all tokens, and log_scale after them.  Returns nonzero to stop. */
static int
load_mlstm_gates(const struct la_head *h, const struct mlstm_gates *all)
{
    T first = 0;
    ptrdiff_t until_poll = 0;
    if (la_is_given(&h->log_scale0)) {
        memcpy(&first, h->log_scale0.data, sizeof(first));
    }
    struct running_maximum m = {first, 0, 0};
    const ptrdiff_t last = (h->keys < h->n ? h->keys : h->n) - 1;
    for (ptrdiff_t i = 0; i < h->n; i += LA_CHUNK_MAX) {
        const struct span t = span(i, LA_CHUNK_MAX, i, h->n, NULL);
        const struct mlstm_gates r = {all->g + i, all->write + i, all->top + i,
                                      all->carries == NULL ? NULL : all->carries + i};
        if (give_up(h, &until_poll, LA_WKV_WORK * t.rows)) {
            return 1;
        }
        load_token_row(r.write, &h->i_gate, t);
        load_token_row(r.g, &h->f_gate, t);
        log_sigmoids(r.g, t.rows);
        const int cuts = carries_lost(h) && (i + t.rows) % LA_CUT_TOKENS == 0;
        const ptrdiff_t left = last - i, end = t.rows - 1;
        gate_tokens(&r, cuts && end < left ? end : left, t.rows, &m);
        gate_exponentials(r.write, t.rows);
    }
    if (la_is_given(&h->log_scale1)) {
        const T settled = (T)m.top;
        memcpy(h->log_scale1.data, &settled, sizeof(settled));
    }
    return 0;
}

#endif
