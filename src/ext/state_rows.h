/* state_rows.h: states that are rows of a pool, chosen by indices. */
#ifndef LA_STATE_ROWS_H
#define LA_STATE_ROWS_H

#include "fast_call.h"

enum { LA_FEW_ROWS = 64, LA_STATE_FIELDS = 8 };

/* The rows of the pool that the entries of a batch use. */
struct la_state_rows {
    ptrdiff_t count, few[LA_FEW_ROWS];
    ptrdiff_t *rows;                               /* `few`, or allocated */
    ptrdiff_t shape[LA_STATE_FIELDS][NPY_MAXDIMS]; /* of arrays with `count` rows */
};

/* Lets a call update rows of its states in place: copies the indices, an array of
 * 32-bit or 64-bit integers, so that no other thread can change them, and shows the
 * call the states without their other rows.  1; 0 if it needs a closer look, as it does
 * where an index is out of range or occurs twice; -1 on an error.  The caller always
 * calls la_state_rows_release. */
int la_state_rows_take(struct la_state_rows *rows, PyObject *indices,
                       struct la_operands *c);

void la_state_rows_release(struct la_state_rows *rows);

#endif
