/* plan.h: from a gufunc's inner loop to heads, panels and threads. */
#ifndef LA_PLAN_H
#define LA_PLAN_H

#include <stddef.h>

#include "form.h"

/* What one inner loop of a gufunc computes: its `data`. */
struct la_loop {
    const struct la_form *form;
    enum la_op op;
    enum la_map map;
    enum la_dtype dtype; /* computed in; numbers, states and their gradients */
    enum la_type type;   /* of the tokens' arrays */
    int normalize;
};

/* The inner loop of every gufunc, in NumPy's calling convention. */
void la_plan_loop(char **args, const ptrdiff_t *dimensions, const ptrdiff_t *steps,
                  void *data);

#endif
