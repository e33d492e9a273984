/* running.h: positive random features of any magnitude, without a look ahead.
 *
 * With e_jf = u_jf - |t k_j|^2 / 2 - log(m) / 2 the logarithm of feature f of key j, m
 * of them, and M_if its largest up to token i, the quotient of attention is left as it
 * is by
 *
 *   b_jf = exp(e_jf - K_f),  a_if = exp(u_if + K_f - c_i),  c_i = max_f (u_if + M_if)
 *
 * where K_f = C round(M_if / C), C = 96 log 2, so that a change of K_f rescales a state
 * by a power of two.  A row at which any K_f changes, but for the first, ends the work.
 * The largest term of a_i.z_i is at least 1, and every number stays within 2^+-48.
 *
 * q (n,d), k (s,d), omega (d,f), t, how many keys there are, M (f) -> a (n,f), b (s,f),
 * M, rows done.  2 (n + s) d f flops and an exponential a feature; scratch as
 * project.h. */
#ifndef LA_RUNNING_H
#define LA_RUNNING_H

#include "project.h"

#define STEP_HIGH ((T)66.53125) /* times a small integer exact */
#define STEP_LOW ((T)0.01087933375474970405)

struct running_scratch {
    struct project_scratch keys;
    T *u, *most, *c;             /* of queries */
    T *top, *high, *low, *limit; /* by feature: M, K in two parts, how far M may go */
    T *next;                     /* M with one key more */
    vec log_root;                /* log(m) / 2 */
    struct la_fetch ahead[2];    /* of queries, of keys */
};

static struct running_scratch
running_features_carve(const struct la_head *h, struct arena *arena)
{
    struct running_scratch r = {.keys = project_carve(h, arena)};
    r.u = take(arena, LA_BLOCK, r.keys.ldm);
    r.most = take(arena, LA_BLOCK, VL);
    r.c = take(arena, 1, LA_BLOCK);
    r.top = take(arena, 1, r.keys.ldm);
    r.next = take(arena, 1, r.keys.ldm);
    r.high = take(arena, 1, r.keys.ldm);
    r.low = take(arena, 1, r.keys.ldm);
    r.limit = take(arena, 1, r.keys.ldm);
    return r;
}

/* K and the limit from M; a feature without keys counts as M = 0. */
static void
set_steps(const struct running_scratch *r)
{
    const vec magic = vset1(ROUND_MAGIC), per_step = vset1(1 / (STEP_HIGH + STEP_LOW));
    for (ptrdiff_t j = 0; j < r->keys.width; j += VL) {
        const vec top = vload(&r->top[j]);
        const vec steps =
            (vkeep(top > vset1(-LARGEST), top) * per_step + magic) - magic;
        vstore(&r->high[j], steps * vset1(STEP_HIGH));
        vstore(&r->low[j], steps * vset1(STEP_LOW));
        const vec limit = (steps + vset1((T)0.5)) * vset1(STEP_HIGH + STEP_LOW);
        vstore(&r->limit[j], vmax(limit, top));
    }
}

/* Key i's exponents in place of its u, and M with them in r->next; whether one passed
 * its feature's limit. */
INLINE int
exponents(const struct running_scratch *r, ptrdiff_t i)
{
    T *u = r->keys.u + i * r->keys.ldm;
    const vec h = vset1(r->keys.h[i]) + r->log_root; /* in the order of log_features */
    ivec passed = {0};
    for (ptrdiff_t j = 0; j < r->keys.width; j += VL) {
        const vec e = vload(&u[j]) - h;
        passed |= e > vload(&r->limit[j]);
        vstore(&r->next[j], vmax(vload(&r->top[j]), e));
        vstore(&u[j], e);
    }
    return vany(passed);
}

/* In each lane, the largest u + M of a query; f of them count. */
INLINE vec
largest(const struct running_scratch *r, const T *u, ptrdiff_t f)
{
    const ivec lane = viota();
    vec most = vset1(-(T)INFINITY);
    for (ptrdiff_t j = 0; j < f; j += VL) {
        const vec top = vload(&r->top[j]);
        const vec sum = vload(&u[j]) + vkeep(top > vset1(-LARGEST), top);
        const ivec inside = lane < (ivec)((ivec){0} + (INT)(f - j));
        most = vmax(most, vselect(inside, sum, most));
    }
    return most;
}

/* c_i from its lanes, for `rows` queries: the network of lane_sums, with max for +. */
static void
largest_lanes(T *c, const T *most, ptrdiff_t rows)
{
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        vec x[VL];
        for (ptrdiff_t i = 0; i < VL; i++) {
            x[i] = vload(&most[(first + i) * VL]);
        }
        for (ptrdiff_t half = VL / 2; half > 0; half /= 2) {
            for (ptrdiff_t i = 0; i < half; i++) {
                x[i] = vmax(vzip_low(x[i], x[i + half]), vzip_high(x[i], x[i + half]));
            }
        }
        vstore(&c[first], x[0]);
    }
}

/* x_ij = exp((x_ij + sign K_j) - c_i) for some rows; c NULL: 0. */
INLINE void
exponentials(const struct running_scratch *r, T *x, ptrdiff_t rows, T sign, const T *c)
{
    const vec side = vset1(sign);
    for (ptrdiff_t i = 0; i < rows; i++) {
        T *row = x + i * r->keys.ldm;
        const vec offset = vset1(c ? c[i] : 0);
        for (ptrdiff_t j = 0; j < r->keys.width; j += VL) {
            const vec y =
                (vload(&row[j]) + side * vload(&r->high[j])) + side * vload(&r->low[j]);
            vstore(&row[j], vexp(y - offset));
        }
    }
}

/* Takes keys and queries into M one by one, from row `first`, and leaves the lanes of c
 * in r->most; how many rows went before one changed a K. */
static ptrdiff_t
running_tops(struct running_scratch *r, ptrdiff_t first, ptrdiff_t queries,
             ptrdiff_t rows, ptrdiff_t f)
{
    ptrdiff_t i = 0;
    for (; i < queries || i < rows; i++) {
        if (i < rows) {
            const int passed = exponents(r, i);
            if (passed && first + i > 0) {
                break;
            }
            T *const before = r->top;
            r->top = r->next;
            r->next = before;
            if (first + i == 0) {
                set_steps(r);
            }
        }
        if (i < queries) {
            vstore(&r->most[i * VL], largest(r, r->u + i * r->keys.ldm, f));
        }
    }
    return i;
}

/* One block of rows from `first`; how many of them were done. */
static ptrdiff_t
running_block(const struct la_head *h, struct running_scratch *r, ptrdiff_t first,
              ptrdiff_t queries, ptrdiff_t rows, ptrdiff_t keys)
{
    const ptrdiff_t d = h->d, f = h->f, ld = r->keys.ldm;
    const T root = (T)h->t;
    struct project_scratch of_queries = r->keys;
    of_queries.u = r->u;
    of_queries.h = NULL; /* cancels in the quotient */
    project_rows(&of_queries, &h->q, first, queries, d, root, &r->ahead[0]);
    project_rows(&r->keys, &h->k, first, rows, d, root, &r->ahead[1]);
    ptrdiff_t there = keys - first < rows ? keys - first : rows;
    there = there > 0 ? there : 0;
    const ptrdiff_t done = running_tops(r, first, queries, there, f);
    const ptrdiff_t most = done < there ? done : queries > rows ? queries : rows;
    const ptrdiff_t a = most < queries ? most : queries, b = most < rows ? most : rows;
    largest_lanes(r->c, r->most, a);
    exponentials(r, r->u, a, 1, r->c);
    exponentials(r, r->keys.u, b < there ? b : there, -1, NULL);
    clear_rows((struct block){r->keys.u, ld}, there, b);
    store_rows(&h->a, rows_from(first, a), f, (struct block){r->u, ld}, NULL);
    store_rows(&h->b, rows_from(first, b), f, (struct block){r->keys.u, ld}, NULL);
    return most;
}

static int
run_running_features(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    struct running_scratch r = running_features_carve(h, &arena);
    r.log_root = log_root(h->f);
    const ptrdiff_t n = h->n, s = h->s, f = h->f;
    const ptrdiff_t most = n > s ? n : s;
    const T root = (T)h->t;
    load_state(r.keys.omega, &h->omega, h->d, f);
    for (ptrdiff_t i = 0; i < state_size(h->d, f); i++) {
        r.keys.omega[i] *= root;
    }
    load_vector(r.top, &h->top, f);
    set_steps(&r);
    ptrdiff_t done = 0;
    while (done < most) {
        const ptrdiff_t rows = most - done < LA_BLOCK ? most - done : LA_BLOCK;
        const ptrdiff_t queries = n - done < rows ? n - done : rows;
        const ptrdiff_t keys = s - done < rows ? s - done : rows;
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const ptrdiff_t here = running_block(h, &r, done, queries > 0 ? queries : 0,
                                             keys > 0 ? keys : 0, h->keys);
        done += here;
        if (here < rows) {
            break;
        }
    }
    store_vector(&h->top1, r.top, f);
    const T count = (T)done;
    memcpy(h->done.data, &count, sizeof(count));
    return 0;
}

#endif
