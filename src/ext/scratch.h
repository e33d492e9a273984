/* scratch.h: working memory for kernels. */
#ifndef LA_SCRATCH_H
#define LA_SCRATCH_H

#include <stddef.h>

/* Memory for several kernels at once, each in its own lane. */
struct la_scratch {
    char *memory;       /* aligned to LA_ALIGN; NULL if there is none */
    size_t bytes, lane; /* for each kernel; distance between lanes */
    int lanes;
    int poison;  /* the byte that fills the memory, or 0 */
    int is_lent; /* the memory is the caller's */
};

/* Memory on the stack of a short call, for which an allocation takes as long as the
 * kernel; aligned to LA_ALIGN. */
enum { LA_FEW_BYTES = 8192 };

/* Fills scratch with a byte before a kernel uses it, instead of leaving what was there:
 * a kernel that reads uninitialised numbers then shows it in the result.  Bytes of 0xff
 * are a NaN in every dtype, of 0x7f large numbers, of 0xfe large negative ones; 0 ends
 * it. Poisoned lanes are followed by some KiB that no kernel may write to.  For
 * tests. */
void la_scratch_poison(int byte);

/* Allocates `bytes` bytes for each of `lanes` kernels, or uses the LA_FEW_BYTES bytes
 * at `few` if that is not NULL and they are enough for all of them. */
struct la_scratch la_scratch_take(size_t bytes, int lanes, char *few);

/* Frees it, or keeps it for the next call: three blocks of 4 to 64 MiB. */
void la_scratch_give(struct la_scratch *scratch);

/* Frees it. */
void la_scratch_drop(struct la_scratch *scratch);

/* Fills it with the poison byte, if there is one. */
void la_scratch_prepare(struct la_scratch *scratch);

/* Whether a kernel wrote past its poisoned lane. */
int la_scratch_overrun(const struct la_scratch *scratch);

#endif
