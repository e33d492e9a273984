/* state.h: the state S (K, W) as the kernels store it, by column tiles of NR vectors,
 * each contiguous (micro.h), and copies from and to the caller's array. */
#ifndef LA_STATE_H
#define LA_STATE_H

#include <math.h>

#include "chunk.h"
#include "micro.h"

/* Rows, and also columns, allocated for a state: whole vectors and whole tiles both
 * ways, so that its transpose fits too. */
INLINE ptrdiff_t
state_rows(ptrdiff_t K)
{
    return round_up(K, VL > MR ? VL : MR);
}

/* Numbers in a state (K, W). */
INLINE ptrdiff_t
state_size(ptrdiff_t K, ptrdiff_t W)
{
    return state_rows(K) * state_rows(W);
}

/* How many of them column tiles hold; the others are room for the transpose. */
INLINE ptrdiff_t
numbers_in_tiles(ptrdiff_t K, ptrdiff_t W)
{
    return round_up(K, MR) * round_up(W, VL);
}

/* Scratch for `count` states (K, W), one after another. */
INLINE T *
take_states(struct arena *arena, ptrdiff_t count, ptrdiff_t K, ptrdiff_t W)
{
    const size_t state = times((size_t)state_rows(K), (size_t)state_rows(W));
    return take_numbers(arena, times((size_t)count, state));
}

INLINE T *
take_state(struct arena *arena, ptrdiff_t K, ptrdiff_t W)
{
    return take_states(arena, 1, K, W);
}

/* Address of row l, column j of a state (K, W); j is a multiple of VL. */
INLINE T *
state_at(T *s, ptrdiff_t K, ptrdiff_t W, ptrdiff_t l, ptrdiff_t j)
{
    const ptrdiff_t tile = j / (NR * VL) * (NR * VL);
    const ptrdiff_t width = W - tile < NR * VL ? W - tile : NR * VL;
    return s + tile * round_up(K, MR) + l * width + (j - tile);
}

/* The first rows of s (K, m) = the caller's array, if there is one. */
static void
load_state_rows(T *s, const struct la_array *x, ptrdiff_t K, ptrdiff_t rows,
                ptrdiff_t m)
{
    const ptrdiff_t W = round_up(m, VL);
    for (ptrdiff_t j = 0; x->data != NULL && j < W; j += NR * VL) {
        const ptrdiff_t width = W - j < NR * VL ? W - j : NR * VL;
        const struct la_array part = shifted(x, j * x->cs);
        const struct block tile = {state_at(s, K, W, 0, j), width};
        load_plain(tile, &part, rows_from(0, rows), m - j < width ? m - j : width);
    }
}

/* s = the caller's state (K, m), or zeros if there is none. */
static void
load_state(T *s, const struct la_array *x, ptrdiff_t K, ptrdiff_t m)
{
    clear(s, state_size(K, m));
    load_state_rows(s, x, K, K, m);
}

/* The caller's array, if wanted, = rows [first, first + rows) of s (K, m). */
static void
store_state_rows(const struct la_array *x, T *s, ptrdiff_t K, ptrdiff_t first,
                 ptrdiff_t rows, ptrdiff_t m)
{
    const ptrdiff_t W = round_up(m, VL);
    for (ptrdiff_t j = 0; x->data != NULL && j < W; j += NR * VL) {
        const ptrdiff_t width = W - j < NR * VL ? W - j : NR * VL;
        const struct la_array part = shifted(x, j * x->cs);
        const struct block tile = {state_at(s, K, W, first, j), width};
        store_rows(&part, rows_from(0, rows), m - j < width ? m - j : width, tile,
                   NULL);
    }
}

/* The caller's state, if wanted, = s (K, m). */
static void
store_state(const struct la_array *x, T *s, ptrdiff_t K, ptrdiff_t m)
{
    store_state_rows(x, s, K, 0, K, m);
}

/* What a field of the state has lost to rounding: no array, unless the call carries
 * it. */
INLINE struct la_array
lost_of(const struct la_array *x)
{
    return x->plane != 0 ? shifted(x, x->plane) : (struct la_array){0};
}

INLINE int
carries_lost(const struct la_head *h)
{
    /* s may have no columns. */
    return (h->s0.plane | h->s1.plane | h->z0.plane | h->z1.plane) != 0;
}

/* The state before the first token and what it has lost, unless that is NULL. */
static void
begin_state(const struct la_head *h, T *s, T *lost)
{
    load_state(s, &h->s0, h->d, h->m);
    if (lost != NULL) {
        const struct la_array before = lost_of(&h->s0);
        load_state(lost, &before, h->d, h->m);
    }
}

/* The caller's state x and what it has lost, if wanted. */
static void
end_state(const struct la_array *x, T *s, T *lost, ptrdiff_t K, ptrdiff_t m)
{
    store_state(x, s, K, m);
    if (x->plane != 0) {
        const struct la_array after = lost_of(x);
        store_state(&after, lost, K, m);
    }
}

/* z = the caller's vector, or zeros if there is none. */
static void
load_vector(T *z, const struct la_array *x, ptrdiff_t count)
{
    clear(z, row_step(count));
    if (x->data != NULL) {
        load_row(z, row_step(count), x, 0, count);
    }
}

static void
store_vector(const struct la_array *x, T *z, ptrdiff_t count)
{
    if (x->data != NULL) {
        store_rows(x, rows_from(0, 1), count, (struct block){z, 0}, NULL);
    }
}

/* z before the first token, and what it has lost. */
static void
begin_vector(const struct la_head *h, T *z, T *lost)
{
    const struct la_array before = lost_of(&h->z0);
    load_vector(z, &h->z0, h->d);
    load_vector(lost, &before, h->d);
}

/* The caller's vector x and what it has lost, if wanted. */
static void
end_vector(const struct la_array *x, T *z, T *lost, ptrdiff_t count)
{
    store_vector(x, z, count);
    if (x->plane != 0) {
        const struct la_array after = lost_of(x);
        store_vector(&after, lost, count);
    }
}

/* Stores the state after the last token, and what it has lost, for every head of the
 * group. */
static void
store_states(const struct la_head *h, T *s, T *s_lost, T *z, T *z_lost)
{
    for (ptrdiff_t g = 0; g < h->group; g++) {
        const struct la_array s1 = shifted(&h->s1, g * h->s1.step);
        const struct la_array z1 = shifted(&h->z1, g * h->z1.step);
        end_state(&s1, s, s_lost, h->d, h->m);
        end_vector(&z1, z, z_lost, h->d);
    }
}

/* Chunks per interval: the square root of the number of chunks, rounded up.  Memory is
 * least if there are as many intervals as chunks in one. */
static ptrdiff_t
checkpoint_interval(ptrdiff_t chunks)
{
    const ptrdiff_t root = (ptrdiff_t)ceil(sqrt((double)chunks));
    return root > 1 ? root : 1;
}

/* Row step, in numbers, of the tile that holds column j, in a state of W columns (W a
 * multiple of VL). */
INLINE ptrdiff_t
state_step(ptrdiff_t W, ptrdiff_t j)
{
    const ptrdiff_t left = W - j / (NR * VL) * (NR * VL);
    return left < NR * VL ? left : NR * VL;
}

/* Rows [first, first + W) of dst, of `all` rows of K, = src (K, W) transposed, both
 * stored by column tiles. */
static void
transpose_to_rows(T *dst, ptrdiff_t all, ptrdiff_t first, T *src, ptrdiff_t K,
                  ptrdiff_t W)
{
    const ptrdiff_t Kp = round_up(K, VL), Wp = round_up(W, VL);
    const ptrdiff_t K4 = round_up(K, MR), W4 = round_up(W, MR);
    for (ptrdiff_t l = 0; l < K; l += VL) {
        const ptrdiff_t out = state_step(Kp, l), rows = K4 - l < VL ? K4 - l : VL;
        for (ptrdiff_t j = 0; j < W; j += VL) {
            const ptrdiff_t in = state_step(Wp, j), cols = W4 - j < VL ? W4 - j : VL;
            const T *from = state_at(src, K, Wp, l, j);
            T *to = state_at(dst, all, Kp, first + j, l);
            vec x[VL];
            LA_EACH(r, VL) {
                x[r] = r < rows ? vload(&from[r * in]) : (vec){0};
            }
            vtranspose(x);
            LA_EACH(r, VL) {
                if (r < cols) {
                    vstore(&to[r * out], x[r]);
                }
            }
        }
    }
}

/* dst (W, K) = src (K, W) transposed. */
static void
transpose_state(T *dst, T *src, ptrdiff_t K, ptrdiff_t W)
{
    transpose_to_rows(dst, W, 0, src, K, W);
}

#endif
