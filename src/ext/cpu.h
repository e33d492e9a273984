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
 * that was selected.  The first selection of pairs also selects AMX where it is, unless
 * la_cpu_select_amx was called before. */
enum la_products la_cpu_products(void);
void la_cpu_select_products(int pairs);
int la_cpu_selected_pairs(void);

/* Whether processor and operating system have AVX512_BF16. */
int la_cpu_has_pairs(void);

/* How pairs are multiplied: one by one; by AMX; and for tests, in plain C that computes
 * the same sums, or by the instructions of AMX on any processor with x86-64-v4 and
 * AVX512_BF16, where a signal handler has to compute them. */
enum la_amx { LA_AMX_OFF, LA_AMX_ON, LA_AMX_PLAIN, LA_AMX_TRAPPED };
enum la_amx la_cpu_selected_amx(void);

/* Selects it; NULL, or what this machine lacks.  The first LA_AMX_ON asks the system
 * for the tile registers, which it then keeps for all threads and after a fork. */
const char *la_cpu_select_amx(enum la_amx amx);

/* Whether this thread's tile registers are set up as the kernels use them, which set
 * this.  la_cpu_release_tiles gives them back: before anything runs that may use them
 * otherwise, as signal handlers in Python may, and since threads that hold none are
 * cheaper to switch. */
int *la_cpu_tiles(void);
void la_cpu_release_tiles(void);

/* What processor and operating system lack for AMX, or NULL. */
const char *la_cpu_lacks_amx(void);

#endif
