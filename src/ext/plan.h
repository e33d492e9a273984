/* plan.h: one call of an operator: from operands to heads, pieces and threads. */
#ifndef LA_PLAN_H
#define LA_PLAN_H

#include <stddef.h>

#include "signature.h"

enum { LA_MAX_AXES = 9 }; /* one of them for heads (lift.h) */

/* A call: its operands in the order of its signature, with the steps of their axes in
 * bytes.  Leading axes are those of all operands, broadcast; a step of 0 repeats an
 * operand. */
struct la_call {
    const struct la_signature *signature;
    enum la_map map;
    enum la_dtype
        dtype; /* of the computation, of numbers, of states and of their gradients */
    ptrdiff_t dims[LA_MAX_DIMS]; /* sizes, in the order of signature->dims */
    int axes;                    /* number of leading axes, outermost first */
    ptrdiff_t extent[LA_MAX_AXES];
    /* Where states are rows of a pool: the row of each entry of the first leading axis,
     * which is longer than 1 and merged with no other; or NULL. */
    const ptrdiff_t *rows;
    struct la_operand_array {
        int lacks; /* left out, as la_may_lack allows */
        char *data;
        ptrdiff_t outer[LA_MAX_AXES], core[LA_MAX_RANK];
        enum la_type type;
    } x[LA_MAX_OPERANDS];
};

/* Numbers of the kernel to one of the call's arrays: two to a complex one. */
static inline int
la_call_parts(const struct la_call *call)
{
    return call->x[0].type == LA_COMPLEX ? 2 : 1;
}

/* Lets the caller stop a call: poll is called about once per chunk, only by the
 * caller's thread; nonzero: stop.  A NULL watch never stops. */
struct la_watch {
    int (*poll)(void *);
    void *arg;
};

enum la_status {
    LA_DONE,
    LA_STOPPED,   /* by the watch; the contents of outputs are undefined */
    LA_NO_MEMORY, /* nothing was written */
    LA_BAD_SHAPE, /* nothing was written */
    LA_OVERLAP,   /* nothing was written: two sequences share a token */
    LA_OVERRUN,   /* a kernel wrote past poisoned scratch (scratch.h), or needs more: a
                     bug */
};

/* Computes a call.  Raises nothing and does not need the GIL; any thread may call
 * it. */
enum la_status la_run(const struct la_call *call, const struct la_watch *watch);

/* Whether a call is long enough to wake threads and to release the GIL. */
int la_is_long(const struct la_call *call);

#endif
