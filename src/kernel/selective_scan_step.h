/* selective_scan_step.h: one token of the selective scan (selective_scan.h) on a state.
 *
 * Where the states of a channel follow one another in memory, vectors hold states: the
 * state is read and written once, as it lies, and outputs are sums over lanes.  Else it
 * is a scan of one token.  Where no s0 is given the state is updated in place, in s1.
 * Scratch: that of the scan. */
#ifndef LA_SELECTIVE_SCAN_STEP_H
#define LA_SELECTIVE_SCAN_STEP_H

#include "selective_scan.h"

static struct selective_scan_scratch
selective_scan_step_carve(const struct la_head *h, struct arena *arena)
{
    return selective_scan_carve(h, arena);
}

/* The states of one channel after the token, and the lanes of their product with C. */
INLINE vec
step_channel(const struct la_head *h, const struct selective_scan_scratch *r,
             ptrdiff_t channel, T delta, T u)
{
    const char *A = h->A.data + channel * h->A.rs, *s0 = h->s0.data;
    char *s1 = h->s1.data + channel * h->s1.rs;
    const ptrdiff_t size = sizeof(T);
    vec y = (vec){0};
    s0 += channel * h->s0.rs;
    for (ptrdiff_t l = 0; l < h->f; l += VL) {
        const ptrdiff_t some = h->f - l < VL ? h->f - l : VL;
        const vec a = vread_some(A + l * size, some, LA_NATIVE) * vset1(LOG2_E);
        const vec s = vread_some(s0 + l * size, some, LA_NATIVE);
        const vec more = vset1(u) * vload(&r->B.x[l]);
        const vec after = vfma(vexp2(vset1(delta) * a), s, more);
        vwrite_some(s1 + l * size, some, after, LA_NATIVE);
        y = vfma(vload(&r->C.x[l]), after, y);
    }
    return y;
}

/* What is read of the states of the panel's channels is added to their outputs. */
static void
step_panel(const struct la_head *h, const struct selective_scan_scratch *r,
           ptrdiff_t col, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        vec y[VL];
        for (ptrdiff_t k = 0; k < VL; k++) {
            y[k] = j + k < cols ? step_channel(h, r, col + j + k, r->delta.x[j + k],
                                               r->u.x[j + k])
                                : (vec){0};
        }
        vstore(&r->y.x[j], vload(&r->y.x[j]) + lane_sums(y));
    }
}

static int
step_by_states(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct selective_scan_scratch r = selective_scan_step_carve(h, &arena);
    const struct span t = rows_from(0, 1);
    ptrdiff_t until_poll = 0;
    load_vector(r.D, &h->D, h->m);
    load_vector(r.dt_bias, &h->dt_bias, h->m);
    load_plain(r.B, &h->B, t, h->f);
    load_plain(r.C, &h->C, t, h->f);
    for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
        const ptrdiff_t cols = scan_cols(h, col, LA_SCAN_COLS);
        const struct la_array y = shifted(&h->y, col * h->y.cs);
        if (give_up(h, &until_poll, 8 * cols * tile_rows(h))) {
            return 1;
        }
        load_inputs(h, &r, t, col, cols);
        start_outputs(&r, 1, col, cols);
        step_panel(h, &r, col, cols);
        gate_outputs(h, &r, t, col, cols);
        store_rows(&y, t, cols, r.y, NULL);
    }
    return 0;
}

static int
run_selective_scan_step(const struct la_head *h)
{
    const ptrdiff_t size = sizeof(T);
    struct la_head one = *h;
    one.s0 = h->s0.data != NULL ? h->s0 : h->s1;
    return one.A.cs == size && one.s0.cs == size && one.s1.cs == size
               ? step_by_states(&one)
               : run_selective_scan(&one);
}

#endif
