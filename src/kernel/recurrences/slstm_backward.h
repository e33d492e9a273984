/* slstm_backward.h: gradients of sLSTM (slstm.h), one head of some sequences.
 *
 *    dx_t = gradient of the gates of token t, from dh_t and the cell's (slstm_cell.h)
 *    dh_{t-1} += R^T dx_t,  dR = sum_t dx_t h_{t-1}^T,  db = sum_t dx_t
 *
 * A forward scan keeps all outputs, and the cell (c, n, m) once per chunk of tokens.
 * The reverse scan recomputes the gates of a chunk in one product, since it has the
 * outputs, to the same bits; then their gradients token by token, and those of R in one
 * product.  24 d^2 flops a token and 8 d^2 for the gates.  Scratch: R twice, and for
 * each of up to LA_SLSTM_SEQUENCES sequences n d numbers, the gates and cells of a
 * chunk, and dR. */
#ifndef LA_SLSTM_BACKWARD_H
#define LA_SLSTM_BACKWARD_H

#include "slstm.h"

/* Of sequence k: row k (n + 1) + t of the outputs is h_{t-1}; rows k (chunks) + i of
 * the kept cells are those before chunk i; rows k (rows + 1) + t of the cells, and rows
 * k rows + t of the gates, belong to a chunk. */
struct slstm_backward_scratch {
    struct slstm_scratch forward;
    ptrdiff_t rows, chunks; /* tokens per chunk, chunks */
    struct slstm_cells {
        struct block c, n, m;
    } kept, cells, d;
    struct block gates, h, dh, grad, db;
    T *R, *dR; /* R packed: (4 step, step); a state (4 step, step) per sequence */
};

static struct slstm_cells
take_cells(struct arena *arena, ptrdiff_t rows, ptrdiff_t step)
{
    struct slstm_cells x;
    x.c = take_block(arena, rows, step);
    x.n = take_block(arena, rows, step);
    x.m = take_block(arena, rows, step);
    return x;
}

INLINE struct slstm_rows
row_of(const struct slstm_cells *x, ptrdiff_t row)
{
    return (struct slstm_rows){x->c.x + row * x->c.ld, x->n.x + row * x->n.ld,
                               x->m.x + row * x->m.ld};
}

static void
copy_cell(struct slstm_rows to, struct slstm_rows from, ptrdiff_t step)
{
    const size_t bytes = (size_t)step * sizeof(T);
    memcpy(to.c, from.c, bytes);
    memcpy(to.n, from.n, bytes);
    memcpy(to.m, from.m, bytes);
}

static struct slstm_backward_scratch
slstm_backward_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t sequences = slstm_sequences(h), step = round_up(h->d, VL);
    struct slstm_backward_scratch r;
    r.forward = slstm_carve(h, arena);
    r.rows = h->n < LA_SLSTM_TOKENS ? h->n : LA_SLSTM_TOKENS;
    r.chunks = (h->n + LA_SLSTM_TOKENS - 1) / LA_SLSTM_TOKENS;
    r.kept = take_cells(arena, sequences * r.chunks, step);
    r.cells = take_cells(arena, sequences * (r.rows + 1), step);
    r.d = take_cells(arena, sequences, step);
    r.gates = take_block(arena, sequences * r.rows, LA_GATES * step);
    r.h = take_block(arena, sequences * (h->n + 1), step);
    r.dh = take_block(arena, sequences, step);
    r.grad = take_block(arena, 1, step);
    r.db = take_block(arena, sequences, LA_GATES * step);
    r.R = take(arena, LA_GATES * step, step);
    r.dR = take_states(arena, sequences, LA_GATES * step, step);
    return r;
}

INLINE struct block
output_rows(const struct la_head *h, const struct slstm_backward_scratch *r,
            ptrdiff_t k, ptrdiff_t t)
{
    return block_at(r->h, k * (h->n + 1) + t, 0);
}

INLINE T *
gates_at(const struct slstm_backward_scratch *r, ptrdiff_t k, ptrdiff_t row)
{
    return r->gates.x + (k * r->rows + row) * r->gates.ld;
}

/* All tokens of `count` sequences from s on: their outputs, and cells before chunks. */
static int
scan_slstm(const struct la_head *h, const struct slstm_backward_scratch *r, ptrdiff_t s,
           ptrdiff_t count, ptrdiff_t *until_poll)
{
    const struct slstm_scratch *f = &r->forward;
    struct block before = {r->h.x, (h->n + 1) * r->h.ld};
    load_slstm_states(h, f, s, count);
    for (ptrdiff_t k = 0; k < count; k++) {
        memcpy(before.x + k * before.ld, f->h.x + k * f->h.ld,
               (size_t)f->step * sizeof(T));
    }
    for (ptrdiff_t t = 0; t < h->n; t++) {
        for (ptrdiff_t k = 0; t % LA_SLSTM_TOKENS == 0 && k < count; k++) {
            const ptrdiff_t row = k * r->chunks + t / LA_SLSTM_TOKENS;
            copy_cell(row_of(&r->kept, row), cell_at(f, k), f->step);
        }
        if (give_up(h, until_poll, LA_GATES * h->d * h->d * count)) {
            return 1;
        }
        const struct block after = {before.x + r->h.ld, before.ld};
        slstm_tokens(h, f, before, after, s, count, t);
        before = after;
    }
    return 0;
}

/* The gates without b, and the cells, of the tokens t of sequence s, the k-th. */
static void
recompute_chunk(const struct la_head *h, const struct slstm_backward_scratch *r,
                ptrdiff_t s, ptrdiff_t k, struct span t)
{
    const struct slstm_scratch *f = &r->forward;
    const struct block outputs = output_rows(h, r, k, t.first);
    const ptrdiff_t cells = k * (r->rows + 1);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        load_slstm_gates(gates_at(r, k, i), h, f->step, s, t.first + i);
    }
    add_product((struct block){gates_at(r, k, 0), r->gates.ld}, outputs, t.rows, f->R,
                h->d, LA_GATES * f->step, 0);
    copy_cell(row_of(&r->cells, cells),
              row_of(&r->kept, k * r->chunks + t.first / LA_SLSTM_TOKENS), f->step);
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        slstm_update(gates_at(r, k, i), f->bias, f->step, row_of(&r->cells, cells + i),
                     row_of(&r->cells, cells + i + 1),
                     outputs.x + (i + 1) * outputs.ld);
    }
}

/* The gradients of the output of token t of sequence s, the k-th, added to those of its
 * state. */
static void
add_output_gradient(const struct la_head *h, const struct slstm_backward_scratch *r,
                    ptrdiff_t s, ptrdiff_t k, ptrdiff_t t)
{
    const struct slstm_scratch *f = &r->forward;
    const struct la_array grad = of_sequence(&h->grad_out, s);
    const struct block rows[] = {r->dh, r->d.c, r->d.n, r->d.m};
    for (int i = 0; i < f->fields; i++) {
        const struct la_array row = output_row(&grad, f, t, i);
        T *sum = rows[i].x + k * rows[i].ld;
        load_vector(r->grad.x, &row, h->d);
        for (ptrdiff_t j = 0; j < f->step; j += VL) {
            vstore(&sum[j], vload(&sum[j]) + vload(&r->grad.x[j]));
        }
    }
}

/* The gradients of the gates of row i of a chunk, token t; then dh of the token before.
 */
static void
reverse_tokens(const struct la_head *h, const struct slstm_backward_scratch *r,
               ptrdiff_t s, ptrdiff_t count, ptrdiff_t t, ptrdiff_t i)
{
    const struct slstm_scratch *f = &r->forward;
    const ptrdiff_t step = f->step;
    const struct block gates = {gates_at(r, 0, i), r->rows * r->gates.ld};
    for (ptrdiff_t k = 0; k < count; k++) {
        const ptrdiff_t cell = k * (r->rows + 1) + i;
        T *dh = r->dh.x + k * r->dh.ld;
        add_output_gradient(h, r, s + k, k, t);
        slstm_reverse(gates_at(r, k, i), f->bias, step, row_of(&r->cells, cell),
                      row_of(&r->cells, cell + 1), row_of(&r->d, k), dh);
        clear(dh, step);
    }
    add_product(r->dh, gates, count, r->R, LA_GATES * step, step, t & 1);
}

/* dx of the tokens t of sequence s, the k-th, and their shares of dR and db. */
static void
finish_chunk(const struct la_head *h, const struct slstm_backward_scratch *r,
             ptrdiff_t s, ptrdiff_t k, struct span t)
{
    const ptrdiff_t step = r->forward.step, width = LA_GATES * step;
    const struct la_array dx = of_sequence(&h->dx, s);
    const struct block gates = {gates_at(r, k, 0), r->gates.ld};
    const struct sweep sum = {.rows = t.rows,
                              .K = width,
                              .W = step,
                              .b = gates,
                              .v = output_rows(h, r, k, t.first),
                              .s = r->dR + k * state_size(width, step)};
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        const struct la_array token = shifted(&dx, (t.first + i) * dx.plane);
        store_rows(&token, rows_from(0, LA_GATES), h->d,
                   (struct block){gates.x + i * gates.ld, step}, NULL);
    }
    for (ptrdiff_t j = 0; j < width; j += VL) {
        T *db = r->db.x + k * r->db.ld + j;
        vstore(db, vload(db) + sum_of_columns(gates, t.rows, j));
    }
    sweep(&sum, LA_WRITE);
}

/* The gradients after the last token of `count` sequences from s on. */
static void
begin_reverse(const struct la_head *h, const struct slstm_backward_scratch *r,
              ptrdiff_t s, ptrdiff_t count)
{
    const struct la_array *const fields[] = {&h->grad_h, &h->grad_c, &h->grad_n,
                                             &h->grad_m};
    const struct block rows[] = {r->dh, r->d.c, r->d.n, r->d.m};
    const ptrdiff_t step = r->forward.step;
    load_slstm_rows(h, fields, rows, s, count);
    clear(r->db.x, count * r->db.ld);
    clear(r->dR, count * state_size(LA_GATES * step, step));
}

/* dR, db and the gradients of the first states. */
static void
end_reverse(const struct la_head *h, const struct slstm_backward_scratch *r,
            ptrdiff_t s, ptrdiff_t count)
{
    const struct la_array *const fields[] = {&h->dh0, &h->dc0, &h->dn0, &h->dm0};
    const struct block rows[] = {r->dh, r->d.c, r->d.n, r->d.m};
    const ptrdiff_t step = r->forward.step, width = LA_GATES * step;
    for (ptrdiff_t k = 0; k < count; k++) {
        const struct la_array dR = of_sequence(&h->dR, s + k);
        const struct la_array db = of_sequence(&h->dbias, s + k);
        T *sum = r->dR + k * state_size(width, step);
        for (ptrdiff_t g = 0; g < LA_GATES; g++) {
            const struct la_array gate = shifted(&dR, g * dR.plane);
            store_state_rows(&gate, sum, width, g * step, h->d, h->d);
        }
        store_rows(&db, rows_from(0, LA_GATES), h->d,
                   (struct block){r->db.x + k * r->db.ld, step}, NULL);
    }
    store_slstm_rows(h, fields, rows, s, count);
}

/* The gradients of `count` sequences from s on; nonzero: stop. */
static int
reverse_together(const struct la_head *h, const struct slstm_backward_scratch *r,
                 ptrdiff_t s, ptrdiff_t count, ptrdiff_t *until_poll)
{
    if (scan_slstm(h, r, s, count, until_poll)) {
        return 1;
    }
    begin_reverse(h, r, s, count);
    for (ptrdiff_t chunk = r->chunks - 1; chunk >= 0; chunk--) {
        const ptrdiff_t first = chunk * LA_SLSTM_TOKENS;
        const struct span t = span(first, LA_SLSTM_TOKENS, first, h->n, NULL);
        const ptrdiff_t work = LA_GATES * h->d * h->d * count;
        for (ptrdiff_t k = 0; k < count; k++) {
            recompute_chunk(h, r, s + k, k, t);
        }
        for (ptrdiff_t i = t.rows - 1; i >= 0; i--) {
            if (give_up(h, until_poll, 3 * work)) {
                return 1;
            }
            reverse_tokens(h, r, s, count, t.first + i, i);
        }
        for (ptrdiff_t k = 0; k < count; k++) {
            finish_chunk(h, r, s + k, k, t);
        }
    }
    end_reverse(h, r, s, count);
    return 0;
}

/* R of sequence s as the reverse scan takes it. */
static void
load_reverse_weights(const struct la_head *h, const struct slstm_backward_scratch *r,
                     ptrdiff_t s)
{
    const ptrdiff_t step = r->forward.step;
    const struct la_array R = of_sequence(&h->R, s);
    clear(r->R, LA_GATES * step * step);
    for (ptrdiff_t g = 0; g < LA_GATES; g++) {
        const struct la_array gate = shifted(&R, g * R.plane);
        pack_matrix(r->R + g * step * VL, LA_GATES * step, &gate, h->d, h->d);
    }
}

static int
reverse_all(const struct la_head *h, const struct slstm_backward_scratch *r)
{
    ptrdiff_t until_poll = 0;
    for (ptrdiff_t s = 0, count; s < h->group; s += count) {
        count = sequences_from(h, s);
        if (s == 0 || !share_weights(h)) {
            load_slstm_weights(h, &r->forward, s);
            load_reverse_weights(h, r, s);
        }
        if (reverse_together(h, r, s, count, &until_poll)) {
            return 1;
        }
    }
    return 0;
}

static int
run_slstm_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct slstm_backward_scratch r = slstm_backward_carve(h, &arena);
    return reverse_all(h, &r);
}

#endif
