/* digests.c: a line for every gufunc, dtype and map, with a digest of its results, by
 * the entry without NumPy: no Python is needed, so that it runs wherever src/ext and
 * the kernels do.  What it prints is the same for every number of threads, and on every
 * system for one compiler and one instruction set. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "entry.h"
#include "job.h"
#include "pool.h"

enum { TOKENS = 600, HEADS = 2, SEQUENCES = 2 };

static const char *const type_names[] = {"float32", "float64", "float16", "bfloat16"};

static uint64_t state;

/* In [-1, 1), of 11 bits. */
static double
number(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)((int64_t)(state >> 53) - 1024) / 1024;
}

/* Of a number that is 0 or no less than 2^-14, the bits in 16; what is too long is cut
 * off. */
static uint16_t
half_bits(float x, enum la_type type)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (type == LA_BFLOAT || x == 0) {
        return (uint16_t)(bits >> 16);
    }
    return (uint16_t)((bits >> 16 & 0x8000) |
                      (((bits & 0x7fffffff) >> 13) - (112 << 10)));
}

/* Writes a number as the operand holds it. */
static void
put(char *to, const struct la_operation *what, enum la_operand id, double x)
{
    const ptrdiff_t size = la_size_of(what, id);
    const union la_number whole = la_number_of(what->dtype, x);
    const uint16_t half = half_bits((float)x, what->type);
    memcpy(to, size == 2 ? (const void *)&half : &whole, (size_t)size);
}

static ptrdiff_t
extent(enum la_op op, char letter)
{
    switch (letter) {
    case 'n':
        return TOKENS;
    case 's':
        return 150;
    case 'd':
        return 19;
    case 'f': /* taps of a convolution, one more than its state has; else features */
        return op >= LA_OP_causal_conv1d && op <= LA_OP_causal_conv1d_step ? 20 : 38;
    case 'm':
        return 33;
    case 'r':
        return SEQUENCES;
    default:
        return 0;
    }
}

/* What a call of any length and of any map can take: keys that are short, gates that
 * forget. */
static double
value(enum la_operand id, ptrdiff_t i)
{
    const double x = number();
    switch (id) {
    case LA_AT_k:
    case LA_AT_a:
    case LA_AT_b:
    case LA_AT_erase:
        return x / 4;
    case LA_AT_g:
        return (x - 1) / 32;
    case LA_AT_beta:
        return (x + 1) / 2;
    case LA_AT_scale:
    case LA_AT_t:
        return 0.25;
    case LA_AT_eps:
        return 0.125;
    case LA_AT_causal:
    case LA_AT_silu:
        return (double)(i % 2);
    default:
        return x;
    }
}

/* The r sequences of n tokens are n / r long, a key is there for most of them. */
static ptrdiff_t
index_of(enum la_operand id, ptrdiff_t i)
{
    const ptrdiff_t length = TOKENS / SEQUENCES, at = i % SEQUENCES;
    return id == LA_AT_begin ? at * length : id == LA_AT_end ? (at + 1) * length : 130;
}

struct array {
    char *data;
    ptrdiff_t shape[1 + LA_MAX_RANK], strides[1 + LA_MAX_RANK], bytes;
};

/* Operand i of HEADS heads, without gaps. */
static void
lay_out(struct array *x, struct la_tensor *tensor, const struct la_operation *what,
        int i)
{
    const struct la_slot *slot = &what->signature->slots[i];
    const ptrdiff_t size = la_size_of(what, slot->id);
    const int axes = la_is_number(slot->id) ? 0 : 1 + slot->rank;
    x->shape[0] = HEADS;
    for (int axis = 1; axis < axes; axis++) {
        x->shape[axis] = extent(what->signature->op, slot->dims[axis - 1]);
    }
    x->bytes = size;
    for (int axis = axes - 1; axis >= 0; axis--) {
        x->strides[axis] = x->bytes;
        x->bytes *= x->shape[axis];
    }
    x->data = realloc(x->data, (size_t)x->bytes);
    if (x->data == NULL) {
        exit(1);
    }
    for (ptrdiff_t j = 0; j < x->bytes / size; j++) {
        if (la_is_index(slot->id)) {
            ((ptrdiff_t *)(void *)x->data)[j] = index_of(slot->id, j);
        }
        else {
            put(x->data + j * size, what, slot->id, value(slot->id, j));
        }
    }
    *tensor = (struct la_tensor){x->data, axes, x->shape, x->strides, 0};
}

/* The FNV-1a hash of what one call gives; 0 where it fails. */
static uint64_t
digest(const struct la_operation *what, int threads)
{
    static struct array arrays[LA_MAX_OPERANDS];
    struct la_tensor x[LA_MAX_OPERANDS];
    const int nin = what->signature->nin, count = nin + what->signature->nout;
    uint64_t hash = 14695981039346656037u;
    state = 1;
    for (int i = 0; i < count; i++) {
        lay_out(&arrays[i], &x[i], what, i);
    }
    la_pool_set_num_threads(threads);
    if (la_call(what, x, NULL) != LA_DONE) {
        return 0;
    }
    for (int i = nin; i < count; i++) {
        for (ptrdiff_t j = 0; j < arrays[i].bytes; j++) {
            hash = (hash ^ (unsigned char)arrays[i].data[j]) * 1099511628211u;
        }
    }
    return hash;
}

/* Every dtype of a signature and map; 0, or 1 where a call fails or threads change a bit. */
static int
print(const struct la_signature *signature, enum la_map map)
{
    for (size_t i = 0; i < LA_NTYPES; i++) {
        struct la_operation what = la_types[i];
        what.signature = signature;
        what.map = map;
        const uint64_t one = digest(&what, 1);
        printf("%s %s %d %d %s %016" PRIx64 "\n", la_cpu_selected(), signature->name,
               signature->variant, map, type_names[i], one);
        if (one == 0 || digest(&what, 2) != one) {
            puts("failed");
            return 1;
        }
    }
    return 0;
}

static int
print_variants(enum la_op op)
{
    struct la_form form;
    la_form_read(&form, op);
    const la_variant offered = la_variants(&form);
    const int maps = la_operators[op].properties & LA_MAPS ? LA_NMAPS : 1;
    la_variant variant = 0;
    int failed = 0;
    do {
        struct la_signature signature;
        la_signature_read(&signature, &form, variant);
        for (int map = 0; map < maps && !failed; map++) {
            failed |= print(&signature, (enum la_map)map);
        }
        variant = (variant - offered) & offered; /* the next subset */
    } while (variant != 0 && !failed);
    return failed;
}

int
main(void)
{
    int failed = la_cpu_init() < 0;
    la_pool_init();
    la_stages_force(3); /* chunks of a group */
    for (int i = 0; la_cpu_isa(i) != NULL; i++) {
        la_cpu_select(la_cpu_isa(i));
        for (int op = 0; op < LA_NOPS && !failed; op++) {
            failed = print_variants((enum la_op)op);
        }
    }
    return failed;
}
