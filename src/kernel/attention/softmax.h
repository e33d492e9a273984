/* softmax.h: exact softmax attention, forward, in blocks of keys.
 *
 *    o_i = sum_j p_ij v_j,  p_ij = exp(scale q_i.k_j - m_i) / l_i,  j <= i if causal
 *
 * with the running maximum m_i and sum l_i of Milakov and Gimelshein 2018, in blocks as
 * in Dao et al. 2022, algorithm 1.  q (n,d), k (s,d), v (s,m) -> o (n,m).  2 n s (d +
 * m) flops, half of that if causal.  Scratch: blocks of LA_QUERIES rows of q and o and
 * of LA_BLOCK keys; nothing of size n s.  Scores of later keys are replaced, not
 * multiplied by zero, and their values are skipped: rows j > i never affect row i.
 *
 * Each block is summed separately, and the sums over blocks are compensated: a single
 * chain over all keys would round once per key, in one direction if keys are alike.
 * For the same reason, m_i is the maximum or up to 1 less.  It changes only when it
 * must, so that slowly growing scores do not rescale, and round, the sums in every
 * block.
 *
 * A score that overflows counts as the largest number, or its negative, so that exp
 * sees the right differences of scores: 0 between two such scores, else infinite. */
#ifndef LA_SOFTMAX_H
#define LA_SOFTMAX_H

#include "../maps/row_maps.h"

/* Products of numbers within FAR_INPUT sum to a finite score.  FAR_DOWN scales numbers
 * beyond it into that range; FAR_UP is its inverse. */
#define FAR_INPUT ((T)(MANTISSA_BITS == 52 ? 0x1p480 : 0x1p48))
#define FAR_DOWN ((T)(MANTISSA_BITS == 52 ? 0x1p-544 : 0x1p-80))
#define FAR_UP ((T)(MANTISSA_BITS == 52 ? 0x1p544 : 0x1p80))

struct softmax_scratch {
    ptrdiff_t ldd, ldm;
    T *q, *o, *running_max, *sum, *p; /* for the queries; sum: one per lane */
    T *o_lost, *sum_lost;             /* what o and sum have lost to rounding */
    T *rows, *keys, *values;     /* a block of keys, also transposed, and of values */
    T *far_q, *far_keys, *far_p; /* scaled down: a strip of queries, keys, products */
};

static struct softmax_scratch
softmax_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t d = h->d, m = h->m;
    struct softmax_scratch r = {.ldd = row_step(d), .ldm = row_step(m)};
    r.q = take(arena, LA_QUERIES, r.ldd);
    r.o = take(arena, LA_QUERIES, r.ldm);
    r.running_max = take(arena, 1, LA_QUERIES);
    r.sum = take(arena, LA_QUERIES, VL);
    r.o_lost = take(arena, LA_QUERIES, r.ldm);
    r.sum_lost = take(arena, LA_QUERIES, VL);
    r.p = take(arena, MR, LA_BLOCK);
    r.rows = take_state(arena, LA_BLOCK, d);
    r.keys = take_state(arena, d, LA_BLOCK);
    r.values = take_state(arena, LA_BLOCK, m);
    r.far_q = take(arena, MR, r.ldd);
    r.far_keys = take_state(arena, d, LA_BLOCK);
    r.far_p = take(arena, MR, LA_BLOCK);
    return r;
}

/* The rows of an operand from `first` on. */
INLINE struct la_array
rows_after(const struct la_array *x, ptrdiff_t first)
{
    return shifted(x, first * x->rs);
}

/* s (LA_BLOCK, cols), by column tiles, = `rows` rows of x, then zeros. */
static void
load_block(T *s, const struct la_array *x, ptrdiff_t rows, ptrdiff_t cols)
{
    if (rows < LA_BLOCK) {
        clear(s, state_size(LA_BLOCK, cols));
    }
    load_state_rows(s, x, LA_BLOCK, rows, cols);
}

/* The largest lane, in every lane. */
INLINE vec
vall_max(vec x)
{
    LA_UNROLL
    for (int step = 1; step < VL; step *= 2) {
        x = vmax(vzip_low(x, x), vzip_high(x, x));
    }
    return x;
}

/* p (MR, LA_BLOCK) = q_i.k_j for one strip of queries. */
INLINE void
products(T *p, const T *q, ptrdiff_t ldd, const T *keys, ptrdiff_t d)
{
    for (ptrdiff_t col = 0; col < LA_BLOCK; col += NR * VL) {
        vec acc[MR][NR] = {{{0}}};
        tile(acc, MR, NR, (struct block){(T *)q, ldd}, 0,
             (struct block){(T *)keys + col * round_up(d, MR), NR * VL}, d);
        LA_EACH(i, MR) {
            LA_EACH(j, NR) {
                vstore(&p[i * LA_BLOCK + col + j * VL], acc[i][j]);
            }
        }
    }
}

/* x clamped to the finite numbers; NaN stays NaN. */
INLINE vec
vfinite(vec x)
{
    return vmin(vset1(LARGEST), vmax(vset1(-LARGEST), x));
}

/* Whether any of `count` numbers, a multiple of VL, is beyond FAR_INPUT or NaN. */
static int
any_far(const T *x, ptrdiff_t count)
{
    ivec near = ~(ivec){0};
    for (ptrdiff_t i = 0; i < count; i += VL) {
        const vec y = vload(&x[i]);
        near &= (y < vset1(FAR_INPUT)) & (y > vset1(-FAR_INPUT));
    }
    return vany(~near);
}

/* y = x FAR_DOWN for `count` numbers, a multiple of VL. */
static void
scale_down(T *y, const T *x, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i += VL) {
        vstore(&y[i], vload(&x[i]) * vset1(FAR_DOWN));
    }
}

/* Transposes the block of keys in r->rows; returns whether any number is beyond
 * FAR_INPUT. */
static int
transpose_keys(const struct softmax_scratch *r, ptrdiff_t d)
{
    transpose_state(r->keys, r->rows, LA_BLOCK, d);
    return any_far(r->keys, round_up(d, MR) * LA_BLOCK);
}

/* Recomputes scores that are inf or NaN from scaled numbers.  Whatever underflows there
 * is negligible relative to a term that overflows. */
static __attribute__((noinline, cold)) void
far_scores(const struct softmax_scratch *r, T *p, const T *q, ptrdiff_t d)
{
    scale_down(r->far_q, q, MR * r->ldd);
    scale_down(r->far_keys, r->keys, round_up(d, MR) * LA_BLOCK);
    products(r->far_p, r->far_q, r->ldd, r->far_keys, d);
    for (ptrdiff_t i = 0; i < MR * LA_BLOCK; i += VL) {
        const vec x = vload(&p[i]), y = vload(&r->far_p[i]);
        const vec far = vfinite(y * vset1(FAR_UP) * vset1(FAR_UP));
        vstore(&p[i], vselect(x - x == (vec){0}, x, far));
    }
}

/* p (MR, LA_BLOCK), the scores of one strip of queries, scale q, with the block of
 * keys. far: whether any number of either is beyond FAR_INPUT. */
INLINE void
strip_scores(const struct softmax_scratch *r, T *p, const T *q, ptrdiff_t d, int far)
{
    products(p, q, r->ldd, r->keys, d);
    if (far) {
        far_scores(r, p, q, d);
    }
}

/* sum = fade sum + more, compensated with `lost`. */
INLINE void
fade_and_add(T *sum, T *lost, vec fade, vec more)
{
    const vec old = vload(sum) * fade, all = vfma(vload(lost), fade, more);
    const vec new = old + all;
    vstore(sum, new);
    vstore(lost, rounding_lost(old, all, new));
}

/* p = exp(p - m) with the new m, and 0 from key `end` on; no score exceeds m by more
 * than 1.  Returns the factor of the sums so far. */
INLINE vec
row_weights(T *p, T *running_max, T *sum, T *lost, ptrdiff_t end)
{
    const vec before = vset1(*running_max);
    vec max = before, total = {0};
    LA_UNROLL
    for (ptrdiff_t j = 0; j < LA_BLOCK; j += VL) {
        const ivec there = first_lanes(end - j);
        const vec x = vselect(there, vload(&p[j]), vset1(-(T)INFINITY));
        max = vmax(max, x);
        vstore(&p[j], x);
    }
    max = vall_max(max);
    /* Keeps an m that is at most 1 below the maximum; a NaN becomes the new m. */
    max = vselect(max <= before + vset1(1), before, max);
    LA_UNROLL
    for (ptrdiff_t j = 0; j < LA_BLOCK; j += LA_MAPPED * VL) {
        vec x[LA_MAPPED];
        LA_EACH(i, LA_MAPPED) {
            x[i] = vload(&p[j + i * VL]) - max;
        }
        vexp_each(x, LA_MAPPED); /* of at most 2, but in a row with a NaN */
        LA_EACH(i, LA_MAPPED) {
            total += x[i];
            vstore(&p[j + i * VL], x[i]);
        }
    }
    const vec fade = vexp(before - max);
    fade_and_add(sum, lost, fade, total);
    *running_max = max[0];
    return fade;
}

/* o = fade o + p v for one strip from row `first` on and one column tile, with `full`
 * values and, if `diagonal`, then a triangle of MR more. */
INLINE void
strip_values(const struct softmax_scratch *r, ptrdiff_t first, const vec *fade,
             ptrdiff_t col, ptrdiff_t full, int diagonal, const int nr)
{
    const ptrdiff_t lds = nr * VL;
    T *v = r->values + col * LA_BLOCK;
    vec acc[MR][NR];
    clear_tile(acc, MR, nr);
    tile(acc, MR, nr, (struct block){r->p, LA_BLOCK}, 0, (struct block){v, lds}, full);
    if (diagonal) {
        tile_diagonal(acc, MR, nr, (struct block){r->p + full, LA_BLOCK}, 0,
                      (struct block){v + full * lds, lds}, 0, 0, LA_FLOAT_PRODUCTS);
    }
    LA_EACH(i, MR) {
        LA_EACH(j, nr) {
            const ptrdiff_t at = (first + i) * r->ldm + col + j * VL;
            fade_and_add(&r->o[at], &r->o_lost[at], fade[i], acc[i][j]);
        }
    }
}

/* Adds one block of keys to strip i of the block of queries.  Its first row sees `end`
 * keys and, if causal, each further row sees one more. */
INLINE void
strip(const struct softmax_scratch *r, ptrdiff_t i, ptrdiff_t d, ptrdiff_t m,
      ptrdiff_t end, int diagonal, int far)
{
    vec fade[MR];
    strip_scores(r, r->p, r->q + i * r->ldd, d, far);
    LA_EACH(row, MR) {
        fade[row] = row_weights(r->p + row * LA_BLOCK, &r->running_max[i + row],
                                &r->sum[(i + row) * VL], &r->sum_lost[(i + row) * VL],
                                diagonal ? end + row : end);
    }
    const ptrdiff_t full = diagonal ? end - 1 : end;
    LA_BY_TILES(round_up(m, VL), strip_values(r, i, fade, col, full, diagonal, nr));
}

/* q = scale times some rows of an operand; returns whether any number is beyond
 * FAR_INPUT. */
static int
load_queries(T *q, ptrdiff_t ldd, const struct la_array *x, struct span rows,
             ptrdiff_t d, T scale)
{
    const ptrdiff_t count = round_up(rows.rows, MR) * ldd;
    load_plain((struct block){q, ldd}, x, rows, d);
    for (ptrdiff_t i = 0; i < count; i += VL) {
        *at(&q[i]) = vfinite(vload(&q[i]) * vset1(scale));
    }
    return any_far(q, count);
}

/* o, m and l of the queries [first, first + rows), all in scratch. */
static int
softmax_rows(const struct la_head *h, const struct softmax_scratch *r, ptrdiff_t first,
             ptrdiff_t rows)
{
    const ptrdiff_t d = h->d, s = h->s, m = h->m;
    const int causal = h->causal != 0;
    const ptrdiff_t end = causal && first + rows < s ? first + rows : s;
    const int far_queries = load_queries(
        r->q, r->ldd, &h->q, rows_from(first - h->first, rows), d, (T)h->scale);
    clear(r->o, LA_QUERIES * r->ldm);
    clear(r->o_lost, LA_QUERIES * r->ldm);
    clear(r->sum, LA_QUERIES * VL);
    clear(r->sum_lost, LA_QUERIES * VL);
    for (ptrdiff_t i = 0; i < LA_QUERIES; i++) {
        r->running_max[i] = -LARGEST;
    }
    for (ptrdiff_t j = 0; j < end; j += LA_BLOCK) {
        const ptrdiff_t keys = s - j < LA_BLOCK ? s - j : LA_BLOCK;
        const struct la_array k = rows_after(&h->k, j), v = rows_after(&h->v, j);
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        load_block(r->rows, &k, keys, d);
        const int far = transpose_keys(r, d) || far_queries;
        load_block(r->values, &v, keys, m);
        ptrdiff_t i = causal && j > first ? j - first : 0;
        for (; i < rows; i += MR) {
            const ptrdiff_t seen = first + i + 1 - j;
            const int diagonal = causal && seen <= LA_BLOCK;
            strip(r, i, d, m, diagonal ? seen : keys, diagonal, far);
        }
    }
    return 0;
}

static int
run_softmax(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct softmax_scratch r = softmax_carve(h, &arena);
    if (softmax_rows(h, &r, h->first, h->n)) {
        return 1;
    }
    T *const inverse = r.running_max; /* m is no longer needed */
    for (ptrdiff_t i = 0; i < h->n; i++) {
        const T sum = sum_lanes(vload(&r.sum[i * VL]));
        inverse[i] = sum == 0 ? 0 : 1 / sum; /* 0 if there is no key */
    }
    store_rows(&h->o, rows_from(0, h->n), h->m, (struct block){r.o, r.ldm}, inverse);
    return 0;
}

#endif
