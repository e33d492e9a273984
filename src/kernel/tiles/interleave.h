/* interleave.h: computes a head one slice of tokens at a time, between slices of other
 * heads (interleave.c).
 *
 * An operator may pass over the tokens several times, each time in slices. */
#ifndef LA_INTERLEAVE_H
#define LA_INTERLEAVE_H

#include "chunk.h"

/* Whether this pass is wanted: every pass is, unless the call is for a slice, which
 * ends with its pass. */
INLINE int
in_pass(const struct la_head *h, int pass)
{
    const struct la_interleave *x = h->interleave;
    return x == NULL || (x->pass == pass && x->at < x->to);
}

/* How many of the n tokens of a pass come before the slice, and up to its end. */
INLINE ptrdiff_t
slice_begin(const struct la_head *h)
{
    return h->interleave != NULL ? h->interleave->at : 0;
}

INLINE ptrdiff_t
slice_end(const struct la_head *h, ptrdiff_t n)
{
    return h->interleave == NULL || h->interleave->to > n ? n : h->interleave->to;
}

/* Saves that i of n tokens are done; returns whether the pass is over. */
INLINE int
ends_pass(const struct la_head *h, ptrdiff_t i, ptrdiff_t n)
{
    struct la_interleave *x = h->interleave;
    const int over = i >= n;
    if (x != NULL) {
        x->pass += over;
        x->at = over ? 0 : i;
        x->to = over ? 0 : x->to;
    }
    return over;
}

/* The same of the last pass. */
INLINE int
ends_last_pass(const struct la_head *h, ptrdiff_t i, ptrdiff_t n)
{
    const int over = ends_pass(h, i, n);
    if (h->interleave != NULL) {
        h->interleave->done = over;
    }
    return over;
}

/* The queue of rows to prefetch. */
INLINE struct la_fetch *
slice_fetch(const struct la_head *h, struct la_fetch *own)
{
    return h->interleave != NULL ? h->interleave->ahead : own;
}

#endif
