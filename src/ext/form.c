/* form.c: see form.h.  Forms are the same in every build, so an error in one of them
 * fails an assertion at the first import. */
#undef NDEBUG
#include "form.h"

#include <assert.h>
#include <string.h>

/* The index of the input of that name; -1 if the form has none. */
static int
find_input(const struct la_form *form, const char *name)
{
    int i = form->nin - 1;
    while (i >= 0 && strcmp(la_operands[form->operands[i].id].name, name) != 0) {
        i--;
    }
    return i;
}

/* Reads the name of an operand; returns where it ends. */
static const char *
read_name(struct la_form_operand *x, const char *text)
{
    const size_t length = strcspn(text, " (");
    char name[32];
    assert(length < sizeof(name));
    memcpy(name, text, length);
    name[length] = '\0';
    *x = (struct la_form_operand){.id = la_operand_find(name), .choice = -1, .of = -1};
    assert(x->id != LA_NOPERANDS);
    return text + length;
}

/* Reads dimensions, "n,d?)" or "d)?"; returns where they end. */
static const char *
read_dims(struct la_form_operand *x, const char *text)
{
    for (; *text != ')'; text += *text == ',') {
        const char letter = *text++;
        assert(x->channels == '\0'); /* must be the last one */
        if (*text == '?') {
            x->channels = letter;
            text++;
        }
        else {
            assert(x->rank < LA_MAX_RANK);
            x->dims[x->rank++] = letter;
        }
        assert(*text == ',' || *text == ')');
    }
    x->optional = text[1] == '?';
    return text + 1 + x->optional;
}

/* Reads an output without dimensions: the gradient of an input, with its dimensions. */
static void
follow_input(const struct la_form *form, struct la_form_operand *x)
{
    const enum la_operand id = x->id;
    const int of = la_operands[id].name[0] == 'd'
                       ? find_input(form, la_operands[id].name + 1)
                       : -1;
    assert(of >= 0);
    *x = form->operands[of];
    x->id = id;
    x->of = of;
}

/* The choice of an input with this letter as its optional dimension, or a new one. */
static int
choice_of_channels(struct la_form *form, char letter)
{
    for (int i = 0; i < form->nin; i++) {
        if (form->operands[i].channels == letter) {
            return form->operands[i].choice;
        }
    }
    return form->nchoices++;
}

/* Gives an optional field of the state the choice of the input that the text names;
 * returns where the name ends. */
static const char *
follow_choice(const struct la_form *form, struct la_form_operand *x, const char *text)
{
    struct la_form_operand given;
    text = read_name(&given, text);
    const int i = find_input(form, la_operands[given.id].name);
    assert(i >= 0 && form->operands[i].optional);
    x->choice = form->operands[i].choice;
    return text;
}

/* Adds the operands that the text lists, such as "q(n,d) g(n,d?) bonus(d)?", up to "|",
 * "->" or its end, and counts them; returns where it stopped. */
static const char *
read_operands(struct la_form *form, const char *text, int *count)
{
    for (text += strspn(text, " "); *text != '\0' && *text != '|' && *text != '-';
         text += strspn(text, " ")) {
        const int at = form->nin + form->nstate + form->nout;
        assert(at < LA_MAX_OPERANDS);
        struct la_form_operand *x = &form->operands[at];
        text = read_name(x, text);
        if (*text == '(') {
            text = read_dims(x, text + 1);
            if (x->optional && count == &form->nstate) {
                text = follow_choice(form, x, text);
            }
            else if (x->optional || x->channels != '\0') {
                assert(count == &form->nin && x->optional != (x->channels != '\0'));
                x->choice = x->optional ? form->nchoices++
                                        : choice_of_channels(form, x->channels);
            }
        }
        else {
            assert(count == &form->nout);
            follow_input(form, x);
        }
        ++*count;
    }
    return text;
}

void
la_form_read(struct la_form *form, enum la_op op)
{
    memset(form, 0, sizeof(*form));
    form->op = op;
    form->is_step = la_step_of(op) != LA_NOPS;
    const char *text = read_operands(form, la_operators[op].form, &form->nin);
    if (*text == '|') {
        text = read_operands(form, text + 1, &form->nstate);
    }
    assert(strncmp(text, "->", 2) == 0);
    text = read_operands(form, text + 2, &form->nout);
    assert(*text == '\0');
}
