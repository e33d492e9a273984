/* state_tile.h: the next state, one column tile at a time (micro.h). */
#ifndef LA_STATE_TILE_H
#define LA_STATE_TILE_H

#include "micro.h"

/* What sum = old + more lost to rounding; 0 if the sum is inf or NaN, so that an inf
 * stays one. */
INLINE vec
rounding_lost(vec old, vec more, vec sum)
{
    const vec lost = more - (sum - old);
    return vnumber(lost);
}

/* One column tile of the state: what is added to, what is written, `lost`, and the sum
 * of a run. */
struct state_tile {
    const T *from;
    T *s, *lost, *run;
};

INLINE struct state_tile
state_tile(const struct sweep *c, ptrdiff_t at)
{
    const T *from = c->from ? c->from : c->s;
    return (struct state_tile){
        .from = from ? from + at : NULL,
        .s = c->s ? c->s + at : NULL,
        .lost = c->lost ? c->lost + at : NULL,
        .run = c->run ? c->run + at : NULL,
    };
}

/* Rows [l, l + rows) of S = decayed S + acc for one column tile, compensated with
 * `lost`, which decays like S.  `transposed`: one decay per column. */
INLINE void
decay_and_add(const struct sweep *c, ptrdiff_t col, struct state_tile to, ptrdiff_t l,
              vec acc[][NR], const int compensated, const int transposed,
              const int rows, const int nr)
{
    /* In locals: the compiler assumes that stores change the arrays. */
    vec keep[NR], change[NR];
    LA_EACH(j, nr) {
        keep[j] = transposed ? vload(&c->keep[col + j * VL]) : (vec){0};
        change[j] = transposed ? vload(&c->change[col + j * VL]) : (vec){0};
    }
    LA_EACH(r, rows) {
        const vec row_keep = transposed ? (vec){0} : vset1(c->keep[l + r]);
        const vec row_change = transposed ? (vec){0} : vset1(c->change[l + r]);
        LA_EACH(j, nr) {
            const ptrdiff_t at = (l + r) * nr * VL + j * VL;
            const vec by = transposed ? change[j] : row_change;
            const vec share = transposed ? keep[j] : row_keep;
            const vec before = vload(&to.from[at]), old = keep_of(share, before);
            vec more = vfma(by, before, acc[r][j]);
            if (compensated) {
                const vec lost = vload(&to.lost[at]);
                more = vfma(share + by, lost, more);
            }
            const vec sum = old + more;
            vstore(&to.s[at], sum);
            if (compensated) {
                vstore(&to.lost[at], rounding_lost(old, more, sum));
            }
        }
    }
}

/* Rows [l, l + rows) of S = change S + acc for one column tile. */
INLINE void
change_and_add(const struct sweep *c, struct state_tile to, ptrdiff_t l, vec acc[][NR],
               const int rows, const int nr)
{
    LA_EACH(r, rows) {
        const vec change = vset1(c->change[l + r]);
        LA_EACH(j, nr) {
            const ptrdiff_t at = (l + r) * nr * VL + j * VL;
            vstore(&to.s[at], vfma(change, vload(&to.from[at]), acc[r][j]));
        }
    }
}

/* Rows [l, l + rows) of S += acc for one column tile, compensated with `lost`. */
INLINE void
add_tile(struct state_tile to, ptrdiff_t l, vec acc[][NR], const int compensated,
         const int rows, const int nr)
{
    LA_EACH(r, rows) {
        LA_EACH(j, nr) {
            const ptrdiff_t at = (l + r) * nr * VL + j * VL;
            const vec old = vload(&to.from[at]);
            const vec more = compensated ? acc[r][j] + vload(&to.lost[at]) : acc[r][j];
            const vec sum = old + more;
            vstore(&to.s[at], sum);
            if (compensated) {
                vstore(&to.lost[at], rounding_lost(old, more, sum));
            }
        }
    }
}

/* Rows [l, l + rows) of the run's sum, with acc added unless it `begins`: stored or, of
 * the whole run, in place of acc. */
INLINE void
add_to_run(struct state_tile to, ptrdiff_t l, vec acc[][NR], const int begins,
           const int ends, const int rows, const int nr)
{
    LA_EACH(r, rows) {
        LA_EACH(j, nr) {
            T *const run = &to.run[(l + r) * nr * VL + j * VL];
            const vec sum = begins ? acc[r][j] : vload(run) + acc[r][j];
            if (ends) {
                acc[r][j] = sum;
            }
            else {
                vstore(run, sum);
            }
        }
    }
}

/* Rows [l, l + rows) of the next S, from acc = B^T V for one column tile. */
INLINE void
add_chunk(const struct sweep *c, ptrdiff_t col, struct state_tile to, ptrdiff_t l,
          vec acc[][NR], const int compensated, const int rows, const int nr)
{
    if (c->run != NULL && c->begins && !c->ends) {
        add_to_run(to, l, acc, 1, 0, rows, nr);
    }
    if (c->run != NULL && !c->begins && !c->ends) {
        add_to_run(to, l, acc, 0, 0, rows, nr);
    }
    if (c->run != NULL && !c->begins && c->ends) {
        add_to_run(to, l, acc, 0, 1, rows, nr);
    }
    if (to.s == NULL) {
        return;
    }
    if (!compensated && c->fades) {
        change_and_add(c, to, l, acc, rows, nr);
        return;
    }
    if (c->keep != NULL && c->transposed) {
        decay_and_add(c, col, to, l, acc, compensated, 1, rows, nr);
        return;
    }
    if (c->keep != NULL) {
        decay_and_add(c, col, to, l, acc, compensated, 0, rows, nr);
        return;
    }
    add_tile(to, l, acc, compensated, rows, nr);
}

/* MR rows of the next S, from those of B^T V at `sums`, nr vectors each. */
INLINE void
add_sums(const struct sweep *c, ptrdiff_t col, struct state_tile to, ptrdiff_t l,
         const T *sums, const int compensated, const int nr)
{
    vec acc[MR][NR];
    LA_EACH(r, MR) {
        LA_EACH(j, nr) {
            acc[r][j] = vload(&sums[(r * nr + j) * VL]);
        }
    }
    add_chunk(c, col, to, l, acc, compensated, MR, nr);
}

/* Rows [l, l + rows) of S += B^T V for one column tile of nr vectors.  The chunk is
 * summed first: this rounds less, and the sum does not wait for S.  Over thousands of
 * equal chunks, additions to S might still all round one way: `lost` accumulates what
 * each addition lost and adds it to the next (Kahan 1965). */
INLINE void
write_tile(const struct sweep *c, ptrdiff_t col, struct columns b, struct block values,
           struct state_tile to, ptrdiff_t l, const int compensated, const int rows,
           const int nr, const enum la_products by)
{
    vec acc[2 * LA_TR][NR];
    la_fetch_some(c->ahead);
    clear_tile(acc, rows, nr);
    tile_by(acc, rows, nr, (struct block){b.x + l * b.step, b.ld}, 1, values,
            lanes_of(c->rows, by), by);
    add_chunk(c, col, to, l, acc, compensated, rows, nr);
}

#endif
