/* shares.h: which pieces of a job a thread takes.
 *
 * Each thread has a range of them that depends on the thread and on their number alone,
 * and takes those of others only after its own: calls of the same sizes, such as one
 * step after another, find what they wrote in the cache of the same core. */
#ifndef LA_SHARES_H
#define LA_SHARES_H

#include <stddef.h>

/* Shares [0, items) between so many threads, before they begin. */
void la_shares_set(size_t items, int threads);

/* The next piece for this thread, which may be the caller's; SIZE_MAX if there is none.
 */
size_t la_shares_next(int is_caller);

#endif
