/* selective_scan_step.h: one token of the selective scan (selective_scan.h) on a state.
 *
 * Vectors hold states of a channel: the state is read and written once, as it lies, and
 * outputs are sums over lanes.  What each channel has alone comes panel by panel, so
 * that the long dependency chains of softplus and silu overlap.  Scratch: B, C, and
 * rows of a panel. */
#ifndef LA_SELECTIVE_SCAN_STEP_H
#define LA_SELECTIVE_SCAN_STEP_H

#include "../scans/selective_scan.h"

struct selective_scan_step_scratch {
    T *B, *C;         /* (f) */
    T *delta, *u, *y; /* of a panel; delta times log2(e) */
};

static struct selective_scan_step_scratch
selective_scan_step_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t cols = panel_cols(h, 0, LA_SCAN_COLS);
    struct selective_scan_step_scratch r;
    r.B = take_row(arena, h->f);
    r.C = take_row(arena, h->f);
    r.delta = take_row(arena, cols);
    r.u = take_row(arena, cols);
    r.y = take_row(arena, cols);
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
load_channels(const struct la_head *h, const struct selective_scan_step_scratch *r,
              ptrdiff_t col, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        const vec x = load_of_channels(h, &h->x, col + j);
        const vec D = load_of_channels(h, &h->D, col + j);
        const vec raw = load_of_channels(h, &h->dt, col + j) +
                        load_of_channels(h, &h->dt_bias, col + j);
        const vec delta = h->softplus != 0 ? phi_softplus(raw) : raw;
        vstore(&r->delta[j], delta * vset1(LOG2_E));
        vstore(&r->u[j], delta * x);
        vstore(&r->y[j], vkeep(D != (vec){0}, D * x));
    }
}

/* Rates and states of a channel; the bytes to the next state and the next channel. */
struct states {
    const char *A, *s0;
    char *s1;
    ptrdiff_t A_step, s0_step, s1_step, A_next, s0_next, s1_next;
};

INLINE struct states
states_of(const struct la_head *h, ptrdiff_t channel)
{
    return (struct states){
        .A = h->A.data + channel * h->A.rs,
        .s0 = h->s0.data + channel * h->s0.rs,
        .s1 = h->s1.data + channel * h->s1.rs,
        .A_step = h->A.cs,
        .s0_step = h->s0.cs,
        .s1_step = h->s1.cs,
        .A_next = h->A.rs,
        .s0_next = h->s0.rs,
        .s1_next = h->s1.rs,
    };
}

INLINE void
next_channel(struct states *x)
{
    x->A += x->A_next;
    x->s0 += x->s0_next;
    x->s1 += x->s1_next;
}

/* States l to l + VL - 1 of a channel, or `some` of them, after the token; their
 * product with C is added to y.  Padding is kept out: an infinite u makes it NaN. */
INLINE vec
step_states(const struct states x, ptrdiff_t l, vec B, vec C, T delta, T u,
            ptrdiff_t some, vec y, const enum la_type type)
{
    const vec a = vread_part(x.A + l * x.A_step, x.A_step, some, LA_NATIVE);
    const vec s = vread_part(x.s0 + l * x.s0_step, x.s0_step, some, type);
    const vec after = vfma(vexp2(vset1(delta) * a), s, vset1(u) * B);
    vwrite_part(x.s1 + l * x.s1_step, x.s1_step, some, after, type);
    return vfma(C, some < VL ? vkeep(first_lanes(some), after) : after, y);
}

/* The channel's states after the token, and their products with C by lane. */
INLINE vec
step_channel(const struct states x, const T *B, const T *C, T delta, T u, ptrdiff_t f,
             const enum la_type type)
{
    const ptrdiff_t whole = f / VL * VL;
    vec y = (vec){0};
    for (ptrdiff_t l = 0; l < whole; l += VL) {
        y = step_states(x, l, vload(&B[l]), vload(&C[l]), delta, u, VL, y, type);
    }
    if (whole == f) {
        return y;
    }
    return step_states(x, whole, vload(&B[whole]), vload(&C[whole]), delta, u,
                       f - whole, y, type);
}

/* Lane i of the result is the sum of the lanes of x[i], as lane_sums has it, of another
 * order.  Shuffles within quarters of a vector take half the time of others. */
#if defined(__AVX512F__)
INLINE vec
add_halves(vec x, vec y)
{
    const __m512d low = _mm512_shuffle_f64x2((__m512d)x, (__m512d)y, 0x88);
    return (vec)low + (vec)_mm512_shuffle_f64x2((__m512d)x, (__m512d)y, 0xdd);
}

INLINE vec
sums_of_read(vec x[])
{
    LA_EACH(i, VL / 2) {
        const vec y = x[2 * i], z = x[2 * i + 1];
        x[i] = (vec)LA_MM(unpacklo)(y, z) + (vec)LA_MM(unpackhi)(y, z);
    }
    LA_EACH(i, VL > 8 ? 4 : 0) {
        const __m512d y = (__m512d)x[2 * i], z = (__m512d)x[2 * i + 1];
        x[i] = (vec)_mm512_unpacklo_pd(y, z) + (vec)_mm512_unpackhi_pd(y, z);
    }
    return add_halves(add_halves(x[0], x[1]), add_halves(x[2], x[3]));
}
#else
INLINE vec
sums_of_read(vec x[])
{
    return lane_sums(x);
}
#endif

/* What is read of VL channels whose states are `vectors` whole vectors that lie as
 * such: without a loop over a channel's states, and with B and C in registers, it takes
 * half the time. */
INLINE vec
step_whole(struct states x, const T *B, const T *C, const T *delta, const T *u,
           const int vectors, const enum la_type type)
{
    vec b[4], c[4], read[VL];
    LA_EACH(l, vectors) {
        b[l] = vload(&B[l * VL]);
        c[l] = vload(&C[l * VL]);
    }
    x.A_step = sizeof(T);
    x.s0_step = x.s1_step = size_of(type);
    LA_EACH(k, VL) {
        read[k] = (vec){0};
        LA_EACH(l, vectors) {
            read[k] =
                step_states(x, l * VL, b[l], c[l], delta[k], u[k], VL, read[k], type);
        }
        next_channel(&x);
    }
    return sums_of_read(read);
}

/* The same of `some` channels of any states. */
static vec
step_any(struct states x, const T *B, const T *C, const T *delta, const T *u,
         ptrdiff_t some, ptrdiff_t f, enum la_type type)
{
    vec read[VL] = {{0}};
    for (ptrdiff_t k = 0; k < some; k++) {
        read[k] = step_channel(x, B, C, delta[k], u[k], f, type);
        next_channel(&x);
    }
    return sums_of_read(read);
}

/* The states of the panel's channels after the token; what is read of them is added to
 * y.  `vectors`: of a channel's states where they lie as such, or 0. */
INLINE void
step_channels(const struct la_head *h, const struct selective_scan_step_scratch *r,
              ptrdiff_t col, ptrdiff_t cols, const int vectors, const enum la_type type)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        const struct states x = states_of(h, col + j);
        const T *delta = r->delta + j, *u = r->u + j;
        const vec read =
            vectors > 0 && cols - j >= VL
                ? step_whole(x, r->B, r->C, delta, u, vectors, type)
                : step_any(x, r->B, r->C, delta, u, lanes_from(h, col + j), h->f, type);
        vstore(&r->y[j], vload(&r->y[j]) + read);
    }
}

/* Vectors of a channel's states, 1, 2 or 4, if they are whole and lie as such; or 0. */
static int
whole_vectors(const struct la_head *h)
{
    const ptrdiff_t vectors = h->f / VL;
    const int adjacent = by_rows(&h->A) && by_rows(&h->s0) && by_rows(&h->s1);
    const int known = vectors == 1 || vectors == 2 || vectors == 4;
    return adjacent && known && h->f % VL == 0 ? (int)vectors : 0;
}

/* y, times silu(z) where there is a gate, to the caller. */
static void
store_channels(const struct la_head *h, const struct selective_scan_step_scratch *r,
               ptrdiff_t col, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        char *to = h->y.data + (col + j) * h->y.cs;
        vec y = vload(&r->y[j]);
        if (h->gate.data != NULL) {
            y *= vsilu(load_at(&h->gate, 0, col + j, h->m));
        }
        vwrite_part(to, h->y.cs, lanes_from(h, col + j), y, h->y.type);
    }
}

static void
step_panel(const struct la_head *h, const struct selective_scan_step_scratch *r,
           ptrdiff_t col, ptrdiff_t cols)
{
    switch (whole_vectors(h)) {
    case 1:
        LA_BY_TYPE(h->s1.type, step_channels(h, r, col, cols, 1, type));
        break;
    case 2:
        LA_BY_TYPE(h->s1.type, step_channels(h, r, col, cols, 2, type));
        break;
    case 4:
        LA_BY_TYPE(h->s1.type, step_channels(h, r, col, cols, 4, type));
        break;
    default:
        step_channels(h, r, col, cols, 0, h->s1.type);
    }
}

static int
run_selective_scan_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct selective_scan_step_scratch r = selective_scan_step_carve(h, &arena);
    ptrdiff_t until_poll = 0;
    load_vector(r.B, &h->B, h->f);
    load_vector(r.C, &h->C, h->f);
    for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
        const ptrdiff_t cols = panel_cols(h, col, LA_SCAN_COLS);
        if (give_up(h, &until_poll, 8 * cols * tile_rows(h))) {
            return 1;
        }
        load_channels(h, &r, col, cols);
        step_panel(h, &r, col, cols);
        store_channels(h, &r, col, cols);
    }
    return 0;
}

#endif
