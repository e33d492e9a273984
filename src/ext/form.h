/* form.h: the forms of an operator: which operands it takes and gives in which order.
 *
 * A row of operators.def gives one form or several: with and without the normaliser,
 * with states of packed sequences, a number of keys, beta or gates by channel, a bonus
 * or erase keys, a state in place.
 */
#ifndef LA_FORM_H
#define LA_FORM_H

#include <stddef.h>

#include "../kernel/table.h"

enum { LA_MAX_DIMS = 8, LA_MAX_RANK = 3 };

/* A row of operators.def. */
struct la_operator {
    const char *name, *form;
    int properties;
    ptrdiff_t rows;
    const char *doc;
};

extern const struct la_operator la_operators[LA_NOPS];
extern const char *const la_map_names[LA_NMAPS];
extern const char la_map_of_rows[LA_NMAPS]; /* whether a number depends on its row */

/* Which form: LA_NORMALIZER, LA_STATES, LA_KEYS, LA_CHANNELS, LA_IN_PLACE,
 * LA_GATE_CHANNELS, LA_BONUS, LA_ERASE, each of which must be among the operator's
 * properties. */
typedef int la_variant;

struct la_form {
    enum la_op op;
    la_variant variant;
    int nin, nout;
    struct la_slot {
        enum la_operand id;
        int rank;
        char dims[LA_MAX_RANK]; /* the letters of its core dimensions */
    } slots[LA_MAX_OPERANDS];
    int ndims;
    char dims[LA_MAX_DIMS + 1]; /* letters in order of appearance, as NumPy counts */
};

/* The choices that an operator offers, of which any make a form. */
la_variant la_form_choices(enum la_op op);

/* One form of an operator. */
void la_form_read(struct la_form *form, enum la_op op, la_variant variant);

/* Its name, e.g. "delta_channels_state_backward", to which a map is added. */
void la_form_name(const struct la_form *form, char *text, size_t size);

/* NumPy's signature of a form, e.g. "(n,d),(n,d),(n,m),(),()->(n,m)". */
void la_form_signature(const struct la_form *form, char *text, size_t size);

/* "q, k, v, scale, eps -> o" */
void la_form_operands(const struct la_form *form, char *text, size_t size);

/* Kinds of operands: arrays of tokens or of states, numbers, indices. */
int la_is_tokens(enum la_operand id);
int la_is_number(enum la_operand id);
int la_is_index(enum la_operand id);

/* Which input the output i is the gradient of, or -1. */
int la_form_gradient_of(const struct la_form *form, int i);

/* Whether a call may leave out operand i: where sequences are, for one that is all,
 * states that are zero, or that no one wants. */
int la_may_lack(const struct la_form *form, int i);

/* Position of a dimension's letter among form->dims, or -1. */
int la_form_dim(const struct la_form *form, char letter);

#endif
