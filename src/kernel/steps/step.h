/* step.h: one token of causal linear attention on a state.
 *
 *    s <- s + phi(k) v^T,  z <- z + phi(k)
 *    o = scale phi(q)^T s / (scale phi(q).z + eps)
 *                                             Katharopoulos et al. 2020, eq. 16-20
 *
 * 4 d m flops.  The state is read and written once, which takes nearly all of the
 * time. */
#ifndef LA_STEP_H
#define LA_STEP_H

#include "step_columns.h"
#include "token.h"
#include "../tiles/rotation.h"

/* One row of each operand. */
struct step_scratch {
    T *a, *b, *v, *o, *z, *z_lost;
    T *rotated_v, *rotated_o; /* from another column on (rotation.h) */
    T *den, *lift;            /* vectors of which the first number counts */
    T *keep, *change;         /* factors of the state's rows */
};

static struct step_scratch
step_carve(const struct la_head *h, struct arena *arena)
{
    struct step_scratch r;
    r.a = take_row(arena, h->d);
    r.b = take_row(arena, h->d);
    r.v = take_row(arena, h->m);
    r.o = take_row(arena, h->m);
    r.rotated_v = take_row(arena, h->m);
    r.rotated_o = take_row(arena, h->m);
    r.z = take_row(arena, h->d);
    r.z_lost = take_row(arena, h->d);
    r.den = take(arena, 1, VL);
    r.lift = take(arena, 1, VL);
    r.keep = r.change = NULL;
    return r;
}

/* What a step does, its rule, as flags: how the state decays before the write, and
 * which state the query reads. */
enum {
    LA_STEP_SUM = 0,    /* no decay; the query reads the state after the write */
    LA_STEP_GATED = 1,  /* each row of the state is multiplied by a factor */
    LA_STEP_BEFORE = 2, /* the query reads the state before the token */
    LA_STEP_RESET = 4   /* some rows are set to 0, even if they are inf or NaN */
};

/* The factors of a row of the state, of what is written to it, and of o. */
struct step_factors {
    vec a, b, keep, change;
};

INLINE struct step_factors
step_factors(const struct step_scratch *r, ptrdiff_t i, const int rule)
{
    struct step_factors f = {vset1(r->a[i]), vset1(r->b[i]), (vec){0}, (vec){0}};
    if (rule & LA_STEP_GATED) {
        f.keep = vset1(r->keep[i]);
        f.change = vset1(r->change[i]);
    }
    return f;
}

/* Those of the seam of two rows. */
INLINE struct step_factors
step_seam(const struct step_factors f, const struct step_factors next,
          const struct rotation *by)
{
    return (struct step_factors){vseam(by, f.a, next.a), vseam(by, f.b, next.b),
                                 vseam(by, f.keep, next.keep),
                                 vseam(by, f.change, next.change)};
}

/* (keep + change) old + b v^T */
INLINE vec
step_new(const struct step_factors f, vec old, vec v, const int rule)
{
    vec s = old;
    if (rule & LA_STEP_GATED) {
        s = vfma(f.change, old, keep_of(f.keep, old));
    }
    if (rule & LA_STEP_RESET) {
        s = keep_of(f.keep + f.change, s);
    }
    return vfma(f.b, v, s);
}

/* Returns step_new; adds a^T s or a^T old to *sum. */
INLINE vec
step_vector(const struct step_factors f, vec old, vec v, vec *sum, const int rule)
{
    const vec s = step_new(f, old, v, rule);
    *sum = vfma(f.a, rule & LA_STEP_BEFORE ? old : s, *sum);
    return s;
}

/* One row of a tile, except for its seam. */
INLINE void
step_row(const struct step_factors f, const char *in, char *out, const vec v[],
         vec sum[], const struct step_tile tile)
{
    vec s[LA_STEP_NR];
    LA_EACH(t, tile.nr - tile.seam) {
        const ptrdiff_t byte = t * VL * size_of(tile.type);
        const ptrdiff_t count = t + 1 < tile.nr ? VL : tile.some;
        const vec old = held(vread_some(in + byte, count, tile.type));
        s[t] = step_vector(f, old, v[t], &sum[t], tile.rule);
        if (!writes_pairs(tile)) {
            vwrite_pieces(out + byte, count, s[t], tile.type);
        }
    }
    if (writes_pairs(tile)) {
        vwrite_each(out, VL * size_of(tile.type), s, tile.nr, tile.type);
    }
}

/* to = (keep + change) from + b v^T and o += a^T to, or a^T from, for rows [l, end) of
 * the columns of a tile. */
INLINE void
step_tile(const struct step_scratch *r, const struct la_array *from,
          const struct la_array *to, ptrdiff_t l, ptrdiff_t end,
          const struct step_tile tile, const struct rotation *by)
{
    const ptrdiff_t byte = tile.j * size_of(tile.type);
    /* In locals: the compiler assumes that stores change what pointers lead to. */
    const struct step_scratch rows = *r;
    const ptrdiff_t in_step = from->rs, out_step = to->rs;
    const char *in = from->data + l * in_step + byte;
    char *out = to->data + l * out_step + byte;
    const int last = tile.nr - 1;
    const ptrdiff_t seam = last * LA_VBYTES, some = VL - by->shift;
    struct step_factors f = step_factors(&rows, l, tile.rule);
    vec v[LA_STEP_NR], sum[LA_STEP_NR], first = {0};
    LA_EACH(t, tile.nr) {
        v[t] = vload(&r->v[tile.j + t * VL]);
        sum[t] = (vec){0};
    }
    if (tile.seam) {
        const vec old = vload_first(in - in_step, tile.nr, by);
        first = step_vector(f, old, v[last], &sum[last], tile.rule);
        sum[last] = vseam(by, (vec){0}, sum[last]);
    }
    for (ptrdiff_t i = l; i < end - tile.seam; i++, in += in_step, out += out_step) {
        if (!tile.seam) {
            f = step_factors(&rows, i, tile.rule);
        }
        step_row(f, in, out, v, sum, tile);
        if (tile.seam) {
            const struct step_factors next = step_factors(&rows, i + 1, tile.rule);
            const vec old = held(vload_any(in + seam));
            vstore_pieces(out + seam, VL,
                          step_vector(step_seam(f, next, by), old, v[last], &sum[last],
                                      tile.rule));
            f = next;
        }
    }
    if (tile.seam) {
        const vec before = sum[last], old = vload_part(in + seam, some);
        step_row(f, in, out, v, sum, tile);
        vstore_pieces(out + seam, some,
                      step_vector(f, old, v[last], &sum[last], tile.rule));
        sum[last] = vseam(by, sum[last], before);
        vstore_first(out - (end - l) * out_step, tile.nr, by, first);
    }
    LA_EACH(t, tile.nr) {
        T *const o = &r->o[tile.j + t * VL];
        vstore(o, vload(o) + sum[t]);
    }
}

/* step_tile, with a seam if the tile ends with one. */
INLINE void
step_tiles(const struct la_head *h, const struct step_scratch *r,
           const struct la_array *from, const struct la_array *to, ptrdiff_t l,
           ptrdiff_t end, struct step_tile tile, const struct rotation *by)
{
    if (ends_in_seam(tile, by, h->m)) {
        tile.seam = 1;
        step_tile(r, from, to, l, end, tile, by);
        return;
    }
    step_tile(r, from, to, l, end, tile, by);
}

/* step_tile for one column, at any stride. */
static void
step_column(const struct step_scratch *r, const struct la_array *from,
            const struct la_array *to, ptrdiff_t l, ptrdiff_t end, ptrdiff_t j,
            const int rule)
{
    T sum = 0;
    for (ptrdiff_t i = l; i < end; i++) {
        const T old = read_one(from->data + i * from->rs + j * from->cs, from->type);
        T s = old;
        if (rule & LA_STEP_GATED) {
            s = fma_one(r->change[i], old, r->keep[i] != 0 ? old : 0);
        }
        if (rule & LA_STEP_RESET && r->keep[i] + r->change[i] == 0) {
            s = 0;
        }
        s = fma_one(r->b[i], r->v[j], s);
        write_one(to->data + i * to->rs + j * to->cs, s, to->type);
        sum = fma_one(r->a[i], rule & LA_STEP_BEFORE ? old : s, sum);
    }
    r->o[j] += sum;
}

/* Updates column c of a square; returns what the query reads. */
INLINE vec
step_square_column(const struct step_scratch *r, const struct la_array *from,
                   const struct la_array *to, const struct square at, ptrdiff_t c,
                   const struct step_factors f, const int rule, const enum la_type type)
{
    const vec old = held(vread_some(square_column(from, at, c), at.rows, type));
    const vec s = step_new(f, old, vset1(r->v[at.j + c]), rule);
    vwrite_pieces(square_column(to, at, c), at.rows, s, type);
    return rule & LA_STEP_BEFORE ? old : s;
}

/* Updates a square of contiguous columns; returns sum + a^T s or a^T old. */
INLINE vec
step_square(const struct step_scratch *r, const struct la_array *from,
            const struct la_array *to, const struct square at, vec sum, const int rule,
            const enum la_type type)
{
    const int gated = rule & LA_STEP_GATED;
    const struct step_factors f = {.b = vload(&r->b[at.i]),
                                   .keep = gated ? vload(&r->keep[at.i]) : (vec){0},
                                   .change =
                                       gated ? vload(&r->change[at.i]) : (vec){0}};
    vec x[VL] = {{0}};
    LA_EACH_COLUMN(at, x[c] = step_square_column(r, from, to, at, c, f, rule, type));
    vtranspose(x);
    LA_EACH(i, VL) {
        if (i < at.rows) {
            sum = vfma(vset1(r->a[at.i + i]), x[i], sum);
        }
    }
    return sum;
}

/* step_rows for states whose columns are contiguous. */
INLINE int
step_columns(const struct la_head *h, const struct step_scratch *r,
             ptrdiff_t *until_poll, const struct la_array *from,
             const struct la_array *to, const int rule, const enum la_type type)
{
    const struct step_scratch rows = *r; /* in registers */
    for (ptrdiff_t j = 0; j < h->m; j += VL) {
        if (give_up(h, until_poll, 2 * h->d * VL)) {
            return 1;
        }
        vec o = vload(&rows.o[j]);
        for (ptrdiff_t l = 0; l < h->d; l += LA_BLOCK) {
            const ptrdiff_t end = h->d - l < LA_BLOCK ? h->d : l + LA_BLOCK;
            vec sum = {0};
            for (ptrdiff_t i = l; i < end; i += VL) {
                LA_BY_SQUARE(i, j, end - i, h->m - j,
                             sum = step_square(&rows, from, to, at, sum, rule, type));
            }
            o += sum;
        }
        vstore(&rows.o[j], o);
    }
    return 0;
}

/* Loads phi(q), phi(k) and v of the token. */
static void
load_step_rows(const struct la_head *h, const struct step_scratch *r)
{
    load_token_mapped(r->a, &h->q, h->d, h->map);
    load_token_mapped(r->b, &h->k, h->d, h->map);
    load_token_plain(r->v, &h->v, h->m);
}

/* The state after the token, for columns from the shift on; adds what the query reads
 * to o.  Nonzero: stop. */
INLINE int
step_rows(const struct la_head *h, const struct step_scratch *r, ptrdiff_t *until_poll,
          const struct la_array *from, const struct la_array *to,
          const struct rotation *by, const int rule, const enum la_type type)
{
    /* Blocks of LA_BLOCK rows keep the error of a long column that of a short one. */
    for (ptrdiff_t l = 0; l < h->d; l += LA_BLOCK) {
        const ptrdiff_t end = h->d - l < LA_BLOCK ? h->d : l + LA_BLOCK;
        if (give_up(h, until_poll, 2 * LA_BLOCK * h->m)) {
            return 1;
        }
        if (by_vectors(from, to)) {
            LA_BY_STEP_TILES(
                h->m,
                step_tiles(
                    h, r, from, to, l, end,
                    (struct step_tile){
                        .j = col, .nr = nr, .some = some, .rule = rule, .type = type},
                    by));
            continue;
        }
        for (ptrdiff_t j = 0; j < h->m; j++) {
            step_column(r, from, to, l, end, j, rule);
        }
    }
    return 0;
}

/* Writes the state after the token, of numbers of that type, and adds what the query
 * reads to o. */
INLINE int
step_state_of(const struct la_head *h, const struct step_scratch *r,
              ptrdiff_t *until_poll, const int rule, const enum la_type type)
{
    struct la_array from = h->s0, to = h->s1;
    const struct rotation by = rotation_of(&from, &to, h->d, h->m);
    if (both_by_columns(&from, &to)) {
        return step_columns(h, r, until_poll, &from, &to, rule, type);
    }
    if (type != LA_NATIVE || by.shift == 0) {
        return step_rows(h, r, until_poll, &from, &to, &by, rule, type);
    }
    struct step_scratch rotated = *r;
    rotated.v = r->rotated_v;
    rotated.o = r->rotated_o;
    rotate_row(rotated.v, r->v, h->m, by.shift);
    rotate_row(rotated.o, r->o, h->m, by.shift);
    from.data += by.shift * (ptrdiff_t)sizeof(T);
    to.data += by.shift * (ptrdiff_t)sizeof(T);
    if (step_rows(h, &rotated, until_poll, &from, &to, &by, rule, type)) {
        return 1;
    }
    rotate_row(r->o, rotated.o, h->m, h->m - by.shift);
    return 0;
}

INLINE int
step_state(const struct la_head *h, const struct step_scratch *r, ptrdiff_t *until_poll,
           const int rule)
{
    int stop = 0;
    LA_BY_TYPE(h->s1.type, stop = step_state_of(h, r, until_poll, rule, type));
    return stop;
}

/* z <- z + b; returns a.z */
static T
step_z(const struct la_head *h, const struct step_scratch *r)
{
    const ptrdiff_t ld = row_step(h->d);
    load_vector(r->z, &h->z0, h->d);
    clear(r->z_lost, ld);
    add_rows(r->z, r->z_lost, (struct block){r->b, ld}, 1);
    store_vector(&h->z1, r->z, h->d);
    return token_dot(r->a, r->z, ld);
}

INLINE int
step_head(const struct la_head *h, void *scratch, ptrdiff_t *until_poll)
{
    const struct step_scratch *const r = scratch;
    load_step_rows(h, r);
    clear(r->o, row_step(h->m));
    if (step_state(h, r, until_poll, LA_STEP_SUM)) {
        return 1;
    }
    if (h->normalize) {
        vstore(r->den, vset1(step_z(h, r)));
    }
    if (factors(h, r->den, 1, 0, r->lift)) {
        lift_rows((struct block){r->o, 0}, 1, h->m, r->lift);
    }
    store_token(&h->o, h->m, r->o, r->den);
    return 0;
}

static int
run_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct step_scratch r = step_carve(h, &arena);
    return run_heads(h, &r, step_head);
}

#endif
