/* scan.h: what the scans over tokens share: exponentials of decays, states that lie by
 * channel, checkpoints.
 *
 * A vector holds as many channels; a channel's states are in as many vectors.  A state
 * (m,f), which callers hold by channels, lies in scratch as one tile a vector of
 * channels, its f rows padded with zeros to a multiple of MR. */
#ifndef LA_SCAN_H
#define LA_SCAN_H

#include "../vectors/functions.h"
#include "../tiles/recurrence.h"

/* 2^x as (head + slope r) 2^k, where head 2^k is near 1 for x near 0. */
struct exp2_parts {
    vec head, slope, r, k;
};

/* The parts of n vectors, all of them step by step, as in vexp_each (feature.h). */
#if defined(__AVX512DQ__) && MANTISSA_BITS == 23
/* 2^(i/16), which a vector holds. */
#define SIXTEENTHS                                                                     \
    0x1p0f, 0x1.0b5586p0f, 0x1.172b84p0f, 0x1.2387a6p0f, 0x1.306fep0f, 0x1.3dea64p0f,  \
        0x1.4bfdaep0f, 0x1.5ab07ep0f, 0x1.6a09e6p0f, 0x1.7a1148p0f, 0x1.8ace54p0f,     \
        0x1.9c4918p0f, 0x1.ae89fap0f, 0x1.c199bep0f, 0x1.d5818ep0f, 0x1.ea4afap0f

/* x = k + i/16 + r with |r| <= 1/32, so that a polynomial of degree 3 will do. */
INLINE void
vexp2_parts_each(struct exp2_parts e[], const vec x[], const int n)
{
    static const vec table = {SIXTEENTHS};
    const int sixteenths = 4 << 4 | _MM_FROUND_TO_NEAREST_INT;
    const vec magic = vset1((T)(ROUND_MAGIC / 16));
    LA_EACH(i, n) {
        e[i].k = x[i] + magic;
        e[i].r = (vec)_mm512_reduce_ps((__m512)x[i], sixteenths);
    }
    LA_EACH(i, n) {
        e[i].head = (vec)_mm512_permutexvar_ps((__m512i)e[i].k, (__m512)table);
        e[i].slope = vfma(vset1(0x1.c6b3e2p-5f), e[i].r, vset1(0x1.ebfbep-3f));
    }
    LA_EACH(i, n) {
        e[i].k -= magic;
        e[i].slope = vfma(e[i].slope, e[i].r, vset1(0x1.62e43p-1f));
    }
    LA_EACH(i, n) {
        e[i].r *= e[i].slope;
        e[i].slope = e[i].head;
    }
}
#else
/* x = k + r with |r| <= 1/2.  Where the instruction set takes x apart it needs no
 * bounds. */
INLINE void
vexp2_parts_each(struct exp2_parts e[], const vec x[], const int n)
{
    static const T c[] = {EXP2_COEFFICIENTS};
    const int terms = sizeof(c) / sizeof(c[0]);
    LA_EACH(i, n) {
#if defined(__AVX512DQ__)
        e[i].k = (vec)LA_MM(roundscale)(x[i], _MM_FROUND_TO_NEAREST_INT);
        e[i].r = (vec)LA_MM(reduce)(x[i], _MM_FROUND_TO_NEAREST_INT);
#else
        const vec magic = vset1(ROUND_MAGIC), limit = vset1((T)(2 * EXPONENT_BIAS - 1));
        const vec bounded = vmin(limit, vmax(-limit, x[i]));
        e[i].k = (bounded + magic) - magic;
        e[i].r = bounded - e[i].k;
#endif
        e[i].head = vset1(1);
        e[i].slope = vset1(c[terms - 1]);
    }
    LA_UNROLL
    for (int t = terms - 2; t >= 0; t--) {
        LA_EACH(i, n) {
            e[i].slope = vfma(e[i].slope, e[i].r, vset1(c[t]));
        }
    }
}
#endif

INLINE vec
vexp2_of(struct exp2_parts e)
{
    return vscale2(vfma(e.slope, e.r, e.head), e.k);
}

/* x[i] = 2^x[i] within 1.1 ulp; NaN stays NaN.  A decay's exponent is the logarithm to
 * base 2 from the start, so that nothing of it has to be subtracted in two parts. */
INLINE void
vexp2_each(vec x[], const int n)
{
    struct exp2_parts e[LA_CHAINS];
    vexp2_parts_each(e, x, n);
    LA_EACH(i, n) {
        x[i] = vexp2_of(e[i]);
    }
}

INLINE vec
vexp2(vec x)
{
    vexp2_each(&x, 1);
    return x;
}

/* Rows of a tile: f, and zeros. */
INLINE ptrdiff_t
tile_rows(const struct la_head *h)
{
    return round_up(h->f, MR);
}

/* Numbers of a state in tiles; where the tile of the channels from `col` on lies. */
INLINE ptrdiff_t
tiles_size(const struct la_head *h)
{
    return tile_rows(h) * round_up(h->m, VL);
}

INLINE T *
tile_at(T *tiles, const struct la_head *h, ptrdiff_t col)
{
    return tiles + tile_rows(h) * col;
}

/* Rows of the caller's (m,f) as columns, from channel `col` on. */
INLINE struct la_array
across(const struct la_array *x, ptrdiff_t col)
{
    return transposed(shifted(x, col * x->rs));
}

INLINE ptrdiff_t
lanes_from(const struct la_head *h, ptrdiff_t col)
{
    return h->m - col < VL ? h->m - col : VL;
}

/* tiles = the caller's (m,f), or zeros; and back. */
static void
load_tiles(T *tiles, const struct la_head *h, const struct la_array *x)
{
    clear(tiles, tiles_size(h));
    for (ptrdiff_t j = 0; x->data != NULL && j < h->m; j += VL) {
        const struct la_array part = across(x, j);
        load_plain((struct block){tile_at(tiles, h, j), VL}, &part, rows_from(0, h->f),
                   lanes_from(h, j));
    }
}

static void
store_tiles(const struct la_array *x, const struct la_head *h, T *tiles)
{
    for (ptrdiff_t j = 0; x->data != NULL && j < h->m; j += VL) {
        const struct la_array part = across(x, j);
        store_rows(&part, rows_from(0, h->f), lanes_from(h, j),
                   (struct block){tile_at(tiles, h, j), VL}, NULL);
    }
}

/* Whether the rows of x are those of a block, but for what follows their last numbers.
 */
INLINE int
lies_as_block(const struct la_array *x)
{
    const ptrdiff_t size = sizeof(T);
    return x->type == LA_NATIVE && x->cs == size && x->rs % size == 0 &&
           (uintptr_t)x->data % sizeof(T) == 0;
}

/* The rows t of it, which need not begin on a vector's boundary. */
INLINE struct block
block_of(const struct la_array *x, struct span t)
{
    return (struct block){(T *)(x->data + t.first * x->rs),
                          x->rs / (ptrdiff_t)sizeof(T)};
}

/* Rows t of some columns of x, where they lie if they are whole vectors, or copied. */
static struct block
panel_or_copy(struct block copy, const struct la_array *x, struct span t,
              ptrdiff_t cols)
{
    if (lies_as_block(x) && cols % VL == 0) {
        return block_of(x, t);
    }
    load_plain(copy, x, t, cols);
    return copy;
}

/* A vector of such rows, which need not begin on a vector's boundary. */
INLINE vec
load_near(struct block x, ptrdiff_t i, ptrdiff_t j)
{
    return vload_any((const char *)&x.x[i * x.ld + j]);
}

/* Tokens from one checkpoint to the next: about as many as there are checkpoints take
 * the least memory, and of n alone, so that panels do not differ. */
static ptrdiff_t
scan_interval(ptrdiff_t n)
{
    const ptrdiff_t interval = round_up(checkpoint_interval(n), MR);
    return interval > LA_SCAN_ROWS ? interval : LA_SCAN_ROWS;
}

/* How many checkpoints, no more for any n up to this one. */
INLINE ptrdiff_t
scan_checkpoints(ptrdiff_t n)
{
    return checkpoint_interval(n);
}

#endif
