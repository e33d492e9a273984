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
extern const struct la_table la_table_x86_64_v2_f32, la_table_x86_64_v2_f64,
    la_table_x86_64_v3_f32, la_table_x86_64_v3_f64, la_table_x86_64_v4_f32,
    la_table_x86_64_v4_f64;

static int
has_v2(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") &&
           __builtin_cpu_supports("popcnt");
}

static int
has_v3(void)
{
    return has_v2() && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

static int
has_v4(void)
{
    return has_v3() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#define CPU_INIT() __builtin_cpu_init() /* asks the operating system too (XGETBV) */
#else
extern const struct la_table la_table_generic_f32, la_table_generic_f64;

static int
always(void)
{
    return 1;
}

#define CPU_INIT() ((void)0)
#endif

static const struct isa {
    const char *name;
    const struct la_table *tables[LA_NDTYPES];
    int (*usable)(void);
} isas[] = {
#if defined(__x86_64__)
    {"x86-64-v4", {&la_table_x86_64_v4_f32, &la_table_x86_64_v4_f64}, has_v4},
    {"x86-64-v3", {&la_table_x86_64_v3_f32, &la_table_x86_64_v3_f64}, has_v3},
    {"x86-64-v2", {&la_table_x86_64_v2_f32, &la_table_x86_64_v2_f64}, has_v2},
#elif defined(__aarch64__)
    {"neon", {&la_table_generic_f32, &la_table_generic_f64}, always},
#else
    {"generic", {&la_table_generic_f32, &la_table_generic_f64}, always},
#endif
};

enum { NISAS = sizeof(isas) / sizeof(isas[0]) };

static const struct isa *usable[NISAS];
static _Atomic(const struct isa *) selected;

int
la_cpu_init(void)
{
    CPU_INIT();
    int count = 0;
    for (int i = 0; i < NISAS; i++) {
        if (isas[i].usable()) {
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
    return atomic_load(&selected)->tables[dtype];
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
