/* cpu.c: instruction sets built into this extension, and the choice among them.
 *
 * A new instruction set is one row here and one in setup.py. */
#include "cpu.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__AVX__)
#error "cpu.c runs before the CPU is known: compile it for the baseline"
#endif

#if defined(__x86_64__)
/* The level of x86-64 that processor and operating system support, 4 at most. */
static int
level(void)
{
    __builtin_cpu_init(); /* asks the operating system too (XGETBV) */
    if (!(__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") &&
          __builtin_cpu_supports("popcnt"))) {
        return 1;
    }
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
          __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))) {
        return 2;
    }
    if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vl"))) {
        return 3;
    }
    return 4;
}
#else
static int
level(void)
{
    return 0;
}
#endif

/* setup.py defines LA_HAS_... for each set that was built. */
#define TABLES(isa)                                                                    \
    extern const struct la_table la_table_##isa##_f32, la_table_##isa##_f64
TABLES(x86_64_v2);
TABLES(x86_64_v3);
TABLES(x86_64_v4);
TABLES(neon);
TABLES(generic);
#undef TABLES

static const struct isa {
    const char *name;
    const struct la_table *tables[LA_NDTYPES];
    int level; /* that it needs */
} isas[] = {
#if defined(LA_HAS_x86_64_v4)
    {"x86-64-v4", {&la_table_x86_64_v4_f32, &la_table_x86_64_v4_f64}, 4},
#endif
#if defined(LA_HAS_x86_64_v3)
    {"x86-64-v3", {&la_table_x86_64_v3_f32, &la_table_x86_64_v3_f64}, 3},
#endif
#if defined(LA_HAS_x86_64_v2)
    {"x86-64-v2", {&la_table_x86_64_v2_f32, &la_table_x86_64_v2_f64}, 2},
#endif
#if defined(LA_HAS_neon)
    {"neon", {&la_table_neon_f32, &la_table_neon_f64}, 0},
#endif
#if defined(LA_HAS_generic)
    {"generic", {&la_table_generic_f32, &la_table_generic_f64}, 0},
#endif
};

enum { NISAS = sizeof(isas) / sizeof(isas[0]) };

static const struct isa *usable[NISAS];
static _Atomic(const struct isa *) selected;
static _Thread_local const struct isa *held;
static _Thread_local int holds;

int
la_cpu_init(void)
{
    const int have = level();
    int count = 0;
    for (int i = 0; i < NISAS; i++) {
        if (isas[i].level <= have) {
            usable[count++] = &isas[i];
        }
    }
    if (count == 0) {
        return -1;
    }
    selected = usable[0];
    return 0;
}

const struct la_table *
la_cpu_table(enum la_dtype dtype)
{
    const struct isa *isa = holds > 0 ? held : atomic_load(&selected);
    return isa->tables[dtype];
}

const char *
la_cpu_isa(int i)
{
    return i >= 0 && i < NISAS && usable[i] ? usable[i]->name : NULL;
}

const char *
la_cpu_selected(void)
{
    return atomic_load(&selected)->name;
}

void
la_cpu_hold(void)
{
    if (holds++ == 0) {
        held = atomic_load(&selected);
    }
}

void
la_cpu_release(void)
{
    holds -= holds > 0;
}

int
la_cpu_select(const char *name)
{
    for (int i = 0; i < NISAS && usable[i]; i++) {
        if (strcmp(usable[i]->name, name) == 0) {
            atomic_store(&selected, usable[i]);
            return 0;
        }
    }
    return -1;
}
