/* delta_panels.h: panels of the values' columns, which threads share when the delta
 * rules are computed in stages (delta_stages.h). */
#ifndef LA_DELTA_PANELS_H
#define LA_DELTA_PANELS_H

#include "../tiles/stages.h"

/* Columns [col, col + width) of the values, and where their panel of a state begins. */
struct panel {
    ptrdiff_t col, width, at;
};

/* Panel i; its width is at most 0 if there are not so many. */
INLINE struct panel
panel(const struct la_head *h, ptrdiff_t i)
{
    const ptrdiff_t step = VL > MR ? VL : MR, steps = (h->m + step - 1) / step;
    const ptrdiff_t parts = h->chunks->parts;
    const ptrdiff_t width = (steps + parts - 1) / parts * step, col = i * width;
    const ptrdiff_t left = round_up(h->m, VL) - col;
    return (struct panel){col, left < width ? left : width, col * round_up(h->d, MR)};
}

/* The caller's array from a panel's columns on, and their number. */
INLINE struct la_array
columns_of(const struct la_array *x, struct panel p)
{
    return shifted(x, p.col * x->cs);
}

INLINE ptrdiff_t
numbers_of(const struct la_head *h, struct panel p)
{
    return h->m - p.col < p.width ? h->m - p.col : p.width;
}

/* s = the caller's state, in order: panels clear padding where the next may lie. */
static void
load_panels(const struct la_head *h, T *s, const struct la_array *x)
{
    for (ptrdiff_t i = 0; panel(h, i).width > 0; i++) {
        const struct panel p = panel(h, i);
        const struct la_array some = columns_of(x, p);
        load_state(s + p.at, &some, h->d, numbers_of(h, p));
    }
}

/* The caller's state, if wanted, = s. */
static void
store_panels(const struct la_head *h, T *s, const struct la_array *x)
{
    for (ptrdiff_t i = 0; panel(h, i).width > 0; i++) {
        const struct panel p = panel(h, i);
        const struct la_array some = columns_of(x, p);
        store_state(&some, s + p.at, h->d, numbers_of(h, p));
    }
}

/* dst = S^T. */
static void
transpose_panels(const struct la_head *h, T *dst, T *s)
{
    for (ptrdiff_t i = 0; panel(h, i).width > 0; i++) {
        const struct panel p = panel(h, i);
        transpose_to_rows(dst, h->m, p.col, s + p.at, h->d, numbers_of(h, p));
    }
}

#endif
