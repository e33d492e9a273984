/* gated_sums.h: gradients of gated attention that are sums over all tokens: that of a
 * bonus or of a skip. */
#ifndef LA_GATED_SUMS_H
#define LA_GATED_SUMS_H

#include "gated_states.h"

/* What VL channels of a chunk add to du. */
INLINE vec
bonus_sum(const struct gated_backward_scratch *r, ptrdiff_t tokens, ptrdiff_t l)
{
    vec du = (vec){0};
    for (ptrdiff_t i = 0; i < tokens; i++) {
        const vec a = vload(&r->a.x[i * r->a.ld + l]);
        du = vfma(vset1(r->own_p[i]) * a, vload(&r->b.x[i * r->b.ld + l]), du);
    }
    return du;
}

/* What VL numbers of du or dD get from the tokens t, once these are loaded. */
INLINE vec
gradient_sum(const struct la_head *h, const struct gated_backward_scratch *r,
             struct span t, ptrdiff_t l)
{
    return la_is_given(&h->bonus) ? bonus_sum(r, t.rows, l)
                                  : skip_sum(h, &r->writes, t, l);
}

/* Adds this for all numbers. */
static void
add_to_gradient_sum(const struct la_head *h, const struct gated_backward_scratch *r,
                    struct span t)
{
    for (ptrdiff_t l = 0; l < width_of_sum(h); l += VL) {
        add_to_sum(&r->sum[l], &r->lost_of_sum[l], gradient_sum(h, r, t, l));
    }
}

/* dbonus or dD. */
static void
store_gradient_sum(const struct la_head *h, T *sum)
{
    store_vector(&h->dbonus, sum, h->d);
    store_vector(&h->dD, sum, h->m);
}

#endif
