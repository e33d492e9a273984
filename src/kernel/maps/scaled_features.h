/* scaled_features.h: positive random features under a given scale
 * (rescaled_features.h), for operators whose queries see all keys.
 *
 * q (n,d), k (s,d), omega (d,f), t, the number of keys, M (f) -> a (n,f), b (s,f), and
 * for each query the feature whose term is c (n).  2 (n + s) d f flops and one
 * exponential per feature.  Scratch: omega and a few blocks. */
#ifndef LA_SCALED_FEATURES_H
#define LA_SCALED_FEATURES_H

#include "rescaled_features.h"

static struct rescaled_features
scaled_features_carve(const struct la_head *h, struct arena *arena)
{
    return rescaled_features_carve(h, arena, LA_RESCALED_ROWS_MAX);
}

/* a of the queries t, and the index of each query's largest term. */
static void
scaled_queries(const struct la_head *h, const struct rescaled_features *r,
               struct span t)
{
    project_queries(h, r, t);
    query_maxima(r, t.rows, (struct block){r->running_max.x, 0});
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        const ptrdiff_t argmax = largest_feature(r, i, r->running_max.x);
        const T number = argmax < 0 ? 0 : (T)argmax;
        memcpy(h->argmax.data + (t.first + i) * h->argmax.rs, &number, sizeof(number));
    }
    exponentials(r, r->u, r->u, (struct block){r->running_max.x, 0}, t.rows, 1, r->c);
    store_rows(&h->a, t, h->f, r->u, NULL);
}

/* b of the keys t. */
static void
scaled_keys(const struct la_head *h, const struct rescaled_features *r, struct span t)
{
    struct span some = t;
    some.rows = keys_left(h, t);
    project_keys(h, r, some);
    exponentials(r, r->e, r->e, (struct block){r->running_max.x, 0}, some.rows, -1,
                 NULL);
    clear_rows(r->e, some.rows, t.rows);
    store_rows(&h->b, t, h->f, r->e, NULL);
}

static int
run_scaled_features(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct rescaled_features r = scaled_features_carve(h, &arena);
    struct la_fetch ahead = {0};
    load_directions(h, &r);
    load_vector(r.running_max.x, &h->running_max, h->f);
    set_scale(&r, r.running_max.x);
    for (ptrdiff_t i = 0; i < h->n || i < h->s; i += LA_RESCALED_ROWS_MAX) {
        const ptrdiff_t next = i + LA_RESCALED_ROWS_MAX;
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        if (i < h->n) {
            scaled_queries(h, &r, span(i, LA_RESCALED_ROWS_MAX, next, h->n, &ahead));
        }
        if (i < h->s) {
            scaled_keys(h, &r, span(i, LA_RESCALED_ROWS_MAX, next, h->s, &ahead));
        }
    }
    return 0;
}

#endif
