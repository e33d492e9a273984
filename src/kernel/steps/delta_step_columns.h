/* delta_step_columns.h: the state of one head in a step of the delta rules
 * (delta_step.h) whose rows are not contiguous: in square blocks if its columns are
 * (step_columns.h), else number by number. */
#ifndef LA_DELTA_STEP_COLUMNS_H
#define LA_DELTA_STEP_COLUMNS_H

#include "delta_step_tile.h"
#include "step_columns.h"

/* x += s^T e, y += s^T a for a square of contiguous columns. */
INLINE void
delta_step_read_square(const struct delta_step_scratch *r, const struct la_array *from,
                       const struct square at, vec *x, vec *y, const int resets,
                       const enum la_type type)
{
    vec s[VL] = {{0}};
    LA_EACH_COLUMN(at, s[c] = vread_some(square_column(from, at, c), at.rows, type));
    vtranspose(s);
    LA_EACH(i, VL) {
        if (i < at.rows) {
            delta_step_sum(read_factors(r, at.i + i, resets), s[i], x, y, resets);
        }
    }
}

/* The new state in column c of a square. */
INLINE void
delta_step_write_column(const struct delta_step_scratch *r, const struct la_array *from,
                        const struct la_array *to, const struct square at, ptrdiff_t c,
                        const struct write_factors f, vec u, const enum step_rule rule,
                        const int resets, const enum la_type type)
{
    const vec s = vread_some(square_column(from, at, c), at.rows, type);
    const vec v = rule == DPLR_STEP ? vset1(r->v[at.j + c]) : (vec){0};
    vwrite_pieces(square_column(to, at, c), at.rows,
                  delta_step_new(s, f, u, v, rule, resets), type);
}

/* The new state in a square of contiguous columns. */
INLINE void
delta_step_write_square(const struct delta_step_scratch *r, const struct la_array *from,
                        const struct la_array *to, const struct square at, const T *u,
                        const enum step_rule rule, const int resets,
                        const enum la_type type)
{
    const struct write_factors f = {
        .b = vload(&r->b[at.i]),
        .k = rule == DPLR_STEP ? vload(&r->k[at.i]) : (vec){0},
        .decay = rule != DELTA_STEP ? vload(&r->decay[at.i]) : (vec){0}};
    LA_EACH_COLUMN(at, delta_step_write_column(r, from, to, at, c, f, vset1(u[c]), rule,
                                               resets, type));
}

/* u, o and the new state in up to VL contiguous columns from j on. */
INLINE void
delta_step_square_columns(const struct la_head *h, const struct delta_step_scratch *r,
                          const struct la_array *from, const struct la_array *to,
                          ptrdiff_t j, const enum step_rule rule, const int resets,
                          const enum la_type type)
{
    const struct delta_step_scratch rows = *r; /* in registers */
    const ptrdiff_t d = h->d, cols = h->m - j;
    _Alignas(LA_ALIGN) T u[VL];
    vec x = {0}, y = {0};
    for (ptrdiff_t i = 0; i < d; i += VL) {
        LA_BY_SQUARE(i, j, d - i, cols,
                     delta_step_read_square(&rows, from, at, &x, &y, resets, type));
    }
    delta_step_values(r, j, &x, y, vload(&r->v[j]), rule);
    vstore(u, x);
    for (ptrdiff_t i = 0; i < d; i += VL) {
        LA_BY_SQUARE(
            i, j, d - i, cols,
            delta_step_write_square(&rows, from, to, at, u, rule, resets, type));
    }
}

/* All columns of a state whose columns are contiguous; nonzero: stop. */
INLINE int
delta_step_squares(const struct la_head *h, const struct delta_step_scratch *r,
                   ptrdiff_t *until_poll, const struct la_array *from,
                   const struct la_array *to, const enum step_rule rule,
                   const int resets, const enum la_type type)
{
    for (ptrdiff_t j = 0; j < h->m; j += VL) {
        if (give_up(h, until_poll, 3 * h->d * VL)) {
            return 1;
        }
        delta_step_square_columns(h, r, from, to, j, rule, resets, type);
    }
    return 0;
}

/* u, o and the new state in one column, at any stride. */
INLINE void
delta_step_column(const struct delta_step_scratch *r, const struct la_array *from,
                  const struct la_array *to, ptrdiff_t d, ptrdiff_t j,
                  const enum step_rule rule, const int resets)
{
    const char *in = from->data + j * from->cs;
    char *out = to->data + j * to->cs;
    const T v = r->v[j];
    T x = 0, y = 0, s;
    for (ptrdiff_t i = 0; i < d; i++) {
        s = read_one(in + i * from->rs, from->type);
        s = resets && r->decay[i] == 0 ? 0 : s;
        x = fma_one(r->erases[i], s, x);
        y = fma_one(r->reads[i], s, y);
    }
    if (rule == DPLR_STEP) {
        y = fma_one(r->dot_k, v, y);
    }
    else {
        x = r->beta.rows.x[j * r->beta.step] * (v - x);
    }
    r->o[j] = fma_one(r->dot, x, y);
    for (ptrdiff_t i = 0; i < d; i++) {
        s = read_one(in + i * from->rs, from->type);
        if (rule != DELTA_STEP) {
            s = resets && r->decay[i] == 0 ? 0 : s * r->decay[i];
        }
        if (rule == DPLR_STEP) {
            s = fma_one(r->k[i], v, s);
        }
        s = fma_one(r->b[i], x, s);
        write_one(out + i * to->rs, s, to->type);
    }
}

#endif
