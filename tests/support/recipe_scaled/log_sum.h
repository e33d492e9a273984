/* log_sum.h: logarithms of sums of exponentials, each channel by itself, token by
 * token.
 *
 *   o_i = log sum_{j <= i} exp(x_j) = log s_i + L_i,  L_i = max(L_{i-1}, x_i)
 *   s_i = exp(L_{i-1} - L_i) s_{i-1} + exp(x_i - L_i)
 *
 * x, o (n,m), the state's s and log_scale L (m).  Two exponentials a number; scratch: a
 * few rows.  Gradients, from the last token on, with Q that of s_i and r that of L_i at
 * constant s_i exp(L_i), which follows the larger of L_{i-1} and x_i:
 *
 *   Q <- Q + g_i / s_i,  dx_i = exp(x_i - L_i) Q,  Q <- exp(L_{i-1} - L_i) Q */
#ifndef LA_LOG_SUM_H
#define LA_LOG_SUM_H

#include "../tiles/recurrence.h"

struct log_sum_scratch {
    T *x, *o, *s, *L; /* a row each */
};

static struct log_sum_scratch
log_sum_carve(const struct la_head *h, struct arena *arena)
{
    return (struct log_sum_scratch){take_row(arena, h->m), take_row(arena, h->m),
                                    take_row(arena, h->m), take_row(arena, h->m)};
}

/* The first state; what is not given is nothing, of log_scale -inf. */
static void
log_sum_begin(const struct la_head *h, const struct log_sum_scratch *r)
{
    load_vector(r->s, &h->s0, h->m);
    load_vector(r->L, &h->log_scale0, h->m);
    for (ptrdiff_t j = 0; !la_is_given(&h->log_scale0) && j < h->m; j++) {
        r->L[j] = -(T)INFINITY;
    }
}

static void
log_sum_token(const struct la_head *h, const struct log_sum_scratch *r, ptrdiff_t i)
{
    load_row(r->x, row_step(h->m), &h->x, i, h->m);
    for (ptrdiff_t j = 0; j < h->m; j++) {
        const double x = r->x[j], before = r->L[j], L = x > before ? x : before;
        r->s[j] = (T)(exp(before - L) * (double)r->s[j] + exp(x - L));
        r->L[j] = (T)L;
        r->o[j] = (T)(log((double)r->s[j]) + L);
    }
}

static int
run_log_sum(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct log_sum_scratch r = log_sum_carve(h, &arena);
    log_sum_begin(h, &r);
    for (ptrdiff_t i = 0; i < h->n; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        log_sum_token(h, &r, i);
        store_rows(&h->o, rows_from(i, 1), h->m, (struct block){r.o, 0}, NULL);
    }
    store_vector(&h->s1, r.s, h->m);
    store_vector(&h->log_scale1, r.L, h->m);
    return 0;
}

/* One token. */
static struct log_sum_scratch
log_sum_step_carve(const struct la_head *h, struct arena *arena)
{
    return log_sum_carve(h, arena);
}

static int
run_log_sum_step(const struct la_head *h)
{
    return run_log_sum(h);
}

struct log_sum_backward_scratch {
    struct log_sum_scratch token;
    T *g, *dx, *q, *r;
    struct block s, L; /* before every token, and after all */
};

static struct log_sum_backward_scratch
log_sum_backward_carve(const struct la_head *h, struct arena *arena)
{
    return (struct log_sum_backward_scratch){
        .token = log_sum_carve(h, arena),
        .g = take_row(arena, h->m),
        .dx = take_row(arena, h->m),
        .q = take_row(arena, h->m),
        .r = take_row(arena, h->m),
        .s = take_block(arena, h->n + 1, h->m),
        .L = take_block(arena, h->n + 1, h->m),
    };
}

static void
log_sum_keep(const struct la_head *h, const struct log_sum_backward_scratch *r,
             ptrdiff_t i)
{
    const size_t bytes = (size_t)h->m * sizeof(T);
    memcpy(r->s.x + i * r->s.ld, r->token.s, bytes);
    memcpy(r->L.x + i * r->L.ld, r->token.L, bytes);
}

static void
log_sum_token_back(const struct la_head *h, const struct log_sum_backward_scratch *r,
                   ptrdiff_t i)
{
    const T *before = r->L.x + i * r->L.ld, *L = before + r->L.ld;
    const T *s = r->s.x + (i + 1) * r->s.ld;
    load_row(r->token.x, row_step(h->m), &h->x, i, h->m);
    load_row(r->g, row_step(h->m), &h->grad_out, i, h->m);
    for (ptrdiff_t j = 0; j < h->m; j++) {
        const int is_largest = r->token.x[j] > before[j];
        const double q = (double)r->q[j] + (double)r->g[j] / (double)s[j];
        const double own = exp((double)r->token.x[j] - (double)L[j]);
        r->dx[j] = (T)(own * q + (is_largest ? (double)r->r[j] : 0));
        r->r[j] = is_largest ? 0 : r->r[j];
        r->q[j] = (T)(exp((double)before[j] - (double)L[j]) * q);
    }
    store_rows(&h->dx, rows_from(i, 1), h->m, (struct block){r->dx, 0}, NULL);
}

static int
run_log_sum_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct log_sum_backward_scratch r = log_sum_backward_carve(h, &arena);
    log_sum_begin(h, &r.token);
    log_sum_keep(h, &r, 0);
    for (ptrdiff_t i = 0; i < h->n; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        log_sum_token(h, &r.token, i);
        log_sum_keep(h, &r, i + 1);
    }
    load_vector(r.q, &h->grad_s, h->m);
    load_vector(r.r, &h->grad_log_scale, h->m);
    for (ptrdiff_t j = 0; j < h->m; j++) {
        r.r[j] -= r.q[j] * r.token.s[j];
    }
    for (ptrdiff_t i = h->n - 1; i >= 0; i--) {
        log_sum_token_back(h, &r, i);
    }
    for (ptrdiff_t j = 0; j < h->m; j++) {
        r.r[j] += r.q[j] * r.s.x[j];
    }
    store_vector(&h->ds0, r.q, h->m);
    store_vector(&h->dlog_scale0, r.r, h->m);
    return 0;
}

#endif
