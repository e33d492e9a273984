/* step.h: one token of causal linear attention on a state.
 *
 *    s <- s + phi(k) v^T,  z <- z + phi(k)
 *    o = scale phi(q)^T s / (scale phi(q).z + eps)
 *                                             Katharopoulos et al. 2020, eq. 16-20
 * 4 d m flops.  The state is read and written once, which takes nearly all of the time.
 * Without s0, the state in s1 is updated in place. */
#ifndef LA_STEP_H
#define LA_STEP_H

#include "recurrence.h"

/* One row of each operand; blocks have MR rows where a load clears rows up to MR. */
struct step_scratch {
    struct block a, b, v, o, z;
    T *z_lost, *den, *lift;
    T *keep, *change; /* factors of the state's rows */
};

static struct step_scratch
step_carve(const struct la_head *h, struct arena *arena)
{
    struct step_scratch r;
    r.a = take_block(arena, MR, h->d);
    r.b = take_block(arena, MR, h->d);
    r.v = take_block(arena, MR, h->m);
    r.o = take_block(arena, 1, h->m);
    r.z = take_block(arena, 1, h->d);
    r.z_lost = take_row(arena, h->d);
    r.den = take(arena, 1, VL);
    r.lift = take(arena, 1, VL);
    r.keep = r.change = NULL;
    return r;
}

/* Kinds of steps, as flags: how the state decays before the write, and which state the
 * query reads. */
enum step_kind {
    LA_STEP_SUM = 0,    /* no decay; the query reads the state after the write */
    LA_STEP_GATED = 1,  /* each row of the state is multiplied by a factor */
    LA_STEP_BEFORE = 2, /* the query reads the state before the token */
    LA_STEP_RESET = 4   /* some rows are set to 0, even if they are inf or NaN */
};

/* to = (keep + change) from + b v^T and o += a^T to, or a^T from: rows [l, end), and nr
 * vectors of columns from j on, of which the last has `some` columns. */
INLINE void
step_tile(const struct step_scratch *r, const struct la_array *from,
          const struct la_array *to, ptrdiff_t l, ptrdiff_t end, ptrdiff_t j,
          const int kind, const int nr, const ptrdiff_t some)
{
    const ptrdiff_t byte = j * (ptrdiff_t)sizeof(T);
    /* In locals: the compiler assumes that stores change r->a.x. */
    const T *const a_of = r->a.x, *const b_of = r->b.x;
    const T *const keep = r->keep, *const change = r->change;
    const char *in = from->data + l * from->rs + byte;
    char *out = to->data + l * to->rs + byte;
    vec v[NR], sum[NR];
    LA_EACH(t, nr) {
        v[t] = vload(&r->v.x[j + t * VL]);
        sum[t] = (vec){0};
    }
    for (ptrdiff_t i = l; i < end; i++, in += from->rs, out += to->rs) {
        const vec a = vset1(a_of[i]), b = vset1(b_of[i]);
        vec whole = (vec){0}, part = (vec){0};
        if (kind & LA_STEP_GATED) {
            whole = vset1(keep[i]);
            part = vset1(change[i]);
        }
        LA_EACH(t, nr) {
            const ptrdiff_t count = t + 1 < nr ? VL : some;
            const vec old = vread_some(in + t * LA_VBYTES, count, LA_NATIVE);
            vec s = old;
            if (kind & LA_STEP_GATED) {
                s = vfma(part, old, kept_of(whole, old));
            }
            if (kind & LA_STEP_RESET) {
                s = kept_of(whole + part, s);
            }
            s = vfma(b, v[t], s);
            vstore_pieces(out + t * LA_VBYTES, count, s);
            sum[t] = vfma(a, kind & LA_STEP_BEFORE ? old : s, sum[t]);
        }
    }
    LA_EACH(t, nr) {
        vstore(&r->o.x[j + t * VL], vload(&r->o.x[j + t * VL]) + sum[t]);
    }
}

/* step_tile for one column, at any stride. */
static void
step_column(const struct step_scratch *r, const struct la_array *from,
            const struct la_array *to, ptrdiff_t l, ptrdiff_t end, ptrdiff_t j,
            const int kind)
{
    T sum = 0;
    for (ptrdiff_t i = l; i < end; i++) {
        T old, s;
        memcpy(&old, from->data + i * from->rs + j * from->cs, sizeof(T));
        s = old;
        if (kind & LA_STEP_GATED) {
            s = fma_one(r->change[i], old, r->keep[i] != 0 ? old : 0);
        }
        if (kind & LA_STEP_RESET && r->keep[i] + r->change[i] == 0) {
            s = 0;
        }
        s = fma_one(r->b.x[i], r->v.x[j], s);
        memcpy(to->data + i * to->rs + j * to->cs, &s, sizeof(T));
        sum = fma_one(r->a.x[i], kind & LA_STEP_BEFORE ? old : s, sum);
    }
    r->o.x[j] += sum;
}

/* Loads phi(q), phi(k) and v of the token. */
static void
load_token(const struct la_head *h, const struct step_scratch *r)
{
    const struct span one = rows_from(0, 1);
    load_mapped(r->a, &h->q, one, h->d, h->map);
    load_mapped(r->b, &h->k, one, h->d, h->map);
    load_plain(r->v, &h->v, one, h->m);
}

/* Writes the state after the token, and adds what the query reads to o. */
INLINE int
step_state(const struct la_head *h, const struct step_scratch *r, const int kind)
{
    const struct la_array *s0 = h->s0.data ? &h->s0 : &h->s1;
    const int unit = s0->cs == (ptrdiff_t)sizeof(T) && h->s1.cs == (ptrdiff_t)sizeof(T);
    ptrdiff_t until_poll = 0;
    /* Blocks of LA_BLOCK rows keep the error of a long column that of a short one. */
    for (ptrdiff_t l = 0; l < h->d; l += LA_BLOCK) {
        const ptrdiff_t end = h->d - l < LA_BLOCK ? h->d : l + LA_BLOCK;
        ptrdiff_t j = 0;
        if (give_up(h, &until_poll, 2 * LA_BLOCK * h->m)) {
            return 1;
        }
        for (; unit && j + NR * VL <= h->m; j += NR * VL) {
            step_tile(r, s0, &h->s1, l, end, j, kind, NR, VL);
        }
        for (; unit && j + VL <= h->m; j += VL) {
            step_tile(r, s0, &h->s1, l, end, j, kind, 1, VL);
        }
        if (unit && j < h->m) {
            step_tile(r, s0, &h->s1, l, end, j, kind, 1, h->m - j);
            j = h->m;
        }
        for (; j < h->m; j++) {
            step_column(r, s0, &h->s1, l, end, j, kind);
        }
    }
    return 0;
}

static int
run_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct step_scratch r = step_carve(h, &arena);
    const struct la_array *z0 = h->z0.data ? &h->z0 : &h->z1;
    load_token(h, &r);
    clear(r.o.x, r.o.ld);
    if (step_state(h, &r, LA_STEP_SUM)) {
        return 1;
    }
    if (h->normalize) {
        load_vector(r.z.x, z0, h->d);
        clear(r.z_lost, r.z.ld);
        add_rows(r.z.x, r.z_lost, r.b, 1);
        row_dots(r.den, r.a, r.z, 1, r.a.ld);
        store_vector(&h->z1, r.z.x, h->d);
    }
    if (factors(h, r.den, 1, 0, r.lift)) {
        lift_rows(r.o, 1, h->m, r.lift);
    }
    store_rows(&h->o, rows_from(0, 1), h->m, r.o, r.den);
    return 0;
}

#endif
