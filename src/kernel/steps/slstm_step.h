/* slstm_step.h: one token of sLSTM (slstm.h), one head of some sequences.
 *
 * x (4,d), R (4,d,d), b (4,d), state h, c, n, m (d).  8 d^2 flops; R is read once for
 * the sequences that share it, as it lies: its products are sums over rows, in another
 * order than those of slstm. */
#ifndef LA_SLSTM_STEP_H
#define LA_SLSTM_STEP_H

#include "../recurrences/slstm.h"

struct slstm_step_scratch {
    struct slstm_scratch all;
    struct block rows; /* of R */
};

static struct slstm_step_scratch
slstm_step_carve(const struct la_head *h, struct arena *arena)
{
    struct slstm_step_scratch r;
    r.all = slstm_carve(h, arena);
    r.rows = take_block(arena, VL, h->d);
    return r;
}

/* VL numbers of R h, of which `rows` has the rows of R. */
INLINE vec
rows_times(struct block rows, const T *h, ptrdiff_t step)
{
    vec sums[VL];
    LA_EACH(i, VL) {
        sums[i] = (vec){0};
    }
    for (ptrdiff_t j = 0; j < step; j += VL) {
        const vec x = vload(&h[j]);
        LA_EACH(i, VL) {
            sums[i] = vfma(x, vload(&rows.x[i * rows.ld + j]), sums[i]);
        }
    }
    return lane_sums(sums);
}

/* The gates of `count` sequences += R h. */
static void
add_recurrent(const struct la_head *h, const struct slstm_step_scratch *r,
              const struct la_array *R, ptrdiff_t count)
{
    const ptrdiff_t step = r->all.step;
    for (ptrdiff_t g = 0; g < LA_GATES; g++) {
        const struct la_array gate = shifted(R, g * R->plane);
        for (ptrdiff_t i = 0; i < h->d; i += VL) {
            const ptrdiff_t rows = h->d - i < VL ? h->d - i : VL;
            load_some_rows(r->rows, &gate, rows_from(i, rows), h->d, map_identity);
            clear_rows(r->rows, rows, VL);
            for (ptrdiff_t k = 0; k < count; k++) {
                T *gates = r->all.gates.x + k * r->all.gates.ld + g * step + i;
                const vec more =
                    rows_times(r->rows, r->all.h.x + k * r->all.h.ld, step);
                vstore(gates, vload(gates) + more);
            }
        }
    }
}

/* The token of `count` sequences from s on. */
static void
slstm_step_together(const struct la_head *h, const struct slstm_step_scratch *r,
                    ptrdiff_t s, ptrdiff_t count)
{
    const struct slstm_scratch *all = &r->all;
    const struct la_array R = of_sequence(&h->R, s);
    load_slstm_states(h, all, s, count);
    for (ptrdiff_t k = 0; k < count; k++) {
        load_slstm_gates(all->gates.x + k * all->gates.ld, h, all->step, s + k, 0);
    }
    add_recurrent(h, r, &R, count);
    for (ptrdiff_t k = 0; k < count; k++) {
        const struct slstm_rows cell = cell_at(all, k);
        const struct la_array y = of_sequence(&h->y, s + k);
        T *out = all->h.x + k * all->h.ld;
        slstm_update(all->gates.x + k * all->gates.ld, all->bias, all->step, cell, cell,
                     out);
        store_rows(&y, rows_from(0, 1), h->d, (struct block){out, 0}, NULL);
    }
    store_slstm_states(h, all, s, count);
}

static int
run_slstm_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct slstm_step_scratch r = slstm_step_carve(h, &arena);
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t s = 0, count; s < h->group; s += count) {
        count = sequences_from(h, s);
        if (give_up(h, &until_poll, LA_GATES * h->d * h->d * count)) {
            return 1;
        }
        const struct la_array bias = of_sequence(&h->bias, s);
        load_some_rows((struct block){r.all.bias, r.all.step}, &bias,
                       rows_from(0, LA_GATES), h->d, map_identity);
        slstm_step_together(h, &r, s, count);
    }
    return 0;
}

#endif
