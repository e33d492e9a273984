/* cpu.c: the instruction sets that were built into this extension, and the choice among
 * them.
 *
 * CONTRIBUTING.md lists what a new one takes: in this file, a TABLES line, a row of
 * isas and, for x86-64, a row of levels. */
#include "cpu.h"

#include <stdatomic.h>
#include <string.h>

#include "os.h"

#if defined(__AVX__)
#error "cpu.c runs before the CPU is known: compile it for the baseline"
#endif

#if defined(__x86_64__)
#include <cpuid.h>

/* What each level of x86-64 needs in addition to the one before: features of the
 * processor (CPUID leaves 1 and 7), and registers that the operating system saves
 * (XCR0: 256 bits of each vector, then 512).  This does not use __builtin_cpu_supports
 * because only some compilers' run-time libraries initialise the data that it reads. */
static const struct {
    unsigned ecx1, ebx7, kept;
} levels[] = {
    {bit_SSSE3 | bit_SSE4_2 | bit_POPCNT, 0, 0},
    {bit_FMA, bit_AVX2 | bit_BMI | bit_BMI2, 0x06},
    {0, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL, 0xe6},
};

static unsigned
kept_registers(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
#if defined(__APPLE__)
    low |= 0xe0; /* macOS sets these bits on first use */
#endif
    return low;
}

/* The highest level that processor and operating system support. */
static int
level(void)
{
    unsigned eax, ebx, ecx, edx, ecx1 = 0, ebx7 = 0;
    __get_cpuid(1, &eax, &ebx, &ecx1, &edx);
    __get_cpuid_count(7, 0, &eax, &ebx7, &ecx, &edx);
    const unsigned kept = ecx1 & bit_OSXSAVE ? kept_registers() : 0;
    const int known = sizeof(levels) / sizeof(levels[0]);
    int have = 1;
    while (have <= known && !(levels[have - 1].ecx1 & ~ecx1) &&
           !(levels[have - 1].ebx7 & ~ebx7) && !(levels[have - 1].kept & ~kept)) {
        have++;
    }
    return have;
}

/* AVX512_BF16: CPUID leaf 7, subleaf 1. */
static int
multiplies_pairs(void)
{
    unsigned eax = 0, ebx, ecx, edx;
    return level() >= 4 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) &&
           (eax & 1u << 5) != 0;
}

/* AMX-BF16 and AMX-TILE: CPUID leaf 7.  XCR0: the configuration and data of tiles. */
static const char *
lacks_tiles(void)
{
    unsigned eax, ebx, ecx, edx = 0;
    const unsigned needed = 1u << 22 | 1u << 24, kept = 3u << 17;
    __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
    if ((edx & needed) != needed || !multiplies_pairs()) {
        return "this processor has no AMX-BF16";
    }
    return (kept_registers() & kept) != kept
               ? "this operating system does not save the registers of AMX"
               : NULL;
}
#else
static int
level(void)
{
    return 0;
}

static int
multiplies_pairs(void)
{
    return 0;
}

static const char *
lacks_tiles(void)
{
    return "this processor has no AMX-BF16";
}
#endif

/* setup.py defines LA_HAS_<isa> for each set that was built. */
#define TABLES(isa)                                                                    \
    extern const struct la_table la_table_##isa##_f32, la_table_##isa##_f64
TABLES(x86_64_v2);
TABLES(x86_64_v3);
TABLES(x86_64_v4);
TABLES(neon);
TABLES(generic);
#undef TABLES

_Static_assert(LA_NDTYPES == 2, "a table of each dtype, here and in the rows below");
#define BOTH(isa) {[LA_F32] = &la_table_##isa##_f32, [LA_F64] = &la_table_##isa##_f64}

static const struct isa {
    const char *name;
    const struct la_table *tables[LA_NDTYPES];
    int level; /* required */
} isas[] = {
#if defined(LA_HAS_x86_64_v4)
    {"x86-64-v4", BOTH(x86_64_v4), 4},
#endif
#if defined(LA_HAS_x86_64_v3)
    {"x86-64-v3", BOTH(x86_64_v3), 3},
#endif
#if defined(LA_HAS_x86_64_v2)
    {"x86-64-v2", BOTH(x86_64_v2), 2},
#endif
#if defined(LA_HAS_neon)
    {"neon", BOTH(neon), 0},
#endif
#if defined(LA_HAS_generic)
    {"generic", BOTH(generic), 0},
#endif
};
#undef BOTH

#if defined(__linux__)
enum { IS_LINUX = 1 };
#else
enum { IS_LINUX = 0 };
#endif
enum { AMX_LEVEL = 4 }; /* of the kernels that have the instructions of AMX */

enum { NISAS = sizeof(isas) / sizeof(isas[0]) };

static const struct isa *usable[NISAS + 1]; /* best first, terminated by NULL */
static _Atomic(const struct isa *) selected;
static int has_pairs;
static atomic_int pairs, amx, amx_chosen;
static _Thread_local const struct isa *held;
static _Thread_local enum la_products held_products;
static _Thread_local int holds;
static _Thread_local int tiles;

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
    has_pairs = multiplies_pairs();
    return 0;
}

const struct la_table *
la_cpu_table(enum la_dtype dtype)
{
    const struct isa *isa = holds > 0 ? held : atomic_load(&selected);
    return isa->tables[dtype];
}

static enum la_products
selected_products(void)
{
    const int by = atomic_load(&amx);
    if (!atomic_load(&pairs)) {
        return LA_FLOAT_PRODUCTS;
    }
    if (by == LA_AMX_PLAIN) {
        return LA_PLAIN_AMX_PRODUCTS;
    }
    if (by != LA_AMX_OFF && atomic_load(&selected)->level >= AMX_LEVEL) {
        return LA_AMX_PRODUCTS;
    }
    return has_pairs ? LA_NATIVE_PRODUCTS : LA_BFLOAT_PRODUCTS;
}

enum la_products
la_cpu_products(void)
{
    return holds > 0 ? held_products : selected_products();
}

void
la_cpu_select_products(int of_pairs)
{
    if (of_pairs && !atomic_exchange(&amx_chosen, 1)) {
        la_cpu_select_amx(LA_AMX_ON); /* without it, pairs are multiplied one by one */
    }
    atomic_store(&pairs, of_pairs);
}

int
la_cpu_selected_pairs(void)
{
    return atomic_load(&pairs);
}

int
la_cpu_has_pairs(void)
{
    return has_pairs;
}

const char *
la_cpu_lacks_amx(void)
{
    return !IS_LINUX                      ? "AMX is used on Linux alone"
           : usable[0]->level < AMX_LEVEL ? "x86-64-v4 is not available"
                                          : lacks_tiles();
}

const char *
la_cpu_select_amx(enum la_amx choice)
{
    static atomic_int permitted;
    if (choice == LA_AMX_ON && !atomic_load(&permitted)) {
        const char *lack = la_cpu_lacks_amx();
        if (lack != NULL) {
            return lack;
        }
        if (!la_permit_amx()) {
            return "this operating system refuses the registers of AMX";
        }
        atomic_store(&permitted, 1);
    }
    atomic_store(&amx, choice);
    atomic_store(&amx_chosen, 1);
    return NULL;
}

int *
la_cpu_tiles(void)
{
    return &tiles;
}

void
la_cpu_release_tiles(void)
{
#if defined(__x86_64__)
    if (tiles) {
        __asm__ volatile("tilerelease" : : : "memory");
    }
#endif
    tiles = 0;
}

enum la_amx
la_cpu_selected_amx(void)
{
    return (enum la_amx)atomic_load(&amx);
}

const char *
la_cpu_isa(int i)
{
    return usable[i] != NULL ? usable[i]->name : NULL;
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
        held_products = selected_products();
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
    for (int i = 0; usable[i] != NULL; i++) {
        if (strcmp(usable[i]->name, name) == 0) {
            atomic_store(&selected, usable[i]);
            return 0;
        }
    }
    return -1;
}
