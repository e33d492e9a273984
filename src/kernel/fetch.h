/* fetch.h: asks for memory that will be wanted soon, a few cache lines at a time.
 *
 * A core waits for some two dozen lines at once and stalls at the next: asked for in
 * one go, the rows of the next chunk cost a tenth of the time.  So they wait in a
 * queue, and each tile of the present chunk asks for a few. */
#ifndef LA_FETCH_H
#define LA_FETCH_H

#include <stddef.h>

#include "table.h"

struct la_rows_ahead {
    const char *row;
    ptrdiff_t part, bytes, step, rows; /* part: of the row, what has been asked for */
};

struct la_fetch {
    struct la_rows_ahead queue[LA_MAX_OPERANDS]; /* a ring */
    int first, count;
    int lines; /* asked for at a time */
};

/* Adds rows of so many bytes, `step` bytes apart; no more than a hint. */
static inline void
la_fetch_later(struct la_fetch *f, const char *row, ptrdiff_t step, ptrdiff_t bytes,
               ptrdiff_t rows)
{
    if (f == NULL || bytes <= 0 || rows <= 0 || f->count == LA_MAX_OPERANDS) {
        return;
    }
    if (step == bytes) { /* rows without gaps are one long row */
        bytes *= rows;
        rows = 1;
    }
    const int at = f->first + f->count++;
    f->queue[at < LA_MAX_OPERANDS ? at : at - LA_MAX_OPERANDS] =
        (struct la_rows_ahead){row, 0, bytes, step, rows};
}

/* Begins a chunk: what still waits is late, so that more is asked for at a time. */
static inline void
la_fetch_anew(struct la_fetch *f)
{
    if (f->count > 0 && f->lines < LA_LINES_MAX) {
        f->lines += LA_LINES_MORE;
    }
    f->count = 0;
}

static __attribute__((noinline, unused)) void
la_fetch_some(struct la_fetch *f)
{
    if (f == NULL) {
        return;
    }
    for (ptrdiff_t lines = f->lines; f->count > 0 && lines > 0;) {
        struct la_rows_ahead *r = &f->queue[f->first];
        const char *from = r->row + r->part;
        const ptrdiff_t left = (r->bytes - r->part + LA_LINE - 1) / LA_LINE;
        const ptrdiff_t some = left < lines ? left : lines;
        for (ptrdiff_t i = 0; i < some; i++) {
            __builtin_prefetch(from + i * LA_LINE);
        }
        lines -= some;
        r->part += some * LA_LINE;
        if (r->part >= r->bytes) {
            r->part = 0;
            r->row += r->step;
            if (--r->rows == 0) {
                f->first = f->first + 1 < LA_MAX_OPERANDS ? f->first + 1 : 0;
                f->count--;
            }
        }
    }
}

#endif
