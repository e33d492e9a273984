/* cpu.h: which kernel table runs. */
#ifndef LA_CPU_H
#define LA_CPU_H

#include "../kernel/table.h"

/* Picks the best instruction set of this CPU; -1 where even the baseline is missing. */
int la_cpu_init(void);

/* The kernels in use. */
const struct la_table *la_cpu_table(enum la_dtype dtype);

/* Name of the i-th instruction set built and usable here, best first; NULL after the
 * last one. */
const char *la_cpu_isa(int i);

/* Lets this thread keep the kernels in use now, whatever others select, until as many
 * releases as holds: a result made of several calls has one set's bits. */
void la_cpu_hold(void);
void la_cpu_release(void);

/* Makes `name` the one in use; 0, or -1 where it is not among la_cpu_isa. */
int la_cpu_select(const char *name);

/* The name of the one in use. */
const char *la_cpu_selected(void);

#endif
