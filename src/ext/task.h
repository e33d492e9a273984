/* task.h: the ufuncs of tasks.def: feature maps of whole arrays, softmax attention. */
#ifndef LA_TASK_H
#define LA_TASK_H

#include <stddef.h>

#include "../kernel/table.h"

/* A row of tasks.def. */
struct la_task_row {
    const char *name, *signature;
    int nin, nout;
    ptrdiff_t piece;
    const char *doc;
};

extern const struct la_task_row la_task_rows[LA_NTASKS];

/* What one inner loop computes: its `data`. */
struct la_task_loop {
    enum la_task_name task;
    enum la_dtype dtype;
};

/* The inner loop of them all, in NumPy's calling convention. */
void la_task_run(char **args, const ptrdiff_t *dimensions, const ptrdiff_t *steps,
                 void *data);

#endif
