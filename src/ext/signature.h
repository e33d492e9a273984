/* signature.h: the operands of a variant of an operator, in order.
 *
 * A form (form.h) has one signature or several: with and without the normaliser, with
 * states of packed sequences, with the number of keys, with a state updated in place,
 * and with and without each optional dimension or operand. */
#ifndef LA_SIGNATURE_H
#define LA_SIGNATURE_H

#include "form.h"

enum { LA_MAX_DIMS = 12, LA_MAX_SUFFIX = 32 };

/* A variant: a set of the bits below, among those that la_variants offers, if it exists
 * (la_variant_exists). */
typedef int la_variant;

enum la_variant_bit {
    LA_WITH_NORMALIZER = 1,
    LA_WITH_STATES = 2,   /* r packed sequences with their states */
    LA_WITH_KEYS = 4,     /* the number of keys */
    LA_WITH_IN_PLACE = 8, /* a step that updates its state */
    LA_WITH_CHOICE = 16   /* the form's first choice; further ones follow */
};

struct la_signature {
    char name[80]; /* such as "delta_channels_state_backward", to which the map is added
                    */
    enum la_op op;
    la_variant variant;
    int nin, nout;
    int nstate; /* fields of the state, also where the variant does not take them */
    struct la_slot {
        enum la_operand id;
        int rank;
        char dims[LA_MAX_RANK]; /* the letters of its core dimensions */
        int has_channels;       /* it has its optional dimension */
        int may_lack;           /* calls may leave it out (la_may_lack) */
        int of;                 /* the input that it is the gradient of, or -1 */
    } slots[LA_MAX_OPERANDS];
    int ndims;
    char dims[LA_MAX_DIMS + 1]; /* letters in the order of their first appearance, which
                                   is NumPy's order */
    unsigned char place['z' - 'a' + 1]; /* of each letter in dims, from 1 on; 0: none */
};

/* All bits that a form offers. */
la_variant la_variants(const struct la_form *form);

/* Whether a subset of them is a variant.  All are, except those with blocks, whose
 * tokens read nothing but a state, and an optional operand that tokens share. */
int la_variant_exists(const struct la_form *form, la_variant variant);

/* The signature of a variant. */
void la_signature_read(struct la_signature *signature, const struct la_form *form,
                       la_variant variant);

/* The part of a gufunc's name that stands for a choice of the form: "_key_channels"
 * if the operand has its optional dimension, "_bonus" if it is given; "" for
 * operands without a choice, and for gradients. */
void la_choice_suffix(const struct la_form_operand *x, char *text, size_t size);

/* The signature in NumPy's syntax, such as "(n,d),(n,d),(n,m),(),()->(n,m)". */
void la_signature_numpy(const struct la_signature *signature, char *text, size_t size);

/* The names of the operands, such as "q, k, v, scale, eps -> o". */
void la_signature_operands(const struct la_signature *signature, char *text,
                           size_t size);

/* Whether a call may leave out operand i: begin, end and keys if all tokens are one
 * sequence, initial states that are zero, and final states that are not wanted. */
static inline int
la_may_lack(const struct la_signature *signature, int i)
{
    return signature->slots[i].may_lack;
}

/* Index of an operand, or -1. */
static inline int
la_signature_slot(const struct la_signature *signature, int id)
{
    int i = signature->nin + signature->nout - 1;
    while (i >= 0 && (int)signature->slots[i].id != id) {
        i--;
    }
    return i;
}

/* Of a field of the state after the tokens, the index of the one before them; else, or
 * without that, -1. */
static inline int
la_signature_before(const struct la_signature *signature, int i)
{
    const int id = signature->slots[i].id;
    return i >= signature->nin && la_is_state(id) ? la_signature_slot(signature, id - 1)
                                                  : -1;
}

/* Index of a dimension's letter in signature->dims, or -1. */
static inline int
la_signature_dim(const struct la_signature *signature, char letter)
{
    return letter == '\0' ? -1 : signature->place[letter - 'a'] - 1;
}

#endif
