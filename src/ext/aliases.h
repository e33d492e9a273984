/* aliases.h: operands of a call that share memory with its outputs. */
#ifndef LA_ALIASES_H
#define LA_ALIASES_H

#include "plan.h"

/* Whether two outputs may share memory, as far as la_tensors_meet can tell. */
int la_outputs_meet(const struct la_call *call);

/* Points inputs that may share memory with an output at copies, for kernels write
 * before they have read everything; but not, with in_place, a state before the tokens
 * whose fields are the same arrays as those after them, which kernels read first.  0,
 * or -1 without memory.  The caller always calls la_aliases_free. */
int la_aliases_copy(struct la_call *call, int in_place, void **copies);
void la_aliases_free(const struct la_call *call, void **copies);

#endif
