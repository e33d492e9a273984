/* scratch.c: see scratch.h. */
#include "scratch.h"

#include <stdatomic.h>
#include <string.h>

#include "../kernel/table.h"
#include "os.h"

enum { GUARD = 64 * LA_ALIGN }; /* after a poisoned lane */

static atomic_int poison;

void
la_scratch_poison(int byte)
{
    atomic_store(&poison, byte);
}

struct la_scratch
la_scratch_take(size_t bytes, int lanes, char *few)
{
    struct la_scratch scratch = {
        .bytes = bytes, .lanes = lanes, .poison = atomic_load(&poison)};
    size_t all;
    if (bytes > SIZE_MAX - 2 * LA_ALIGN - GUARD) {
        return scratch;
    }
    /* One more line: a lane is never empty, and no two threads share a line. */
    scratch.lane =
        (bytes / LA_ALIGN + 2) * LA_ALIGN + (scratch.poison != 0 ? GUARD : 0);
    if (__builtin_mul_overflow(scratch.lane, (size_t)lanes, &all) ||
        all > PTRDIFF_MAX) {
        return scratch;
    }
    scratch.is_lent = few != NULL && all <= LA_FEW_BYTES;
    scratch.memory = scratch.is_lent ? few : la_aligned_take(LA_ALIGN, all);
    return scratch;
}

void
la_scratch_give(struct la_scratch *scratch)
{
    if (!scratch->is_lent) {
        la_aligned_give(scratch->memory);
    }
    scratch->memory = NULL;
}

void
la_scratch_prepare(struct la_scratch *scratch)
{
    if (scratch->poison != 0) {
        memset(scratch->memory, scratch->poison,
               scratch->lane * (size_t)scratch->lanes);
    }
}

int
la_scratch_overrun(const struct la_scratch *scratch)
{
    for (int lane = 0; scratch->poison != 0 && lane < scratch->lanes; lane++) {
        const unsigned char *x =
            (unsigned char *)scratch->memory + (size_t)lane * scratch->lane;
        for (size_t i = scratch->bytes; i < scratch->lane; i++) {
            if (x[i] != scratch->poison) {
                return 1;
            }
        }
    }
    return 0;
}
