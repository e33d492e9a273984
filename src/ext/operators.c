/* operators.c: see operators.h. */
#include "operators.h"

#include <string.h>

const struct la_operator la_operators[LA_NOPS] = {
#define LA_OP(op, form, properties, rows, doc) {#op, form, properties, rows, doc},
#include "../kernel/operators.def"
};

const struct la_map_row la_maps[LA_NMAPS] = {
#define LA_MAP(map, is_signed) {#map, 0, is_signed},
#define LA_ROW_MAP(map, is_signed) {#map, 1, is_signed},
#include "../kernel/maps.def"
};

const struct la_operand_row la_operands[LA_NOPERANDS] = {
#define LA_ARRAY(field, name, kind, of_z, doc)                                         \
    [LA_AT_##field] = {name, kind, of_z, doc, offsetof(struct la_head, field)},
#include "../kernel/operands.def"
#define LA_NUMBER(name, of_z, doc)                                                     \
    [LA_AT_##name] = {#name, LA_STATE, of_z, doc, offsetof(struct la_head, name)},
#include "../kernel/operands.def"
#define LA_INDEX(name, doc) [LA_AT_##name] = {#name, LA_STATE, 0, doc, 0},
#include "../kernel/operands.def"
};

enum la_operand
la_operand_find(const char *name)
{
    int id = 0;
    while (id < LA_NOPERANDS && strcmp(la_operands[id].name, name) != 0) {
        id++;
    }
    return (enum la_operand)id;
}

/* Whether the name ends with `suffix` and is longer. */
static int
ends_with(const char *name, const char *suffix)
{
    const size_t all = strlen(name), end = strlen(suffix);
    return all > end && strcmp(name + all - end, suffix) == 0;
}

size_t
la_stem_length(enum la_op op)
{
    static const char *const suffixes[] = {"_backward", "_step"};
    const char *name = la_operators[op].name;
    size_t length = strlen(name);
    for (int i = 0; i < 2; i++) {
        length -= ends_with(name, suffixes[i]) ? strlen(suffixes[i]) : 0;
    }
    return length;
}

/* The operator whose name is that of op without the suffix; LA_NOPS if op has another
 * or no suffix. */
static enum la_op
stem_before(enum la_op op, const char *suffix)
{
    const size_t length = la_stem_length(op);
    int i = 0;
    if (!ends_with(la_operators[op].name, suffix)) {
        return LA_NOPS;
    }
    while (i < LA_NOPS &&
           (strlen(la_operators[i].name) != length ||
            strncmp(la_operators[i].name, la_operators[op].name, length) != 0)) {
        i++;
    }
    return (enum la_op)i;
}

enum la_op
la_gradient_of(enum la_op op)
{
    return stem_before(op, "_backward");
}

enum la_op
la_step_of(enum la_op op)
{
    return op == LA_OP_step ? LA_OP_causal : stem_before(op, "_step");
}
