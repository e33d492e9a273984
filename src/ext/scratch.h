/* scratch.h: memory for kernels to work in. */
#ifndef LA_SCRATCH_H
#define LA_SCRATCH_H

#include <stddef.h>

/* Whether scratch holds NaN before a kernel sees it, where it would hold what came
 * before: a kernel that reads what it has not written then shows it.  For tests. */
void la_scratch_poison(int on);

/* LA_ALIGN-aligned memory for `threads` kernels at once, to be freed: `bytes` for each,
 * *lane bytes apart.  NULL where there is no such memory. */
void *la_scratch_take(size_t bytes, int threads, size_t *lane);

#endif
