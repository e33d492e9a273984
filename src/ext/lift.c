/* lift.c: see lift.h. */
#include "lift.h"

#include <string.h>

/* Takes the axis of heads from the core dimensions of an operand; returns its step, 0
 * if there is none. */
static ptrdiff_t
take_heads(struct la_slot *slot, ptrdiff_t *core)
{
    int at = 0;
    while (at < slot->rank && slot->dims[at] != 'h') {
        at++;
    }
    if (at == slot->rank) {
        return 0;
    }
    const ptrdiff_t step = core[at];
    slot->rank--;
    for (int i = at; i < slot->rank; i++) {
        slot->dims[i] = slot->dims[i + 1];
        core[i] = core[i + 1];
    }
    return step;
}

/* Makes place for x at index `at` of a list of `count` numbers. */
static void
insert(ptrdiff_t *list, int count, int at, ptrdiff_t x)
{
    memmove(&list[at + 1], &list[at], (size_t)(count - at) * sizeof(*list));
    list[at] = x;
}

void
la_lift_heads(struct la_lifted *lifted, const struct la_call *call)
{
    struct la_signature *signature = &lifted->signature;
    struct la_call *out = &lifted->call;
    const int at = call->rows != NULL;
    *signature = *call->signature;
    signature->place['h' - 'a'] = 0;
    *out = *call;
    out->signature = signature;
    insert(out->extent, call->axes, at,
           call->dims[la_signature_dim(call->signature, 'h')]);
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const ptrdiff_t step = take_heads(&signature->slots[i], out->x[i].core);
        insert(out->x[i].outer, call->axes, at, step);
    }
    out->axes++;
}
