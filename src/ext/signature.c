/* signature.c: see signature.h. */
#undef NDEBUG /* the assertions below are the same in every build */
#include "signature.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int
is_gradient(enum la_op op)
{
    return la_gradient_of(op) != LA_NOPS;
}

static int
is_step(enum la_op op)
{
    return la_step_of(op) != LA_NOPS || la_operators[op].properties & LA_LAYER_TOKEN;
}

la_variant
la_variants(const struct la_form *form)
{
    const int properties = la_operators[form->op].properties;
    const int has_states = form->nstate > 0 && !is_step(form->op);
    return (properties & LA_NORMALIZER ? LA_WITH_NORMALIZER : 0) |
           (has_states ? LA_WITH_STATES : 0) |
           (properties & LA_KEYS && !has_states ? LA_WITH_KEYS : 0) |
           (is_step(form->op) ? LA_WITH_IN_PLACE : 0) |
           ((LA_WITH_CHOICE << form->nchoices) - LA_WITH_CHOICE);
}

int
la_variant_exists(const struct la_form *form, la_variant variant)
{
    int blocks = 0, shared = 0;
    for (int i = 0; i < form->nin; i++) {
        const struct la_form_operand *x = &form->operands[i];
        if (x->optional && variant & LA_WITH_CHOICE << x->choice) {
            blocks |= x->id == LA_AT_block;
            shared |= x->id < LA_NARRAYS && strpbrk(x->dims, "ns") == NULL;
        }
    }
    return !(blocks && shared);
}

/* The index of the input with that id, or -1. */
static int
find_input(const struct la_signature *signature, enum la_operand id)
{
    int i = signature->nin - 1;
    while (i >= 0 && signature->slots[i].id != id) {
        i--;
    }
    return i;
}

static void
add_dim(struct la_signature *signature, struct la_slot *slot, char letter)
{
    assert(slot->rank < LA_MAX_RANK);
    slot->dims[slot->rank++] = letter;
    if (la_signature_dim(signature, letter) < 0) {
        assert(signature->ndims < LA_MAX_DIMS && letter >= 'a' && letter <= 'z');
        signature->dims[signature->ndims++] = letter;
        signature->place[letter - 'a'] = (unsigned char)signature->ndims;
    }
}

/* Adds an operand with these dimensions, after a dimension r if it has one value per
 * sequence, to the inputs or the outputs, which `count` counts. */
static struct la_slot *
add_slot(struct la_signature *signature, int *count, enum la_operand id,
         int per_sequence, const char *dims)
{
    const int at = signature->nin + signature->nout;
    assert(at < LA_MAX_OPERANDS && id != LA_NOPERANDS);
    struct la_slot *slot = &signature->slots[at];
    *slot = (struct la_slot){.id = id, .of = -1};
    if (per_sequence) {
        add_dim(signature, slot, 'r');
    }
    for (; *dims != '\0'; dims++) {
        add_dim(signature, slot, *dims);
    }
    ++*count;
    return slot;
}

/* Whether this operand belongs to the normaliser, which the variant lacks. */
static int
is_unnormalized(const struct la_signature *signature, enum la_operand id)
{
    return la_operands[id].of_z &&
           la_operators[signature->op].properties & LA_NORMALIZER &&
           !(signature->variant & LA_WITH_NORMALIZER);
}

static int
is_chosen(const struct la_signature *signature, const struct la_form_operand *x)
{
    return x->choice >= 0 && signature->variant & LA_WITH_CHOICE << x->choice;
}

/* Adds an operand of the form, if the variant has it. */
static void
add_operand(struct la_signature *signature, int *count, const struct la_form *form,
            const struct la_form_operand *x)
{
    if (is_unnormalized(signature, x->id) ||
        (x->optional && !is_chosen(signature, x))) {
        return;
    }
    const int has_tokens = strpbrk(x->dims, "ns") != NULL;
    const int summed = x->of >= 0 && !has_tokens && signature->variant & LA_WITH_STATES;
    struct la_slot *slot = add_slot(signature, count, x->id, summed, x->dims);
    slot->has_channels = x->channels != '\0' && is_chosen(signature, x);
    if (slot->has_channels) {
        add_dim(signature, slot, x->channels);
    }
    slot->may_lack = la_is_index(x->id) && x->dims[0] == 'r';
    slot->of = x->of < 0 ? -1 : find_input(signature, form->operands[x->of].id);
}

/* Adds an index, one per sequence or one per head. */
static void
add_index(struct la_signature *signature, enum la_operand id, int per_sequence)
{
    add_slot(signature, &signature->nin, id, per_sequence, "")->may_lack = per_sequence;
}

/* Adds an operand for each field of the state, named "s0", "grad_s" and so on. */
static void
add_state(struct la_signature *signature, int *count, const struct la_form *form,
          const char *prefix, const char *suffix)
{
    const int packed = signature->variant & LA_WITH_STATES;
    for (int i = form->nin; i < form->nin + form->nstate; i++) {
        const struct la_form_operand *field = &form->operands[i];
        char name[32];
        if (is_unnormalized(signature, field->id) ||
            (field->optional && !is_chosen(signature, field))) {
            continue;
        }
        snprintf(name, sizeof(name), "%s%s%s", prefix, la_operands[field->id].name,
                 suffix);
        add_slot(signature, count, la_operand_find(name), packed, field->dims)
            ->may_lack = packed;
    }
}

static void
add_inputs(struct la_signature *signature, const struct la_form *form)
{
    int *count = &signature->nin;
    for (int i = 0; i < form->nin; i++) {
        add_operand(signature, count, form, &form->operands[i]);
    }
    if (signature->variant & LA_WITH_STATES) {
        add_index(signature, LA_AT_begin, 1);
        add_index(signature, LA_AT_end, 1);
    }
    if (la_operators[form->op].properties & LA_KEYS &&
        signature->variant & (LA_WITH_STATES | LA_WITH_KEYS)) {
        add_index(signature, LA_AT_keys, signature->variant & LA_WITH_STATES);
    }
    if (signature->variant & LA_WITH_STATES ||
        (is_step(form->op) && !(signature->variant & LA_WITH_IN_PLACE))) {
        add_state(signature, count, form, "", "0");
    }
    if (signature->variant & LA_WITH_STATES && is_gradient(form->op)) {
        add_state(signature, count, form, "grad_", "");
    }
}

static void
add_outputs(struct la_signature *signature, const struct la_form *form)
{
    const int first = form->nin + form->nstate;
    int *count = &signature->nout;
    for (int i = first; i < first + form->nout; i++) {
        add_operand(signature, count, form, &form->operands[i]);
    }
    if (signature->variant & LA_WITH_STATES && is_gradient(form->op)) {
        add_state(signature, count, form, "d", "0");
    }
    else if (signature->variant & LA_WITH_STATES || is_step(form->op)) {
        add_state(signature, count, form, "", "");
    }
}

static void
append(char *text, size_t size, const char *more)
{
    const size_t used = strlen(text), length = strlen(more);
    assert(used + length < size);
    memcpy(text + used, more, length + 1);
}

void
la_choice_suffix(const struct la_form_operand *x, char *text, size_t size)
{
    text[0] = '\0';
    if (x->choice < 0 || x->of >= 0) { /* a gradient has the choice of its input */
        return;
    }
    assert(x->optional || x->channels == 'd' || x->channels == 'm');
    append(text, size, "_");
    append(text, size,
           x->optional          ? la_operands[x->id].name
           : x->channels == 'd' ? "key_channels"
                                : "channels");
}

static void
set_name(struct la_signature *signature, const struct la_form *form)
{
    char *text = signature->name;
    const size_t size = sizeof(signature->name);
    const char *name = la_operators[form->op].name;
    const size_t stem = la_stem_length(form->op);
    snprintf(text, size, "%s%.*s", signature->variant & LA_WITH_IN_PLACE ? "_" : "",
             (int)stem, name);
    int named = -1; /* the last choice: one that several operands have is named once */
    for (int i = 0; i < form->nin; i++) {
        const struct la_form_operand *x = &form->operands[i];
        if (is_chosen(signature, x) && x->choice > named) {
            named = x->choice;
            char suffix[LA_MAX_SUFFIX];
            la_choice_suffix(x, suffix, sizeof(suffix));
            append(text, size, suffix);
        }
    }
    append(text, size, signature->variant & LA_WITH_STATES ? "_state" : "");
    append(text, size, signature->variant & LA_WITH_KEYS ? "_keys" : "");
    append(text, size, name + stem);
}

void
la_signature_read(struct la_signature *signature, const struct la_form *form,
                  la_variant variant)
{
    memset(signature, 0, sizeof(*signature));
    signature->op = form->op;
    signature->variant = variant;
    signature->nstate = form->nstate;
    add_inputs(signature, form);
    add_outputs(signature, form);
    set_name(signature, form);
}

void
la_signature_numpy(const struct la_signature *signature, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        const struct la_slot *slot = &signature->slots[i];
        append(text, size, i == signature->nin ? "->(" : i > 0 ? ",(" : "(");
        for (int j = 0; j < slot->rank; j++) {
            const char letter[] = {',', slot->dims[j], '\0'};
            append(text, size, letter + (j == 0));
        }
        append(text, size, ")");
    }
}

void
la_signature_operands(const struct la_signature *signature, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        append(text, size, i == signature->nin ? " -> " : i > 0 ? ", " : "");
        append(text, size, la_operands[signature->slots[i].id].name);
    }
}
