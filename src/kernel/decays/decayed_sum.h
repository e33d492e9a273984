/* decayed_sum.h: z, the sum of the keys, which decays as the state does (decay.h). */
#ifndef LA_DECAYED_SUM_H
#define LA_DECAYED_SUM_H

#include "decay.h"

/* z (d), and what it has lost to rounding. */
struct decayed_sum {
    T *z, *lost;
};

static struct decayed_sum
take_decayed_sum(const struct la_head *h, struct arena *arena)
{
    return (struct decayed_sum){take_row(arena, h->d), take_row(arena, h->d)};
}

/* Clears z where the chunk's first decays reset the state. */
static void
forget_sum(const struct decay *decay, struct decayed_sum x, ptrdiff_t d)
{
    if (forgets(decay, d)) {
        clear(x.z, row_step(d));
        clear(x.lost, row_step(d));
    }
}

/* to = exp(G_last) from, and 0 in its padding.  In calls that carry what sums lose, z
 * decays a little at every cut, and what that loses is kept, too. */
static void
fade_sum(const struct la_head *h, const struct decay *decay, struct decayed_sum from,
         struct decayed_sum to)
{
    const int carries = carries_lost(h);
    const ptrdiff_t width = round_up(h->d, VL), padding = row_step(h->d) - width;
    for (ptrdiff_t l = 0; l < h->d; l += VL) {
        const vec z = vload(&from.z[l]), lost = vload(&from.lost[l]);
        const vec keep = vload(&decay->keep[l]), change = vload(&decay->change[l]);
        const vec old = keep * z, new = vfma(change, z, old);
        vstore(&to.z[l], new);
        vstore(&to.lost[l], vfma(change, lost, keep * lost));
        if (carries) {
            const vec more = vfma(change, z, old - new);
            vstore(&to.lost[l], vload(&to.lost[l]) + vnumber(more));
        }
    }
    clear(to.z + width, padding);
    clear(to.lost + width, padding);
}

#endif
