/* checked_call.h: a call from a program that nothing is known about (linattn.h). */
#ifndef LA_CHECKED_CALL_H
#define LA_CHECKED_CALL_H

#include "../../linattn/include/linattn.h"

#include "call.h"

/* The storage that a LINATTN_ dtype stands for, and the dtype of a storage; -1, or
 * LINATTN_LEFT_OUT, if there is none. */
int la_storage_of(int dtype, struct la_storage *storage);
int la_dtype_of(struct la_storage storage);

/* Checks a call of what->signature and what->map, and computes it on at most `threads`
 * threads; 0: as many as other calls.  Returns a status of linattn.h.  Needs no GIL. */
int la_checked_call(struct la_operation *what, const linattn_array *operands, int count,
                    int threads);

#endif
