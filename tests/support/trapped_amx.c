/* trapped_amx.c: runs the instructions of AMX on processors without them, for tests.
 *
 * Each one raises SIGILL; the handler decodes it, computes what Intel's Software
 * Developer's Manual (volume 2) says it computes, and continues behind it.  What the
 * manual calls an error ends the process: an instruction without a configuration,
 * shapes that do not fit.  Only threads that do not block SIGILL may run them.
 *
 * Nothing here is shared with src/kernel/tiles/amx.h. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

struct configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};

static struct configuration now; /* palette 0: none */
static uint8_t tiles[8][16][64];

enum { LDTILECFG, TILERELEASE, TILELOADD, TILESTORED, TDPBF16PS, TILEZERO, KINDS };
static long counts[KINDS];

long
trapped_count(int kind)
{
    return counts[kind];
}

int
trapped_is_configured(void)
{
    return now.palette != 0;
}

static void
fail(const char *what)
{
    fprintf(stderr, "trapped_amx: %s\n", what);
    _Exit(3);
}

/* --- what instructions compute ------------------------------------------------ */

static void
configure(const uint8_t *p)
{
    memcpy(&now, p, sizeof(now));
    for (int i = 0; i < 16; i++) {
        const int is_tile = i < 8;
        if ((i < 14 && now.reserved[i] != 0) || now.colsb[i] > (is_tile ? 64 : 0) ||
            now.rows[i] > (is_tile ? 16 : 0) || now.colsb[i] % 4 != 0) {
            fail("a wrong configuration");
        }
    }
    if (now.palette != 1 || now.start_row != 0) {
        fail("a wrong palette");
    }
    memset(tiles, 0, sizeof(tiles));
}

static void
need(int tile)
{
    if (now.palette == 0 || tile > 7 || now.rows[tile] == 0 || now.colsb[tile] == 0) {
        fail("a tile that is not configured");
    }
}

static void
load(int tile, const uint8_t *p, int64_t stride)
{
    need(tile);
    memset(tiles[tile], 0, sizeof(tiles[tile]));
    for (int i = 0; i < now.rows[tile]; i++) {
        memcpy(tiles[tile][i], p + i * stride, now.colsb[tile]);
    }
}

static void
store(uint8_t *p, int64_t stride, int tile)
{
    need(tile);
    for (int i = 0; i < now.rows[tile]; i++) {
        memcpy(p + i * stride, tiles[tile][i], now.colsb[tile]);
    }
}

static float
flush(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static float
number(const uint8_t *row, int index)
{
    uint16_t high;
    memcpy(&high, row + 2 * index, 2);
    const uint32_t bits = (uint32_t)high << 16;
    float x;
    memcpy(&x, &bits, 4);
    return flush(x);
}

static void
multiply(int to, int a, int b)
{
    need(to), need(a), need(b);
    if (to == a || to == b || a == b || now.colsb[a] != 4 * now.rows[b] ||
        now.rows[to] != now.rows[a] || now.colsb[to] != now.colsb[b]) {
        fail("tiles that do not fit together");
    }
    for (int m = 0; m < now.rows[to]; m++) {
        float sums[32] = {0};
        for (int k = 0; k < now.colsb[a] / 4; k++) {
            for (int n = 0; n < now.colsb[to] / 2; n++) {
                sums[n] = flush(fmaf(number(tiles[a][m], 2 * k + n % 2),
                                     number(tiles[b][k], n), sums[n]));
            }
        }
        for (int n = 0; n < now.colsb[to] / 4; n++) {
            float x;
            memcpy(&x, &tiles[to][m][4 * n], 4);
            x = flush(flush(x) + flush(sums[2 * n] + sums[2 * n + 1]));
            memcpy(&tiles[to][m][4 * n], &x, 4);
        }
    }
}

/* --- decoding ------------------------------------------------------------------- */

/* VEX.128.0F38.W0, and a memory operand. */
struct instruction {
    int prefix, opcode, mod, reg, rm, vvvv;
    uint8_t *address;
    int64_t stride;
    const uint8_t *next;
};

static int64_t
register_of(const ucontext_t *context, int number)
{
    static const int order[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};
    return context->uc_mcontext.gregs[order[number]];
}

static void
decode_memory(const ucontext_t *context, struct instruction *x, int high)
{
    const int high_base = high & 1 ? 8 : 0, high_index = high & 2 ? 8 : 0;
    int64_t base = 0;
    int32_t far = 0;
    int rm = x->rm;
    x->stride = 0;
    if (rm == 4) {
        const int sib = *x->next++, index = (sib >> 3 & 7) | high_index;
        rm = sib & 7;
        x->stride = index == 4 ? 0 : register_of(context, index) << (sib >> 6);
    }
    if (x->mod == 0 && rm == 5) {
        memcpy(&far, x->next, 4);
        x->next += 4;
        base =
            x->rm == 4 ? 0 : (int64_t)(intptr_t)x->next; /* relative to the next one */
    }
    else {
        base = register_of(context, rm | high_base);
    }
    if (x->mod == 1) {
        far = (int8_t)*x->next++;
    }
    else if (x->mod == 2) {
        memcpy(&far, x->next, 4);
        x->next += 4;
    }
    x->address = (uint8_t *)(intptr_t)(base + far);
}

static struct instruction
decode(const ucontext_t *context)
{
    const uint8_t *p = (const uint8_t *)(intptr_t)context->uc_mcontext.gregs[REG_RIP];
    struct instruction x = {0};
    if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || (p[1] & 0x80) == 0 ||
        (p[2] & 0x84) != 0) {
        fail("an illegal instruction that is none of AMX");
    }
    x.prefix = p[2] & 3;
    x.vvvv = ~(p[2] >> 3) & 15;
    x.opcode = p[3];
    x.mod = p[4] >> 6;
    x.reg = p[4] >> 3 & 7;
    x.rm = p[4] & 7;
    x.next = p + 5;
    if (x.mod != 3) {
        decode_memory(context, &x, ~(p[1] >> 5) & 3);
    }
    return x;
}

static void
on_illegal(int signal, siginfo_t *info, void *machine)
{
    ucontext_t *context = machine;
    const struct instruction x = decode(context);
    const int what = x.opcode << 8 | x.prefix << 4 | (x.mod == 3);
    (void)signal, (void)info;
    switch (what) {
    case 0x4900:
        configure(x.address);
        counts[LDTILECFG]++;
        break;
    case 0x4901:
        memset(&now, 0, sizeof(now));
        counts[TILERELEASE]++;
        break;
    case 0x4b30:
        load(x.reg, x.address, x.stride);
        counts[TILELOADD]++;
        break;
    case 0x4b20:
        store(x.address, x.stride, x.reg);
        counts[TILESTORED]++;
        break;
    case 0x4931:
        need(x.reg);
        memset(tiles[x.reg], 0, sizeof(tiles[x.reg]));
        counts[TILEZERO]++;
        break;
    case 0x5c21:
        multiply(x.reg, x.rm, x.vvvv);
        counts[TDPBF16PS]++;
        break;
    default:
        fail("an instruction of AMX that is not known here");
    }
    context->uc_mcontext.gregs[REG_RIP] = (greg_t)(intptr_t)x.next;
}

int
trapped_begin(void)
{
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    return sigaction(SIGILL, &action, NULL);
}
