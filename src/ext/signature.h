/* signature.h: which operands a variant of an operator takes and gives, in which order.
 *
 * A form (form.h) gives one signature or several: with and without the normaliser, with
 * states of packed sequences, a number of keys, a state in place, each dimension or
 * operand that may be left out. */
#ifndef LA_SIGNATURE_H
#define LA_SIGNATURE_H

#include "form.h"

enum { LA_MAX_DIMS = 8 };

/* Which variant: any of these that la_variants offers. */
typedef int la_variant;

enum la_variant_bit {
    LA_WITH_NORMALIZER = 1,
    LA_WITH_STATES = 2,   /* r packed sequences with their states */
    LA_WITH_KEYS = 4,     /* how many keys exist */
    LA_WITH_IN_PLACE = 8, /* a step that updates its state */
    LA_WITH_CHOICE = 16   /* the form's first choice; each further one twice that */
};

struct la_signature {
    char name[64]; /* "delta_channels_state_backward", to which a map is added */
    enum la_op op;
    la_variant variant;
    int nin, nout;
    struct la_slot {
        enum la_operand id;
        int rank;
        char dims[LA_MAX_RANK]; /* the letters of its core dimensions */
        int has_channels;       /* the dimension that it may have is there */
        int may_lack;           /* a call may leave it out (la_may_lack) */
        int of;                 /* the input that it is the gradient of, or -1 */
    } slots[LA_MAX_OPERANDS];
    int ndims;
    char dims[LA_MAX_DIMS + 1]; /* letters in order of appearance, as NumPy counts */
};

/* The bits that a form offers, of which any make a variant. */
la_variant la_variants(const struct la_form *form);

/* The signature of a variant. */
void la_signature_read(struct la_signature *signature, const struct la_form *form,
                       la_variant variant);

/* As NumPy writes it, e.g. "(n,d),(n,d),(n,m),(),()->(n,m)". */
void la_signature_numpy(const struct la_signature *signature, char *text, size_t size);

/* "q, k, v, scale, eps -> o" */
void la_signature_operands(const struct la_signature *signature, char *text,
                           size_t size);

/* Whether a call may leave out operand i: begin, end and keys where all tokens are one
 * sequence, states that are zero before it or not wanted after it. */
static inline int
la_may_lack(const struct la_signature *signature, int i)
{
    return signature->slots[i].may_lack;
}

/* Position of a dimension's letter among signature->dims, or -1. */
int la_signature_dim(const struct la_signature *signature, char letter);

#endif
