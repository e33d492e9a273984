/* momentum_panel.h: the delta rule with momentum on some columns of its state.
 *
 * Columns of S and M never interact.  A panel of columns lies in scratch, S and then M,
 * where it fits the first-level cache, and takes a block of tokens at a time.  Each
 * token makes one pass over it:
 *
 *    M <- exp(mu) M - eta k e^T,  S <- exp(g) S - beta M
 *    o = S^T q,  and next = S^T p of the next token, whose error is e = v - next
 */
#ifndef LA_MOMENTUM_PANEL_H
#define LA_MOMENTUM_PANEL_H

#include "../decays/decay_factors.h"

/* Vectors per row of a panel: a line of the cache, or two vectors, which hide the
 * latency of sums over rows. */
enum { LA_MOMENTUM_NR = LA_VBYTES >= LA_LINE ? 1 : 2 };
enum { LA_MOMENTUM_COLS = LA_MOMENTUM_NR * VL };

/* exp of one gate per token, in two parts (decay_parts). */
struct momentum_gate {
    T *keep, *change;
};

/* A block of tokens. */
struct momentum_rows {
    struct block q, k, p; /* k: -eta k; p: one row more, zeros after the last key */
    struct block v, o;    /* v: E once it is known */
    struct momentum_gate g, mu;
    T *beta, *eta; /* eta: -eta */
};

static struct momentum_gate
take_gate(struct arena *arena, ptrdiff_t rows)
{
    return (struct momentum_gate){take_row(arena, rows), take_row(arena, rows)};
}

static struct momentum_rows
take_momentum_rows(const struct la_head *h, struct arena *arena, ptrdiff_t rows)
{
    struct momentum_rows r;
    r.q = take_block(arena, rows, h->d);
    r.k = take_block(arena, rows, h->d);
    r.p = take_block(arena, rows + MR, h->d);
    r.v = take_block(arena, rows, h->m);
    r.o = take_block(arena, rows, h->m);
    r.g = take_gate(arena, rows);
    r.mu = take_gate(arena, rows);
    r.beta = take_row(arena, rows);
    r.eta = take_row(arena, rows);
    return r;
}

/* The scale of each of some tokens. */
static void
fill_scale(T *scale, const struct la_head *h, ptrdiff_t rows)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        scale[i] = (T)h->scale;
    }
}

static void
load_gate(struct momentum_gate gate, const struct la_array *x, struct span t)
{
    load_token_row(gate.keep, x, t);
    for (ptrdiff_t i = 0; i < t.rows; i += VL) {
        decay_parts(vload(&gate.keep[i]), (vec){0}, &gate.keep[i], &gate.change[i]);
    }
}

/* The tokens t, of which only those with a key have a k, p, v and gates. */
static void
load_momentum_rows(const struct la_head *h, const struct momentum_rows *r,
                   struct span t)
{
    struct span some = t;
    some.rows = keys_left(h, t);
    load_plain(r->q, &h->q, t, h->d);
    load_plain(r->k, &h->k, some, h->d);
    load_plain(r->p, &h->p, some, h->d);
    load_plain(r->v, &h->v, some, h->m);
    clear_rows(r->p, some.rows, some.rows + 1);
    some.ahead = NULL;
    load_gate(r->g, &h->g, some);
    load_gate(r->mu, &h->mu, some);
    load_token_row(r->beta, &h->beta, some);
    load_token_row(r->eta, &h->eta, some);
    for (ptrdiff_t i = 0; i < some.rows; i++) {
        r->eta[i] = -r->eta[i];
    }
    scale_rows(r->k, some.rows, r->eta);
}

/* --- the state: panels of LA_MOMENTUM_NR vectors, of S and then of M ----------- */

/* Numbers of a panel of nr vectors; where the one from column `col` on lies. */
INLINE ptrdiff_t
momentum_size(const struct la_head *h, ptrdiff_t nr)
{
    return 2 * round_up(h->d, MR) * nr * VL;
}

INLINE T *
momentum_at(T *x, const struct la_head *h, ptrdiff_t col)
{
    return x + 2 * round_up(h->d, MR) * col;
}

/* Numbers of S and M. */
INLINE T *
take_momentum(struct arena *arena, const struct la_head *h, ptrdiff_t count)
{
    const size_t rows = times(2, (size_t)round_up(h->d, MR));
    const size_t state = times(rows, (size_t)round_up(h->m, VL));
    return take_numbers(arena, times((size_t)count, state));
}

/* Columns from `col` on of a state's field, as a panel of nr vectors holds them. */
INLINE struct la_array
momentum_part(const struct la_array *x, ptrdiff_t col)
{
    return shifted(x, col * x->cs);
}

/* The panel x = some columns of S and M, or zeros where they are not given. */
static void
load_momentum(T *x, const struct la_head *h, const struct la_array *s,
              const struct la_array *m, ptrdiff_t col, ptrdiff_t nr)
{
    const ptrdiff_t width = nr * VL, cols = h->m - col < width ? h->m - col : width;
    const struct la_array *const fields[] = {s, m};
    clear(x, momentum_size(h, nr));
    for (int i = 0; i < 2; i++) {
        const struct la_array part = momentum_part(fields[i], col);
        const struct block y = {x + i * round_up(h->d, MR) * width, width};
        if (la_is_given(&part)) {
            load_plain(y, &part, rows_from(0, h->d), cols);
        }
    }
}

static void
store_momentum(const struct la_array *s, const struct la_array *m, T *x,
               const struct la_head *h, ptrdiff_t col, ptrdiff_t nr)
{
    const ptrdiff_t width = nr * VL, cols = h->m - col < width ? h->m - col : width;
    const struct la_array *const fields[] = {s, m};
    for (int i = 0; i < 2; i++) {
        const struct la_array part = momentum_part(fields[i], col);
        const struct block y = {x + i * round_up(h->d, MR) * width, width};
        if (la_is_given(&part)) {
            store_rows(&part, rows_from(0, h->d), cols, y, NULL);
        }
    }
}

/* Runs `call` for every panel: nr vectors, a constant, from column `col` on. */
#define LA_BY_PANELS(m, call)                                                          \
    do {                                                                               \
        const ptrdiff_t columns = round_up(m, VL);                                     \
        ptrdiff_t col = 0;                                                             \
        for (; col + LA_MOMENTUM_COLS <= columns; col += LA_MOMENTUM_COLS) {           \
            LA_TILE(LA_MOMENTUM_NR, call);                                             \
        }                                                                              \
        for (; col < columns; col += VL) {                                             \
            LA_TILE(1, call);                                                          \
        }                                                                              \
    } while (0)

/* Where the columns of a panel lie: in scratch, or in the caller's state. */
struct momentum_panel {
    T *s, *m;
    ptrdiff_t ld;
};

INLINE struct momentum_panel
momentum_panel(const struct la_head *h, T *x, ptrdiff_t nr)
{
    return (struct momentum_panel){x, x + momentum_size(h, nr) / 2, nr * VL};
}

/* --- one panel ------------------------------------------------------------------ */

/* The factors of a token, in every lane. */
struct momentum_token {
    vec keep_s, change_s, keep_m, change_m, write; /* write: -beta */
    const T *q, *k, *p;                            /* p: of the next token */
};

INLINE struct momentum_token
momentum_token(const struct momentum_rows *r, ptrdiff_t i)
{
    return (struct momentum_token){
        .keep_s = vset1(r->g.keep[i]),
        .change_s = vset1(r->g.change[i]),
        .keep_m = vset1(r->mu.keep[i]),
        .change_m = vset1(r->mu.change[i]),
        .write = vset1(-r->beta[i]),
        .q = r->q.x + i * r->q.ld,
        .k = r->k.x + i * r->k.ld,
        .p = r->p.x + (i + 1) * r->p.ld,
    };
}

/* Whether the decays of token i are near 1 (decay_parts), as they usually are. */
INLINE int
is_weak(const struct momentum_rows *r, ptrdiff_t i)
{
    return r->g.keep[i] != 0 && r->mu.keep[i] != 0;
}

/* (keep + change) x; a decay of 0 removes inf and NaN.  With `weak`, keep is 1. */
INLINE vec
faded(vec x, vec keep, vec change, const int weak)
{
    if (weak) {
        return vfma(change, x, x);
    }
    x = keep_of(keep + change, x);
    return vfma(change, x, keep_of(keep, x));
}

/* A vector of a panel, which need not begin on a vector's boundary. */
INLINE vec
vload_near(const T *x)
{
    return vload_any((const char *)x);
}

INLINE void
vstore_near(T *x, vec y)
{
    *(vec_any *)x = (vec_any)y;
}

/* y = S^T a.  Sums over blocks of LA_BLOCK rows keep the error of a long column that of
 * a short one. */
INLINE void
read_panel(vec y[], const T *s, ptrdiff_t ld, const T *a, ptrdiff_t d, const int nr)
{
    LA_EACH(j, nr) {
        y[j] = (vec){0};
    }
    for (ptrdiff_t l = 0; l < d; l += LA_BLOCK) {
        const ptrdiff_t end = d - l < LA_BLOCK ? d : l + LA_BLOCK;
        vec sum[LA_STEP_NR] = {{0}};
        for (ptrdiff_t i = l; i < end; i++) {
            const vec x = vset1(a[i]);
            LA_EACH(j, nr) {
                sum[j] = vfma(x, vload_near(&s[i * ld + j * VL]), sum[j]);
            }
        }
        LA_EACH(j, nr) {
            y[j] += sum[j];
        }
    }
}

/* The panel after a token, `to`, from the one before it; o = S^T q and next = S^T p, if
 * they are not NULL, rounded as by read_panel. */
INLINE void
momentum_pass(const struct momentum_token *x, struct momentum_panel from,
              struct momentum_panel to, ptrdiff_t d, const vec e[], vec o[], vec next[],
              const int nr, const int weak)
{
    const struct momentum_token t = *x; /* in registers */
    LA_EACH(j, nr) {
        if (o != NULL) {
            o[j] = (vec){0};
        }
        if (next != NULL) {
            next[j] = (vec){0};
        }
    }
    for (ptrdiff_t l = 0; l < d; l += LA_BLOCK) {
        const ptrdiff_t end = d - l < LA_BLOCK ? d : l + LA_BLOCK;
        vec sum[LA_STEP_NR] = {{0}}, ahead[LA_STEP_NR] = {{0}};
        for (ptrdiff_t i = l; i < end; i++) {
            const vec k = vset1(t.k[i]), q = vset1(t.q[i]), p = vset1(t.p[i]);
            LA_EACH(j, nr) {
                const ptrdiff_t in = i * from.ld + j * VL, out = i * to.ld + j * VL;
                vec m = vload_near(&from.m[in]), s = vload_near(&from.s[in]);
                m = vfma(k, e[j], faded(m, t.keep_m, t.change_m, weak));
                s = vfma(t.write, m, faded(s, t.keep_s, t.change_s, weak));
                vstore_near(&to.m[out], m);
                vstore_near(&to.s[out], s);
                sum[j] = vfma(q, s, sum[j]);
                ahead[j] = vfma(p, s, ahead[j]);
            }
        }
        LA_EACH(j, nr) {
            if (o != NULL) {
                o[j] += sum[j];
            }
            if (next != NULL) {
                next[j] += ahead[j];
            }
        }
    }
}

/* momentum_pass for token i of a block. */
INLINE void
momentum_write(const struct momentum_rows *r, ptrdiff_t i, struct momentum_panel from,
               struct momentum_panel to, ptrdiff_t d, const vec e[], vec o[],
               vec next[], const int nr)
{
    const struct momentum_token t = momentum_token(r, i);
    if (is_weak(r, i)) {
        momentum_pass(&t, from, to, d, e, o, next, nr, 1);
    }
    else {
        momentum_pass(&t, from, to, d, e, o, next, nr, 0);
    }
}

/* The tokens of a block with a key, in the panel of nr vectors from column `col` on: E
 * in place of v, their outputs if `read`.  Panel x is that before the first token; that
 * after token i lies `step` (i + 1) numbers after it, or in its place. */
INLINE void
momentum_tokens(const struct la_head *h, const struct momentum_rows *r, ptrdiff_t keys,
                ptrdiff_t col, T *x, ptrdiff_t step, const int nr, const int read,
                struct la_fetch *look)
{
    vec e[LA_MOMENTUM_NR], o[LA_MOMENTUM_NR], next[LA_MOMENTUM_NR] = {{0}};
    if (keys > 0) {
        read_panel(next, x, nr * VL, r->p.x, h->d, nr);
    }
    for (ptrdiff_t i = 0; i < keys; i++, x += step) {
        T *const error = r->v.x + i * r->v.ld + col;
        la_fetch_some(look);
        LA_EACH(j, nr) {
            e[j] = vload(&error[j * VL]) - next[j];
            vstore(&error[j * VL], e[j]);
        }
        momentum_write(r, i, momentum_panel(h, x, nr), momentum_panel(h, x + step, nr),
                       h->d, e, read ? o : NULL, next, nr);
        LA_EACH(j, nr) {
            if (read) {
                vstore(&r->o.x[i * r->o.ld + col + j * VL], o[j]);
            }
        }
    }
}

/* The outputs of all tokens of a block, `rows` of them, and the state after it. */
INLINE void
momentum_outputs(const struct la_head *h, const struct momentum_rows *r, ptrdiff_t rows,
                 ptrdiff_t keys, ptrdiff_t col, T *x, const int nr,
                 struct la_fetch *look)
{
    momentum_tokens(h, r, keys, col, x, 0, nr, 1, look);
    for (ptrdiff_t i = keys; i < rows; i++) {
        vec o[LA_MOMENTUM_NR];
        read_panel(o, x, nr * VL, r->q.x + i * r->q.ld, h->d, nr);
        LA_EACH(j, nr) {
            vstore(&r->o.x[i * r->o.ld + col + j * VL], o[j]);
        }
    }
}

#endif
