/* decay_pairs.h: the operands of the gradients of a chunk's decays (decay_backward.h),
 * and the gradients for one decay per token. */
#ifndef LA_DECAY_PAIRS_H
#define LA_DECAY_PAIRS_H

#include "decay.h"
#include "../tiles/triangle.h"

struct decay_reader {
    struct block x, dx; /* scaled for writers; `far`, then the gradient */
    int strict, before; /* does not read its own token; reads before its decay */
};

struct decay_writer {
    struct block x, dx;
};

struct decay_pairs {
    const struct decay *decay;
    ptrdiff_t tokens, rows, d; /* rows: tokens rounded up to MR */
    int readers, writers;
    struct decay_reader reader[2];
    struct decay_writer writer[2];
    struct block p[2][2], x[2][2]; /* for each reader and writer; (rows, rows) */
    struct block dg, across; /* one decay per channel: (rows, d); sums over pairs with
                                the block of MR rows between them, one row per block */
    T *dg_token;             /* one decay per token, (rows) */
    T *state;                /* exp(G_last) o rows(S o R), (d) */
};

/* Scratch for the gradients of a chunk's decays. */
static void
take_decay_gradient(struct arena *arena, const struct la_head *h, ptrdiff_t rows,
                    struct decay_pairs *c)
{
    if (h->g.has_channels) {
        c->dg = take_block(arena, rows, h->d);
        c->across = take_block(arena, rows / MR, h->d);
    }
    else {
        c->dg_token = take_row(arena, rows);
    }
    c->state = take_row(arena, h->d);
}

/* The sums over K rows of (share x) o y, for VL columns. */
INLINE vec
row_products(const T *x, const T *y, ptrdiff_t K, ptrdiff_t width, vec share)
{
    vec sum[MR] = {{0}}; /* several sums: a single one would be limited by latency */
    ptrdiff_t l = 0;
    for (; l + MR <= K; l += MR) {
        LA_EACH(t, MR) {
            const ptrdiff_t at = (l + t) * width;
            sum[t] = vfma(share * vload(&x[at]), vload(&y[at]), sum[t]);
        }
    }
    for (; l < K; l++) {
        sum[0] = vfma(share * vload(&x[l * width]), vload(&y[l * width]), sum[0]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* state = exp(G_last) o (sum over the rows of s o rt), both (K, d) by column tiles.  If
 * the sum overflows, the decay is applied first, since it may be small. */
static void
state_gradient(const struct decay *decay, T *state, T *s, T *rt, ptrdiff_t K,
               ptrdiff_t d)
{
    const ptrdiff_t W = round_up(d, VL);
    for (ptrdiff_t j = 0; j < W; j += VL) {
        const ptrdiff_t width = state_step(W, j);
        const T *x = state_at(s, K, W, 0, j), *y = state_at(rt, K, W, 0, j);
        const vec whole = vload(&decay->keep[j]) + vload(&decay->change[j]);
        const vec sum = row_products(x, y, K, width, vset1(1));
        const ivec large = sum - sum != (vec){0};
        vec all = whole * keep_of(whole, sum);
        if (vany(large)) {
            const vec again = row_products(x, y, K, width, whole);
            all = vselect(large, keep_of(whole, again), all);
        }
        vstore(&state[j], all);
    }
}

/* --- one decay per token ------------------------------------------------------ */

/* sum += x_ij p_ij of row i (of readers before their decay: row i + 1), for the columns
 * [j, j + VL) before i. */
INLINE vec
pairs_until(const struct decay_pairs *c, vec sum, ptrdiff_t i, ptrdiff_t j)
{
    const ivec earlier = first_lanes(i - j);
    for (int r = 0; r < c->readers; r++) {
        const ptrdiff_t row = i + c->reader[r].before;
        for (int w = 0; row < c->tokens && w < c->writers; w++) {
            const struct block x = c->x[r][w], p = c->p[r][w];
            const vec more = vload(&x.x[row * x.ld + j]) * vload(&p.x[row * p.ld + j]);
            sum += vkeep(earlier, more);
        }
    }
    return sum;
}

/* dg_t = sum_{j < t <= i} x_ij p_ij */
static void
token_pairs(const struct decay_pairs *c)
{
    vec across[LA_BLOCK / VL] = {{0}};
    for (ptrdiff_t last = round_up(c->tokens, VL); last > 0; last -= VL) {
        vec part[VL];
        for (ptrdiff_t lane = VL - 1; lane >= 0; lane--) {
            const ptrdiff_t t = last - VL + lane;
            part[lane] = (vec){0};
            for (ptrdiff_t j = 0; t < c->tokens && j < t; j += VL) {
                const ivec earlier = first_lanes(t - j);
                across[j / VL] = pairs_until(c, across[j / VL], t, j);
                part[lane] += vkeep(earlier, across[j / VL]);
            }
        }
        vstore(&c->dg_token[last - VL], lane_sums(part));
    }
}

/* dg_token, while dx still holds `far`. */
static void
token_gradient(const struct decay_pairs *c)
{
    _Alignas(LA_ALIGN) T far[LA_BLOCK], lanes[VL];
    const ptrdiff_t cols = round_up(c->d, VL);
    const struct decay *decay = c->decay;
    token_pairs(c);
    for (int r = 0; r < c->readers; r++) {
        const struct decay_reader *a = &c->reader[r];
        T ahead = 0;
        row_dots(far, a->x, a->dx, c->tokens, cols);
        for (ptrdiff_t t = c->tokens - 1; t >= 0; t--) {
            const ptrdiff_t i = t + a->before;
            ahead += i < c->tokens ? start_of(decay, a->before)[i] * far[i] : 0;
            c->dg_token[t] += ahead;
        }
    }
    vec sum = (vec){0};
    for (ptrdiff_t l = 0; l < c->d; l += VL) {
        sum += vload(&c->state[l]);
    }
    vstore(lanes, sum);
    for (int w = 0; w < c->writers; w++) {
        T behind = 0;
        for (ptrdiff_t l = 0; w == 0 && l < VL; l++) {
            behind += lanes[l];
        }
        row_dots(far, c->writer[w].x, c->writer[w].dx, c->tokens, cols);
        for (ptrdiff_t t = 0; t < c->tokens; t++) {
            c->dg_token[t] += behind;
            behind += decay->end[t] * far[t];
        }
    }
}

#endif
