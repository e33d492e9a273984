/* scratch.h: memory for kernels to work in. */
#ifndef LA_SCRATCH_H
#define LA_SCRATCH_H

#include <stddef.h>

/* Fills scratch with a byte before a kernel sees it, where it would hold what came
 * before: a kernel that reads what it has not written then shows it.  Bytes of 0xff are
 * a NaN in every dtype, of 0x7f large numbers, of 0xfe negative ones; 0: no more.  For
 * tests. */
void la_scratch_poison(int byte);

/* LA_ALIGN-aligned memory for `threads` kernels at once, to be freed: `bytes` for each,
 * *lane bytes apart.  NULL where there is no such memory. */
void *la_scratch_take(size_t bytes, int threads, size_t *lane);

#endif
