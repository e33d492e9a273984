/* token.h: what the steps share: the rows of one token, and the way from head to head.
 *
 * A step computes a run of heads (table.h).  Its arrays are read through `struct
 * la_head`, whose pointers move from head to head.  The state is walked by row over up
 * to LA_STEP_NR vectors of columns at a time: whole rows of usual heads, so that
 * processors prefetch them by themselves. */
#ifndef LA_TOKEN_H
#define LA_TOKEN_H

#include "../tiles/recurrence.h"

/* Moves to the next head of a run. */
INLINE void
next_head(struct la_head *h)
{
    struct la_array *const moved[] = {
        &h->q, &h->k,  &h->v,  &h->beta, &h->erase, &h->g,  &h->bonus, &h->strength,
        &h->D, &h->s0, &h->z0, &h->o,    &h->s1,    &h->z1, &h->a,     &h->b,
    };
    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        if (moved[i]->data != NULL) {
            moved[i]->data += moved[i]->step;
        }
    }
}

/* x, in a register: compilers would read a number that is used twice from memory
 * twice. */
INLINE vec
held(vec x)
{
#if defined(__AVX512F__)
    __asm__("" : "+v"(x));
#elif defined(__SSE2__)
    __asm__("" : "+x"(x));
#endif
    return x;
}

/* Whether the states are walked by vectors: their rows are contiguous. */
INLINE int
by_vectors(const struct la_array *from, const struct la_array *to)
{
    return by_rows(from) && by_rows(to);
}

/* Whether a row of one token is contiguous whole vectors in the dtype of the
 * computation, as most are: functions for all others take longer than the copy. */
INLINE int
is_whole_token(const struct la_array *x, ptrdiff_t cols)
{
    return x->type == LA_NATIVE && x->cs == (ptrdiff_t)sizeof(T) && cols % VL == 0 &&
           row_step(cols) == cols;
}

/* Rows of one token: x, phi(x), and x's only number. */
INLINE void
load_token_plain(T *dst, const struct la_array *x, ptrdiff_t cols)
{
    if (!is_whole_token(x, cols)) {
        load_row(dst, row_step(cols), x, 0, cols);
        return;
    }
    const char *from = x->data;
    for (ptrdiff_t l = 0; l < cols; l += VL, from += LA_VBYTES) {
        vstore(&dst[l], vload_any(from));
    }
}

INLINE void
load_token_mapped(T *dst, const struct la_array *x, ptrdiff_t cols, enum la_map map)
{
    if (map == LA_MAP_identity) {
        load_token_plain(dst, x, cols);
        return;
    }
    load_mapped_rows((struct block){dst, row_step(cols)}, x, rows_from(0, 1), cols,
                     map);
}

INLINE T
load_token_number(const struct la_array *x)
{
    vec y;
    LA_BY_TYPE(x->type, y = vread_some(x->data, 1, type));
    return y[0];
}

INLINE void
store_token(const struct la_array *x, ptrdiff_t cols, T *src, const T *factor)
{
    if (!is_whole_token(x, cols)) {
        store_rows(x, rows_from(0, 1), cols, (struct block){src, 0}, factor);
        return;
    }
    char *to = x->data;
    for (ptrdiff_t l = 0; l < cols; l += VL, to += LA_VBYTES) {
        *(vec_any *)to = (vec_any)(vload(&src[l]) * vset1(*factor));
    }
}

/* x.y, rounded as row_dots rounds it. */
INLINE T
token_dot(const T *x, const T *y, ptrdiff_t cols)
{
    const vec zero = {0};
    vec sum = {0};
    for (ptrdiff_t l = 0; l < cols; l += VL) {
        sum = vfma(vload(&x[l]), vload(&y[l]), sum);
    }
    LA_UNROLL
    for (int half = (int)VL / 2; half > 0; half /= 2) {
        sum = vzip_low(sum, zero) + vzip_high(sum, zero);
    }
    return sum[0];
}

/* y = x o factor */
INLINE void
multiply_token(T *y, const T *x, const T *factor, ptrdiff_t cols)
{
    for (ptrdiff_t l = 0; l < cols; l += VL) {
        vstore(&y[l], vload(&x[l]) * vload(&factor[l]));
    }
}

/* Runs `call` for tiles of nr vectors that cover m columns, each from column `col` on;
 * the last vector of a tile has `some` columns.  nr is a constant in every call, and so
 * is `some` if it is VL. */
#define LA_BY_STEP_TILES(m, call)                                                      \
    do {                                                                               \
        const ptrdiff_t whole_columns = (m);                                           \
        ptrdiff_t col = 0;                                                             \
        for (; col + LA_STEP_NR * VL <= whole_columns; col += LA_STEP_NR * VL) {       \
            const ptrdiff_t some = VL;                                                 \
            LA_TILE(LA_STEP_NR, call);                                                 \
        }                                                                              \
        for (; col + LA_STEP_NR / 2 * VL <= whole_columns;                             \
             col += LA_STEP_NR / 2 * VL) {                                             \
            const ptrdiff_t some = VL;                                                 \
            LA_TILE(LA_STEP_NR / 2, call);                                             \
        }                                                                              \
        for (; col + VL <= whole_columns; col += VL) {                                 \
            const ptrdiff_t some = VL;                                                 \
            LA_TILE(1, call);                                                          \
        }                                                                              \
        if (col < whole_columns) {                                                     \
            const ptrdiff_t some = whole_columns - col;                                \
            LA_TILE(1, call);                                                          \
        }                                                                              \
    } while (0)

/* Runs a step on a run of heads: `step` computes one, with that scratch, and returns
 * nonzero to stop.  The caller of a kernel has just polled, so the first poll
 * (give_up) comes later. */
INLINE int
run_heads(const struct la_head *first, void *scratch,
          int (*step)(const struct la_head *, void *, ptrdiff_t *until_poll))
{
    struct la_head h = *first;
    ptrdiff_t until_poll = LA_POLL;
    for (ptrdiff_t left = first->group; left > 0; left--) {
        if (step(&h, scratch, &until_poll)) {
            return 1;
        }
        if (left > 1) {
            next_head(&h);
        }
    }
    return 0;
}

#endif
