/* lift.h: heads as a leading axis of a call.
 *
 * Operands may have an axis of heads, h, among their own.  Kernels compute one head, so
 * that axis becomes the first one of those that lead, or the second one after rows of a
 * pool; then sequences that share the weights of a head are neighbours. */
#ifndef LA_LIFT_H
#define LA_LIFT_H

#include "plan.h"

struct la_lifted {
    struct la_call call;
    struct la_signature signature;
};

/* The same call with heads as a leading axis. */
void la_lift_heads(struct la_lifted *lifted, const struct la_call *call);

#endif
