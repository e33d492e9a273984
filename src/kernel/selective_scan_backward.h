/* selective_scan_backward.h: gradients of the selective scan, one sequence.
 *
 * With e_i = exp(dt_i A), u_i = dt_i x_i and p_i the output before its gate, the
 * cotangent c_i of p_i and the gradient r_i of h_i, from the last token on:
 *
 *   c_i = g_i o silu(z_i),  dz_i = g_i o p_i o silu'(z_i)
 *   r_i = C_i c_i + e_{i+1} r_{i+1},  dh_before = e_0 r_0
 *   dB_i[f] = sum_m r_i u_i,  dC_i[f] = sum_m c_i h_i,  du_i[m] = sum_f r_i B_i
 *   q_i = r_i e_i h_{i-1},  dA = sum_i dt_i q_i,  ddt_i = du_i x_i + sum_f A q_i
 *   dx_i = du_i dt_i + D c_i,  dD = sum_i x_i c_i,  ddt_bias = sum_i ddt_i
 *
 * and ddt times the slope of softplus.  A first scan leaves a checkpoint of the state
 * every sqrt(n) tokens; from the last of these blocks on, states and decays of MR
 * states of one vector of channels at a time are computed again, kept, and swept in
 * reverse.  Twice the exponentials of the forward scan and 24 n m f flops.  Sums over
 * tokens are compensated from block to block.  Sums over channels, dB and dC, are those
 * of groups of channels first, which threads may share (channel_split.c).  Scratch:
 * sqrt(n) states, and blocks of sqrt(n) tokens. */
#ifndef LA_SELECTIVE_SCAN_BACKWARD_H
#define LA_SELECTIVE_SCAN_BACKWARD_H

#include "selective_scan.h"

struct selective_scan_backward_scratch {
    struct selective_scan_scratch scan;
    ptrdiff_t rows; /* tokens from one checkpoint to the next */
    struct block grad, c, du, ddt, dB, dC;
    struct block group_dB, group_dC; /* sums over a group of channels */
    T *checkpoints;                  /* tiles */
    T *r, *dA, *dA_lost;             /* tiles; r: what later tokens give the state */
    T *dD, *dD_lost, *ddt_bias, *ddt_bias_lost;
    T *kept; /* of each token of a block, MR vectors of e and as many of h */
    T *met;  /* as many of r u and of c h, summed over a panel */
};

static struct selective_scan_backward_scratch
selective_scan_backward_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = scan_interval(h->n), cols = scan_cols(h, 0, LA_SCAN_COLS);
    struct selective_scan_backward_scratch r = {.rows = rows};
    r.scan = take_scan(h, arena, rows);
    r.grad = take_block(arena, rows, cols);
    r.c = take_block(arena, rows, cols);
    r.du = take_block(arena, rows, cols);
    r.ddt = take_block(arena, rows, cols);
    r.dB = take_block(arena, rows, h->f);
    r.dC = take_block(arena, rows, h->f);
    r.group_dB = take_block(arena, rows, h->f);
    r.group_dC = take_block(arena, rows, h->f);
    r.checkpoints = take(arena, scan_checkpoints(h->n), tiles_size(h));
    r.r = take(arena, 1, tiles_size(h));
    r.dA = take(arena, 1, tiles_size(h));
    r.dA_lost = take(arena, 1, tiles_size(h));
    r.dD = take_row(arena, h->m);
    r.dD_lost = take_row(arena, h->m);
    r.ddt_bias = take_row(arena, h->m);
    r.ddt_bias_lost = take_row(arena, h->m);
    r.kept = take(arena, rows + 1, 2 * MR * VL);
    r.met = take(arena, rows, 2 * MR * VL);
    return r;
}

/* The state after a block, all of whose outputs are left out. */
static int
pass_block(const struct la_head *h, const struct selective_scan_scratch *r,
           struct span t, ptrdiff_t *until_poll)
{
    const struct la_array *const arrays[] = {&h->x, &h->dt};
    load_with_keys(r->B, h, &h->B, rows_from(t.first, t.rows), h->f);
    for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
        const ptrdiff_t cols = scan_cols(h, col, LA_SCAN_COLS);
        if (give_up(h, until_poll, 8 * t.rows * cols * tile_rows(h))) {
            return 1;
        }
        la_fetch_anew(t.ahead);
        look_at_panel(h, arrays, 2, t, col);
        load_inputs(h, r, rows_from(t.first, t.rows), col, cols);
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            T *A = tile_at(r->A, h, col + j), *s = tile_at(r->s, h, col + j);
            for (ptrdiff_t l = 0; l < h->f; l += MR) {
                LA_WITH_STATES(h->f - l,
                               scan_states(r, A, s, j, l, count, t.rows, 0, t.ahead));
            }
        }
    }
    return 0;
}

/* The states before each block. */
static int
leave_checkpoints(const struct la_head *h,
                  const struct selective_scan_backward_scratch *r,
                  struct la_fetch *ahead)
{
    const size_t bytes = (size_t)tiles_size(h) * sizeof(T);
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        const struct span t = span(i, r->rows, i + r->rows, h->n, ahead);
        memcpy(r->checkpoints + i / r->rows * tiles_size(h), r->scan.s, bytes);
        if (t.next < h->n && pass_block(h, &r->scan, t, &until_poll)) {
            return 1;
        }
    }
    return 0;
}

/* c, and D o x and D o c as p and dx begin; g o silu'(z), which dz is p times. */
static void
load_cotangents(const struct la_head *h,
                const struct selective_scan_backward_scratch *r, struct span t,
                ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array g = shifted(&h->grad_out, col * h->grad_out.cs);
    const struct la_array z = shifted(&h->gate, col * h->gate.cs);
    load_plain(r->c, &g, rows_from(t.first, t.rows), cols);
    if (z.data == NULL) {
        return;
    }
    load_plain(r->grad, &z, rows_from(t.first, t.rows), cols);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            T *c = &r->c.x[i * r->c.ld + j], *slope = &r->grad.x[i * r->grad.ld + j];
            const vec g1 = vload(c), z1 = vload(slope);
            vstore(c, g1 * vsilu(z1));
            vstore(slope, g1 * vsilu_slope(z1));
        }
    }
}

/* States and decays of `count` states of one vector of channels: row i of `kept` has
 * h_{i-1} and e_i.  Adds what is read of them to p. */
INLINE void
keep_states(const struct selective_scan_backward_scratch *r, const T *A, const T *s,
            ptrdiff_t j, ptrdiff_t l, const int count, ptrdiff_t rows,
            struct la_fetch *ahead)
{
    const struct selective_scan_scratch *f = &r->scan;
    const T *B = f->B.x + l, *C = f->C.x + l;
    vec a[MR], state[MR];
    T *kept = r->kept;
    LA_EACH(k, count) {
        a[k] = vload(&A[(l + k) * VL]);
        state[k] = vload(&s[(l + k) * VL]);
    }
    for (ptrdiff_t i = 0; i < rows; i++, kept += 2 * MR * VL) {
        if (i % MR == 0) {
            la_fetch_some(ahead);
        }
        const vec d = vload(&f->delta.x[i * f->delta.ld + j]);
        const vec u = vload(&f->u.x[i * f->u.ld + j]);
        vec y = vload(&f->y.x[i * f->y.ld + j]);
        LA_EACH(k, count) {
            const vec e = vexp2(d * a[k]);
            vstore(&kept[k * VL], state[k]);
            vstore(&kept[(MR + k) * VL], e);
            state[k] = vfma(e, state[k], u * vset1(B[i * f->B.ld + k]));
            y = vfma(vset1(C[i * f->C.ld + k]), state[k], y);
        }
        vstore(&f->y.x[i * f->y.ld + j], y);
    }
    LA_EACH(k, count) {
        vstore(&kept[k * VL], state[k]);
    }
}

/* Back over them: adds to du, to ddt what is not of du, to dA log2(e), and to what the
 * lanes of dB and dC sum up to. */
INLINE void
sweep_back(const struct selective_scan_backward_scratch *b, const T *A, ptrdiff_t tile,
           ptrdiff_t j, ptrdiff_t l, const int count, ptrdiff_t rows,
           struct la_fetch *ahead)
{
    const struct selective_scan_scratch *f = &b->scan;
    const T *B = f->B.x + l, *C = f->C.x + l;
    vec a[MR], r[MR], dA[MR], after[MR];
    LA_EACH(k, count) {
        a[k] = vload(&A[(l + k) * VL]);
        r[k] = vload(&b->r[tile + (l + k) * VL]);
        after[k] = vload(&b->kept[rows * 2 * MR * VL + k * VL]);
        dA[k] = (vec){0};
    }
    for (ptrdiff_t i = rows - 1; i >= 0; i--) {
        const T *kept = b->kept + i * 2 * MR * VL;
        T *met = b->met + i * 2 * MR * VL;
        T *to_du = &b->du.x[i * b->du.ld + j], *to_ddt = &b->ddt.x[i * b->ddt.ld + j];
        if (i % MR == 0) {
            la_fetch_some(ahead);
        }
        const vec d = vload(&f->delta.x[i * f->delta.ld + j]);
        const vec u = vload(&f->u.x[i * f->u.ld + j]);
        const vec c = vload(&b->c.x[i * b->c.ld + j]);
        vec du = vload(to_du), ddt = vload(to_ddt);
        LA_EACH(k, count) {
            T *dB = &met[k * VL], *dC = &met[(MR + k) * VL];
            r[k] = vfma(c, vset1(C[i * f->C.ld + k]), r[k]);
            vstore(dB, vfma(r[k], u, vload(dB)));
            vstore(dC, vfma(c, after[k], vload(dC)));
            du = vfma(r[k], vset1(B[i * f->B.ld + k]), du);
            r[k] *= vload(&kept[(MR + k) * VL]);
            after[k] = vload(&kept[k * VL]);
            const vec q = r[k] * after[k];
            ddt = vfma(a[k], q, ddt);
            dA[k] = vfma(d, q, dA[k]);
        }
        vstore(to_du, du);
        vstore(to_ddt, ddt);
    }
    LA_EACH(k, count) {
        const ptrdiff_t at = tile + (l + k) * VL;
        vstore(&b->r[at], r[k]);
        add_to_sum(&b->dA[at], &b->dA_lost[at], dA[k]);
    }
}

/* Columns l to l + MR - 1 of the group's dB and dC += sums of the lanes of `met`. */
static void
add_lanes(const struct selective_scan_backward_scratch *r, ptrdiff_t l, ptrdiff_t rows)
{
    T *met = r->met;
    const ptrdiff_t count = round_up(rows * 2 * MR, VL);
    for (ptrdiff_t first = 0; first < count; first += VL) {
        vec part[VL];
        LA_EACH(i, VL) {
            part[i] = vload(&met[(first + i) * VL]);
        }
        vstore(&met[first], lane_sums(part)); /* where all has been read */
    }
    for (ptrdiff_t i = 0; i < rows; i++, met += 2 * MR) {
        LA_EACH(k, MR) {
            r->group_dB.x[i * r->group_dB.ld + l + k] += met[k];
            r->group_dC.x[i * r->group_dC.ld + l + k] += met[MR + k];
        }
    }
}

static void
panel_back(const struct la_head *h, const struct selective_scan_backward_scratch *r,
           const T *s, struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    for (ptrdiff_t l = 0; l < h->f; l += MR) {
        clear(r->met, round_up(t.rows, MR) * 2 * MR * VL);
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const ptrdiff_t tile = tile_rows(h) * (col + j);
            LA_WITH_STATES(
                h->f - l, keep_states(r, r->scan.A + tile, s + tile, j, l, count,
                                      t.rows, t.ahead);
                sweep_back(r, r->scan.A + tile, tile, j, l, count, t.rows, t.ahead));
        }
        add_lanes(r, l, t.rows);
    }
}

/* sum += the sum of the rows of x, `cols` of its columns */
static void
add_columns(T *sum, T *lost, struct block x, ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t j = 0; j < cols; j += VL) {
        vec more = (vec){0};
        for (ptrdiff_t i = 0; i < rows; i++) {
            more += vload(&x.x[i * x.ld + j]);
        }
        add_to_sum(&sum[j], &lost[j], more);
    }
}

/* ddt of the tokens that exist, from du and what else there is; the blocks of u and of
 * delta become dx and x o c. */
static void
input_gradients(const struct la_head *h,
                const struct selective_scan_backward_scratch *r, struct block x,
                struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    const struct selective_scan_scratch *f = &r->scan;
    const struct la_array dt = shifted(&h->dt, col * h->dt.cs);
    const ptrdiff_t keys = keys_left(h, t);
    const vec log2 = vset1(LOG_2);
    const struct block raw = panel_or_copy(f->u, &dt, rows_from(t.first, keys), cols);
    for (ptrdiff_t i = 0; i < keys; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            T *ddt = &r->ddt.x[i * r->ddt.ld + j], *u = &f->u.x[i * f->u.ld + j];
            T *delta = &f->delta.x[i * f->delta.ld + j];
            const vec du = vload(&r->du.x[i * r->du.ld + j]);
            const vec x1 = load_near(x, i, j), c = vload(&r->c.x[i * r->c.ld + j]);
            const vec before = load_near(raw, i, j) + vload(&f->dt_bias[col + j]);
            const vec D = vload(&f->D[col + j]);
            const vec dx = du * (log2 * vload(delta)) + vkeep(D != (vec){0}, D * c);
            vec dd = vfma(du, x1, vload(ddt));
            if (h->softplus != 0) {
                dd *= vsigmoid(before);
            }
            vstore(ddt, dd);
            vstore(u, dx);
            vstore(delta, x1 * c);
        }
    }
    clear_rows(r->ddt, keys, t.rows);
    clear_rows(f->u, keys, t.rows);
    add_columns(r->ddt_bias + col, r->ddt_bias_lost + col, r->ddt, keys, cols);
    add_columns(r->dD + col, r->dD_lost + col, f->delta, keys, cols);
}

static void
store_gradients(const struct la_head *h,
                const struct selective_scan_backward_scratch *r, struct block x,
                struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array dx = shifted(&h->dx, col * h->dx.cs);
    const struct la_array ddt = shifted(&h->ddt, col * h->ddt.cs);
    const struct la_array dz = shifted(&h->dgate, col * h->dgate.cs);
    input_gradients(h, r, x, t, col, cols);
    stream_rows(&dx, t, cols, r->scan.u, h->large);
    stream_rows(&ddt, t, cols, r->ddt, h->large);
    if (dz.data != NULL) {
        multiply_rows(r->grad, r->grad, r->scan.y, t.rows, cols);
        stream_rows(&dz, t, cols, r->grad, h->large);
    }
}

/* Where the sums of the groups of channels lie, from that at `first` on: rows of dB and
 * dC. */
static struct la_array
sums_of_group(const struct la_head *h, ptrdiff_t first)
{
    const ptrdiff_t size = sizeof(T), row = 2 * h->f * size;
    const ptrdiff_t group = first / channel_group(h->all_m);
    return (struct la_array){(char *)h->rates + group * h->n * row, row, size,
                             LA_NATIVE};
}

/* dB and dC, of which the first tokens have keys, += those of a group. */
static void
add_group(const struct la_head *h, const struct selective_scan_backward_scratch *r,
          ptrdiff_t rows)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t l = 0; l < h->f; l += VL) {
            T *dB = &r->dB.x[i * r->dB.ld + l], *dC = &r->dC.x[i * r->dC.ld + l];
            vstore(dB, vload(dB) + vload(&r->group_dB.x[i * r->group_dB.ld + l]));
            vstore(dC, vload(dC) + vload(&r->group_dC.x[i * r->group_dC.ld + l]));
        }
    }
}

/* The group's sums, added to dB and dC or left for a pass that does. */
static void
end_group(const struct la_head *h, const struct selective_scan_backward_scratch *r,
          struct span t, ptrdiff_t first)
{
    if (h->pass != LA_PASS_CHANNELS) {
        add_group(h, r, t.rows);
        return;
    }
    const struct la_array dB = sums_of_group(h, first);
    const struct la_array dC = shifted(&dB, h->f * dB.cs);
    store_rows(&dB, rows_from(t.first, t.rows), h->f, r->group_dB, NULL);
    store_rows(&dC, rows_from(t.first, t.rows), h->f, r->group_dC, NULL);
}

static void
store_sums(const struct la_head *h, const struct selective_scan_backward_scratch *r,
           struct span t)
{
    clear_rows(r->dB, keys_left(h, t), t.rows);
    store_rows(&h->dB, t, h->f, r->dB, NULL);
    store_rows(&h->dC, t, h->f, r->dC, NULL);
}

/* The channels of a panel in one block of tokens, from the state s before it. */
static void
channels_back(const struct la_head *h, const struct selective_scan_backward_scratch *r,
              const T *s, struct span t, ptrdiff_t col, ptrdiff_t cols)
{
    const struct la_array *const arrays[] = {&h->x,  &h->dt,  &h->gate, &h->grad_out,
                                             &h->dx, &h->ddt, &h->dgate};
    const struct span here = rows_from(t.first, t.rows);
    la_fetch_anew(t.ahead);
    look_at_panel(h, arrays, h->large ? 4 : 7, t, col); /* results are streamed */
    const struct block x = load_inputs(h, &r->scan, here, col, cols);
    load_cotangents(h, r, here, col, cols);
    start_outputs(h, &r->scan, x, here, col, cols);
    clear_rows(r->du, 0, t.rows);
    clear_rows(r->ddt, 0, t.rows);
    panel_back(h, r, s, t, col, cols);
    store_gradients(h, r, x, here, col, cols);
}

/* One block of tokens, from the state before it. */
static int
block_back(const struct la_head *h, const struct selective_scan_backward_scratch *r,
           struct span t, ptrdiff_t *until_poll)
{
    const T *s = r->checkpoints + t.first / r->rows * tiles_size(h);
    const ptrdiff_t group = channel_group(h->all_m);
    load_with_keys(r->scan.B, h, &h->B, rows_from(t.first, t.rows), h->f);
    load_plain(r->scan.C, &h->C, rows_from(t.first, t.rows), h->f);
    clear_rows(r->dB, 0, t.rows);
    clear_rows(r->dC, 0, t.rows);
    for (ptrdiff_t col = 0, cols; col < h->m; col += cols) {
        cols = scan_cols(h, col, LA_SCAN_COLS);
        if (give_up(h, until_poll, 24 * t.rows * cols * tile_rows(h))) {
            return 1;
        }
        if (col % group == 0) {
            clear_rows(r->group_dB, 0, t.rows);
            clear_rows(r->group_dC, 0, t.rows);
        }
        channels_back(h, r, s, t, col, cols);
        if ((col + cols) % group == 0 || col + cols == h->m) {
            end_group(h, r, t, col);
        }
    }
    if (h->pass != LA_PASS_CHANNELS) {
        store_sums(h, r, rows_from(t.first, t.rows));
    }
    return 0;
}

/* dB and dC from the sums of all groups. */
static int
sum_groups(const struct la_head *h, const struct selective_scan_backward_scratch *r)
{
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        const struct span t = span(i, r->rows, i, h->n, NULL);
        if (give_up(h, &until_poll, t.rows * 2 * tile_rows(h) * LA_CHANNEL_GROUPS)) {
            return 1;
        }
        clear_rows(r->dB, 0, t.rows);
        clear_rows(r->dC, 0, t.rows);
        for (ptrdiff_t first = 0; first < h->m; first += channel_group(h->m)) {
            const struct la_array dB = sums_of_group(h, first);
            const struct la_array dC = shifted(&dB, h->f * dB.cs);
            load_plain(r->group_dB, &dB, t, h->f);
            load_plain(r->group_dC, &dC, t, h->f);
            add_group(h, r, t.rows);
        }
        store_sums(h, r, t);
    }
    return 0;
}

static void
clear_sums(const struct la_head *h, const struct selective_scan_backward_scratch *r)
{
    const ptrdiff_t row = row_step(h->m);
    clear(r->dA, tiles_size(h));
    clear(r->dA_lost, tiles_size(h));
    clear(r->dD, row);
    clear(r->dD_lost, row);
    clear(r->ddt_bias, row);
    clear(r->ddt_bias_lost, row);
}

static int
run_selective_scan_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct selective_scan_backward_scratch r =
        selective_scan_backward_carve(h, &arena);
    struct la_fetch ahead = {0};
    ptrdiff_t until_poll = 0;
    if (h->pass == LA_PASS_SUMS) {
        return sum_groups(h, &r);
    }
    load_constants(h, &r.scan);
    clear_sums(h, &r);
    load_tiles(r.r, h, &h->grad_s);
    if (leave_checkpoints(h, &r, &ahead)) {
        return 1;
    }
    const ptrdiff_t last = h->n > 0 ? (h->n - 1) / r.rows * r.rows : -1;
    for (ptrdiff_t i = last; i >= 0; i -= r.rows) {
        const struct span t = span(i, r.rows, i - r.rows, h->n, &ahead);
        if (block_back(h, &r, t, &until_poll)) {
            return 1;
        }
    }
    store_tiles(&h->ds0, h, r.r);
    for (ptrdiff_t i = 0; i < tiles_size(h); i += VL) {
        vstore(&r.dA[i], vload(&r.dA[i]) * vset1(LOG_2));
    }
    store_tiles(&h->dA, h, r.dA);
    store_vector(&h->dD, r.dD, h->m);
    store_vector(&h->ddt_bias, r.ddt_bias, h->m);
    return 0;
}

#endif
