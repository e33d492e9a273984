/* cpu.h: selects the kernel table. */
#ifndef LA_CPU_H
#define LA_CPU_H

#include "../kernel/table.h"

/* Selects the best instruction set of this CPU; -1 if even the baseline is missing. */
int la_cpu_init(void);

/* The selected kernels. */
const struct la_table *la_cpu_table(enum la_dtype dtype);

/* Name of the i-th instruction set that was built and is usable here, best first; NULL
 * past the last one. */
const char *la_cpu_isa(int i);

/* Makes this thread keep the currently selected kernels, whatever other threads select,
 * until la_cpu_release was called as often: a result of several calls then has the bits
 * of one instruction set. */
void la_cpu_hold(void);
void la_cpu_release(void);

/* Selects the instruction set `name`; 0, or -1 if la_cpu_isa does not list it. */
int la_cpu_select(const char *name);

/* The name of the selected instruction set. */
const char *la_cpu_selected(void);

/* What products of bfloat16 operands are of, held like the kernels: floats, or pairs if
 * that was selected. */
enum la_products la_cpu_products(void);
void la_cpu_select_products(int pairs);
int la_cpu_selected_pairs(void);

/* Whether processor and operating system have AVX512_BF16. */
int la_cpu_has_pairs(void);

#endif
