/* form.h: what a gufunc takes and gives, read from one line of text. */
#ifndef LA_FORM_H
#define LA_FORM_H

#include <stddef.h>

#include "../kernel/table.h"

enum { LA_MAX_OPERANDS = 24, LA_MAX_DIMS = 6, LA_MAX_RANK = 4 };

/* Operands by the names that form.c lists; each is an array of la_head, a number,
 * or an index. */
enum la_operand {
    LA_Q,
    LA_K,
    LA_V,
    LA_BETA,
    LA_G,
    LA_SCALE,
    LA_EPS,
    LA_BEGIN,
    LA_END,
    LA_KEYS,
    LA_S0,
    LA_Z0,
    LA_GS,
    LA_GZ,
    LA_O,
    LA_S,
    LA_Z,
    LA_DQ,
    LA_DK,
    LA_DV,
    LA_DBETA,
    LA_DS0,
    LA_DZ0,
    LA_NOPERANDS
};

/* Tokens may be held in 16 bits; states and numbers are as computed. */
enum la_kind { LA_TOKENS, LA_STATE, LA_NUMBER, LA_INDEX };

struct la_form {
    int nin, nout;
    struct la_slot {
        enum la_operand id;
        int rank;
        char dims[LA_MAX_RANK]; /* the letters of its core dimensions */
    } slots[LA_MAX_OPERANDS];
    int ndims;
    char dims[LA_MAX_DIMS + 1]; /* letters in order of appearance, as NumPy counts */
};

/* Reads e.g. "q(n,d) k(n,d) v(n,m) scale() eps() -> o(n,m)".  Where normalize is 0,
 * eps and all that belongs to z are left out.  0, or -1 on a name it does not know. */
int la_form_read(struct la_form *form, const char *text, int normalize);

/* NumPy's signature of a form, e.g. "(n,d),(n,d),(n,m),(),()->(n,m)". */
void la_form_signature(const struct la_form *form, char *text, size_t size);

/* "q, k, v, scale, eps -> o" */
void la_form_names(const struct la_form *form, char *text, size_t size);

enum la_kind la_operand_kind(enum la_operand id);

/* The operand's place in a la_head; NULL where it is a number or an index. */
struct la_array *la_operand_in(struct la_head *head, enum la_operand id);

/* Position of a dimension's letter among form->dims, or -1. */
int la_form_dim(const struct la_form *form, char letter);

#endif
