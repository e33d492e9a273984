/* selective_scan_step.h: one token of the selective scan (selective_scan.h) on a state.
 *
 * Vectors hold states of a channel: the state is read and written once, as it lies, and
 * outputs are sums over lanes.  If no s0 is given the state is updated in place, in s1.
 * Scratch: that of the scan, and a vector a channel of a panel. */
#ifndef LA_SELECTIVE_SCAN_STEP_H
#define LA_SELECTIVE_SCAN_STEP_H

#include "selective_scan.h"

struct selective_scan_step_scratch {
    struct selective_scan_scratch scan;
    T *read; /* a vector of each channel of a panel: its states times C */
};

static struct selective_scan_step_scratch
selective_scan_step_carve(const struct la_head *h, struct arena *arena)
{
    struct selective_scan_step_scratch r;
    r.scan = selective_scan_carve(h, arena); /* first: where scan_channels has it */
    r.read = take(arena, round_up(scan_cols(h, 0, LA_SCAN_COLS), VL), VL);
    return r;
}

/* What belongs to the channels from `channel` on, up to VL; zeros where it is left out.
 */
INLINE vec
load_of_channels(const struct la_head *h, const struct la_array *x, ptrdiff_t channel)
{
    return x->data != NULL ? load_at(x, 0, channel, h->m) : (vec){0};
}

/* delta, u and D o x of the channels `col` on. */
static void
load_channels(const struct la_head *h, const struct selective_scan_scratch *r,
              ptrdiff_t col, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        const vec x = load_of_channels(h, &h->x, col + j);
        const vec D = load_of_channels(h, &h->D, col + j);
        const vec raw = load_of_channels(h, &h->dt, col + j) +
                        load_of_channels(h, &h->dt_bias, col + j);
        const vec delta = h->softplus != 0 ? phi_softplus(raw) : raw;
        vstore(&r->delta.x[j], delta);
        vstore(&r->u.x[j], delta * x);
        vstore(&r->y.x[j], vkeep(D != (vec){0}, D * x));
    }
}

/* Rates and states of a channel, and the bytes between them. */
struct states {
    const char *A, *s0;
    char *s1;
    ptrdiff_t A_step, s0_step, s1_step;
};

/* States l to l + VL - 1 of a channel, or `some` of them, after the token; their
 * product with C is added to y.  Padding is kept out: an infinite u makes it NaN. */
INLINE vec
step_states(const struct states x, ptrdiff_t l, const T *B, const T *C, T delta, T u,
            ptrdiff_t some, vec y)
{
    const vec a = vread_part(x.A + l * x.A_step, x.A_step, some, LA_NATIVE);
    const vec s = vread_part(x.s0 + l * x.s0_step, x.s0_step, some, LA_NATIVE);
    const vec decay = vexp2(vset1(delta) * (a * vset1(LOG2_E)));
    const vec after = vfma(decay, s, vset1(u) * vload(&B[l]));
    vwrite_part(x.s1 + l * x.s1_step, x.s1_step, some, after, LA_NATIVE);
    return vfma(vload(&C[l]), some < VL ? vkeep(first_lanes(some), after) : after, y);
}

/* The channel's states after the token, and their products with C by lane. */
INLINE vec
step_channel(const struct states x, const T *B, const T *C, T delta, T u, ptrdiff_t f)
{
    const ptrdiff_t whole = f / VL * VL;
    vec y = (vec){0};
    for (ptrdiff_t l = 0; l < whole; l += VL) {
        y = step_states(x, l, B, C, delta, u, VL, y);
    }
    return whole < f ? step_states(x, whole, B, C, delta, u, f - whole, y) : y;
}

/* The states of the panel's channels after the token. */
static void
step_channels(const struct la_head *h, const struct selective_scan_step_scratch *r,
              ptrdiff_t col, ptrdiff_t cols)
{
    const struct selective_scan_scratch *scan = &r->scan;
    const ptrdiff_t size = sizeof(T), f = h->f;
    const ptrdiff_t A_step = h->A.rs, s0_step = h->s0.rs, s1_step = h->s1.rs;
    const T *B = scan->B.x, *C = scan->C.x;
    const int adjacent = h->A.cs == size && h->s0.cs == size && h->s1.cs == size;
    struct states x = {h->A.data + col * A_step,
                       h->s0.data + col * s0_step,
                       h->s1.data + col * s1_step,
                       h->A.cs,
                       h->s0.cs,
                       h->s1.cs};
    LA_UNROLL_BY_4
    for (ptrdiff_t j = 0; j < cols; j++) {
        const T delta = scan->delta.x[j], u = scan->u.x[j];
        const struct states near = {x.A, x.s0, x.s1, size, size, size};
        vstore(&r->read[j * VL], adjacent ? step_channel(near, B, C, delta, u, f)
                                          : step_channel(x, B, C, delta, u, f));
        x.A += A_step;
        x.s0 += s0_step;
        x.s1 += s1_step;
    }
}

/* What was read of the channels is added to their outputs. */
static void
add_read(const struct selective_scan_step_scratch *r, ptrdiff_t cols)
{
    T *y = r->scan.y.x;
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        vec part[VL];
        LA_EACH(k, VL) {
            part[k] = vload(&r->read[(j + k) * VL]);
        }
        vstore(&y[j], vload(&y[j]) + lane_sums(part));
    }
}

/* y, times silu(z) where there is a gate, to the caller. */
static void
store_channels(const struct la_head *h, const struct selective_scan_scratch *r,
               ptrdiff_t col, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        char *to = h->y.data + (col + j) * h->y.cs;
        vec y = vload(&r->y.x[j]);
        if (h->gate.data != NULL) {
            y *= vsilu(load_at(&h->gate, 0, col + j, h->m));
        }
        vwrite_part(to, h->y.cs, lanes_from(h, col + j), y, h->y.type);
    }
}

static int
run_selective_scan_step(const struct la_head *given)
{
    struct la_head one = *given;
    one.s0 = given->s0.data != NULL ? given->s0 : given->s1;
    const struct la_head *h = &one;
    struct arena arena = {h->scratch, 0};
    const struct selective_scan_step_scratch r = selective_scan_step_carve(h, &arena);
    ptrdiff_t until_poll = 0;
    load_plain(r.scan.B, &h->B, rows_from(0, 1), h->f);
    load_plain(r.scan.C, &h->C, rows_from(0, 1), h->f);
    for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
        const ptrdiff_t cols = scan_cols(h, col, LA_SCAN_COLS);
        if (give_up(h, &until_poll, 8 * cols * tile_rows(h))) {
            return 1;
        }
        load_channels(h, &r.scan, col, cols);
        step_channels(h, &r, col, cols);
        add_read(&r, cols);
        store_channels(h, &r.scan, col, cols);
    }
    return 0;
}

#endif
