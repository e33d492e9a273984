/* fuzz.c: libFuzzer on la_call, the entry without NumPy; see run.sh.
 *
 * The bytes choose an operator, its variant, dtypes, sizes, and how each operand lies in
 * memory: its axes in any order, backwards, with gaps, broadcast.  Each lies in a piece
 * of memory that ends where it ends, so that AddressSanitizer sees any touch beside it;
 * scratch is poisoned.  Indices are any numbers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../entry.h"
#include "cpu.h"
#include "job.h"
#include "pool.h"
#include "scratch.h"

enum { MAX_LEAD = 3, MAX_AXES = MAX_LEAD + LA_MAX_RANK };

static struct input {
    const uint8_t *data;
    size_t left;
    uint64_t state; /* numbers of arrays, of whom few matter */
} in;

/* One of [0, count); 0 where the bytes are used up. */
static int
choose(int count)
{
    if (in.left == 0) {
        return 0;
    }
    in.left--;
    return *in.data++ % count;
}

static uint64_t
next(void)
{
    in.state = in.state * 6364136223846793005u + 1442695040888963407u;
    return in.state >> 33;
}

struct array {
    char *memory;
    ptrdiff_t shape[MAX_AXES], strides[MAX_AXES];
};

static void
fill(char *to, const struct la_operation *what, enum la_operand id, ptrdiff_t n)
{
    static const double odd[] = {0, 1, -1, 1e-30, 1e30};
    const ptrdiff_t size = la_size_of(what, id);
    double x = (double)(int64_t)(next() % 2001 - 1000) / 300;
    x = next() % 64 == 0 ? odd[next() % 5] : x;
    const float single = (float)x;
    const union la_number whole = la_number_of(what->dtype, x);
    uint16_t half;
    ptrdiff_t index = (ptrdiff_t)(next() % (uint64_t)(n + 8)) - 4;
    index = next() % 16 == 0 ? (ptrdiff_t)(next() << 32) : index;
    memcpy(&half, (const char *)&single + 2, sizeof(half));
    half = what->type == LA_HALF ? (uint16_t)(next() & 0x3fff) : half;
    memcpy(to,
           la_is_index(id) ? (void *)&index
           : size == 2     ? (void *)&half
                           : (void *)&whole,
           (size_t)size);
}

/* Lays an operand out, and fills it; 0, or -1 where that is too much. */
static int
lay_out(struct array *x, struct la_tensor *tensor, const struct la_operation *what,
        enum la_operand id, int axes, int is_output, ptrdiff_t n)
{
    const ptrdiff_t size = la_size_of(what, id);
    ptrdiff_t step = size, low = 0, high = 0, count = 1;
    int order[MAX_AXES];
    for (int i = 0; i < axes; i++) {
        order[i] = i;
    }
    const int shuffles = choose(4) == 0 ? axes : 0;
    for (int i = 0; i < shuffles; i++) {
        const int a = choose(axes), b = choose(axes), held = order[a];
        order[a] = order[b];
        order[b] = held;
    }
    const int odd = choose(2);
    for (int i = axes - 1; i >= 0; i--) {
        const int axis = order[i], way = odd ? choose(8) : 0;
        const ptrdiff_t extent = x->shape[axis];
        step *= way == 1 ? 3 : 1;
        x->strides[axis] = way == 2 ? -step : step;
        if (way == 3 && !is_output) {
            x->strides[axis] = 0;
            continue;
        }
        *(way == 2 ? &low : &high) += (extent > 0 ? extent - 1 : 0) * x->strides[axis];
        step *= extent > 0 ? extent : 1;
        count *= extent;
    }
    if (high - low > 1 << 22) {
        return -1;
    }
    x->memory = malloc(count > 0 ? (size_t)(high - low + size) : 1);
    for (ptrdiff_t at = 0; count > 0 && at <= high - low; at += size) {
        fill(x->memory + at, what, id, n);
    }
    *tensor = (struct la_tensor){x->memory - low, axes, x->shape, x->strides, 0};
    return 0;
}

/* The shape of an operand: some of the leading axes, then its own. */
static int
shape_of(struct array *x, const struct la_signature *signature, int i, const ptrdiff_t *dims,
         const ptrdiff_t *lead, int axes)
{
    const struct la_slot *slot = &signature->slots[i];
    const int skip = i < signature->nin && axes > 0 ? choose(axes + 1) % (axes + 1) : 0;
    int count = 0;
    for (int axis = skip; axis < axes; axis++) {
        x->shape[count++] = i < signature->nin && choose(8) == 1 ? 1 : lead[axis];
    }
    for (int j = 0; j < slot->rank; j++) {
        x->shape[count++] = dims[la_signature_dim(signature, slot->dims[j])];
    }
    if (count > 0 && choose(64) == 63) {
        x->shape[choose(count)] = choose(5); /* which may not fit */
    }
    return count;
}

static enum la_status
run(const struct la_operation *what)
{
    static const ptrdiff_t edges[] = {0, 1, 15, 16, 17, 31, 33, 64, 65, 127, 600};
    const struct la_signature *signature = what->signature;
    const int count = signature->nin + signature->nout;
    struct array arrays[LA_MAX_OPERANDS] = {{NULL}};
    struct la_tensor x[LA_MAX_OPERANDS];
    ptrdiff_t dims[LA_MAX_DIMS], lead[MAX_LEAD];
    const int axes = choose(MAX_LEAD + 1);
    for (int i = 0; i < signature->ndims; i++) {
        const int large = signature->dims[i] == 'n' || signature->dims[i] == 's' ? 11 : 8;
        dims[i] = choose(3) == 0 ? edges[choose(large)] : choose(12);
    }
    for (int i = 0; i < axes; i++) {
        lead[i] = choose(4);
    }
    in.state = (uint64_t)choose(256);
    const ptrdiff_t tokens = dims[la_signature_dim(signature, signature->dims[0])];
    enum la_status status = LA_DONE;
    int made = 0;
    for (int i = 0; i < count && made >= 0; i++) {
        const int own = shape_of(&arrays[i], signature, i, dims, lead, axes);
        made = lay_out(&arrays[i], &x[i], what, signature->slots[i].id, own, i >= signature->nin,
                       tokens);
    }
    if (made >= 0) {
        status = la_call(what, x, NULL);
    }
    for (int i = 0; i < count; i++) {
        free(arrays[i].memory);
    }
    return status;
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    if (la_cpu_init() < 0) {
        fputs("this processor lacks the instruction set of the build\n", stderr);
        exit(1);
    }
    la_pool_init();
    la_stages_force(3); /* chunks of a group */
    return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int poisons[] = {0xff, 0x7f, 0xfe};
    struct la_form form;
    struct la_signature signature;
    in = (struct input){data, size, 0};
    struct la_operation what = la_types[choose(LA_NTYPES)];
    const enum la_op op = (enum la_op)choose(LA_NOPS);
    const int bits = choose(256) | choose(256) << 8;
    la_form_read(&form, op);
    la_signature_read(&signature, &form, bits & la_variants(&form));
    what.signature = &signature;
    what.map =
        la_operators[op].properties & LA_MAPS ? (enum la_map)choose(LA_NMAPS) : 0;
    la_scratch_poison(poisons[choose(3)]);
    la_pool_set_num_threads(1 + choose(4));
    const enum la_status status = run(&what);
    if (status == LA_OVERRUN || status == LA_STOPPED) {
        fprintf(stderr, "%s: status %d\n", la_operators[op].name, status);
        abort();
    }
    return 0;
}
