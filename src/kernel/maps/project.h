/* project.h: random features, y = f(u) with u = t x omega.
 *
 *    log_features       u - t^2 |x|^2 / 2 - log(m) / 2, the logarithm of
 *    positive_features  exp(u - t^2 |x|^2 / 2) / sqrt m
 *                                                Choromanski et al. 2021, eq. 5-6
 *    fourier_features   sin u / sqrt m, cos u / sqrt m
 *                                                Peng et al. 2021, eq. 3-4
 *    NAME_features      phi_NAME(u) / sqrt m
 *
 * x (n,d), omega (d,m), y (n,m).  2 n d m flops, and f on a block that is still in
 * cache. Scratch: omega and a few blocks of rows. */
#ifndef LA_PROJECT_H
#define LA_PROJECT_H

#include "row_maps.h"
#include "../vectors/functions.h"

struct project_scratch {
    ptrdiff_t ldd, ldm, width; /* columns of u that are written, at most ldm */
    T *x, *u, *h, *omega, *second;
};

static struct project_scratch
project_carve(const struct la_head *h, struct arena *arena)
{
    const ptrdiff_t d = h->d, m = h->f;
    struct project_scratch r = {
        .ldd = row_step(d), .ldm = row_step(m), .width = round_up(m, VL)};
    r.x = take(arena, LA_BLOCK, r.ldd);
    r.u = take(arena, LA_BLOCK, r.ldm);
    r.second = take(arena, LA_BLOCK, r.ldm);
    r.h = take(arena, 1, LA_BLOCK);
    r.omega = take_state(arena, d, m);
    return r;
}

/* Loads rows of x; u = t x omega and, if wanted, h = t^2 |x|^2 / 2. */
static void
project_rows(const struct project_scratch *r, const struct la_array *x, ptrdiff_t first,
             ptrdiff_t rows, ptrdiff_t d, T t, struct la_fetch *ahead)
{
    const struct sweep c = {
        .rows = rows,
        .K = d,
        .W = r->width,
        .a = {r->x, r->ldd},
        .o = {r->u, r->ldm},
        .s = r->omega,
        .ahead = ahead,
    };
    const ptrdiff_t end = first + rows;
    load_plain((struct block){r->x, r->ldd}, x, span(first, rows, end, end, ahead), d);
    sweep(&c, LA_READ);
    row_dots(r->h, (struct block){r->x, r->ldd}, (struct block){r->x, r->ldd}, rows,
             r->ldd);
    for (ptrdiff_t i = 0; i < rows; i++) {
        r->h[i] *= t * t / 2;
    }
}

/* 1 / sqrt m */
INLINE vec
over_root(ptrdiff_t m)
{
    return vset1((T)(1 / sqrt((double)m)));
}

/* log(sqrt m) */
INLINE vec
log_root(ptrdiff_t m)
{
    return vlog1p(vset1((T)(m - 1))) * vset1((T)0.5);
}

/* u - h, where h may be inf: large keys then have the same finite exponent. */
INLINE vec
exponent(vec u, vec h)
{
    return vmax(vset1(-LARGEST / 4), u - vmin(vset1(LARGEST / 2), h));
}

/* y = f(u, h, c) with c a function of m alone; f may set a second output. */
INLINE int
project(const struct la_head *h, const int nout, const vec c,
        void (*f)(vec *y, vec u, vec h, vec c))
{
    struct arena arena = {h->scratch, 0};
    const struct project_scratch r = project_carve(h, &arena);
    const ptrdiff_t d = h->d, m = h->f;
    const T t = (T)h->t;
    struct la_fetch ahead = {0};
    load_state(r.omega, &h->omega, d, m);
    for (ptrdiff_t i = 0; i < state_size(d, m); i++) {
        r.omega[i] *= t;
    }
    for (ptrdiff_t i = 0; i < h->n; i += LA_BLOCK) {
        const ptrdiff_t rows = h->n - i < LA_BLOCK ? h->n - i : LA_BLOCK;
        project_rows(&r, &h->x, i, rows, d, t, &ahead);
        for (ptrdiff_t l = 0; l < rows; l++) {
            const vec h = vset1(r.h[l]);
            for (ptrdiff_t j = l * r.ldm; j < l * r.ldm + m; j += VL) {
                vec y[2];
                f(y, vload(&r.u[j]), h, c);
                vstore(&r.u[j], y[0]);
                if (nout > 1) {
                    vstore(&r.second[j], y[1]);
                }
            }
        }
        store_rows(&h->y, rows_from(i, rows), m, (struct block){r.u, r.ldm}, NULL);
        if (nout > 1) {
            store_rows(&h->cosine, rows_from(i, rows), m,
                       (struct block){r.second, r.ldm}, NULL);
        }
    }
    return 0;
}

#define LA_PROJECT(name, nout, constant, ...)                                          \
    INLINE void project_##name(vec *y, vec u, vec h, vec c)                            \
    {                                                                                  \
        (void)h, (void)c;                                                              \
        __VA_ARGS__                                                                    \
    }                                                                                  \
    static struct project_scratch name##_carve(const struct la_head *h,                \
                                               struct arena *arena)                    \
    {                                                                                  \
        return project_carve(h, arena);                                                \
    }                                                                                  \
    static int run_##name(const struct la_head *h)                                     \
    {                                                                                  \
        return project(h, nout, constant(h->f), project_##name);                       \
    }

LA_PROJECT(log_features, 1, log_root, y[0] = exponent(u, h + c);)
LA_PROJECT(positive_features, 1, over_root, y[0] = vexp(u - h) * c;)
LA_PROJECT(fourier_features, 2, over_root, vsincos(u, &y[0], &y[1]); y[0] *= c;
           y[1] *= c;)
LA_PROJECT(relu_features, 1, over_root, y[0] = phi_relu(u) * c;)
LA_PROJECT(elu_features, 1, over_root, y[0] = phi_elu(u) * c;)
LA_PROJECT(softplus_features, 1, over_root, y[0] = phi_softplus(u) * c;)
LA_PROJECT(exp_features, 1, over_root, y[0] = vexp(u) * c;)

#endif
