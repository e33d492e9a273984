/* delta_step_tile.h: the state of one head in a step of the delta rules (delta_step.h).
 *
 * A tile of columns is read for x = s^T e and y = s^T a, which give u and o, and then
 * written.  Its last vector may be a seam of two rows (rotation.h). */
#ifndef LA_DELTA_STEP_TILE_H
#define LA_DELTA_STEP_TILE_H

#include "../recurrences/delta.h"
#include "token.h"
#include "../tiles/rotation.h"

enum step_rule { DELTA_STEP, GATED_STEP, DPLR_STEP };

/* One row of each operand. */
struct delta_step_scratch {
    T *a, *b, *k, *v, *o;                    /* k: for DPLR */
    T *rotated_v, *rotated_o, *rotated_beta; /* from another column on (rotation.h) */
    T *reads, *erases; /* factors of s for o and u: a and e, decayed */
    T *decay;          /* exp(g), (d) */
    struct beta beta;
    T *scale;
    T dot, dot_k; /* a.b, a.k */
};

/* The factors of a row of the state for y and x, and its decay. */
struct read_factors {
    vec a, e, decay;
};

INLINE struct read_factors
read_factors(const struct delta_step_scratch *r, ptrdiff_t i, const int resets)
{
    return (struct read_factors){vset1(r->reads[i]), vset1(r->erases[i]),
                                 resets ? vset1(r->decay[i]) : (vec){0}};
}

/* x += e s, y += a s in a vector. */
INLINE void
delta_step_sum(const struct read_factors f, vec s, vec *x, vec *y, const int resets)
{
    if (resets) {
        s = keep_of(f.decay, s);
    }
    *x = vfma(f.e, s, *x);
    *y = vfma(f.a, s, *y);
}

/* delta_step_sum for one row of a tile, except for its seam. */
INLINE void
delta_step_read_row(const struct read_factors f, const char *in, vec x[], vec y[],
                    const struct step_tile tile)
{
    LA_EACH(t, tile.nr - tile.seam) {
        const ptrdiff_t count = t + 1 < tile.nr ? VL : tile.some;
        const ptrdiff_t byte = t * VL * size_of(tile.type);
        const vec s = held(vread_some(in + byte, count, tile.type));
        delta_step_sum(f, s, &x[t], &y[t], tile.resets);
    }
}

/* x = s^T e, y = s^T a for the columns of a tile. */
INLINE void
delta_step_read(const struct delta_step_scratch *r, const char *in, ptrdiff_t step,
                ptrdiff_t d, vec x[], vec y[], const struct step_tile tile,
                const struct rotation *by)
{
    const struct delta_step_scratch rows = *r; /* in registers */
    const int last = tile.nr - 1;
    struct read_factors f = read_factors(&rows, 0, tile.resets);
    LA_EACH(t, tile.nr) {
        x[t] = y[t] = (vec){0};
    }
    if (tile.seam) {
        const vec s = vload_first(in - step, tile.nr, by);
        delta_step_sum(f, s, &x[last], &y[last], 0);
        x[last] = vseam(by, (vec){0}, x[last]);
        y[last] = vseam(by, (vec){0}, y[last]);
    }
    for (ptrdiff_t i = 0; i < d - tile.seam; i++, in += step) {
        if (!tile.seam) {
            f = read_factors(&rows, i, tile.resets);
        }
        delta_step_read_row(f, in, x, y, tile);
        if (tile.seam) {
            const struct read_factors next = read_factors(&rows, i + 1, 0);
            const struct read_factors both = {vseam(by, f.a, next.a),
                                              vseam(by, f.e, next.e), (vec){0}};
            const vec s = held(vload_any(in + last * LA_VBYTES));
            delta_step_sum(both, s, &x[last], &y[last], 0);
            f = next;
        }
    }
    if (tile.seam) {
        const vec s = vload_part(in + last * LA_VBYTES, VL - by->shift);
        const vec before_x = x[last], before_y = y[last];
        delta_step_read_row(f, in, x, y, tile);
        delta_step_sum(f, s, &x[last], &y[last], 0);
        x[last] = vseam(by, x[last], before_x);
        y[last] = vseam(by, y[last], before_y);
    }
}

/* The factors of a row of the state and of what is written to it. */
struct write_factors {
    vec b, k, decay;
};

INLINE struct write_factors
write_factors(const struct delta_step_scratch *r, ptrdiff_t i,
              const enum step_rule rule)
{
    return (struct write_factors){vset1(r->b[i]),
                                  rule == DPLR_STEP ? vset1(r->k[i]) : (vec){0},
                                  rule != DELTA_STEP ? vset1(r->decay[i]) : (vec){0}};
}

/* Those of the seam of two rows. */
INLINE struct write_factors
write_seam(const struct write_factors f, const struct write_factors next,
           const struct rotation *by)
{
    return (struct write_factors){vseam(by, f.b, next.b), vseam(by, f.k, next.k),
                                  vseam(by, f.decay, next.decay)};
}

/* M + b u^T [+ k v^T] in a vector. */
INLINE vec
delta_step_new(vec s, const struct write_factors f, vec u, vec v,
               const enum step_rule rule, const int resets)
{
    if (rule != DELTA_STEP) {
        s = f.decay * (resets ? keep_of(f.decay, s) : s);
    }
    if (rule == DPLR_STEP) {
        s = vfma(f.k, v, s);
    }
    return vfma(f.b, u, s);
}

/* Writes `count` numbers of the seam. */
INLINE void
delta_step_put(char *out, ptrdiff_t count, vec s, const struct write_factors f, vec u,
               vec v, const struct step_tile tile)
{
    vstore_pieces(out, count, delta_step_new(s, f, u, v, tile.rule, tile.resets));
}

/* Writes one row of a tile, except for its seam. */
INLINE void
delta_step_write_row(const struct write_factors f, const char *in, char *out,
                     const vec u[], const vec v[], const struct step_tile tile)
{
    vec s[LA_STEP_NR];
    LA_EACH(t, tile.nr - tile.seam) {
        const ptrdiff_t byte = t * VL * size_of(tile.type);
        const ptrdiff_t count = t + 1 < tile.nr ? VL : tile.some;
        s[t] = delta_step_new(vread_some(in + byte, count, tile.type), f, u[t], v[t],
                              tile.rule, tile.resets);
        if (!writes_pairs(tile)) {
            vwrite_pieces(out + byte, count, s[t], tile.type);
        }
    }
    if (writes_pairs(tile)) {
        vwrite_each(out, VL * size_of(tile.type), s, tile.nr, tile.type);
    }
}

/* The new state in the columns of a tile. */
INLINE void
delta_step_write(const struct delta_step_scratch *r, const struct la_array *from,
                 const struct la_array *to, ptrdiff_t d, const vec u[], const vec v[],
                 const struct step_tile tile, const struct rotation *by)
{
    const struct delta_step_scratch rows = *r; /* in registers */
    const ptrdiff_t byte = tile.j * size_of(tile.type);
    const ptrdiff_t in_step = from->rs, out_step = to->rs;
    const ptrdiff_t last = tile.nr - 1, seam = last * LA_VBYTES;
    const struct write_factors first = write_factors(&rows, 0, tile.rule);
    struct write_factors f = first;
    const char *in = from->data + byte;
    char *out = to->data + byte;
    for (ptrdiff_t i = 0; i < d - tile.seam; i++, in += in_step, out += out_step) {
        if (!tile.seam) {
            f = write_factors(&rows, i, tile.rule);
        }
        delta_step_write_row(f, in, out, u, v, tile);
        if (tile.seam) {
            const struct write_factors next = write_factors(&rows, i + 1, tile.rule);
            delta_step_put(out + seam, VL, vload_any(in + seam),
                           write_seam(f, next, by), u[last], v[last], tile);
            f = next;
        }
    }
    if (tile.seam) {
        const ptrdiff_t some = VL - by->shift;
        const vec s = vload_first(in - d * in_step, tile.nr, by);
        delta_step_write_row(f, in, out, u, v, tile);
        delta_step_put(out + seam, some, vload_part(in + seam, some), f, u[last],
                       v[last], tile);
        vstore_first(out - d * out_step, tile.nr, by,
                     delta_step_new(s, first, u[last], v[last], tile.rule, 0));
    }
}

/* u in *x and o, from x = s^T e and y = s^T a, for a vector of columns. */
INLINE void
delta_step_values(const struct delta_step_scratch *r, ptrdiff_t col, vec *x, vec y,
                  vec v, const enum step_rule rule)
{
    if (rule == DPLR_STEP) {
        y = vfma(vset1(r->dot_k), v, y);
    }
    else {
        *x = beta_at(&r->beta, 0, col) * (v - *x);
    }
    vstore(&r->o[col], vfma(vset1(r->dot), *x, y));
}

/* u, o and the new state in the columns of a tile.  Nonzero: stop. */
INLINE int
delta_step_tile(const struct la_head *h, const struct delta_step_scratch *r,
                ptrdiff_t *until_poll, const struct la_array *from,
                const struct la_array *to, const struct step_tile tile,
                const struct rotation *by)
{
    const ptrdiff_t d = h->d;
    if (give_up(h, until_poll, 3 * d * tile.nr * VL)) {
        return 1;
    }
    vec x[LA_STEP_NR], y[LA_STEP_NR], v[LA_STEP_NR];
    delta_step_read(r, from->data + tile.j * size_of(tile.type), from->rs, d, x, y,
                    tile, by);
    LA_EACH(t, tile.nr) {
        const ptrdiff_t col = tile.j + t * VL;
        v[t] = vload(&r->v[col]);
        delta_step_values(r, col, &x[t], y[t], v[t], tile.rule);
    }
    delta_step_write(r, from, to, d, x, v, tile, by);
    return 0;
}

/* delta_step_tile, with a seam if the tile ends with one. */
INLINE int
delta_step_tiles(const struct la_head *h, const struct delta_step_scratch *r,
                 ptrdiff_t *until_poll, const struct la_array *from,
                 const struct la_array *to, struct step_tile tile,
                 const struct rotation *by)
{
    if (ends_in_seam(tile, by, h->m)) {
        tile.seam = 1;
        return delta_step_tile(h, r, until_poll, from, to, tile, by);
    }
    return delta_step_tile(h, r, until_poll, from, to, tile, by);
}

/* All columns of a state whose rows are contiguous. */
INLINE int
delta_step_columns(const struct la_head *h, const struct delta_step_scratch *r,
                   ptrdiff_t *until_poll, const struct la_array *from,
                   const struct la_array *to, const struct rotation *by,
                   const enum step_rule rule, const int resets, const enum la_type type)
{
    int stop = 0;
    LA_BY_STEP_TILES(
        h->m, stop = stop ||
                     delta_step_tiles(
                         h, r, until_poll, from, to,
                         (struct step_tile){col, nr, some, 0, rule, resets, type}, by));
    return stop;
}

/* The same, from another column on. */
INLINE int
delta_step_rotated(const struct la_head *h, const struct delta_step_scratch *r,
                   ptrdiff_t *until_poll, struct la_array from, struct la_array to,
                   const struct rotation *by, const enum step_rule rule)
{
    struct delta_step_scratch rotated = *r;
    from.data += by->shift * (ptrdiff_t)sizeof(T);
    to.data += by->shift * (ptrdiff_t)sizeof(T);
    rotated.v = r->rotated_v;
    rotated.o = r->rotated_o;
    rotate_row(rotated.v, r->v, h->m, by->shift);
    if (r->beta.step) {
        rotated.beta.rows.x = r->rotated_beta;
        rotate_row(rotated.beta.rows.x, r->beta.rows.x, h->m, by->shift);
    }
    if (delta_step_columns(h, &rotated, until_poll, &from, &to, by, rule, 0,
                           LA_NATIVE)) {
        return 1;
    }
    rotate_row(r->o, rotated.o, h->m, h->m - by->shift);
    return 0;
}

#endif
