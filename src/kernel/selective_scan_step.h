/* selective_scan_step.h: one token of the selective scan (selective_scan.h) on a state.
 *
 * Where the states of a channel are adjacent in memory, vectors hold states: the state
 * is read and written once, as it lies, and outputs are sums over lanes.  Otherwise it
 * is a scan of one token.  Where no s0 is given the state is updated in place, in s1.
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

/* States l to l + VL - 1 of a channel, or `some` of them, after the token; their
 * product with C is added to y. */
INLINE vec
step_states(const char *A, const char *s0, char *s1, const T *B, const T *C, T delta,
            T u, ptrdiff_t some, vec y)
{
    const vec a = vread_some(A, some, LA_NATIVE) * vset1(LOG2_E);
    const vec s = vread_some(s0, some, LA_NATIVE);
    const vec after = vfma(vexp2(vset1(delta) * a), s, vset1(u) * vload(B));
    vwrite_some(s1, some, after, LA_NATIVE);
    return vfma(vload(C), after, y);
}

/* The states of the panel's channels after the token. */
static void
step_channels(const struct la_head *h, const struct selective_scan_step_scratch *r,
              ptrdiff_t col, ptrdiff_t cols)
{
    const struct selective_scan_scratch *scan = &r->scan;
    const ptrdiff_t size = sizeof(T), f = h->f, whole = f / VL * VL;
    const ptrdiff_t A_step = h->A.rs, s0_step = h->s0.rs, s1_step = h->s1.rs;
    const T *B = scan->B.x, *C = scan->C.x;
    const char *A = h->A.data + col * A_step, *s0 = h->s0.data + col * s0_step;
    char *s1 = h->s1.data + col * s1_step;
    LA_UNROLL_BY_4
    for (ptrdiff_t j = 0; j < cols; j++, A += A_step, s0 += s0_step, s1 += s1_step) {
        const T delta = scan->delta.x[j], u = scan->u.x[j];
        vec y = (vec){0};
        for (ptrdiff_t l = 0; l < whole; l += VL) {
            y = step_states(A + l * size, s0 + l * size, s1 + l * size, &B[l], &C[l],
                            delta, u, VL, y);
        }
        if (whole < f) {
            y = step_states(A + whole * size, s0 + whole * size, s1 + whole * size,
                            &B[whole], &C[whole], delta, u, f - whole, y);
        }
        vstore(&r->read[j * VL], y);
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
step_by_states(const struct la_head *h)
{
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

static int
run_selective_scan_step(const struct la_head *h)
{
    const ptrdiff_t size = sizeof(T);
    struct la_head one = *h;
    one.s0 = h->s0.data != NULL ? h->s0 : h->s1;
    const int adjacent =
        h->f == 1 || (one.A.cs == size && one.s0.cs == size && one.s1.cs == size);
    return adjacent ? step_by_states(&one) : run_selective_scan(&one);
}

#endif
