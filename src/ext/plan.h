/* plan.h: one call of an operator, from its operands to heads, pieces and threads. */
#ifndef LA_PLAN_H
#define LA_PLAN_H

#include <stddef.h>

#include "signature.h"

enum { LA_MAX_AXES = 8 };

/* A call: its operands in the order of its signature, with the steps of their axes in
 * bytes. Leading axes are those of all operands broadcast; a step of 0 repeats an
 * operand. */
struct la_call {
    const struct la_signature *signature;
    enum la_map map;
    enum la_dtype dtype;         /* computed in; numbers, states and their gradients */
    ptrdiff_t dims[LA_MAX_DIMS]; /* sizes, in the order of signature->dims */
    int axes;                    /* leading axes, first one outermost */
    ptrdiff_t extent[LA_MAX_AXES];
    struct la_operand_array {
        int lacks; /* it is left out, as some may be (la_may_lack) */
        char *data;
        ptrdiff_t outer[LA_MAX_AXES], core[LA_MAX_RANK];
        enum la_type type;
    } x[LA_MAX_OPERANDS];
};

/* Who watches a call: poll is asked about once a chunk, by the caller's thread alone;
 * nonzero: give up.  NULL: nobody. */
struct la_watch {
    int (*poll)(void *);
    void *arg;
};

enum la_status {
    LA_DONE,
    LA_STOPPED,   /* by the watch; outputs hold anything */
    LA_NO_MEMORY, /* nothing was written */
    LA_BAD_SHAPE, /* likewise */
    LA_OVERLAP,   /* likewise: two sequences have a token in common */
    LA_OVERRUN,   /* of poisoned scratch (scratch.h): a fault of ours */
};

/* Computes a call.  Raises nothing, needs no GIL; may be called by any thread. */
enum la_status la_run(const struct la_call *call, const struct la_watch *watch);

/* Whether a call is long enough for threads to be woken, and the GIL to be released. */
int la_is_long(const struct la_call *call);

#endif
