/* selective_scan.h: the selective state space model of Mamba, one sequence.
 *
 *   h_i[m,f] = exp(dt_i[m] A[m,f]) h_{i-1}[m,f] + dt_i[m] B_i[f] x_i[m]
 *   y_i[m] = sum_f C_i[f] h_i[m,f] + D[m] x_i[m], times silu(z_i[m]) where a gate z is
 *   given                                      Gu and Dao 2023, algorithm 2
 *
 * dt stands for dt + dt_bias, or its softplus.  x, dt, z, y (n,m), A (m,f), B, C (n,f),
 * D, dt_bias (m), the state s0, s (m,f).  Past the last key dt and B are zeros: the
 * state stays, and outputs are still computed, D x and the gate included.
 *
 * Vectors hold channels.  Each takes a block of tokens with MR of its states in
 * registers.  Every exponent is a product of A and dt log2(e), rounded twice; the decay
 * has a relative error of 3 + 2 |dt A| roundings at most.  n m f exponentials, which
 * take some 10 flops each, and 6 n m f flops.  Scratch: A and the state, and blocks of
 * a panel. Nothing of row j > i reaches row i. */
#ifndef LA_SELECTIVE_SCAN_H
#define LA_SELECTIVE_SCAN_H

#include "../convolution/conv.h"
#include "../decays/decay.h"
#include "scan.h"

struct selective_scan_scratch {
    struct block x, u, delta, y; /* of a panel; u = delta o x; delta times log2(e) */
    struct block B, C;
    T *A, *s;       /* tiles */
    T *D, *dt_bias; /* (m) */
};

/* Blocks of so many tokens, or of all. */
static struct selective_scan_scratch
take_scan(const struct la_head *h, struct arena *arena, ptrdiff_t most)
{
    struct selective_scan_scratch r;
    const ptrdiff_t rows = h->n < most ? round_up(h->n, MR) : most;
    const ptrdiff_t cols = panel_cols(h, 0, LA_SCAN_COLS);
    r.x = take_block(arena, rows, cols);
    r.u = take_block(arena, rows, cols);
    r.delta = take_block(arena, rows, cols);
    r.y = take_block(arena, rows, cols);
    r.B = take_block(arena, rows, h->f);
    r.C = take_block(arena, rows, h->f);
    r.A = take(arena, 1, tiles_size(h));
    r.s = take(arena, 1, tiles_size(h));
    r.D = take_row(arena, h->m);
    r.dt_bias = take_row(arena, h->m);
    return r;
}

/* Tokens of a block. */
INLINE ptrdiff_t
scan_block_rows(const struct la_head *h)
{
    return by_columns(&h->x) ? LA_SCAN_COLUMN_ROWS : LA_SCAN_ROWS;
}

static struct selective_scan_scratch
selective_scan_carve(const struct la_head *h, struct arena *arena)
{
    return take_scan(h, arena, scan_block_rows(h));
}

/* What all tokens have in common. */
static void
load_constants(const struct la_head *h, const struct selective_scan_scratch *r)
{
    load_tiles(r->A, h, &h->A);
    load_tiles(r->s, h, &h->s0);
    load_vector(r->D, &h->D, h->m);
    load_vector(r->dt_bias, &h->dt_bias, h->m);
}

/* n vectors of delta, times log2(e), and of u, from row i and column j on. */
INLINE void
load_deltas(const struct la_head *h, const struct selective_scan_scratch *r,
            struct block x, struct block dt, const T *bias, ptrdiff_t i, ptrdiff_t j,
            const int n)
{
    vec delta[LA_MAPPED];
    LA_EACH(c, n) {
        delta[c] = load_near(dt, i, j + c * VL) + vload(&bias[j + c * VL]);
    }
    if (h->softplus != 0) {
        map_softplus(delta, n);
    }
    LA_EACH(c, n) {
        const ptrdiff_t at = j + c * VL;
        vstore(&r->delta.x[i * r->delta.ld + at], delta[c] * vset1(LOG2_E));
        vstore(&r->u.x[i * r->u.ld + at], delta[c] * load_near(x, i, at));
    }
}

/* delta, times log2(e), and u of the tokens t, channels `col` on; zeros where no key
 * exists.  Returns x of all of them, where it lies or in r->x. */
static struct block
load_inputs(const struct la_head *h, const struct selective_scan_scratch *r,
            struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array x_array = shifted(&h->x, col * h->x.cs);
    const struct la_array dt_array = shifted(&h->dt, col * h->dt.cs);
    const ptrdiff_t keys = keys_left(h, t);
    const struct block x =
        panel_or_copy(r->x, &x_array, rows_from(t.first, t.rows), cols);
    const struct block dt =
        panel_or_copy(r->delta, &dt_array, rows_from(t.first, keys), cols);
    for (ptrdiff_t i = 0; i < keys; i++) {
        LA_TOGETHER(LA_MAPPED, cols,
                    load_deltas(h, r, x, dt, &r->dt_bias[col], i, j, n));
    }
    clear_rows(r->delta, keys, t.rows);
    clear_rows(r->u, keys, t.rows);
    return x;
}

/* y = D o x, to which what is read is added.  A D of 0 adds nothing, whatever x is. */
static void
start_outputs(const struct selective_scan_scratch *r, struct block x, ptrdiff_t rows,
              ptrdiff_t col, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        const vec D = vload(&r->D[col + j]);
        const ivec some = D != (vec){0};
        for (ptrdiff_t i = 0; i < rows; i++) {
            vstore(&r->y.x[i * r->y.ld + j], vkeep(some, D * load_near(x, i, j)));
        }
    }
}

/* Runs `call` with count, the smaller of MR and `left`, a constant.  States of padding
 * may not take part in sums: an infinite u makes them NaN. */
#define LA_STATES_CASE(label, some, call)                                              \
    label:                                                                             \
    {                                                                                  \
        enum { count = some };                                                         \
        call;                                                                          \
        break;                                                                         \
    }
#define LA_WITH_STATES(left, call)                                                     \
    do {                                                                               \
        switch (left) {                                                                \
            LA_STATES_CASE(case 1, 1, call)                                            \
            LA_STATES_CASE(case 2, 2, call)                                            \
            LA_STATES_CASE(case 3, 3, call)                                            \
            LA_STATES_CASE(default, MR, call)                                          \
        }                                                                              \
    } while (0)

/* Decays of `count` states of a vector of channels. */
INLINE void
decays_of(vec e[], const vec a[], vec d, const int count)
{
    LA_EACH(k, count) {
        e[k] = d * a[k];
    }
    vexp2_each(e, count);
}

/* One vector of channels, its `count` states from l on, over the rows of a block.  Asks
 * for a few lines every few rows: all at once they would stall the core. */
INLINE void
scan_states(const struct selective_scan_scratch *r, T *A, T *s, ptrdiff_t j,
            ptrdiff_t l, const int count, ptrdiff_t rows, const int read,
            struct la_fetch *ahead)
{
    vec a[MR], state[MR];
    /* In locals: the compiler assumes that stores change what pointers lead to. */
    const struct block B = block_at(r->B, 0, l), C = block_at(r->C, 0, l);
    const struct block delta = block_at(r->delta, 0, j), u = block_at(r->u, 0, j);
    const struct block out = block_at(r->y, 0, j);
    LA_EACH(k, count) {
        a[k] = vload(&A[(l + k) * VL]);
        state[k] = vload(&s[(l + k) * VL]);
    }
    for (ptrdiff_t i = 0; i < rows; i++) {
        if (i % MR == 0) {
            la_fetch_some(ahead);
        }
        const vec d = vload(&delta.x[i * delta.ld]), w = vload(&u.x[i * u.ld]);
        vec y = read ? vload(&out.x[i * out.ld]) : (vec){0};
        vec e[MR];
        decays_of(e, a, d, count);
        LA_EACH(k, count) {
            state[k] = vfma(e[k], state[k], w * vset1(B.x[i * B.ld + k]));
            if (read) {
                y = vfma(vset1(C.x[i * C.ld + k]), state[k], y);
            }
        }
        if (read) {
            vstore(&out.x[i * out.ld], y);
        }
    }
    LA_EACH(k, count) {
        vstore(&s[(l + k) * VL], state[k]);
    }
}

/* All states of a panel's channels. */
static void
scan_panel(const struct la_head *h, const struct selective_scan_scratch *r,
           ptrdiff_t rows, ptrdiff_t col, struct la_fetch *ahead)
{
    const ptrdiff_t cols = panel_cols(h, col, LA_SCAN_COLS);
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        T *A = tile_at(r->A, h, col + j), *s = tile_at(r->s, h, col + j);
        for (ptrdiff_t l = 0; l < h->f; l += MR) {
            LA_WITH_STATES(h->f - l, scan_states(r, A, s, j, l, count, rows, 1, ahead));
        }
    }
}

/* n vectors of y <- y o silu(z) */
INLINE void
gate_vectors(T *y, const T *gate, const int n)
{
    vec z[LA_MAPPED];
    LA_EACH(c, n) {
        z[c] = vload_any((const char *)&gate[c * VL]);
    }
    vsilu_each(z, n);
    LA_EACH(c, n) {
        vstore(&y[c * VL], vload(&y[c * VL]) * z[c]);
    }
}

/* y <- y o silu(z) */
static void
gate_outputs(const struct la_head *h, const struct selective_scan_scratch *r,
             struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array z = shifted(&h->gate, col * h->gate.cs);
    if (z.data == NULL) {
        return;
    }
    const struct block gate = panel_or_copy(r->x, &z, rows_from(t.first, t.rows), cols);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        T *y = &r->y.x[i * r->y.ld];
        const T *z_row = &gate.x[i * gate.ld];
        LA_TOGETHER(LA_MAPPED, cols, gate_vectors(&y[j], &z_row[j], n));
    }
}

/* Asks for the rows of arrays that the next panel of the block t takes, or the first
 * one of the block that the scan goes on with at token t.next. */
static void
look_at_panel(const struct la_head *h, const struct la_array *const *arrays, int count,
              struct span t, ptrdiff_t col)
{
    const int more = col + LA_SCAN_COLS < h->m;
    const ptrdiff_t next = more ? col + LA_SCAN_COLS : 0;
    t.next = more ? t.first : t.next;
    t.rows = h->n - t.next < t.rows ? h->n - t.next : t.rows;
    for (int a = 0; t.next >= 0 && t.rows > 0 && a < count; a++) {
        const struct la_array x = shifted(arrays[a], next * arrays[a]->cs);
        if (x.data != NULL) {
            look_ahead(&x, t, panel_cols(h, next, LA_SCAN_COLS));
        }
    }
}

/* All channels of h, block by block of tokens. */
static int
scan_channels(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct selective_scan_scratch r = selective_scan_carve(h, &arena);
    const struct la_array *const arrays[] = {&h->x, &h->dt, &h->gate, &h->y};
    struct la_fetch ahead = {0};
    const ptrdiff_t rows = scan_block_rows(h);
    ptrdiff_t until_poll = 0;
    load_constants(h, &r);
    for (ptrdiff_t i = 0; i < h->n; i += rows) {
        const struct span b = span(i, rows, i, h->n, NULL);
        load_existing(r.B, h, &h->B, b, h->f, LA_MAP_identity);
        load_plain(r.C, &h->C, b, h->f);
        for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
            const struct span t = span(i, rows, i + rows, h->n, &ahead);
            const ptrdiff_t cols = panel_cols(h, col, LA_SCAN_COLS);
            const struct la_array y = shifted(&h->y, col * h->y.cs);
            if (give_up(h, &until_poll, 8 * t.rows * cols * tile_rows(h))) {
                return 1;
            }
            const struct block x = load_inputs(h, &r, b, col, cols);
            look_at_panel(h, arrays, h->large ? 3 : 4, t, col); /* y is streamed */
            start_outputs(&r, x, b.rows, col, cols);
            scan_panel(h, &r, t.rows, col, &ahead);
            gate_outputs(h, &r, t, col, cols);
            stream_rows(&y, t, cols, r.y, h->large);
        }
    }
    store_tiles(&h->s1, h, r.s);
    return 0;
}

/* Some of its channels, as a head of their own. */
static struct la_head
channels_of(const struct la_head *h, ptrdiff_t col, ptrdiff_t cols)
{
    struct la_head some = *h;
    some.m = cols;
    some.x = shifted(&h->x, col * h->x.cs);
    some.dt = shifted(&h->dt, col * h->dt.cs);
    some.gate = shifted(&h->gate, col * h->gate.cs);
    some.y = shifted(&h->y, col * h->y.cs);
    some.D = shifted(&h->D, col * h->D.cs);
    some.dt_bias = shifted(&h->dt_bias, col * h->dt_bias.cs);
    some.A = shifted(&h->A, col * h->A.rs);
    some.s0 = shifted(&h->s0, col * h->s0.rs);
    some.s1 = shifted(&h->s1, col * h->s1.rs);
    return some;
}

/* Where a channel's tokens are adjacent in memory, few channels at a time: the lines of
 * all would not stay in the cache until the block that they are for. */
static int
run_selective_scan(const struct la_head *h)
{
    const ptrdiff_t most = by_columns(&h->x) && h->n > VL ? LA_SCAN_CHANNELS : h->m;
    ptrdiff_t col = 0;
    do {
        const struct la_head some = channels_of(h, col, panel_cols(h, col, most));
        if (scan_channels(&some)) {
            return 1;
        }
        col += most;
    } while (col < h->m);
    return 0;
}

#endif
