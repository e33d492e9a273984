/* interleave.h: computes a head one slice of tokens at a time, between slices of other
 * heads (interleave.c). */
#ifndef LA_INTERLEAVE_H
#define LA_INTERLEAVE_H

#include "chunk.h"

/* First token of the slice; one past its last. */
INLINE ptrdiff_t
interleave_begin(const struct la_head *h)
{
    return h->interleave != NULL ? h->interleave->at : 0;
}

INLINE ptrdiff_t
interleave_end(const struct la_head *h)
{
    return h->interleave != NULL ? h->interleave->to
           : h->wanted != NULL   ? h->wanted->to
                                 : h->n;
}

/* One past the last token that only changes the state. */
INLINE ptrdiff_t
head_start_end(const struct la_head *h)
{
    return h->wanted != NULL ? h->wanted->from : 0;
}

/* Saves token i as the start of the next slice; returns whether the head is
 * finished. */
INLINE int
interleave_finishes(const struct la_head *h, ptrdiff_t i)
{
    if (h->interleave != NULL) {
        h->interleave->at = i;
    }
    return i >= h->n;
}

/* The queue that tiles prefetch from, and the queue that chunks add rows to (none in a
 * slice, where interleave.c adds the rows of all heads). */
INLINE struct la_fetch *
interleave_fetch(const struct la_head *h, struct la_fetch *own)
{
    return h->interleave != NULL ? h->interleave->ahead : own;
}

INLINE struct la_fetch *
interleave_look(const struct la_head *h, struct la_fetch *own)
{
    return h->interleave != NULL ? NULL : own;
}

#endif
