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
 * every few tokens; from the last of these blocks on, states and decays of MR states of
 * one vector of channels at a time are computed again, saved, and swept in reverse.
 * Twice the exponentials of the forward scan and 24 n m f flops.  Sums over tokens are
 * compensated from block to block.  Sums over channels, dB and dC, are those of groups
 * of channels first, which threads may share (channel_split.c).  Scratch: a state for
 * every LA_SELECTIVE_ROWS tokens, but at most 4 sqrt(n) of them, and a few blocks of so
 * many tokens, or of sqrt(n) / 4. */
#ifndef LA_SELECTIVE_SCAN_BACKWARD_H
#define LA_SELECTIVE_SCAN_BACKWARD_H

#include "selective_scan_reverse.h"

/* Tokens from one checkpoint to the next: few, since all that is saved of them has to
 * stay in the first-level cache; but more where there would be too many checkpoints. */
static ptrdiff_t
selective_interval(ptrdiff_t n)
{
    const ptrdiff_t interval = round_up((checkpoint_interval(n) + 3) / 4, MR);
    return interval > LA_SELECTIVE_ROWS ? interval : LA_SELECTIVE_ROWS;
}

/* How many checkpoints, no more for any n up to this one. */
static ptrdiff_t
selective_checkpoints(ptrdiff_t n)
{
    const ptrdiff_t blocks = (n + LA_SELECTIVE_ROWS - 1) / LA_SELECTIVE_ROWS;
    const ptrdiff_t most = 4 * checkpoint_interval(n);
    return blocks < most ? blocks : most;
}

static struct selective_scan_backward_scratch
selective_scan_backward_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = selective_interval(h->n),
                    cols = panel_cols(h, 0, LA_SCAN_COLS);
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
    r.checkpoints = take(arena, selective_checkpoints(h->n), tiles_size(h));
    r.r = take(arena, 1, tiles_size(h));
    r.dA = take(arena, 1, tiles_size(h));
    r.dA_lost = take(arena, 1, tiles_size(h));
    r.dD = take_row(arena, h->m);
    r.dD_lost = take_row(arena, h->m);
    r.ddt_bias = take_row(arena, h->m);
    r.ddt_bias_lost = take_row(arena, h->m);
    r.saved = take(arena, rows + 1, 2 * MR * VL);
    r.met = take(arena, rows, 2 * MR * VL);
    return r;
}

/* The state after a block, all of whose outputs are left out. */
static int
pass_block(const struct la_head *h, const struct selective_scan_scratch *r,
           struct span t, ptrdiff_t *until_poll)
{
    const struct la_array *const arrays[] = {&h->x, &h->dt};
    load_existing(r->B, h, &h->B, rows_from(t.first, t.rows), h->f, LA_MAP_identity);
    for (ptrdiff_t col = 0; col < h->m; col += LA_SCAN_COLS) {
        const ptrdiff_t cols = panel_cols(h, col, LA_SCAN_COLS);
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

/* Where the sums of the groups of channels lie, from that at `first` on: rows of dB and
 * dC. */
static struct la_array
sums_of_group(const struct la_head *h, ptrdiff_t first)
{
    const ptrdiff_t row = 2 * h->f, group = first / channel_group(h->all_m);
    return block_array((struct block){(T *)h->rates + group * h->n * row, row});
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
    start_outputs(&r->scan, x, t.rows, col, cols);
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
    load_existing(r->scan.B, h, &h->B, rows_from(t.first, t.rows), h->f,
                  LA_MAP_identity);
    load_plain(r->scan.C, &h->C, rows_from(t.first, t.rows), h->f);
    clear_rows(r->dB, 0, t.rows);
    clear_rows(r->dC, 0, t.rows);
    for (ptrdiff_t col = 0, cols; col < h->m; col += cols) {
        cols = panel_cols(h, col, LA_SCAN_COLS);
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
