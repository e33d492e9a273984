/* form.c: reads the forms of the gufuncs. */
#include "form.h"

#include <stdio.h>
#include <string.h>

static const struct operand {
    const char *name;
    enum la_kind kind;
    int normalizer; /* exists only with the normaliser */
    size_t place;   /* in la_head, for arrays */
} operands[LA_NOPERANDS] = {
    [LA_Q] = {"q", LA_TOKENS, 0, offsetof(struct la_head, q)},
    [LA_K] = {"k", LA_TOKENS, 0, offsetof(struct la_head, k)},
    [LA_V] = {"v", LA_TOKENS, 0, offsetof(struct la_head, v)},
    [LA_BETA] = {"beta", LA_TOKENS, 0, offsetof(struct la_head, beta)},
    [LA_G] = {"grad_out", LA_TOKENS, 0, offsetof(struct la_head, g)},
    [LA_SCALE] = {"scale", LA_NUMBER, 0, 0},
    [LA_EPS] = {"eps", LA_NUMBER, 1, 0},
    [LA_BEGIN] = {"begin", LA_INDEX, 0, 0},
    [LA_END] = {"end", LA_INDEX, 0, 0},
    [LA_KEYS] = {"keys", LA_INDEX, 0, 0},
    [LA_S0] = {"s0", LA_STATE, 0, offsetof(struct la_head, s0)},
    [LA_Z0] = {"z0", LA_STATE, 1, offsetof(struct la_head, z0)},
    [LA_GS] = {"grad_s", LA_STATE, 0, offsetof(struct la_head, gs)},
    [LA_GZ] = {"grad_z", LA_STATE, 1, offsetof(struct la_head, gz)},
    [LA_O] = {"o", LA_TOKENS, 0, offsetof(struct la_head, o)},
    [LA_S] = {"s", LA_STATE, 0, offsetof(struct la_head, s1)},
    [LA_Z] = {"z", LA_STATE, 1, offsetof(struct la_head, z1)},
    [LA_DQ] = {"dq", LA_TOKENS, 0, offsetof(struct la_head, dq)},
    [LA_DK] = {"dk", LA_TOKENS, 0, offsetof(struct la_head, dk)},
    [LA_DV] = {"dv", LA_TOKENS, 0, offsetof(struct la_head, dv)},
    [LA_DBETA] = {"dbeta", LA_TOKENS, 0, offsetof(struct la_head, dbeta)},
    [LA_DS0] = {"ds0", LA_STATE, 0, offsetof(struct la_head, ds0)},
    [LA_DZ0] = {"dz0", LA_STATE, 1, offsetof(struct la_head, dz0)},
};

enum la_kind
la_operand_kind(enum la_operand id)
{
    return operands[id].kind;
}

struct la_array *
la_operand_in(struct la_head *head, enum la_operand id)
{
    return operands[id].kind == LA_TOKENS || operands[id].kind == LA_STATE
               ? (struct la_array *)((char *)head + operands[id].place)
               : NULL;
}

int
la_form_dim(const struct la_form *form, char letter)
{
    const char *p = strchr(form->dims, letter);
    return letter != '\0' && p != NULL ? (int)(p - form->dims) : -1;
}

/* Reads "name(a,b)" at *text into slot, and moves *text behind it. */
static int
read_slot(struct la_slot *slot, const char **text)
{
    const char *open = strchr(*text, '(');
    const size_t length = open ? (size_t)(open - *text) : 0;
    for (int id = 0; open != NULL && id < LA_NOPERANDS; id++) {
        if (strlen(operands[id].name) != length ||
            strncmp(operands[id].name, *text, length) != 0) {
            continue;
        }
        slot->id = (enum la_operand)id;
        slot->rank = 0;
        for (open++; *open != ')'; open++) {
            if (*open != ',') {
                slot->dims[slot->rank++] = *open;
            }
        }
        *text = open + 1;
        return 0;
    }
    return -1;
}

int
la_form_read(struct la_form *form, const char *text, int normalize)
{
    memset(form, 0, sizeof(*form));
    int *count = &form->nin;
    while (*text != '\0') {
        if (*text == ' ') {
            text++;
        }
        else if (strncmp(text, "->", 2) == 0) {
            text += 2;
            count = &form->nout;
        }
        else {
            struct la_slot *slot = &form->slots[form->nin + form->nout];
            if (read_slot(slot, &text) < 0) {
                return -1;
            }
            if (operands[slot->id].normalizer && !normalize) {
                continue;
            }
            for (int i = 0; i < slot->rank; i++) {
                if (la_form_dim(form, slot->dims[i]) < 0) {
                    form->dims[form->ndims++] = slot->dims[i];
                }
            }
            ++*count;
        }
    }
    return 0;
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
la_form_names(const struct la_form *form, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; i < form->nin + form->nout; i++) {
        append(text, size, i == form->nin ? " -> " : i > 0 ? ", " : "");
        append(text, size, operands[form->slots[i].id].name);
    }
}
