/* form.h: the form of an operator, as operators.def writes it, read into operands.
 *
 * It describes all variants of the operator; signature.h derives what one of them takes
 * and gives. */
#ifndef LA_FORM_H
#define LA_FORM_H

#include "operators.h"

enum { LA_MAX_RANK = 3 };

struct la_form_operand {
    enum la_operand id;
    int rank;
    char dims[LA_MAX_RANK + 1]; /* letters of the dimensions that it always has */
    char channels;              /* that of one more that it may have, or '\0' */
    int optional;               /* it may be left out */
    int choice; /* number of the choice that channels or optional make, from 0 on; -1 */
    int of;     /* the input that it is the gradient of, or -1 */
};

/* Operands in their order: inputs, the state's fields, outputs. */
struct la_form {
    enum la_op op;
    int nin, nstate, nout, nchoices;
    struct la_form_operand operands[LA_MAX_OPERANDS];
};

/* Reads the form of an operator.  One that is wrong ends the process. */
void la_form_read(struct la_form *form, enum la_op op);

#endif
