/* operators.h: the rows of operators.def, maps.def and operands.def. */
#ifndef LA_OPERATORS_H
#define LA_OPERATORS_H

#include <stddef.h>

#include "../kernel/table.h"

/* A row of operators.def. */
struct la_operator {
    const char *name, *form;
    int properties;
    ptrdiff_t rows;
    const char *doc;
};

extern const struct la_operator la_operators[LA_NOPS];

/* A row of maps.def. */
struct la_map_row {
    const char *name;
    int of_rows;   /* each number of phi(x) depends on the whole row */
    int is_signed; /* phi(x) can be negative */
};

extern const struct la_map_row la_maps[LA_NMAPS];

/* Numbers of the operands: arrays, then numbers, then indices. */
enum la_operand {
#define LA_ARRAY(field, name, kind, of_z, doc) LA_AT_##field,
#include "../kernel/operands.def"
#define LA_NUMBER(name, of_z, doc) LA_AT_##name,
#include "../kernel/operands.def"
#define LA_INDEX(name, doc) LA_AT_##name,
#include "../kernel/operands.def"
    LA_NOPERANDS,
    LA_NARRAYS = LA_AT_scale, /* the first number */
    LA_NNUMBERS = LA_AT_begin - LA_NARRAYS
};

/* A row of operands.def. */
struct la_operand_row {
    const char *name;
    enum la_kind kind;
    int of_z;        /* exists only with the normaliser */
    const char *doc; /* its description, or NULL if it needs none */
    size_t at;       /* where la_head has it: an array or a double */
};

extern const struct la_operand_row la_operands[LA_NOPERANDS];

/* Operand `id` of a head, an array. */
static inline struct la_array *
la_array_of(struct la_head *h, enum la_operand id)
{
    return (struct la_array *)((char *)h + la_operands[id].at);
}

/* Operand `id` of a head, a number. */
static inline double *
la_number_of_head(struct la_head *h, enum la_operand id)
{
    return (double *)((char *)h + la_operands[id].at);
}

/* Kinds of operands: arrays of tokens or of states, numbers, indices. */
static inline int
la_is_tokens(enum la_operand id)
{
    return la_operands[id].kind == LA_TOKENS;
}

static inline int
la_is_number(enum la_operand id)
{
    return id >= LA_NARRAYS && id < LA_NARRAYS + LA_NNUMBERS;
}

static inline int
la_is_index(enum la_operand id)
{
    return id >= LA_NARRAYS + LA_NNUMBERS;
}

/* The type of an operand in a call with tokens of that type: of a state, that of the
 * computation, but complex if tokens are. */
static inline enum la_type
la_type_of(enum la_operand id, enum la_type tokens)
{
    const int alike = la_is_tokens(id) || (tokens == LA_COMPLEX && id < LA_NARRAYS);
    return alike ? tokens : LA_NATIVE;
}

/* The operand of that name; LA_NOPERANDS if there is none. */
enum la_operand la_operand_find(const char *name);

/* Whether it is a field of the state before or after the tokens. */
static inline int
la_is_state(enum la_operand id)
{
    switch (id) {
#define LA_ARRAY(field, name, kind, of_z, doc)
#define LA_FIELD(field, name, of_z, before, after, that)                               \
    case LA_AT_##field##0:                                                             \
    case LA_AT_##field##1:
#include "../kernel/operands.def"
    case LA_AT_conv0:
    case LA_AT_conv1:
        return 1;
    default:
        return 0;
    }
}

/* The operator that `op` is the gradient, or the step, of; LA_NOPS if there is none. */
enum la_op la_gradient_of(enum la_op op);
enum la_op la_step_of(enum la_op op);

/* The length of an operator's name without "_backward" or "_step" at its end. */
size_t la_stem_length(enum la_op op);

#endif
