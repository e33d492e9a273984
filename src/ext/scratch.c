/* scratch.c: see scratch.h. */
#include "scratch.h"

#include <stdatomic.h>
#include <string.h>

#include "../kernel/table.h"
#include "os.h"

enum { GUARD = 64 * LA_ALIGN }; /* after a poisoned lane */

static atomic_int poison;

/* Large blocks that were given back, for the next calls: the system clears every page
 * of new ones, which took as long as computing a gradient on 16 threads.  A call takes
 * up to three.  A block is behind a line that holds its size. */
enum { KEPT = 3 };
#define KEPT_LEAST ((size_t)4 << 20)
#if defined(__SANITIZE_ADDRESS__) /* finds writes past the end of a block of its own */
#define KEPT_MOST ((size_t)0)
#else
#define KEPT_MOST ((size_t)64 << 20)
#endif
static _Atomic(char *) kept[KEPT];

static size_t
size_of(const char *block)
{
    size_t size;
    memcpy(&size, block - LA_ALIGN, sizeof(size));
    return size;
}

static void
free_memory(char *block)
{
    if (block != NULL) {
        la_aligned_give(block - LA_ALIGN);
    }
}

static char *
take_memory(size_t bytes)
{
    for (int i = 0; bytes >= KEPT_LEAST && bytes <= KEPT_MOST && i < KEPT; i++) {
        char *block = atomic_exchange(&kept[i], NULL);
        if (block != NULL && size_of(block) >= bytes) {
            return block;
        }
        free_memory(block);
    }
    char *line = la_aligned_take(LA_ALIGN, LA_ALIGN + bytes);
    if (line == NULL) {
        return NULL;
    }
    memcpy(line, &bytes, sizeof(bytes));
    return line + LA_ALIGN;
}

static void
give_memory(char *block)
{
    const size_t bytes = block != NULL ? size_of(block) : 0;
    for (int i = 0; bytes >= KEPT_LEAST && bytes <= KEPT_MOST && i < KEPT; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&kept[i], &none, block)) {
            return;
        }
    }
    free_memory(block);
}

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
        all > PTRDIFF_MAX - LA_ALIGN) {
        return scratch;
    }
    scratch.is_lent = few != NULL && all <= LA_FEW_BYTES;
    scratch.memory = scratch.is_lent ? few : take_memory(all);
    return scratch;
}

void
la_scratch_drop(struct la_scratch *scratch)
{
    if (!scratch->is_lent) {
        free_memory(scratch->memory);
    }
    scratch->memory = NULL;
}

void
la_scratch_give(struct la_scratch *scratch)
{
    if (!scratch->is_lent) {
        give_memory(scratch->memory);
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
