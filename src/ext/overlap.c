/* overlap.c: the range of memory of an array, and whether elements of one array, or of
 * two, share memory. */
#include <limits.h>
#include <stdlib.h>

#include "call.h"

/* The axes longer than 1, shortest step first, steps made positive. */
struct walk {
    int axes;
    ptrdiff_t size[LA_NUMPY_AXES], step[LA_NUMPY_AXES];
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

static ptrdiff_t
common_divisor(ptrdiff_t x, ptrdiff_t y)
{
    while (y != 0) {
        const ptrdiff_t rest = x % y;
        x = y;
        y = rest;
    }
    return x;
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
    ptrdiff_t unit = itemsize, at = 0, index[LA_NUMPY_AXES] = {0};
    for (int axis = 0; axis < w->axes; axis++) {
        unit = common_divisor(unit, w->step[axis]);
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

/* Sets w to the axes of an array that is not empty. */
static void
set_walk(struct walk *w, const struct la_tensor *x, ptrdiff_t extent)
{
    w->axes = 0;
    w->count = 1;
    w->extent = extent;
    for (int axis = 0; axis < x->ndim; axis++) {
        const ptrdiff_t step = x->strides[axis];
        if (x->shape[axis] > 1) {
            insert(w, x->shape[axis], step < 0 ? -step : step);
        }
    }
}

/* Takes the axis with the longest step away, of which *period becomes a divisor. */
static void
drop_longest(struct walk *w, ptrdiff_t *period)
{
    const int axis = --w->axes;
    *period = common_divisor(*period, w->step[axis]);
    w->extent -= (w->size[axis] - 1) * w->step[axis];
}

/* The longest step that is left, or 0. */
static ptrdiff_t
longest(const struct walk *w)
{
    return w->axes > 0 ? w->step[w->axes - 1] : 0;
}

/* Where all longer steps are multiples of a period, the rest of an array lies in the
 * same part of each period: two arrays are apart if these parts are. */
int
la_tensors_meet(const struct la_tensor *x, ptrdiff_t x_itemsize,
                const struct la_tensor *y, ptrdiff_t y_itemsize)
{
    const char *x_begin, *x_end, *y_begin, *y_end;
    la_tensor_extent(x, x_itemsize, &x_begin, &x_end);
    la_tensor_extent(y, y_itemsize, &y_begin, &y_end);
    if (x_begin == x_end || y_begin == y_end || x_end <= y_begin || y_end <= x_begin) {
        return 0;
    }
    struct walk a, b;
    set_walk(&a, x, x_end - x_begin);
    set_walk(&b, y, y_end - y_begin);
    ptrdiff_t period = 0;
    while (longest(&a) > 0 || longest(&b) > 0) {
        drop_longest(longest(&a) >= longest(&b) ? &a : &b, &period);
        ptrdiff_t from = (y_begin - x_begin) % period;
        from += from < 0 ? period : 0;
        if (a.extent <= from && b.extent <= period - from) {
            return 0;
        }
    }
    return 1;
}

int
la_overlaps_itself(const struct la_tensor *x, ptrdiff_t itemsize)
{
    const char *begin, *end;
    la_tensor_extent(x, itemsize, &begin, &end);
    if (begin == end) {
        return 0;
    }
    struct walk w;
    set_walk(&w, x, end - begin);
    if (is_nested(&w, itemsize)) {
        return 0;
    }
    /* If there are more elements than fit, some overlap; no need to visit them. */
    return w.count * (double)itemsize > (double)w.extent ? 1 : any_shared(&w, itemsize);
}
