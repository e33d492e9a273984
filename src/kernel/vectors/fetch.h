/* fetch.h: prefetches memory, a few cache lines at a time.
 *
 * A core can have about two dozen lines in flight and stalls at the next: prefetching
 * all rows of the next chunk at once took a tenth of the time.  So rows wait in a
 * queue, and each tile of the current chunk prefetches a few lines. */
#ifndef LA_FETCH_H
#define LA_FETCH_H

#include <stddef.h>

#include "../table.h"

struct la_rows_ahead {
    const char *row;
    ptrdiff_t part, bytes, step, rows; /* part: bytes of the row already prefetched */
};

struct la_fetch {
    struct la_rows_ahead queue[LA_MAX_OPERANDS]; /* ring buffer */
    int first, count;
    int lines;             /* prefetched at a time */
    ptrdiff_t heads, head; /* interleaved heads, if any, and which one is computed */
    int second;            /* whether rows go to the second-level cache alone */
};

/* Queues rows of `bytes` bytes, `step` bytes apart.  This is only a hint: a full queue
 * ignores it. */
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

/* Prefetches a line that will be written.  Where only the second-level cache holds the
 * lines, stores one after the other take up to four times as long, and a line that was
 * fetched for reading needs a second request. */
static inline void
la_fetch_to_write(const void *p)
{
#if defined(__x86_64__) /* compilers would need a flag, but all processors know it */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1);
#endif
}

/* Begins a chunk.  Rows still in the queue are too late: they are dropped, and more
 * lines are prefetched at a time from now on. */
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
            if (f->second) {
                __builtin_prefetch(from + i * LA_LINE, 0, 2);
            }
            else {
                __builtin_prefetch(from + i * LA_LINE);
            }
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
