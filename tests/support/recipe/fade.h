/* fade.h: a memory that fades, one head, token by token.
 *
 *   o_i = scale s_{i-1}^T q_i
 *   s_i = c_i o s_{i-1} + k_i v_i^T,  c_i = 1 / (1 + rate_i^2), one number or one a
 *   row of s
 *
 * q, k (n,d), v, o (n,m), rate (n) or (n,d), s (d,m).  4 n d m flops; scratch: the
 * state and a few rows. */
#ifndef LA_FADE_H
#define LA_FADE_H

#include "../tiles/recurrence.h"

struct fade_scratch {
    T *q, *k, *v, *rate, *c, *o; /* a row each, of the present token */
    struct block s;
};

static struct fade_scratch
fade_carve(const struct la_head *h, struct arena *arena)
{
    return (struct fade_scratch){
        .q = take_row(arena, h->d),
        .k = take_row(arena, h->d),
        .v = take_row(arena, h->m),
        .rate = take_row(arena, h->rate.has_channels ? h->d : 1),
        .c = take_row(arena, h->d),
        .o = take_row(arena, h->m),
        .s = take_block(arena, round_up(h->d, MR), h->m),
    };
}

/* s = the state x, or zeros. */
static void
fade_load_state(const struct la_head *h, struct block s, const struct la_array *x)
{
    clear_rows(s, 0, h->d);
    if (la_is_given(x)) {
        load_plain(s, x, rows_from(0, h->d), h->m);
    }
}

static void
fade_store_state(const struct la_head *h, const struct la_array *x, struct block s)
{
    if (la_is_given(x)) {
        store_rows(x, rows_from(0, h->d), h->m, s, NULL);
    }
}

/* Token i; one without a key writes nothing, and nothing fades. */
static void
fade_load(const struct la_head *h, const struct fade_scratch *r, ptrdiff_t i,
          int has_key)
{
    const int channels = h->rate.has_channels;
    load_row(r->q, row_step(h->d), &h->q, i, h->d);
    clear(r->k, row_step(h->d));
    clear(r->v, row_step(h->m));
    clear(r->rate, row_step(channels ? h->d : 1));
    if (has_key) {
        load_row(r->k, row_step(h->d), &h->k, i, h->d);
        load_row(r->v, row_step(h->m), &h->v, i, h->m);
        load_row(r->rate, row_step(channels ? h->d : 1), &h->rate, i,
                 channels ? h->d : 1);
    }
    for (ptrdiff_t l = 0; l < h->d; l++) {
        const T rate = r->rate[channels ? l : 0];
        r->c[l] = 1 / (1 + rate * rate);
    }
}

/* o = s^T q, then s = c o s + k v^T */
static void
fade_token(const struct la_head *h, const struct fade_scratch *r)
{
    clear(r->o, row_step(h->m));
    for (ptrdiff_t l = 0; l < h->d; l++) {
        T *const s = r->s.x + l * r->s.ld;
        for (ptrdiff_t j = 0; j < h->m; j++) {
            r->o[j] += r->q[l] * s[j];
            s[j] = r->c[l] * s[j] + r->k[l] * r->v[j];
        }
    }
}

static void
fade_store(const struct la_head *h, const struct fade_scratch *r, ptrdiff_t i)
{
    const T scale = (T)h->scale;
    store_rows(&h->o, rows_from(i, 1), h->m, (struct block){r->o, 0}, &scale);
}

static int
run_fade(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct fade_scratch r = fade_carve(h, &arena);
    fade_load_state(h, r.s, &h->s0);
    for (ptrdiff_t i = 0; i < h->n; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        fade_load(h, &r, i, i < h->keys);
        fade_token(h, &r);
        fade_store(h, &r, i);
    }
    fade_store_state(h, &h->s1, r.s);
    return 0;
}

#endif
