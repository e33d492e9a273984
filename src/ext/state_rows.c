/* state_rows.c: see state_rows.h. */
#include "state_rows.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Copies the indices; 0 if they are no plain array of integers. */
static int
read_indices(struct la_state_rows *rows, PyObject *indices)
{
    PyArrayObject *x = (PyArrayObject *)indices;
    if (!PyArray_CheckExact(indices) || PyArray_NDIM(x) != 1 ||
        !PyArray_ISBEHAVED_RO(x)) {
        return 0;
    }
    const int type = PyArray_TYPE(x), wide = PyArray_ITEMSIZE(x) == 8;
    if (!PyTypeNum_ISSIGNED(type) || !PyTypeNum_ISINTEGER(type) ||
        !(wide || PyArray_ITEMSIZE(x) == 4)) {
        return 0;
    }
    rows->count = PyArray_DIM(x, 0);
    if (rows->count > LA_FEW_ROWS) {
        rows->rows = malloc((size_t)rows->count * sizeof(*rows->rows));
        if (rows->rows == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (ptrdiff_t i = 0; i < rows->count; i++) {
        const char *at = PyArray_BYTES(x) + i * PyArray_STRIDE(x, 0);
        int32_t narrow;
        int64_t value;
        if (wide) {
            memcpy(&value, at, sizeof(value));
        }
        else {
            memcpy(&narrow, at, sizeof(narrow));
            value = narrow;
        }
        rows->rows[i] = (ptrdiff_t)value;
    }
    return 1;
}

/* Whether all rows are below `limit` and no two are the same; -1 without memory. */
static int
are_different(const struct la_state_rows *rows, ptrdiff_t limit)
{
    unsigned char few[512], *marks = few;
    const size_t bytes = (size_t)(limit / CHAR_BIT + 1);
    if (bytes > sizeof(few)) {
        marks = calloc(bytes, 1);
        if (marks == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    else {
        memset(few, 0, bytes);
    }
    int different = 1;
    for (ptrdiff_t i = 0; different && i < rows->count; i++) {
        const ptrdiff_t row = rows->rows[i];
        different =
            row >= 0 && row < limit && !(marks[row / CHAR_BIT] >> row % CHAR_BIT & 1);
        if (different) {
            marks[row / CHAR_BIT] |= (unsigned char)(1 << row % CHAR_BIT);
        }
    }
    if (marks != few) {
        free(marks);
    }
    return different;
}

/* Shows the call the fields of the state with `count` rows; the number of rows that
 * they have, or -1 if they differ in it or have none. */
static ptrdiff_t
hide_rows(struct la_state_rows *rows, struct la_operands *c)
{
    const struct la_signature *signature = c->g->signature;
    ptrdiff_t limit = -1;
    int fields = 0;
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        struct la_tensor *x = &c->x[i];
        if (!la_is_state(signature->slots[i].id)) {
            continue;
        }
        if (fields == LA_STATE_FIELDS || x->ndim <= signature->slots[i].rank ||
            (fields > 0 && x->shape[0] != limit)) {
            return -1;
        }
        limit = x->shape[0];
        ptrdiff_t *shape = rows->shape[fields++];
        memcpy(shape, x->shape, (size_t)x->ndim * sizeof(*shape));
        shape[0] = rows->count;
        x->shape = shape;
    }
    return limit;
}

/* Points the fields of the state at a row. */
static void
move_to(ptrdiff_t row, struct la_operands *c)
{
    const struct la_signature *signature = c->g->signature;
    for (int i = 0; i < signature->nin + signature->nout; i++) {
        if (la_is_state(signature->slots[i].id)) {
            c->x[i].data = (char *)c->x[i].data + row * c->x[i].strides[0];
        }
    }
}

int
la_state_rows_take(struct la_state_rows *rows, PyObject *indices, struct la_operands *c)
{
    rows->rows = rows->few;
    const int read = read_indices(rows, indices);
    if (read <= 0) {
        return read;
    }
    const ptrdiff_t limit = hide_rows(rows, c);
    const int different = limit < 0 ? 0 : are_different(rows, limit);
    if (different > 0 && rows->count == 1) { /* an axis of length 1 has no steps */
        move_to(rows->rows[0], c);
    }
    else {
        c->rows = rows->rows;
    }
    return different;
}

void
la_state_rows_release(struct la_state_rows *rows)
{
    if (rows->rows != NULL && rows->rows != rows->few) {
        free(rows->rows);
    }
}
