/* fade_backward.h: gradients of fade.h, one head, from the last token back.
 *
 * With g the cotangent of o and R that of s_i, from the last token on:
 *
 *   dq_i = scale s_{i-1} g_i,  dk_i = R v_i,  dv_i = R^T k_i
 *   drate_i = -2 rate_i c_i^2 o rows(R o s_{i-1})
 *   R <- c_i o R + scale q_i g_i^T
 *
 * 12 n d m flops.  Scratch: the states before all tokens, n d m numbers. */
#ifndef LA_FADE_BACKWARD_H
#define LA_FADE_BACKWARD_H

#include "fade.h"

struct fade_backward_scratch {
    struct fade_scratch token; /* its s: R */
    T *g, *dq, *dk, *dv, *drate;
    struct block states; /* s_{i-1} of every token: d rows each */
};

static struct fade_backward_scratch
fade_backward_carve(const struct la_head *h, struct arena *arena)
{
    return (struct fade_backward_scratch){
        .token = fade_carve(h, arena),
        .g = take_row(arena, h->m),
        .dq = take_row(arena, h->d),
        .dk = take_row(arena, h->d),
        .dv = take_row(arena, h->m),
        .drate = take_row(arena, h->rate.has_channels ? h->d : 1),
        .states = take_block(arena, h->n * h->d, h->m),
    };
}

/* The forward scan: leaves the state before every token. */
static int
fade_states(const struct la_head *h, const struct fade_backward_scratch *r)
{
    const struct block s = r->token.s;
    fade_load_state(h, s, &h->s0);
    for (ptrdiff_t i = 0; i < h->n; i++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        memcpy(r->states.x + i * h->d * s.ld, s.x, (size_t)(h->d * s.ld) * sizeof(T));
        fade_load(h, &r->token, i, i < h->keys);
        fade_token(h, &r->token);
    }
    return 0;
}

/* The gradients of token i, and R before it. */
static void
fade_token_backward(const struct la_head *h, const struct fade_backward_scratch *r,
                    ptrdiff_t i)
{
    const struct fade_scratch *x = &r->token;
    const int channels = h->rate.has_channels;
    const T scale = (T)h->scale;
    clear(r->dv, row_step(h->m));
    clear(r->drate, row_step(channels ? h->d : 1));
    for (ptrdiff_t l = 0; l < h->d; l++) {
        const T *const s = r->states.x + (i * h->d + l) * x->s.ld;
        T *const R = x->s.x + l * x->s.ld;
        T dq = 0, dk = 0, dc = 0;
        for (ptrdiff_t j = 0; j < h->m; j++) {
            dq += s[j] * r->g[j];
            dk += R[j] * x->v[j];
            dc += R[j] * s[j];
            r->dv[j] += R[j] * x->k[l];
            R[j] = x->c[l] * R[j] + scale * x->q[l] * r->g[j];
        }
        r->dq[l] = scale * dq;
        r->dk[l] = dk;
        r->drate[channels ? l : 0] -=
            2 * x->rate[channels ? l : 0] * x->c[l] * x->c[l] * dc;
    }
}

static void
fade_store_gradients(const struct la_head *h, const struct fade_backward_scratch *r,
                     ptrdiff_t i, int has_key)
{
    const struct span one = rows_from(i, 1);
    if (!has_key) {
        clear(r->dk, row_step(h->d));
        clear(r->dv, row_step(h->m));
    }
    store_rows(&h->dq, one, h->d, (struct block){r->dq, 0}, NULL);
    store_rows(&h->dk, one, h->d, (struct block){r->dk, 0}, NULL);
    store_rows(&h->dv, one, h->m, (struct block){r->dv, 0}, NULL);
    store_rows(&h->drate, one, h->rate.has_channels ? h->d : 1,
               (struct block){r->drate, 0}, NULL);
}

static int
run_fade_backward(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct fade_backward_scratch r = fade_backward_carve(h, &arena);
    if (fade_states(h, &r)) {
        return 1;
    }
    fade_load_state(h, r.token.s, &h->grad_s);
    for (ptrdiff_t i = h->n - 1; i >= 0; i--) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        fade_load(h, &r.token, i, i < h->keys);
        load_row(r.g, row_step(h->m), &h->grad_out, i, h->m);
        fade_token_backward(h, &r, i);
        fade_store_gradients(h, &r, i, i < h->keys);
    }
    fade_store_state(h, &h->ds0, r.token.s);
    return 0;
}

#endif
