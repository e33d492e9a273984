/* overlap.c: the range of memory of an array, and whether elements of an array share
 * memory. */
#include <limits.h>
#include <stdlib.h>

#include "call.h"

enum { MAX_AXES = 64 }; /* NumPy's limit */

/* The axes longer than 1, shortest step first, steps made positive. */
struct walk {
    int axes;
    ptrdiff_t size[MAX_AXES], step[MAX_AXES];
    double count;     /* elements */
    ptrdiff_t extent; /* bytes from the first element to one past the last */
};

/* Inserts an axis in order of steps. */
static void
insert(struct walk *w, ptrdiff_t size, ptrdiff_t step)
{
    int at = w->axes++;
    for (; at > 0 && w->step[at - 1] > step; at--) {
        w->step[at] = w->step[at - 1];
        w->size[at] = w->size[at - 1];
    }
    w->step[at] = step;
    w->size[at] = size;
    w->count *= (double)size;
}

/* Whether each axis steps over the whole range of the shorter steps. */
static int
is_nested(const struct walk *w, ptrdiff_t itemsize)
{
    ptrdiff_t reach = itemsize;
    for (int axis = 0; axis < w->axes; axis++) {
        if (w->step[axis] < reach) {
            return 0;
        }
        reach += (w->size[axis] - 1) * w->step[axis];
    }
    return 1;
}

/* Marks `width` units from `at` on; returns whether any was marked before. */
static int
mark(unsigned char *marks, ptrdiff_t at, ptrdiff_t width)
{
    int found = 0;
    for (ptrdiff_t i = at; i < at + width; i++) {
        const unsigned char bit = (unsigned char)(1 << i % CHAR_BIT);
        found |= marks[i / CHAR_BIT] & bit;
        marks[i / CHAR_BIT] |= bit;
    }
    return found;
}

/* Visits every element; 1 if two share memory, -1 if there is no memory for the
 * marks. */
static int
any_shared(const struct walk *w, ptrdiff_t itemsize)
{
    ptrdiff_t unit = itemsize, at = 0, index[MAX_AXES] = {0};
    for (int axis = 0; axis < w->axes; axis++) {
        for (ptrdiff_t rest = w->step[axis];
             rest != 0;) { /* the greatest common divisor */
            const ptrdiff_t next = unit % rest;
            unit = rest;
            rest = next;
        }
    }
    unsigned char *marks = calloc((size_t)(w->extent / unit / CHAR_BIT + 1), 1);
    if (marks == NULL) {
        return -1;
    }
    int found = 0, axis = 0;
    while (!found && axis < w->axes) {
        found = mark(marks, at / unit, itemsize / unit);
        for (axis = 0; axis < w->axes && ++index[axis] == w->size[axis]; axis++) {
            at -= (w->size[axis] - 1) * w->step[axis];
            index[axis] = 0;
        }
        at += axis < w->axes ? w->step[axis] : 0;
    }
    free(marks);
    return found;
}

void
la_tensor_extent(const struct la_tensor *x, ptrdiff_t itemsize, const char **begin,
                 const char **end)
{
    *begin = *end = x->data;
    for (int axis = 0; axis < x->ndim; axis++) {
        if (x->shape[axis] == 0) { /* the strides of an empty array are meaningless */
            *end = *begin = x->data;
            return;
        }
        const ptrdiff_t span = (x->shape[axis] - 1) * x->strides[axis];
        *(span < 0 ? begin : end) += span;
    }
    *end += itemsize;
}

int
la_overlaps_itself(const struct la_tensor *x, ptrdiff_t itemsize)
{
    const char *begin, *end;
    la_tensor_extent(x, itemsize, &begin, &end);
    if (begin == end) {
        return 0;
    }
    struct walk w = {.count = 1, .extent = end - begin};
    for (int axis = 0; axis < x->ndim; axis++) {
        const ptrdiff_t step = x->strides[axis];
        if (x->shape[axis] > 1) {
            insert(&w, x->shape[axis], step < 0 ? -step : step);
        }
    }
    if (is_nested(&w, itemsize)) {
        return 0;
    }
    /* If there are more elements than fit, some overlap; no need to visit them. */
    return w.count * (double)itemsize > (double)w.extent ? 1 : any_shared(&w, itemsize);
}
