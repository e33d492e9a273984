/* noncausal.h: non-causal and cross linear attention, one head.
 *
 *    S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)
 *    o_i = scale phi(q_i)^T S / (scale phi(q_i).z + eps)
 *                                             Katharopoulos et al. 2020, eq. 5-6
 *
 * 2 (n + s) d m flops.  Scratch: two or three states, of d m numbers, and a few blocks
 * of rows. */
#ifndef LA_NONCAUSAL_H
#define LA_NONCAUSAL_H

#include "../tiles/token_sum.h"

struct noncausal_scratch {
    ptrdiff_t rows;       /* tokens per block */
    struct block a, v;    /* features; values, then results */
    struct token_sum sum; /* S and z */
    T *r, *lift;
    struct panels panels;
};

static struct noncausal_scratch
noncausal_carve(const struct la_head *h, struct arena *arena)
{
    struct noncausal_scratch r = {.rows = noncausal_rows(h->d)};
    r.a = take_block(arena, r.rows, h->d);
    r.v = take_block(arena, r.rows, h->m);
    r.sum = take_token_sum(h, arena, r.rows);
    r.r = take(arena, 1, r.rows);
    r.lift = take(arena, 1, r.rows);
    r.panels = take_panels(arena, r.rows, h->d, h->m);
    return r;
}

/* Adds the keys [j, end) to a sum; returns where they end, or -1 to stop. */
static ptrdiff_t
sum_some_keys(const struct la_head *h, const struct noncausal_scratch *r,
              const struct token_sum *sum, struct la_fetch *ahead, ptrdiff_t j,
              ptrdiff_t end)
{
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .b = r->a,
        .v = r->v,
        .lost = lost_if_long(h, sum->lost, h->keys, r->rows),
        .ahead = ahead,
        .pairs = {.panels = r->panels},
    };
    for (; j < end; j += r->rows) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        const struct span t = span(j, r->rows, j + r->rows, h->keys, ahead);
        c.rows = t.rows;
        load_keys(h, t, r->a, r->v);
        place_in_sum(&c, sum, j, h->keys);
        for (ptrdiff_t l = 0; l < r->a.ld; l += VL) {
            add_in_run(sum, &c, l, sum_of_columns(r->a, t.rows, l));
        }
        sweep(&c, LA_WRITE);
    }
    return j;
}

/* S and z, summed over all keys. */
static int
sum_keys(const struct la_head *h, const struct noncausal_scratch *r)
{
    struct la_fetch own = {0};
    ptrdiff_t j = slice_begin(h);
    if (j == 0) {
        clear_token_sum(h, &r->sum, h->keys);
    }
    j = sum_some_keys(h, r, &r->sum, slice_fetch(h, &own), j, slice_end(h, h->keys));
    if (j < 0) {
        return 1;
    }
    ends_pass(h, j, h->keys);
    return 0;
}

static struct noncausal_scratch
state_carve(const struct la_head *h, struct arena *arena)
{
    return noncausal_carve(h, arena);
}

/* Computes only the state after all keys. */
static int
run_state(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct noncausal_scratch r = state_carve(h, &arena);
    if (sum_keys(h, &r)) {
        return 1;
    }
    store_states(h, r.sum.s, r.sum.lost, r.sum.z, r.sum.z_lost);
    return 0;
}

/* o of the queries [i, end), from S and z; returns where they end, or -1 to stop. */
static ptrdiff_t
noncausal_some_outputs(const struct la_head *h, const struct noncausal_scratch *r, T *s,
                       T *z, struct la_fetch *ahead, ptrdiff_t i, ptrdiff_t end)
{
    struct sweep c = {
        .K = h->d,
        .W = round_up(h->m, VL),
        .a = r->a,
        .o = r->v,
        .s = s,
        .ahead = ahead,
    };
    for (; i < end; i += r->rows) {
        const struct span t = span(i, r->rows, i + r->rows, h->n, ahead);
        c.rows = t.rows;
        for (ptrdiff_t g = 0; g < h->group; g++) {
            if (h->poll(h->poll_arg)) {
                return -1;
            }
            const struct la_array q = shifted(&h->q, g * h->q.step);
            const struct la_array o = shifted(&h->o, g * h->o.step);
            load_mapped(r->a, &q, t, h->d, h->map);
            look_ahead(&o, t, h->m);
            if (h->normalize) {
                row_dots(r->r, r->a, (struct block){z, 0}, c.rows, r->a.ld);
            }
            sweep(&c, LA_READ);
            if (factors(h, r->r, c.rows, h->keys == 0, r->lift)) {
                lift_rows(r->v, c.rows, h->m, r->lift);
            }
            store_rows(&o, t, h->m, r->v, r->r);
        }
    }
    return i;
}

static int
noncausal_outputs(const struct la_head *h, const struct noncausal_scratch *r)
{
    struct la_fetch own = {0};
    const ptrdiff_t i =
        noncausal_some_outputs(h, r, r->sum.s, r->sum.z, slice_fetch(h, &own),
                               slice_begin(h), slice_end(h, h->n));
    if (i < 0) {
        return 1;
    }
    ends_last_pass(h, i, h->n);
    return 0;
}

static int
run_noncausal(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct noncausal_scratch r = noncausal_carve(h, &arena);
    return (in_pass(h, 0) && sum_keys(h, &r)) ||
           (in_pass(h, 1) && noncausal_outputs(h, &r));
}

#endif
