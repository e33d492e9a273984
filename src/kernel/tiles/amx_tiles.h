/* amx_tiles.h: the tiles of micro.h by AMX: LA_AMX_BLOCK rows from i (or l) on, as far
 * as they exist, of one column tile of nr vectors.
 *
 * Tiles also hold scores of tokens that their rows must not see: zeros.  Zero times inf
 * or NaN is NaN, so values that are not finite are zeros there, too, and are multiplied
 * apart from the others, one by one.  That part is summed first, so that no bit of a
 * row depends on such values, not even the sign of a zero.  The order of sums follows
 * from the positions of tokens in their chunk alone. */
#ifndef LA_AMX_TILES_H
#define LA_AMX_TILES_H

#include "state_tile.h"

#if LA_HAS_HALVES
_Static_assert(LA_AMX_BLOCK == 2 * LA_AMX_PAIRS, "rows see a part of their own tokens");

/* What the tiles of one column tile read and write. */
struct amx_sweep {
    const struct sweep *of;
    ptrdiff_t col, rows;    /* rows: of the sweep, rounded up to MR */
    struct block s, values; /* pairs of rows of S and of V */
    struct block finite;    /* V with zeros for inf and NaN; the same block if finite */
    struct block o;         /* O, from the column on */
    struct amx_register *all;
};

/* LA_AMX_BLOCK rows of O = X V + A S, as far as they exist, but for what
 * amx_finish_rows adds.  Part `own` of X V holds the rows' own tokens. */
INLINE void
amx_read_rows(const struct amx_sweep *c, ptrdiff_t i, const int nr,
              const enum la_products by)
{
    const struct sweep *s = c->of;
    struct amx_term terms[3];
    int count = 0;
    la_fetch_some(s->ahead);
    if (s->dots.x != NULL) {
        const ptrdiff_t own = i / 2, next = own + LA_AMX_PAIRS;
        const ptrdiff_t from = s->upper ? next : 0;
        const ptrdiff_t to = s->upper ? lanes_of(s->rows, by) : own;
        const struct block x = block_at(s->pairs.dots, i, 0);
        terms[count++] = (struct amx_term){block_at(x, 0, own),
                                           block_at(c->finite, own, 0), LA_AMX_PAIRS};
        terms[count++] = (struct amx_term){block_at(x, 0, from),
                                           block_at(c->values, from, 0), to - from};
    }
    terms[count++] =
        (struct amx_term){block_at(pairs_of_a(s), i, 0), c->s, lanes_of(s->K, by)};
    amx_rows(c->all, block_at(c->o, i, 0), c->rows - i, nr, terms, count, by);
}

/* Row i of O += scores of the tokens of its own part, times values that are not
 * finite. */
static __attribute__((noinline, cold)) void
add_odd_values(const struct amx_sweep *c, ptrdiff_t i, int nr)
{
    const ptrdiff_t part = 2 * LA_AMX_PAIRS, own = i / part * part, end = own + part;
    const ptrdiff_t first = c->of->upper ? i : own, rows = c->of->rows;
    const ptrdiff_t last = c->of->upper ? (end < rows ? end : rows) : i + 1;
    for (ptrdiff_t t = first; t < last; t++) {
        const vec x = vset1(c->of->dots.x[i * c->of->dots.ld + t]);
        for (ptrdiff_t j = 0; j < nr; j++) {
            const vec pair = vload(&c->values.x[t / 2 * c->values.ld + j * VL]);
            const vec y = t % 2 == 0 ? low_of_pairs(pair) : high_of_pairs(pair);
            T *o = &c->o.x[i * c->o.ld + j * VL];
            vstore(o, vselect(y - y == (vec){0}, vload(o), vfma(x, y, vload(o))));
        }
    }
}

/* O += bias and what values that are not finite add. */
INLINE void
amx_finish_rows(const struct amx_sweep *c, const int nr)
{
    const struct sweep *s = c->of;
    const int odd = s->dots.x != NULL && c->finite.x != c->values.x;
    for (ptrdiff_t i = 0; (s->bias != NULL || odd) && i < c->rows; i++) {
        T *o = &c->o.x[i * c->o.ld];
        LA_EACH(j, nr) {
            if (s->bias != NULL) {
                vstore(&o[j * VL],
                       vload(&o[j * VL]) + vload(&s->bias[c->col + j * VL]));
            }
        }
        if (odd && i < s->rows) {
            add_odd_values(c, i, nr);
        }
    }
}

/* O = bias + X V + A S, for one column tile. */
INLINE void
amx_read_tiles(const struct amx_sweep *c, const int nr, const enum la_products by)
{
    for (ptrdiff_t i = 0; i < c->rows; i += LA_AMX_BLOCK) {
        amx_read_rows(c, i, nr, by);
    }
    amx_finish_rows(c, nr);
}

/* The next LA_AMX_ROWS rows of S from those of B^T V, as far as they exist, for one
 * column tile; and their pairs, where they are held. */
INLINE void
amx_add_rows(const struct amx_sweep *c, const T *sums, struct state_tile to,
             ptrdiff_t l, const int compensated, const int nr)
{
    const ptrdiff_t left = c->of->K - l, rows = left < LA_AMX_ROWS ? left : LA_AMX_ROWS;
    for (ptrdiff_t r = 0; r < rows; r += MR) {
        add_sums(c->of, c->col, to, l + r, sums + r * nr * VL, compensated, nr);
    }
    if (c->of->held != NULL) {
        const struct block s = {to.s + l * nr * VL, nr * VL};
        pair_rows(block_at(c->s, l / 2, 0), s, rows, nr * VL, c->of->pairs.by);
    }
}

/* The next S, for one column tile.  Sums are added to S after the next ones have been
 * stored: loads wait for what a tile register has just stored.  Few rows at a time, as
 * a store to a line that the first-level cache does not hold takes four times as long.
 */
INLINE void
amx_write_tiles(const struct amx_sweep *c, struct state_tile to, const int compensated,
                const int nr, const enum la_products by)
{
    _Alignas(LA_ALIGN) T room[2][LA_AMX_ROWS * NR * VL];
    const struct sweep *s = c->of;
    int turn = 0;
    for (ptrdiff_t l = 0; l < s->K + LA_AMX_ROWS; l += LA_AMX_ROWS, turn ^= 1) {
        if (l < s->K) {
            const struct amx_term sums = {block_at(s->pairs.b, l, 0), c->values,
                                          lanes_of(s->rows, by)};
            la_fetch_some(s->ahead);
            amx_rows(c->all, (struct block){room[turn], nr * VL}, LA_AMX_ROWS, nr,
                     &sums, 1, by);
        }
        if (l > 0) {
            amx_add_rows(c, room[turn ^ 1], to, l - LA_AMX_ROWS, compensated, nr);
        }
    }
    if (s->held != NULL) {
        clear_rows(c->s, lanes_of(s->K, by), padded_lanes(s->K, by));
        s->held[c->col / (NR * VL)] = to.s;
    }
}

/* Pairs of `rows` rows, with zeros for inf and NaN; in `room` if there are any. */
static struct block
finite_pairs(T *room, struct block x, ptrdiff_t rows, ptrdiff_t cols)
{
    const struct block y = {room, cols};
    const ivec most = (ivec){0} + 0x7f80, low = (ivec){0} + 0xffff;
    ivec odd = {0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j < cols; j += VL) {
            const ivec pair = (ivec)vload(&x.x[i * x.ld + j]);
            const ivec first = (pair & most) == most;
            const ivec second = (pair >> 16 & most) == most;
            odd |= first | second;
            vstore(&y.x[i * cols + j],
                   (vec)(pair & ~((first & low) | (second & ~low))));
        }
    }
    return vany(odd) ? y : x;
}

/* Makes the pairs of V and S, the column tile `at`; `finite` is room for as many pairs
 * as those of V. */
static __attribute__((noinline)) void
amx_make_pairs(struct amx_sweep *c, ptrdiff_t at, T *finite, ptrdiff_t width, int what)
{
    const struct sweep *of = c->of;
    const enum la_products by = of->pairs.by;
    if (what & LA_WRITE || of->dots.x != NULL) {
        const ptrdiff_t lanes = padded_lanes(of->rows, by);
        const int odd = pair_values(c->values, of, c->col, width);
        if (odd && what & LA_READ && of->dots.x != NULL) {
            c->finite = finite_pairs(finite, c->values, lanes, width);
        }
    }
    const T *const s = state_read(of) + at;
    const T **const held = of->held != NULL ? &of->held[c->col / (NR * VL)] : NULL;
    if (what & LA_READ && (held == NULL || *held != s)) {
        paired(c->s.x, (struct block){(T *)s, width}, of->K, width, by);
        if (held != NULL) {
            *held = s;
        }
    }
}

/* Reads, then writes, one column tile of nr vectors. */
INLINE void
amx_sweep(const struct sweep *s, ptrdiff_t col, int what, const int nr,
          const enum la_products by)
{
    const ptrdiff_t at = col * round_up(s->K, MR);
    struct amx_register all[8];
    LA_PANEL(room, LA_PAIRED_ROWS, NR, by);
    LA_PANEL(finite, LA_PAIRED_ROWS, NR, by);
    struct amx_sweep c = {.of = s,
                          .col = col,
                          .rows = round_up(s->rows, MR),
                          .s = {s->pairs.s.x + col * padded_lanes(s->K, by), nr * VL},
                          .values = {room, nr * VL},
                          .finite = {room, nr * VL},
                          .o = block_at(s->o, 0, col),
                          .all = all};
    amx_make_pairs(&c, at, finite, nr * VL, what);
    amx_begin(s->pairs.tiles, by);
    if (what & LA_READ) {
        amx_read_tiles(&c, nr, by);
    }
    if (what & LA_WRITE && s->lost != NULL && !s->fades) {
        amx_write_tiles(&c, state_tile(s, at), 1, nr, by);
    }
    else if (what & LA_WRITE) {
        amx_write_tiles(&c, state_tile(s, at), 0, nr, by);
    }
}

/* Vectors of scores of each row, from column `col` on. */
INLINE void
amx_score_tile(const struct sweep *c, struct amx_register *all, ptrdiff_t i,
               ptrdiff_t col, const int nr, const enum la_products by)
{
    const struct amx_term scores = {block_at(pairs_of_a(c), i, 0),
                                    block_at(c->pairs.keys, 0, col),
                                    lanes_of(c->K, by)};
    la_fetch_some(c->ahead);
    amx_rows(all, block_at(c->dots, i, col), round_up(c->rows, MR) - i, nr, &scores, 1,
             by);
}

/* The scores of a chunk. */
INLINE void
amx_score_tiles(const struct sweep *c, const enum la_products by)
{
    const ptrdiff_t rows = round_up(c->rows, MR);
    struct amx_register all[8];
    amx_begin(c->pairs.tiles, by);
    for (ptrdiff_t i = 0; i < rows; i += LA_AMX_BLOCK) {
        const ptrdiff_t next = i + LA_AMX_BLOCK, first = c->upper ? i : 0;
        const ptrdiff_t end = c->upper || rows < next ? rows : next;
        LA_BY_TILES(round_up(end, VL) - first,
                    amx_score_tile(c, all, i, first + col, nr, by));
    }
}
#endif

#endif
