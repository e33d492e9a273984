/* slstm.h: sLSTM, the scalar memory of xLSTM, one head of some sequences.
 *
 *    (i, f, z, o) = x_t + R h_{t-1} + b
 *    m_t = max(log sigma(f) + m_{t-1}, i)
 *    c_t = e^(log sigma(f) + m_{t-1} - m_t) c_{t-1} + e^(i - m_t) tanh z
 *    n_t = e^(log sigma(f) + m_{t-1} - m_t) n_{t-1} + e^(i - m_t)
 *    h_t = sigma(o) c_t / n_t                         Beck et al. 2024, eq. 8-18
 *
 * x (n,4,d), R (4,d,d), b (4,d), h, c, n, m (d).  8 d^2 flops a token: gates wait for
 * the output of the token before.  Sequences with the same R and b are computed
 * together, token by token, so that R is read once for all of them; the bits of each do
 * not depend on the others (slstm_product.h).  Scratch: R, and 8 d numbers a sequence.
 * Nothing of row j > i reaches row i. */
#ifndef LA_SLSTM_H
#define LA_SLSTM_H

#include "slstm_cell.h"
#include "slstm_product.h"
#include "../tiles/recurrence.h"

/* Some sequences of a head: their rows of gates (4 d), and of the state. */
struct slstm_scratch {
    ptrdiff_t step; /* d, rounded up to whole vectors */
    T *R;           /* packed: (d, 4 step) */
    T *bias;        /* (4, step) */
    struct block gates, h, c, n, m;
    int fields; /* of the state that the output of a token has, from h on */
};

INLINE ptrdiff_t
slstm_sequences(const struct la_head *h)
{
    return h->group < LA_SLSTM_SEQUENCES ? h->group : LA_SLSTM_SEQUENCES;
}

static struct slstm_scratch
slstm_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t rows = slstm_sequences(h), step = round_up(h->d, VL);
    struct slstm_scratch r;
    r.step = step;
    r.R = take(arena, LA_GATES * step, h->d);
    r.bias = take(arena, LA_GATES, step);
    r.gates = take_block(arena, rows, LA_GATES * step);
    r.h = take_block(arena, rows, step);
    r.c = take_block(arena, rows, step);
    r.n = take_block(arena, rows, step);
    r.m = take_block(arena, rows, step);
    r.fields = 1;
    return r;
}

/* The array of sequence s. */
INLINE struct la_array
of_sequence(const struct la_array *x, ptrdiff_t s)
{
    return shifted(x, s * x->step);
}

/* R and b of sequence s: packed, and with zeros past d. */
static void
load_slstm_weights(const struct la_head *h, const struct slstm_scratch *r, ptrdiff_t s)
{
    const struct la_array R = of_sequence(&h->R, s);
    const struct la_array bias = of_sequence(&h->bias, s);
    for (ptrdiff_t g = 0; g < LA_GATES; g++) {
        const struct la_array gate = shifted(&R, g * R.plane),
                              across = transposed(gate);
        pack_matrix(r->R + g * r->step * h->d, h->d, &across, h->d, h->d);
    }
    load_some_rows((struct block){r->bias, r->step}, &bias, rows_from(0, LA_GATES),
                   h->d, map_identity);
}

/* Whether all sequences of the group have the same R and b. */
INLINE int
share_weights(const struct la_head *h)
{
    return h->R.step == 0 && h->bias.step == 0;
}

/* The number of sequences from s on that go through each token together. */
INLINE ptrdiff_t
sequences_from(const struct la_head *h, ptrdiff_t s)
{
    const ptrdiff_t most = share_weights(h) ? slstm_sequences(h) : 1;
    return h->group - s < most ? h->group - s : most;
}

/* The gates of token t of sequence s before R h and b. */
static void
load_slstm_gates(T *gates, const struct la_head *h, ptrdiff_t step, ptrdiff_t s,
                 ptrdiff_t t)
{
    const struct la_array all = of_sequence(&h->x, s);
    const struct la_array x = shifted(&all, t * all.plane);
    load_some_rows((struct block){gates, step}, &x, rows_from(0, LA_GATES), h->d,
                   map_identity);
}

/* The rows of a sequence's cell. */
INLINE struct slstm_rows
cell_at(const struct slstm_scratch *r, ptrdiff_t row)
{
    return (struct slstm_rows){r->c.x + row * r->c.ld, r->n.x + row * r->n.ld,
                               r->m.x + row * r->m.ld};
}

/* Rows of `count` sequences from s on = these fields of a state, in the order h, c,
 * n, m; and back. */
static void
load_slstm_rows(const struct la_head *h, const struct la_array *const fields[4],
                const struct block rows[4], ptrdiff_t s, ptrdiff_t count)
{
    for (int i = 0; i < 4; i++) {
        for (ptrdiff_t k = 0; k < count; k++) {
            const struct la_array x = of_sequence(fields[i], s + k);
            load_vector(rows[i].x + k * rows[i].ld, &x, h->d);
        }
    }
}

static void
store_slstm_rows(const struct la_head *h, const struct la_array *const fields[4],
                 const struct block rows[4], ptrdiff_t s, ptrdiff_t count)
{
    for (int i = 0; i < 4; i++) {
        for (ptrdiff_t k = 0; k < count; k++) {
            const struct la_array x = of_sequence(fields[i], s + k);
            store_vector(&x, rows[i].x + k * rows[i].ld, h->d);
        }
    }
}

/* The states before the first token, and after the last one. */
static void
load_slstm_states(const struct la_head *h, const struct slstm_scratch *r, ptrdiff_t s,
                  ptrdiff_t count)
{
    const struct la_array *const fields[] = {&h->h0, &h->c0, &h->n0, &h->m0};
    const struct block rows[] = {r->h, r->c, r->n, r->m};
    load_slstm_rows(h, fields, rows, s, count);
}

static void
store_slstm_states(const struct la_head *h, const struct slstm_scratch *r, ptrdiff_t s,
                   ptrdiff_t count)
{
    const struct la_array *const fields[] = {&h->h1, &h->c1, &h->n1, &h->m1};
    const struct block rows[] = {r->h, r->c, r->n, r->m};
    store_slstm_rows(h, fields, rows, s, count);
}

/* The row of this field in x (n,d) or, where outputs are whole states, x (n,4,d). */
INLINE struct la_array
output_row(const struct la_array *x, const struct slstm_scratch *r, ptrdiff_t t,
           int field)
{
    return shifted(x, r->fields == 1 ? t * x->rs : t * x->plane + field * x->rs);
}

/* The output of token t of sequence s, the k-th. */
static void
store_slstm_output(const struct la_head *h, const struct slstm_scratch *r, ptrdiff_t s,
                   ptrdiff_t k, ptrdiff_t t)
{
    const struct la_array y = of_sequence(&h->y, s);
    const struct block rows[] = {r->h, r->c, r->n, r->m};
    for (int i = 0; i < r->fields; i++) {
        const struct la_array row = output_row(&y, r, t, i);
        store_vector(&row, rows[i].x + k * rows[i].ld, h->d);
    }
}

/* Token t of `count` sequences from s on, after the outputs `before`: their outputs
 * `after`, which may be the same rows, and r's cells. */
static void
slstm_tokens(const struct la_head *h, const struct slstm_scratch *r,
             struct block before, struct block after, ptrdiff_t s, ptrdiff_t count,
             ptrdiff_t t)
{
    for (ptrdiff_t k = 0; k < count; k++) {
        load_slstm_gates(r->gates.x + k * r->gates.ld, h, r->step, s + k, t);
    }
    add_product(r->gates, before, count, r->R, h->d, LA_GATES * r->step, t & 1);
    for (ptrdiff_t k = 0; k < count; k++) {
        const struct slstm_rows cell = cell_at(r, k);
        slstm_update(r->gates.x + k * r->gates.ld, r->bias, r->step, cell, cell,
                     after.x + k * after.ld);
    }
}

/* All tokens of `count` sequences from s on; nonzero: stop. */
static int
slstm_together(const struct la_head *h, const struct slstm_scratch *r, ptrdiff_t s,
               ptrdiff_t count, ptrdiff_t *until_poll)
{
    load_slstm_states(h, r, s, count);
    for (ptrdiff_t t = 0; t < h->n; t++) {
        if (give_up(h, until_poll, LA_GATES * h->d * h->d * count)) {
            return 1;
        }
        slstm_tokens(h, r, r->h, r->h, s, count, t);
        for (ptrdiff_t k = 0; k < count; k++) {
            store_slstm_output(h, r, s + k, k, t);
        }
    }
    store_slstm_states(h, r, s, count);
    return 0;
}

static int
slstm_all(const struct la_head *h, const struct slstm_scratch *r)
{
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t s = 0, count; s < h->group; s += count) {
        count = sequences_from(h, s);
        if (s == 0 || !share_weights(h)) {
            load_slstm_weights(h, r, s);
        }
        if (slstm_together(h, r, s, count, &until_poll)) {
            return 1;
        }
    }
    return 0;
}

static int
run_slstm(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct slstm_scratch r = slstm_carve(h, &arena);
    return slstm_all(h, &r);
}

#endif
