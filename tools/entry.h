/* entry.h: what programs need that call the entry without NumPy. */
#ifndef LA_TOOLS_ENTRY_H
#define LA_TOOLS_ENTRY_H

#include "call.h"
#include "number.h"

/* The dtypes of tokens, and of what they are computed in. */
static const struct la_operation la_types[] = {
    {.dtype = LA_F32, .type = LA_NATIVE},
    {.dtype = LA_F64, .type = LA_NATIVE},
    {.dtype = LA_F32, .type = LA_HALF},
    {.dtype = LA_F32, .type = LA_BFLOAT},
};

enum { LA_NTYPES = sizeof(la_types) / sizeof(la_types[0]) };

/* Bytes of an operand's number. */
static inline ptrdiff_t
la_size_of(const struct la_operation *what, enum la_operand id)
{
    return la_operand_size(id, what->dtype, la_type_of(id, what->type));
}

#endif
