/* shares.c: see shares.h.  One job shares its pieces at a time. */
#include "shares.h"

#include <stdatomic.h>
#include <stdint.h>

#include "../kernel/tuning.h"

enum { MOST_RANGES = 64 };

/* A range of pieces, of which [next, end) have not begun, on a line of the cache. */
static struct {
    _Alignas(LA_LINE) atomic_size_t next;
    size_t end;
} ranges[MOST_RANGES];

static int count;

static atomic_int threads;       /* that have taken pieces, without callers */
static _Thread_local int number; /* of this one, from 1 on */

void
la_shares_set(size_t items, int lanes)
{
    count = lanes < MOST_RANGES ? lanes : MOST_RANGES;
    const size_t all = (size_t)count, each = items / all, more = items % all;
    size_t begin = 0;
    for (size_t i = 0; i < all; i++) {
        atomic_store_explicit(&ranges[i].next, begin, memory_order_relaxed);
        begin += each + (i < more);
        ranges[i].end = begin;
    }
}

/* The range that this thread takes first. */
static int
own_range(int is_caller)
{
    if (is_caller || count == 1) {
        return 0;
    }
    if (number == 0) {
        number = atomic_fetch_add(&threads, 1) % (1 << 20) + 1;
    }
    return 1 + (number - 1) % (count - 1);
}

size_t
la_shares_next(int is_caller)
{
    const int own = own_range(is_caller);
    for (int i = 0; i < count; i++) {
        const int at = own + i < count ? own + i : own + i - count;
        atomic_size_t *next = &ranges[at].next;
        if (atomic_load_explicit(next, memory_order_relaxed) < ranges[at].end) {
            const size_t item = atomic_fetch_add(next, 1);
            if (item < ranges[at].end) {
                return item;
            }
        }
    }
    return SIZE_MAX;
}
