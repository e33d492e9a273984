/* gated_delta_gate.h: the gates' gradient, of the gated delta rule and of DPLR, over
 * one chunk on its way back (gated_delta_reverse.h).
 *
 * A gate multiplies all that earlier tokens left behind on its way to all that later
 * ones make of it:
 *
 *   dg_t = first last o rows(S o R) + sum_{i >= t} (A'_i o G_i S^T + E'_i o N_i S^T)
 *        + sum_{j < t} B'_j o U_j R^T + sum_{j < t <= i} (X_ij A_i + Y_ij E_i) o B_j
 *
 * a sum of products of what is behind and what is ahead, as the token by token gradient
 * is: no long sums that cancel, and no token reaches a gradient that does not hang on
 * it.  (DPLR reads before its token's decay: t < i for E.)  With a number a token it is
 * the sum over the channels: row products, and (X_ij A_i).B_j = X_ij P_ij. */
#ifndef LA_GATED_DELTA_GATE_H
#define LA_GATED_DELTA_GATE_H

#include "delta_reverse.h"
#include "gated_delta.h"

struct rule_reverse {
    struct reverse_scratch base; /* ab: [A; E]; u, du, db: of DPLR for [K; B] */
    struct decay decay;
    struct block ends;       /* [A'; E'] */
    struct block b, written; /* B or [K; B], and times last */
    struct block lk, pk, xk, yk;
    struct block dg;
    int low_rank;
};

static struct rule_reverse
rule_reverse_carve(const struct la_head *h, ptrdiff_t rows, struct arena *arena,
                   int low_rank)
{
    const ptrdiff_t writers = (1 + low_rank) * rows;
    struct rule_reverse r = {.low_rank = low_rank};
    r.base = reverse_carve(h, rows, arena);
    if (low_rank) {
        r.base.u = take_block(arena, writers, h->m);
        r.base.du = take_block(arena, writers, h->m);
        r.base.db = take_block(arena, writers, h->d);
        r.lk = take_block(arena, rows, rows);
        r.pk = take_block(arena, rows, rows);
        r.xk = take_block(arena, rows, rows);
        r.yk = take_block(arena, rows, rows);
    }
    r.decay = take_decay(arena, h, rows);
    r.ends = take_block(arena, 2 * rows, h->d);
    r.b = take_block(arena, writers, h->d);
    r.written = take_block(arena, writers, h->d);
    r.dg = take_block(arena, rows, h->d);
    return r;
}

/* first last o sum_m S o R of VL channels; s and rt are S^T and R^T, (m,d). */
INLINE vec
state_product(const struct la_head *h, const struct rule_reverse *r, T *s,
              ptrdiff_t col)
{
    const ptrdiff_t D = round_up(h->d, VL), tile = col / (NR * VL) * (NR * VL);
    const ptrdiff_t width = D - tile < NR * VL ? D - tile : NR * VL;
    const T *x = state_at(s, h->m, D, 0, col);
    const T *y = state_at(r->base.rt, h->m, D, 0, col);
    vec sum[4] = {{0}}; /* one would wait for itself */
    ptrdiff_t l = 0;
    for (; l + 4 <= h->m; l += 4) {
        LA_EACH(t, 4) {
            const ptrdiff_t at = (l + t) * width;
            sum[t] = vfma(vload(&x[at]), vload(&y[at]), sum[t]);
        }
    }
    for (; l < h->m; l++) {
        sum[0] = vfma(vload(&x[l * width]), vload(&y[l * width]), sum[0]);
    }
    const vec all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    return all * (vload(&r->decay.keep[col]) + vload(&r->decay.change[col]));
}

/* The triangles of one writer, whose rows of B, B' and dB begin at `row`. */
struct writer {
    struct block x, y, p, l;
    ptrdiff_t row;
};

static int
writers_of(const struct rule_reverse *r, ptrdiff_t rows, struct writer *w)
{
    const struct reverse_scratch *base = &r->base;
    w[0] = (struct writer){base->x, base->y, base->p, base->l, r->low_rank ? rows : 0};
    w[1] = (struct writer){r->xk, r->yk, r->pk, r->lk, 0};
    return 1 + r->low_rank;
}

/* sum_{j < i} (x_ij a + y_lj e) o b_j with the sums x_ij a + y_lj e of all later rows,
 * across_j; later < 0: e is 0. */
INLINE vec
crossing(const struct writer *w, vec *across, const T *b, ptrdiff_t ld, ptrdiff_t i,
         vec a, ptrdiff_t later, vec e)
{
    const T *x = &w->x.x[i * w->x.ld];
    const T *y = later < 0 ? x : &w->y.x[later * w->y.ld];
    vec sum[2] = {{0}};
    ptrdiff_t j = 0;
    for (; j + 2 <= i; j += 2) {
        LA_EACH(t, 2) {
            const vec more = vfma(vset1(x[j + t]), a, across[j + t]);
            across[j + t] = vfma(vset1(y[j + t]), e, more);
            sum[t] = vfma(vload(&b[(j + t) * ld]), across[j + t], sum[t]);
        }
    }
    if (j < i) {
        across[j] = vfma(vset1(y[j]), e, vfma(vset1(x[j]), a, across[j]));
        sum[0] = vfma(vload(&b[j * ld]), across[j], sum[0]);
    }
    return sum[0] + sum[1];
}

/* dg of VL channels, before dA, dE and dB get what the triangles add: those still hold
 * G S^T, N S^T and U R^T. */
static void
dgate_channels(const struct la_head *h, const struct reverse *c,
               const struct rule_reverse *r, struct span t, T *s, ptrdiff_t col)
{
    const struct block da = block_at(r->base.dab, 0, col),
                       a = block_at(r->ends, 0, col);
    const struct block de = block_at(da, c->rows, 0), e = block_at(a, c->rows, 0);
    const ptrdiff_t ld = da.ld;
    struct writer w[2];
    const int writers = writers_of(r, c->rows, w);
    vec behind[LA_CHUNK_MOST], across[2][LA_CHUNK_MOST], ahead = (vec){0};
    vec sum = state_product(h, r, s, col);
    for (ptrdiff_t j = 0; j < t.rows; j++) {
        behind[j] = sum;
        for (int k = 0; k < writers; k++) {
            const ptrdiff_t at = (w[k].row + j) * ld + col;
            sum = vfma(vload(&r->written.x[at]), vload(&r->base.db.x[at]), sum);
            across[k][j] = (vec){0};
        }
    }
    for (ptrdiff_t i = t.rows - 1; i >= 0; i--) {
        const ptrdiff_t later = i + r->low_rank;
        vec erases = (vec){0};
        ahead = vfma(vload(&a.x[i * ld]), vload(&da.x[i * ld]), ahead);
        if (later < t.rows) {
            erases = vload(&c->b.x[later * ld + col]);
            ahead = vfma(vload(&e.x[later * ld]), vload(&de.x[later * ld]), ahead);
        }
        sum = behind[i] + ahead;
        for (int k = 0; k < writers; k++) {
            sum += crossing(&w[k], across[k], &r->b.x[w[k].row * ld + col], ld, i,
                            vload(&c->a.x[i * ld + col]), later < t.rows ? later : i,
                            erases);
        }
        vstore(&r->dg.x[i * r->dg.ld + col], sum);
    }
}

/* across_j += x_ij p_ij + y_lj l_lj of VL columns j < i, and their sums. */
INLINE vec
token_crossing(const struct writer *w, vec *across, ptrdiff_t j, ptrdiff_t i,
               ptrdiff_t later, int erases)
{
    const ivec earlier = viota() < (ivec)((ivec){0} + (INT)(i - j));
    const ptrdiff_t at = i * w->x.ld + j, next = later * w->y.ld + j;
    vec more = vkeep(earlier, vload(&w->x.x[at]) * vload(&w->p.x[at]));
    if (erases) {
        more += vkeep(earlier, vload(&w->y.x[next]) * vload(&w->l.x[next]));
    }
    *across += more;
    return vkeep(earlier, *across);
}

/* dg_t with one number a token: the sum of all channels, those of (X_ij A_i) o B_j
 * being X_ij P_ij; in sums. */
static void
dgate_tokens(const struct la_head *h, const struct reverse *c,
             const struct rule_reverse *r, struct span t, T *s)
{
    _Alignas(LA_ALIGN) T reads[LA_CHUNK_MOST], erases[LA_CHUNK_MOST];
    _Alignas(LA_ALIGN) T writes[2][LA_CHUNK_MOST], cross[LA_CHUNK_MOST], lanes[VL];
    const ptrdiff_t D = round_up(h->d, VL);
    const struct block de = block_at(r->base.dab, c->rows, 0);
    struct writer w[2];
    const int writers = writers_of(r, c->rows, w);
    vec across[2][LA_CHUNK_MOST], total = (vec){0};
    T behind = 0, ahead = 0;
    memset(across, 0, sizeof(across));
    for (ptrdiff_t col = 0; col < D; col += VL) {
        total += state_product(h, r, s, col);
    }
    row_dots(reads, r->ends, r->base.dab, t.rows, D);
    row_dots(erases, block_at(r->ends, c->rows, 0), de, t.rows, D);
    for (int k = 0; k < writers; k++) {
        row_dots(writes[k], block_at(r->written, w[k].row, 0),
                 block_at(r->base.db, w[k].row, 0), t.rows, D);
    }
    vstore(lanes, total);
    for (ptrdiff_t l = 0; l < VL; l++) {
        behind += lanes[l];
    }
    for (ptrdiff_t last = round_up(t.rows, VL); last > 0; last -= VL) {
        vec part[VL];
        for (ptrdiff_t lane = VL - 1; lane >= 0; lane--) {
            const ptrdiff_t i = last - VL + lane, later = i + r->low_rank;
            part[lane] = (vec){0};
            for (int k = 0; i < t.rows && k < writers; k++) {
                for (ptrdiff_t j = 0; j < i; j += VL) {
                    part[lane] += token_crossing(&w[k], &across[k][j / VL], j, i, later,
                                                 later < t.rows);
                }
            }
        }
        vstore(&cross[last - VL], lane_sums(part));
    }
    for (ptrdiff_t i = 0; i < t.rows; i++) {
        cross[i] += behind;
        for (int k = 0; k < writers; k++) {
            behind += writes[k][i];
        }
    }
    for (ptrdiff_t i = t.rows - 1; i >= 0; i--) {
        const ptrdiff_t later = i + r->low_rank;
        ahead += reads[i] + (later < t.rows ? erases[later] : 0);
        r->base.sums[i] = i < c->keys ? cross[i] + ahead : 0;
    }
}

#endif
