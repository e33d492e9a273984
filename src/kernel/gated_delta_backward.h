/* gated_delta_backward.h: gradients of the gated delta rule and of DPLR, one head,
 * chunks in reverse.
 *
 * As delta_backward.h: a forward scan leaves E (of DPLR: U) of every row in the place
 * of dV and a checkpoint before every stretch of chunks, and the states of one stretch
 * at a time are summed up again.  Gates decide where chunks begin (decay.h), which the
 * forward scan marks, a byte a token; there may be as many as tokens.  About 20 n d m
 * flops (DPLR: 28 n d m).  Scratch: 2.5 sqrt(n) + 3 states at most, of which without
 * strong gates a fourth is touched, a few chunks, n bytes, and E where dV has only 16
 * bits. */
#ifndef LA_GATED_DELTA_BACKWARD_H
#define LA_GATED_DELTA_BACKWARD_H

#include "delta_backward.h"
#include "gated_delta_reverse.h"

struct rule_backward_scratch {
    ptrdiff_t rows, stretch; /* tokens a chunk, at most; chunks a stretch */
    struct rule_reverse reverse;
    struct block v;
    T *s;
    T *checkpoints, *states; /* S^T before each stretch, and before each chunk of one */
    struct la_array errors;  /* E or U, (n,m) */
    unsigned char *begins;   /* whether a chunk begins with this token; (n) */
};

static struct rule_backward_scratch
rule_backward_carve(const struct la_head *h, struct arena *arena, int low_rank)
{
    struct rule_backward_scratch r = {.rows = delta_chunk(h->d)};
    r.stretch = stretch_chunks(h->n / 4);
    r.v = take_block(arena, r.rows, h->m);
    r.s = take_state(arena, h->d, h->m);
    r.checkpoints = take_states(arena, h->n / r.stretch + 1, h->d, h->m);
    r.states = take_states(arena, r.stretch, h->d, h->m);
    r.reverse = rule_reverse_carve(h, r.rows, arena, low_rank);
    r.begins = (unsigned char *)take(arena, h->n / (ptrdiff_t)sizeof(T) + 1, 1);
    r.errors = h->dv;
    if (h->dv.type != LA_NATIVE) {
        T *const e = take(arena, h->n, h->m);
        r.errors = (struct la_array){(char *)e, h->m * (ptrdiff_t)sizeof(T), sizeof(T),
                                     LA_NATIVE};
    }
    return r;
}

static struct rule_backward_scratch
gated_delta_backward_carve(const struct la_head *h, struct arena *arena)
{
    return rule_backward_carve(h, arena, 0);
}

static struct rule_backward_scratch
dplr_backward_carve(const struct la_head *h, struct arena *arena)
{
    return rule_backward_carve(h, arena, 1);
}

/* Where the chunk before token i begins. */
static ptrdiff_t
chunk_before(const struct rule_backward_scratch *r, ptrdiff_t i)
{
    while (!r->begins[--i]) {
    }
    return i;
}

/* The chunk that begins at i, in a scan that goes on at its end. */
static struct span
chunk_from(const struct la_head *h, const struct rule_backward_scratch *r, ptrdiff_t i,
           struct la_fetch *ahead)
{
    ptrdiff_t end = i + 1;
    while (end < h->n && !r->begins[end]) {
        end++;
    }
    return span(i, end - i, end, h->n, ahead);
}

/* E, or U, of one chunk, and the state after it. */
static void
chunk_errors(const struct la_head *h, const struct rule_backward_scratch *r,
             struct writing *c, struct span t)
{
    const struct rule_reverse *chunk = &r->reverse;
    const struct reverse_scratch *base = &chunk->base;
    const int low_rank = chunk->low_rank;
    struct gated_rows x = reverse_rows(chunk, c->rows);
    const struct block b = second(chunk->b, c->rows, low_rank);
    x.e = base->ab;
    load_writers(h, &x, t);
    load_erasers(h, &x, t);
    triangle(base->l, x.e, b, c->rows, h->d);
    if (low_rank) {
        struct span some = t;
        some.rows = c->keys;
        load_plain(base->u, &h->v, some, h->m);
        clear_rows(base->u, c->keys, c->rows);
        triangle(chunk->lk, x.e, chunk->b, c->rows, h->d);
    }
    else {
        c->v = values(h, t, r->v);
        load_beta(h, t, &base->beta);
    }
    erasers_before(x.e, &x, c->rows, h->d);
    writers_after(chunk->b, &x, c->rows, h->d);
    delta_columns(c);
    store_rows(&r->errors, t, h->m, low_rank ? c->u : base->e, NULL);
}

/* The forward scan: E, or U, of every row, and S^T before every stretch; how many
 * chunks, or -1 to give up. */
static ptrdiff_t
rule_errors(const struct la_head *h, const struct rule_backward_scratch *r)
{
    const struct rule_reverse *chunk = &r->reverse;
    const struct reverse_scratch *base = &chunk->base;
    const int low_rank = chunk->low_rank;
    const ptrdiff_t size = state_size(h->d, h->m);
    struct la_fetch ahead = {0};
    const struct scan state = {
        .K = h->d, .W = round_up(h->m, VL), .s = r->s, .ahead = &ahead};
    struct writing c = {.read = state,
                        .write = state,
                        .l = base->l,
                        .lk = chunk->lk,
                        .beta = base->beta};
    ptrdiff_t chunks = 0;
    c.read.a = base->ab;
    c.write.b = chunk->b;
    c.write.v = base->u;
    c.write.keep = chunk->decay.keep;
    c.write.change = chunk->decay.change;
    if (low_rank) {
        c.given = base->u;
    }
    else {
        c.e = base->e;
    }
    load_state(r->s, &h->s0, h->d, h->m);
    memset(r->begins, 0, (size_t)h->n);
    for (ptrdiff_t i = 0; i < h->n; chunks++) {
        if (h->poll(h->poll_arg)) {
            return -1;
        }
        if (chunks % r->stretch == 0) {
            transpose_state(r->checkpoints + chunks / r->stretch * size, r->s, h->d,
                            h->m);
        }
        struct span t = span(i, r->rows, i + r->rows, h->n, &ahead);
        t.rows = chunk_decay(h, &chunk->decay, t);
        r->begins[i] = 1;
        t.next = i += t.rows;
        c.rows = c.read.rows = round_up(t.rows, MR);
        c.write.rows = (1 + low_rank) * c.rows;
        c.keys = keys_left(h, t);
        c.read.o = c.u = second(base->u, c.rows, low_rank);
        chunk_errors(h, r, &c, t);
    }
    return chunks;
}

/* S^T before each of so many chunks of the stretch that begins at token i. */
static int
rule_states(const struct la_head *h, const struct rule_backward_scratch *r,
            ptrdiff_t stretch, ptrdiff_t chunks, ptrdiff_t i)
{
    const struct rule_reverse *chunk = &r->reverse;
    const ptrdiff_t size = state_size(h->d, h->m);
    const size_t bytes = (size_t)size * sizeof(T);
    struct la_fetch ahead = {0};
    struct scan c = {
        .K = h->m,
        .W = round_up(h->d, VL),
        .b = chunk->base.u,
        .v = chunk->written,
        .s = r->states,
        .keep = chunk->decay.keep,
        .change = chunk->decay.change,
        .turned = 1,
        .ahead = &ahead,
    };
    memcpy(c.s, r->checkpoints + stretch * size, bytes);
    for (ptrdiff_t place = 1; place < chunks; place++) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct span t = chunk_from(h, r, i, &ahead);
        const ptrdiff_t rows = round_up(t.rows, MR);
        const struct gated_rows x = reverse_rows(chunk, rows);
        memcpy(c.s + size, c.s, bytes);
        c.s += size;
        chunk_decay(h, &chunk->decay, t);
        load_written(h, chunk, &x, &r->errors, t);
        c.rows = (1 + chunk->low_rank) * rows;
        sweep(&c, LA_WRITE);
        i = t.next;
    }
    return 0;
}

static int
run_rule_backward(const struct la_head *h, int low_rank)
{
    struct arena arena = {h->scratch, 0};
    const struct rule_backward_scratch r = rule_backward_carve(h, &arena, low_rank);
    struct la_fetch ahead = {0};
    const ptrdiff_t chunks = rule_errors(h, &r);
    if (chunks < 0) {
        return 1;
    }
    reverse_begin(h, &r.reverse.base, r.rows);
    ptrdiff_t end = h->n;
    for (ptrdiff_t chunk = chunks - 1; chunk >= 0; chunk--) {
        const ptrdiff_t place = chunk % r.stretch, begin = chunk_before(&r, end);
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        if (chunk == chunks - 1 || place == r.stretch - 1) {
            ptrdiff_t first = begin;
            for (ptrdiff_t back = 0; back < place; back++) {
                first = chunk_before(&r, first);
            }
            if (rule_states(h, &r, chunk / r.stretch, place + 1, first)) {
                return 1;
            }
        }
        const ptrdiff_t before = begin > 0 ? chunk_before(&r, begin) : 0;
        rule_reverse(h, &r.reverse, &r.errors,
                     span(begin, end - begin, before, h->n, &ahead),
                     r.states + place * state_size(h->d, h->m));
        end = begin;
    }
    store_state(&h->ds0, r.reverse.base.r, h->d, h->m);
    return 0;
}

static int
run_gated_delta_backward(const struct la_head *h)
{
    return run_rule_backward(h, 0);
}

static int
run_dplr_backward(const struct la_head *h)
{
    return run_rule_backward(h, 1);
}

#endif
