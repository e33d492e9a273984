/* complex_vector.h: vectors of complex numbers as arrays hold them, each a real lane
 * and then an imaginary one; and arrays of complex numbers as arrays of their parts.
 *
 * Products are four real ones: infinite numbers may give NaN. */
#ifndef LA_COMPLEX_VECTOR_H
#define LA_COMPLEX_VECTOR_H

#include "chunk.h"
#include "../vectors/functions.h"
#include "state.h"

/* Real parts in both lanes; imaginary parts in both; and the parts exchanged. */
#define LA_REAL_2(x) __builtin_shufflevector(x, x, 0, 0)
#define LA_IMAG_2(x) __builtin_shufflevector(x, x, 1, 1)
#define LA_SWAP_2(x) __builtin_shufflevector(x, x, 1, 0)
#define LA_REAL_4(x) __builtin_shufflevector(x, x, 0, 0, 2, 2)
#define LA_IMAG_4(x) __builtin_shufflevector(x, x, 1, 1, 3, 3)
#define LA_SWAP_4(x) __builtin_shufflevector(x, x, 1, 0, 3, 2)
#define LA_REAL_8(x) __builtin_shufflevector(x, x, 0, 0, 2, 2, 4, 4, 6, 6)
#define LA_IMAG_8(x) __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7)
#define LA_SWAP_8(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#define LA_REAL_16(x)                                                                  \
    __builtin_shufflevector(x, x, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14)
#define LA_IMAG_16(x)                                                                  \
    __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15)
#define LA_SWAP_16(x)                                                                  \
    __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)

INLINE vec
real_parts(vec x)
{
    return LA_PASTE(LA_REAL_, LA_LANES)(x);
}

INLINE vec
imag_parts(vec x)
{
    return LA_PASTE(LA_IMAG_, LA_LANES)(x);
}

INLINE vec
swap_parts(vec x)
{
    return LA_PASTE(LA_SWAP_, LA_LANES)(x);
}

/* The lanes of real parts. */
INLINE ivec
real_lanes(void)
{
    return (viota() & 1) == 0;
}

/* x with the sign of its real, or of its imaginary parts changed. */
INLINE vec
change_signs(vec x, ivec lanes)
{
    return (vec)((ivec)x ^ (lanes & (ivec)vset1(-(T)0)));
}

/* x y + z */
INLINE vec
vfma_complex(vec x, vec y, vec z)
{
    const vec imag = change_signs(imag_parts(x), real_lanes());
    return vfma(real_parts(x), y, vfma(imag, swap_parts(y), z));
}

/* x times the conjugate of y */
INLINE vec
times_conjugate(vec x, vec y)
{
    const vec imag = change_signs(imag_parts(y), ~real_lanes());
    return vfma(real_parts(y), x, imag * swap_parts(x));
}

/* e^x; 0 where the real part is so small, whatever the imaginary one is. */
INLINE vec
vexp_complex(vec x)
{
    const vec size = vexp(real_parts(x));
    vec s, c;
    vsincos(imag_parts(x), &s, &c);
    return vkeep(size != (vec){0}, size * vselect(real_lanes(), c, s));
}

/* An array of complex numbers as one of twice as many columns, their parts.  It stays
 * as it is if its columns have gaps; the functions below take either. */
static void
take_apart(struct la_array *x)
{
    if (x->type == LA_COMPLEX && x->cs == size_of(LA_COMPLEX)) {
        x->type = LA_NATIVE;
        x->cs = sizeof(T);
    }
}

/* x from part `col` of its columns on, a real one. */
INLINE struct la_array
parts_from(const struct la_array *x, ptrdiff_t col)
{
    return shifted(x, (x->type == LA_COMPLEX ? col / 2 : col) * x->cs);
}

/* dst = the first `cols` parts of rows t of x, which has gaps. */
static void
gather_parts(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols)
{
    const char *row = x->data + t.first * x->rs;
    for (ptrdiff_t i = 0; i < t.rows; i++, row += x->rs) {
        for (ptrdiff_t j = 0; j < cols; j += 2) {
            memcpy(&dst.x[i * dst.ld + j], row + j / 2 * x->cs, 2 * sizeof(T));
        }
    }
}

/* The same of any x, and zeros up to the next multiple of MR. */
static void
load_parts(struct block dst, const struct la_array *x, struct span t, ptrdiff_t cols)
{
    if (x->type != LA_COMPLEX) {
        load_plain(dst, x, t, cols);
        return;
    }
    clear_rows(dst, 0, round_up(t.rows, MR));
    gather_parts(dst, x, t, cols);
}

/* The first `cols` parts of rows t of x = src; `large` as of stream_rows. */
static void
store_parts(const struct la_array *x, struct span t, ptrdiff_t cols, struct block src,
            int large)
{
    if (x->type != LA_COMPLEX) {
        stream_rows(x, t, cols, src, large);
        return;
    }
    char *row = x->data + t.first * x->rs;
    for (ptrdiff_t i = 0; i < t.rows; i++, row += x->rs) {
        for (ptrdiff_t j = 0; j < cols; j += 2) {
            memcpy(row + j / 2 * x->cs, &src.x[i * src.ld + j], 2 * sizeof(T));
        }
    }
}

/* row = the parts of a vector x, or zeros if there is none; and back. */
static void
load_part_row(T *row, const struct la_array *x, ptrdiff_t cols)
{
    if (x->type != LA_COMPLEX) {
        load_vector(row, x, cols);
        return;
    }
    clear(row, row_step(cols));
    gather_parts((struct block){row, 0}, x, rows_from(0, 1), cols);
}

static void
store_part_row(const struct la_array *x, T *row, ptrdiff_t cols)
{
    if (x->data != NULL) {
        store_parts(x, rows_from(0, 1), cols, (struct block){row, 0}, 0);
    }
}

#endif
