/* step.h: one token of causal linear attention on a state.
 *
 *    s <- s + phi(k) v^T,  z <- z + phi(k)
 *    o = scale phi(q)^T s / (scale phi(q).z + eps)
 *                                             Katharopoulos et al. 2020, eq. 16-20
 * 4 d m flops.  The state is read and written once, which takes nearly all of the time.
 * Without s0, the state in s1 is updated in place. */
#ifndef LA_STEP_H
#define LA_STEP_H

#include "token.h"

/* One row of each operand. */
struct step_scratch {
    T *a, *b, *v, *o, *z, *z_lost;
    T *den, *lift;    /* vectors of which the first number counts */
    T *keep, *change; /* factors of the state's rows */
};

static struct step_scratch
step_carve(const struct la_head *h, struct arena *arena)
{
    struct step_scratch r;
    r.a = take_row(arena, h->d);
    r.b = take_row(arena, h->d);
    r.v = take_row(arena, h->m);
    r.o = take_row(arena, h->m);
    r.z = take_row(arena, h->d);
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
    /* In locals: the compiler assumes that stores change what pointers lead to. */
    const T *const a_of = r->a, *const b_of = r->b;
    const T *const keep = r->keep, *const change = r->change;
    const ptrdiff_t in_step = from->rs, out_step = to->rs;
    const char *in = from->data + l * in_step + byte;
    char *out = to->data + l * out_step + byte;
    vec v[LA_STEP_NR], sum[LA_STEP_NR];
    LA_EACH(t, nr) {
        v[t] = vload(&r->v[j + t * VL]);
        sum[t] = (vec){0};
    }
    for (ptrdiff_t i = l; i < end; i++, in += in_step, out += out_step) {
        const vec a = vset1(a_of[i]), b = vset1(b_of[i]);
        vec whole = (vec){0}, part = (vec){0};
        if (kind & LA_STEP_GATED) {
            whole = vset1(keep[i]);
            part = vset1(change[i]);
        }
        LA_EACH(t, nr) {
            const ptrdiff_t count = t + 1 < nr ? VL : some;
            const vec old = held(vread_some(in + t * LA_VBYTES, count, LA_NATIVE));
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
        vstore(&r->o[j + t * VL], vload(&r->o[j + t * VL]) + sum[t]);
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
        s = fma_one(r->b[i], r->v[j], s);
        memcpy(to->data + i * to->rs + j * to->cs, &s, sizeof(T));
        sum = fma_one(r->a[i], kind & LA_STEP_BEFORE ? old : s, sum);
    }
    r->o[j] += sum;
}

/* Loads phi(q), phi(k) and v of the token. */
static void
load_step_rows(const struct la_head *h, const struct step_scratch *r)
{
    load_token_mapped(r->a, &h->q, h->d, h->map);
    load_token_mapped(r->b, &h->k, h->d, h->map);
    load_token_plain(r->v, &h->v, h->m);
}

/* Writes the state after the token, and adds what the query reads to o. */
INLINE int
step_state(const struct la_head *h, const struct step_scratch *r, ptrdiff_t *until_poll,
           const int kind)
{
    const struct la_array from = h->arrays[state_read(h)], to = h->s1;
    /* Blocks of LA_BLOCK rows keep the error of a long column that of a short one. */
    for (ptrdiff_t l = 0; l < h->d; l += LA_BLOCK) {
        const ptrdiff_t end = h->d - l < LA_BLOCK ? h->d : l + LA_BLOCK;
        if (give_up(h, until_poll, 2 * LA_BLOCK * h->m)) {
            return 1;
        }
        if (by_vectors(&from, &to)) {
            LA_BY_STEP_TILES(h->m,
                             step_tile(r, &from, &to, l, end, col, kind, nr, some));
            continue;
        }
        for (ptrdiff_t j = 0; j < h->m; j++) {
            step_column(r, &from, &to, l, end, j, kind);
        }
    }
    return 0;
}

/* z <- z + b; returns a.z */
static T
step_z(const struct la_head *h, const struct step_scratch *r)
{
    const ptrdiff_t ld = row_step(h->d);
    load_vector(r->z, h->z0.data ? &h->z0 : &h->z1, h->d);
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
