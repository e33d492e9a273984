/* scratch.c: see scratch.h. */
#define _GNU_SOURCE
#include "scratch.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../kernel/table.h"

static atomic_int poison;

void
la_scratch_poison(int byte)
{
    atomic_store(&poison, byte);
}

void *
la_scratch_take(size_t bytes, int threads, size_t *lane)
{
    void *memory = NULL;
    size_t all;
    /* One line more, so that there always is something, and no two threads share it. */
    if (bytes > SIZE_MAX - 2 * LA_ALIGN) {
        return NULL;
    }
    *lane = (bytes / LA_ALIGN + 2) * LA_ALIGN;
    if (__builtin_mul_overflow(*lane, (size_t)threads, &all) || all > PTRDIFF_MAX ||
        posix_memalign(&memory, LA_ALIGN, all) != 0) {
        return NULL;
    }
    const int byte = atomic_load(&poison);
    if (byte != 0) {
        memset(memory, byte, all);
    }
    return memory;
}
