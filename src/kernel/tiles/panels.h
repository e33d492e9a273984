/* panels.h: copies without gaps of what register tiles read again and again.
 *
 * The rows of a wide block lie far apart: no prefetcher of a processor follows them,
 * and their lines share few sets of the caches.  With copies of B and V, wide states
 * took a tenth less time.  The numbers and their order are the same. */
#ifndef LA_PANELS_H
#define LA_PANELS_H

#include "block.h"

/* Scratch of a sweep (micro.h); all NULL if copies would not be worth their time. */
struct panels {
    T *b; /* the columns of B, MR by MR: those from column l on are at b + l rows */
    T *v; /* the columns of V of one column tile */
};

/* The columns of B: those from column l on are at x + l step, with a row step of ld. */
struct columns {
    T *x;
    ptrdiff_t step, ld;
};

/* Whether W columns have enough tiles to share the columns of B. */
INLINE int
are_worth_panels(ptrdiff_t W)
{
    return W >= LA_PANEL_TILES * NR * VL;
}

/* For sweeps of `rows` rows over a state of up to K rows and W columns. */
static struct panels
take_panels(struct arena *arena, ptrdiff_t rows, ptrdiff_t K, ptrdiff_t W)
{
    struct panels x = {NULL, NULL};
    if (LA_TR == MR && rows >= LA_PANEL_ROWS && are_worth_panels(W)) {
        x.b = take(arena, rows, row_step(K));
        x.v = take(arena, rows, NR * VL);
    }
    return x;
}

/* The first K columns of B. */
static void
copy_columns(T *panels, struct block b, ptrdiff_t rows, ptrdiff_t K)
{
    enum { SOME = VL > MR ? VL : MR }; /* of a row: most of a line */
    for (ptrdiff_t l = 0; l < K; l += SOME) {
        for (ptrdiff_t i = 0; i < rows; i++) {
            LA_EACH(t, SOME / MR) {
                const ptrdiff_t col = l + t * MR;
                memcpy(&panels[col * rows + i * MR], &b.x[i * b.ld + col],
                       MR * sizeof(T));
            }
        }
    }
}

/* The first nr vectors of each row of V. */
static void
copy_vectors(T *panel, struct block v, ptrdiff_t rows, int nr)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        memcpy(&panel[i * nr * VL], &v.x[i * v.ld], (size_t)nr * VL * sizeof(T));
    }
}

#endif
