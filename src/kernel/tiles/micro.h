/* micro.h: the register tiles, on blocks (block.h).
 *
 * A tile has LA_TR rows of up to NR vectors, held in registers while the sum runs.
 * Each number of a tile is one chain of multiply-adds in the order of the sum, so its
 * bits depend neither on the tile's shape nor on its position in the matrix.  This
 * allows any partition of the value columns into panels. */
#ifndef LA_MICRO_H
#define LA_MICRO_H

#include "amx.h"
#include "chunk.h"
#include "own_pairs.h"
#include "pair_scratch.h"
#include "../vectors/fetch.h"

/* One contraction of the chunked recurrences over a state S (K, W):
 *    read:  O = bias + X V + A S     with X (rows, rows) triangular, or absent
 *    write: S <- keep S + change S + B^T V   with keep = 1, change = 0 if absent
 *           and, within a run, run <- run + B^T V; its last chunk adds that instead
 *
 * S is stored by column tiles, each (K4, width) and contiguous; K4 is K rounded up to
 * MR. */
struct sweep {
    ptrdiff_t rows, K, W; /* W: padded to whole vectors */
    struct block a, b, v; /* (rows, K) (rows, K) (rows, W) */
    struct block dots; /* X, (rows, rows): the scores a_i.b_j; .x is NULL if absent */
    struct block o;    /* (rows, W) */
    const T *bias;     /* (W) added to each row of O, or NULL */
    T *s;              /* K rounded up to MR, times W; NULL: no next S is wanted */
    const T *read;     /* S as it is read, if it is not at s */
    T *lost;           /* what S has lost to rounding so far, or NULL */
    const T *keep, *change; /* factors of S, one number per row (decay.h), or NULL */
    int fades;              /* keep is 0 in all rows, and so is `lost` */
    int transposed;         /* factors of S have one number per column (W) instead */
    const T *from;          /* what is added to, if it is not S */
    T *run;                 /* the sum of a run of chunks (runs.h), or NULL */
    int begins, ends;       /* whether the chunk is the first or last of its run */
    ptrdiff_t first, end; /* the rows of S of this part; `first` is a multiple of MR */
    int upper;            /* X keeps j >= i instead of j <= i */
    struct la_fetch *ahead;       /* prefetch queue that each tile advances, or NULL */
    struct pairs pairs;           /* all zeros: products of floats */
    struct own own;               /* which of A, B and V are in pairs (own_pairs.h) */
    const T *from_start, *to_end; /* if A and B are: factors of their rows where they
                                     meet S, not each other (decay.h); or NULL */
    const T *strength;            /* if V is: factors of its rows, or NULL */
    int scored;     /* scores made the pairs of A and B, which have not changed since;
                       if they are in pairs: they transposed those of B */
    const T **held; /* with AMX, by column tile: the state whose pairs are at pairs.s,
                       where sweeps alone change it; or NULL */
};

/* S as it is read. */
INLINE const T *
state_read(const struct sweep *c)
{
    return c->read != NULL ? c->read : c->s;
}

/* The pairs of A. */
INLINE struct block
pairs_of_a(const struct sweep *c)
{
    return c->own.rows && c->from_start == NULL ? c->a : c->pairs.a;
}

/* Makes the pairs of A. */
INLINE void
pair_rows_of_a(const struct sweep *c)
{
    const enum la_products by = c->pairs.by;
    const ptrdiff_t width = by_amx(by) ? 2 * padded_lanes(c->K, by) : 2 * c->pairs.a.ld;
    pair_columns(c->pairs.a, c->a, round_up(c->rows, MR), c->K, width, by);
}

/* Makes the pairs of columns [col, col + cols) of V, and zeros as far as tiles read.
 * Returns whether a number may not be finite. */
INLINE int
pair_values(struct block dst, const struct sweep *c, ptrdiff_t col, ptrdiff_t cols)
{
    const enum la_products by = c->pairs.by;
    const ptrdiff_t lanes = lanes_of(c->rows, by);
    clear_rows(dst, lanes,
               by_amx(by) ? padded_lanes(c->rows, by) : round_up(lanes, MR / 2));
    return c->own.values ? zip_rows(dst, block_at(c->v, 0, col / 2), c->rows, cols,
                                    c->strength, by)
                         : pair_rows(dst, block_at(c->v, 0, col), c->rows, cols, by);
}

/* c (rows, nr) += column l of A times row l of B. */
INLINE void
tile_once(vec c[][NR], const int rows, const int nr, struct block a,
          const int transposed, struct block b, ptrdiff_t l, const enum la_products by)
{
    vec y[NR];
    LA_EACH(j, nr) {
        y[j] = vload(&b.x[l * b.ld + j * VL]);
    }
    LA_EACH(i, rows) {
        const T *p = transposed ? &a.x[l * a.ld + i] : &a.x[i * a.ld + l];
        const vec x = by == LA_FLOAT_PRODUCTS ? vset1(*p) : vpair(p);
        LA_EACH(j, nr) {
            c[i][j] = vproduct(x, y[j], c[i][j], by);
        }
    }
}

/* c (rows, nr) += A (rows, k) B (k, nr); the block a holds A or, if `transposed`,
 * A^T.  Of pairs, k counts the pairs. */
INLINE void
tile_by(vec c[][NR], const int rows, const int nr, struct block a, const int transposed,
        struct block b, ptrdiff_t k, const enum la_products by)
{
    /* Products that take several instructions gain nothing from long loops, which take
     * seconds to compile. */
    for (ptrdiff_t l = 0; by == LA_BFLOAT_PRODUCTS && l < k; l++) {
        tile_once(c, rows, nr, a, transposed, b, l, by);
    }
    LA_UNROLL_BY_4
    for (ptrdiff_t l = 0; by != LA_BFLOAT_PRODUCTS && l < k; l++) {
        tile_once(c, rows, nr, a, transposed, b, l, by);
    }
}

INLINE void
tile(vec c[][NR], const int rows, const int nr, struct block a, const int transposed,
     struct block b, ptrdiff_t k)
{
    tile_by(c, rows, nr, a, transposed, b, k, LA_FLOAT_PRODUCTS);
}

/* Columns [j, j + VL) of row t of V, as it is or in pairs of rows. */
INLINE vec
value_at(struct block v, ptrdiff_t t, ptrdiff_t j, const enum la_products by)
{
    return by == LA_FLOAT_PRODUCTS
               ? vload(&v.x[t * v.ld + j])
               : half_of_pairs(vload(&v.x[t / 2 * v.ld + j]), t % 2);
}

/* c (rows, nr) += X V, where x is a diagonal block of the triangle X or, if
 * `transposed`, of X^T: row i takes rows t <= i of V or, if `upper`, t >= i, without i
 * itself if `strict`.  Others are skipped, not multiplied by zero: the value may be a
 * NaN.  X is of floats, V also in pairs. */
INLINE void
tile_diagonal(vec c[][NR], const int rows, const int nr, struct block x,
              const int transposed, struct block v, const int upper, int strict,
              const enum la_products by)
{
    LA_EACH(t, rows) {
        LA_EACH(i, rows) {
            if ((upper ? i > t : i < t) || (i == t && strict)) {
                continue;
            }
            const T *p = transposed ? &x.x[t * x.ld + i] : &x.x[i * x.ld + t];
            LA_EACH(j, nr) {
                const vec y = value_at(v, t, j * VL, by);
                c[i][j] = vfma(vset1(*p), y, c[i][j]);
            }
        }
    }
}

/* c += rows [i, i + rows) of X V, as far as lanes [from, to) and the diagonal block
 * hold them. */
INLINE void
tile_rows_of_triangle(vec c[][NR], const struct sweep *s, ptrdiff_t i, const int rows,
                      const int nr, struct block values, ptrdiff_t from, ptrdiff_t to,
                      const enum la_products by)
{
    const ptrdiff_t next = i + rows;
    const struct block x = block_at(s->dots, i, i);
    const struct block here = block_at(values, lanes_of(i, by), 0);
    const struct block far = by == LA_FLOAT_PRODUCTS ? s->dots : s->pairs.dots;
    if (s->upper) {
        const ptrdiff_t first = lanes_of(next, by);
        tile_diagonal(c, rows, nr, x, 0, here, 1, 0, by);
        tile_by(c, rows, nr, block_at(far, i, first), 0, block_at(values, first, 0),
                to - first, by);
    }
    else {
        tile_by(c, rows, nr, block_at(far, i, from), 0, block_at(values, from, 0),
                lanes_of(i, by) - from, by);
        tile_diagonal(c, rows, nr, x, 0, here, 0, 0, by);
    }
}

/* The same.  The diagonal block takes scores as floats, since a pair may hold that of a
 * token that its row must not see; with pairs it is always MR rows, so that the shape
 * of a tile changes no bit. */
INLINE void
tile_triangle(vec c[][NR], const struct sweep *s, ptrdiff_t i, const int rows,
              const int nr, struct block values, const enum la_products by)
{
    const int some = by == LA_FLOAT_PRODUCTS ? rows : MR;
    LA_EACH(r, rows / some) {
        tile_rows_of_triangle(c + r * some, s, i + r * some, some, nr, values, 0,
                              lanes_of(s->rows, by), by);
    }
}

/* Rows [i, i + rows) of one column tile of O = acc, or O += acc. */
INLINE void
store_tile(const struct sweep *c, ptrdiff_t col, ptrdiff_t i, vec acc[][NR],
           const int add, const int rows, const int nr)
{
    LA_EACH(r, rows) {
        LA_EACH(j, nr) {
            T *p = c->o.x + (i + r) * c->o.ld + col + j * VL;
            vstore(p, add ? vload(p) + acc[r][j] : acc[r][j]);
        }
    }
}

INLINE void
clear_tile(vec acc[][NR], const int rows, const int nr)
{
    LA_EACH(r, rows) {
        LA_EACH(j, nr) {
            acc[r][j] = (vec){0};
        }
    }
}

/* The bias, or zeros. */
INLINE void
begin_tile(const struct sweep *c, ptrdiff_t col, ptrdiff_t k, vec acc[][NR],
           const int rows, const int nr)
{
    clear_tile(acc, rows, nr);
    if (k == 0 && c->bias != NULL) {
        LA_EACH(j, nr) {
            LA_EACH(r, rows) {
                acc[r][j] = vload(&c->bias[col + j * VL]);
            }
        }
    }
}

/* Rows [i, i + rows) of O = bias + X V + A S for one column tile of nr vectors, with
 * rows [k, k + kc) of S, which `s` holds.  With k > 0, the product is added to O. */
INLINE void
read_tile(const struct sweep *c, ptrdiff_t col, struct block s, struct block values,
          ptrdiff_t k, ptrdiff_t kc, ptrdiff_t i, const int rows, const int nr,
          const enum la_products by)
{
    const struct block a = by == LA_FLOAT_PRODUCTS ? c->a : pairs_of_a(c);
    vec acc[2 * LA_TR][NR];
    la_fetch_some(c->ahead);
    begin_tile(c, col, k, acc, rows, nr);
    if (k == 0 && c->dots.x != NULL) {
        tile_triangle(acc, c, i, rows, nr, values, by);
    }
    tile_by(acc, rows, nr, block_at(a, i, lanes_of(k, by)), 0, s, lanes_of(kc, by), by);
    store_tile(c, col, i, acc, k > 0, rows, nr);
}

#endif
