/* form.h: the form of an operator, from operators.def, parsed into operands.
 *
 * A form describes all variants of the operator; signature.h derives the operands of
 * each variant. */
#ifndef LA_FORM_H
#define LA_FORM_H

#include "operators.h"

enum { LA_MAX_RANK = 5 };

struct la_form_operand {
    enum la_operand id;
    int rank;
    char dims[LA_MAX_RANK + 1]; /* letters of the fixed dimensions */
    char channels;              /* letter of the optional dimension, or '\0' */
    int optional;               /* may be left out */
    int choice; /* number of the choice that channels or optional offers, from 0 on, or
                   -1; a field of the state may have that of an input */
    int of;     /* the input that it is the gradient of, or -1 */
};

/* Operands in this order: inputs, the state's fields, outputs. */
struct la_form {
    enum la_op op;
    int is_step; /* of one token */
    int nin, nstate, nout, nchoices;
    struct la_form_operand operands[LA_MAX_OPERANDS];
};

/* Parses the form of an operator.  A wrong form aborts the process. */
void la_form_read(struct la_form *form, enum la_op op);

#endif
