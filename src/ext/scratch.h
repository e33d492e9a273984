/* scratch.h: memory for kernels to work in. */
#ifndef LA_SCRATCH_H
#define LA_SCRATCH_H

#include <stddef.h>

/* Memory for some kernels at once, each in a lane of its own. */
struct la_scratch {
    char *memory;       /* LA_ALIGN-aligned; NULL where there is none */
    size_t bytes, lane; /* for each kernel, and from one to the next */
    int lanes;
    int poison; /* the byte that fills it, or 0 */
};

/* Fills scratch with a byte before a kernel sees it, where it would hold what came
 * before: a kernel that reads what it has not written then shows it.  Bytes of 0xff are
 * a NaN in every dtype, of 0x7f large numbers, of 0xfe negative ones; 0: no more.
 * Poisoned lanes have some KiB after them that no kernel may touch.  For tests. */
void la_scratch_poison(int byte);

/* `bytes` for each of so many kernels. */
struct la_scratch la_scratch_take(size_t bytes, int lanes);

/* Gives it back. */
void la_scratch_give(struct la_scratch *scratch);

/* Poisons it, where that is asked for. */
void la_scratch_prepare(struct la_scratch *scratch);

/* Whether a kernel wrote past its poisoned lane. */
int la_scratch_overrun(const struct la_scratch *scratch);

#endif
