/* fade_step.h: one token of fade.h on a state.  4 d m flops; scratch as there. */
#ifndef LA_FADE_STEP_H
#define LA_FADE_STEP_H

#include "../recurrences/fade.h"

static struct fade_scratch
fade_step_carve(const struct la_head *h, struct arena *arena)
{
    return fade_carve(h, arena);
}

static int
run_fade_step(const struct la_head *h)
{
    struct arena arena = {h->scratch, 0};
    const struct fade_scratch r = fade_carve(h, &arena);
    fade_load_state(h, r.s, &h->s0);
    fade_load(h, &r, 0, 1);
    fade_token(h, &r);
    fade_store(h, &r, 0);
    fade_store_state(h, &h->s1, r.s);
    return 0;
}

#endif
