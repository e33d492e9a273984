/* form.c: reads the rows of operators.def.  They are the same in every build, so that
 * whatever is wrong in one of them ends the first import with its assertion. */
#undef NDEBUG
#include "form.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

const struct la_operator la_operators[LA_NOPS] = {
#define LA_OP(op, form, properties, rows, doc) {#op, form, properties, rows, doc},
#include "../kernel/operators.def"
};

const char *const la_map_names[LA_NMAPS] = {
#define LA_MAP(map) #map,
#define LA_ROW_MAP(map) #map,
#include "../kernel/maps.def"
};

const char la_map_of_rows[LA_NMAPS] = {
#define LA_ROW_MAP(map) [LA_MAP_##map] = 1,
#include "../kernel/maps.def"
};

static const struct operand {
    const char *name;
    enum la_kind kind;
    int of_z; /* exists only with the normaliser */
} operands[LA_NOPERANDS] = {
#define LA_ARRAY(field, name, kind, of_z) [LA_AT_##field] = {name, kind, of_z},
#include "../kernel/operands.def"
#define LA_NUMBER(name, of_z) [LA_AT_##name] = {#name, LA_STATE, of_z},
#include "../kernel/operands.def"
#define LA_INDEX(name) [LA_AT_##name] = {#name, LA_STATE, 0},
#include "../kernel/operands.def"
};

int
la_is_tokens(enum la_operand id)
{
    return operands[id].kind == LA_TOKENS;
}

int
la_is_number(enum la_operand id)
{
    return id >= LA_NARRAYS && id < LA_NARRAYS + LA_NNUMBERS;
}

int
la_is_index(enum la_operand id)
{
    return id >= LA_NARRAYS + LA_NNUMBERS;
}

int
la_form_dim(const struct la_form *form, char letter)
{
    const char *p = strchr(form->dims, letter);
    return letter != '\0' && p != NULL ? (int)(p - form->dims) : -1;
}

static int
find_operand(const char *name, size_t length)
{
    int id = 0;
    while (strlen(operands[id].name) != length ||
           strncmp(operands[id].name, name, length) != 0) {
        id++;
        assert(id < LA_NOPERANDS);
    }
    return id;
}

/* The dimensions between parentheses; b is m, c is d, and p is r, or nothing, as the
 * variant has it. */
static void
read_dims(struct la_slot *slot, const char *text, la_variant variant)
{
    for (; *text != ')'; text++) {
        if (*text == ',' || (*text == 'b' && !(variant & LA_CHANNELS)) ||
            (*text == 'c' && !(variant & LA_GATE_CHANNELS)) ||
            (*text == 'p' && !(variant & LA_STATES))) {
            continue;
        }
        slot->dims[slot->rank++] = *text == 'b'   ? 'm'
                                   : *text == 'c' ? 'd'
                                   : *text == 'p' ? 'r'
                                                  : *text;
    }
}

/* Whether the form has that operand already. */
static int
has(const struct la_form *form, int id)
{
    int i = 0;
    while (i < form->nin + form->nout && form->slots[i].id != (enum la_operand)id) {
        i++;
    }
    return i < form->nin + form->nout;
}

int
la_may_lack(const struct la_form *form, int i)
{
    const enum la_operand id = form->slots[i].id;
    if (la_is_index(id)) {
        return has(form, LA_AT_begin);
    }
    return form->variant & LA_STATES &&
           (id == LA_AT_s0 || id == LA_AT_z0 || id == LA_AT_grad_s ||
            id == LA_AT_grad_z || id == LA_AT_s1 || id == LA_AT_z1 || id == LA_AT_ds0 ||
            id == LA_AT_dz0);
}

/* Whether the operand has a place in this form. */
static int
belongs(const struct la_form *form, int id)
{
    const int properties = la_operators[form->op].properties;
    if (id == LA_AT_keys && !has(form, LA_AT_k)) {
        return 0;
    }
    if (operands[id].of_z && properties & (LA_NORMALIZER | LA_STATES) &&
        !(form->variant & LA_NORMALIZER)) {
        return 0;
    }
    if (id == LA_AT_bonus || id == LA_AT_dbonus) {
        return form->variant & LA_BONUS;
    }
    if (id == LA_AT_erase || id == LA_AT_derase) {
        return form->variant & LA_ERASE;
    }
    return !(form->variant & LA_IN_PLACE && (id == LA_AT_s0 || id == LA_AT_z0));
}

/* Adds the operands that text lists, "q(n,d) k(n,d)", up to "->" or its end, and counts
 * them; where it stopped. */
static const char *
read_slots(struct la_form *form, const char *text, int *count)
{
    while (*text != '\0' && strncmp(text, "->", 2) != 0) {
        if (*text == ' ') {
            text++;
            continue;
        }
        const size_t length = strcspn(text, "(");
        const int id = find_operand(text, length);
        assert(form->nin + form->nout < LA_MAX_OPERANDS);
        if (belongs(form, id)) {
            struct la_slot *slot = &form->slots[form->nin + form->nout];
            slot->id = (enum la_operand)id;
            if (id == LA_AT_dbonus && form->variant & LA_STATES) {
                slot->dims[slot->rank++] = 'r'; /* a sum over each sequence's tokens */
            }
            read_dims(slot, text + length + 1, form->variant);
            ++*count;
        }
        text += strcspn(text, ")") + 1;
    }
    return text;
}

static int
is_backward(const struct la_operator *op)
{
    return strstr(op->name, "_backward") != NULL;
}

la_variant
la_form_choices(enum la_op op)
{
    return la_operators[op].properties &
           (LA_NORMALIZER | LA_STATES | LA_KEYS | LA_CHANNELS | LA_IN_PLACE |
            LA_GATE_CHANNELS | LA_BONUS | LA_ERASE);
}

void
la_form_read(struct la_form *form, enum la_op op, la_variant variant)
{
    const struct la_operator *row = &la_operators[op];
    const int states = variant & LA_STATES, backward = is_backward(row);
    memset(form, 0, sizeof(*form));
    form->op = op;
    form->variant = variant;
    const char *text = read_slots(form, row->form, &form->nin);
    assert(*text != '\0');
    if (states) {
        read_slots(form, "begin(r) end(r) keys(r) s0(r,d,m) z0(r,d)", &form->nin);
    }
    if (states && backward) {
        read_slots(form, "grad_s(r,d,m) grad_z(r,d)", &form->nin);
    }
    if (variant & LA_KEYS) {
        read_slots(form, "keys()", &form->nin);
    }
    read_slots(form, text + 2, &form->nout);
    if (states) {
        read_slots(form, backward ? "ds0(r,d,m) dz0(r,d)" : "s(r,d,m) z(r,d)",
                   &form->nout);
    }
    for (int i = 0; i < form->nin + form->nout; i++) {
        for (int j = 0; j < form->slots[i].rank; j++) {
            if (la_form_dim(form, form->slots[i].dims[j]) < 0) {
                form->dims[form->ndims++] = form->slots[i].dims[j];
            }
        }
    }
}

void
la_form_name(const struct la_form *form, char *text, size_t size)
{
    const struct la_operator *op = &la_operators[form->op];
    const char *end = strstr(op->name, "_backward");
    end = end != NULL ? end : strstr(op->name, "_step");
    const int stem = end != NULL ? (int)(end - op->name) : (int)strlen(op->name);
    snprintf(text, size, "%s%.*s%s%s%s%s%s%s%s", form->variant & LA_IN_PLACE ? "_" : "",
             stem, op->name, form->variant & LA_GATE_CHANNELS ? "_key_channels" : "",
             form->variant & LA_CHANNELS ? "_channels" : "",
             form->variant & LA_BONUS ? "_bonus" : "",
             form->variant & LA_ERASE ? "_erase" : "",
             form->variant & LA_STATES ? "_state" : "",
             form->variant & LA_KEYS ? "_keys" : "", op->name + stem);
}

/* Appends to text as far as it has room. */
static void
append(char *text, size_t size, const char *more)
{
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s", more);
}

void
la_form_signature(const struct la_form *form, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; i < form->nin + form->nout; i++) {
        const struct la_slot *slot = &form->slots[i];
        append(text, size, i == form->nin ? "->(" : i > 0 ? ",(" : "(");
        for (int j = 0; j < slot->rank; j++) {
            const char letter[] = {',', slot->dims[j], '\0'};
            append(text, size, letter + (j == 0));
        }
        append(text, size, ")");
    }
}

void
la_form_operands(const struct la_form *form, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; i < form->nin + form->nout; i++) {
        append(text, size, i == form->nin ? " -> " : i > 0 ? ", " : "");
        append(text, size, operands[form->slots[i].id].name);
    }
}

int
la_form_gradient_of(const struct la_form *form, int i)
{
    const char *name = operands[form->slots[i].id].name;
    int of = name[0] == 'd' && i >= form->nin ? form->nin - 1 : -1;
    while (of >= 0 && strcmp(operands[form->slots[of].id].name, name + 1) != 0) {
        of--;
    }
    return of;
}
