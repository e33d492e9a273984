/* delta_step.h: one token of the delta rule on a state.
 *
 *   u = beta o (v - s^T b),  s <- s + b u^T
 *   o = scale s^T a = scale (s_before^T a + (a.b) u)
 *                                                 Schlag et al. 2021, eq. 24-25
 * with a = phi(q), b = phi(k).  6 d m flops: both products with the state before the
 * token are summed on its one way into cache, and the update finds it there.  Where
 * no s0 is given the state is updated in place, in s1. */
#ifndef LA_DELTA_STEP_H
#define LA_DELTA_STEP_H

#include "delta.h"

/* One row each, in blocks of a whole tile where rows are loaded. */
struct delta_step_scratch {
    struct block a, b, v, o;
    struct beta beta;
    T *dot, *scale;
};

static struct delta_step_scratch
delta_step_carve(const struct la_head *h, struct arena *arena)
{
    struct delta_step_scratch r;
    r.a = take_block(arena, MR, h->d);
    r.b = take_block(arena, MR, h->d);
    r.v = take_block(arena, MR, h->m);
    r.o = take_block(arena, 1, h->m);
    r.beta = take_beta(arena, h, MR);
    r.dot = take(arena, 1, VL);
    r.scale = take(arena, 1, VL);
    return r;
}

/* u, o and to = from + b u^T, nr vectors of columns from j on. */
INLINE void
delta_step_tile(const struct delta_step_scratch *r, const struct la_array *from,
                const struct la_array *to, ptrdiff_t d, ptrdiff_t j, const int nr)
{
    const ptrdiff_t byte = j * (ptrdiff_t)sizeof(T);
    vec x[NR], y[NR];
    LA_EACH(t, nr) {
        x[t] = y[t] = (vec){0};
    }
    for (ptrdiff_t i = 0; i < d; i++) {
        const char *in = from->data + i * from->rs + byte;
        const vec a = vset1(r->a.x[i]), b = vset1(r->b.x[i]);
        LA_EACH(t, nr) {
            const vec s = vload_any(in + t * LA_VBYTES);
            x[t] = vfma(b, s, x[t]);
            y[t] = vfma(a, s, y[t]);
        }
    }
    const vec dot = vset1(r->dot[0]);
    LA_EACH(t, nr) {
        const ptrdiff_t col = j + t * VL;
        x[t] = beta_at(&r->beta, 0, col) * (vload(&r->v.x[col]) - x[t]);
        vstore(&r->o.x[col], vfma(dot, x[t], y[t]));
    }
    for (ptrdiff_t i = 0; i < d; i++) {
        const char *in = from->data + i * from->rs + byte;
        char *out = to->data + i * to->rs + byte;
        const vec b = vset1(r->b.x[i]);
        LA_EACH(t, nr) {
            const vec s = vfma(b, x[t], vload_any(in + t * LA_VBYTES));
            *(vec_any *)(out + t * LA_VBYTES) = (vec_any)s;
        }
    }
}

/* The same for one column, at any stride. */
static void
delta_step_column(const struct delta_step_scratch *r, const struct la_array *from,
                  const struct la_array *to, ptrdiff_t d, ptrdiff_t j)
{
    const char *in = from->data + j * from->cs;
    char *out = to->data + j * to->cs;
    T x = 0, y = 0, s;
    for (ptrdiff_t i = 0; i < d; i++) {
        memcpy(&s, in + i * from->rs, sizeof(T));
        x = fma_one(r->b.x[i], s, x);
        y = fma_one(r->a.x[i], s, y);
    }
    x = r->beta.rows.x[j * r->beta.step] * (r->v.x[j] - x);
    r->o.x[j] = fma_one(r->dot[0], x, y);
    for (ptrdiff_t i = 0; i < d; i++) {
        memcpy(&s, in + i * from->rs, sizeof(T));
        s = fma_one(r->b.x[i], x, s);
        memcpy(out + i * to->rs, &s, sizeof(T));
    }
}

/* The same for the next columns from j on, of which `left` are left; how many. */
static ptrdiff_t
delta_step_columns(const struct delta_step_scratch *r, const struct la_array *from,
                   const struct la_array *to, ptrdiff_t d, ptrdiff_t j, ptrdiff_t left)
{
    const int unit = from->cs == (ptrdiff_t)sizeof(T) && to->cs == (ptrdiff_t)sizeof(T);
    if (unit && left >= NR * VL) {
        delta_step_tile(r, from, to, d, j, NR);
        return NR * VL;
    }
    if (unit && left >= VL) {
        delta_step_tile(r, from, to, d, j, 1);
        return VL;
    }
    delta_step_column(r, from, to, d, j);
    return 1;
}

static int
run_delta_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct delta_step_scratch r = delta_step_carve(h, &arena);
    const struct la_array *from = h->s0.data ? &h->s0 : &h->s1, *to = &h->s1;
    const struct span one = rows_from(0, 1);
    ptrdiff_t j = 0, until_poll = 0;
    load_mapped(r.a, &h->q, one, h->d, h->map);
    load_mapped(r.b, &h->k, one, h->d, h->map);
    load_plain(r.v, &h->v, one, h->m);
    load_beta(h, one, &r.beta);
    row_dots(r.dot, r.a, r.b, 1, r.a.ld);
    while (j < h->m) {
        if (give_up(h, &until_poll, 3 * h->d * NR * VL)) {
            return 1;
        }
        j += delta_step_columns(&r, from, to, h->d, j, h->m - j);
    }
    factors(h, r.scale, 1, 0);
    store_rows(&h->o, one, h->m, r.o, r.scale);
    return 0;
}

#endif
