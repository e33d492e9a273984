/* decay_backward.h: gradients through the decays of a chunk (decay.h).
 *
 * One or two sets of readers A of a chunk meet its writers B in the triangles P_ij =
 * a_i.(E_ij o b_j).  X_ij is the gradient of P_ij.  far_i is what a_i receives through
 * the state S before the chunk, or b_j through R, the gradient of the state after it.
 * Then, with sums over all sets,
 *
 *    da_i = exp(G_i) o far_i + sum_j X_ij E_ij o b_j
 *    db_j = exp(G_last - G_j) o far_j + sum_i X_ij E_ij o a_i
 *    dg_t = exp(G_last) o rows(S o R)
 *         + sum_{i >= t} a_i o (exp(G_i) o far_i + sum_{j < t} X_ij E_ij o b_j)
 *         + sum_{j < t} b_j o (exp(G_last - G_j) o far_j)
 *
 * (i > t for rows that read before their decay.)  With one decay per token, dg is the
 * sum over the channels: products of rows, and X_ij P_ij.
 *
 * Numerics.  Nothing cancels: every product of a term before t and a term after it is
 * added separately, so that the error of dg is proportional to the magnitude of its
 * terms, as for other gradients, and pairs of tokens on the same side of t do not
 * contribute.  With one decay per channel, the contribution of keys before t to row i
 * is a partial sum of da_i, available while that is summed MR keys at a time; pairs
 * with a block of MR rows between them are added once for the block. */
#ifndef LA_DECAY_BACKWARD_H
#define LA_DECAY_BACKWARD_H

#include "decay_pairs.h"

/* across += the product of rows a and their partial sums y over the keys so far. */
INLINE void
add_across(vec y[][NR], struct block a, T *across, ptrdiff_t tokens, const int nr)
{
    LA_EACH(j, nr) {
        vec all = vload(&across[j * VL]);
        LA_EACH(r, MR) {
            if (r < tokens) {
                all = vfma(vload(&a.x[r * a.ld + j * VL]), y[r][j], all);
            }
        }
        vstore(&across[j * VL], all);
    }
}

/* y += contributions of the MR rows from i on to each other, one key at a time.  Also
 * sets dg, or adds to it for the second reader: for each decay, the rows at or after it
 * times their partial sums over the keys before it. */
INLINE void
near_decays(const struct decay_pairs *c, vec y[][NR], int reader, ptrdiff_t i,
            ptrdiff_t col, const int nr)
{
    const struct decay_reader by = c->reader[reader];
    const struct block a = block_at(by.x, i, col);
    const struct block dg = block_at(c->dg, i, col);
    LA_EACH(j, nr) {
        vec near[MR];
        LA_EACH(s, MR) {
            near[s] = reader > 0 ? vload(&dg.x[s * dg.ld + j * VL]) : (vec){0};
        }
        LA_EACH(r, MR) {
            const int exists = i + r < c->tokens;
            const vec row = vload(&a.x[r * a.ld + j * VL]);
            LA_EACH(t, r + 1) {
                if (sees(r, t, by.before) && exists) {
                    near[t] = vfma(row, y[r][j], near[t]);
                }
                for (int w = 0; sees(r, t, by.strict) && w < c->writers; w++) {
                    const struct block x = block_at(c->x[reader][w], i + r, i + t);
                    const struct block b = block_at(c->writer[w].x, i + t, col);
                    y[r][j] = vfma(vset1(x.x[0]), vload(&b.x[j * VL]), y[r][j]);
                }
            }
        }
        LA_EACH(s, MR) {
            vstore(&dg.x[s * dg.ld + j * VL], near[s]);
        }
    }
}

/* y = far of MR rows from i on, times the decay since the beginning of the chunk. */
INLINE void
far_of_reader(const struct decay_pairs *c, vec y[][NR], struct block dx, ptrdiff_t i,
              ptrdiff_t col, const int nr, const int channels, int before)
{
    LA_EACH(r, MR) {
        LA_EACH(j, nr) {
            vec decay = vset1(1);
            if (!channels) {
                decay = vset1(start_of(c->decay, before)[i + r]);
            }
            else if (i + r >= before) {
                decay = vload(&c->decay->first[col + j * VL]);
            }
            y[r][j] = vload(&dx.x[r * dx.ld + j * VL]) * decay;
        }
    }
}

/* da of one reader: one column tile, MR rows from i on. */
INLINE void
reader_rows(const struct decay_pairs *c, int reader, ptrdiff_t i, ptrdiff_t col,
            const int nr, const int channels)
{
    const struct decay_reader by = c->reader[reader];
    const struct block a = block_at(by.x, i, col), dx = block_at(by.dx, i, col);
    const ptrdiff_t keys = channels ? MR : i;
    vec y[MR][NR];
    far_of_reader(c, y, dx, i, col, nr, channels, by.before);
    for (ptrdiff_t key = 0; key < i; key += keys) {
        if (channels) {
            add_across(y, a, c->across.x + key / MR * c->across.ld + col, c->tokens - i,
                       nr);
        }
        for (int w = 0; w < c->writers; w++) {
            tile(y, MR, nr, block_at(c->x[reader][w], i, key), 0,
                 block_at(c->writer[w].x, key, col), keys);
        }
    }
    if (channels) {
        near_decays(c, y, reader, i, col, nr);
    }
    for (int w = 0; !channels && w < c->writers; w++) {
        diagonal_down(y, nr, block_at(c->x[reader][w], i, i),
                      block_at(c->writer[w].x, i, col), by.strict);
    }
    LA_EACH(r, MR) {
        LA_EACH(j, nr) {
            if (channels && i + r >= by.before) {
                const struct block up = block_at(c->decay->up, i + r - by.before, col);
                y[r][j] *= vload(&up.x[j * VL]);
            }
        }
    }
    tile_store(dx, y, nr);
}

/* dg += sum of b_j o y_j over rows j before each of the MR decays from row i on.  `sum`
 * holds the contribution of all earlier rows. */
INLINE void
near_writes(const struct decay_pairs *c, vec y[][NR], struct block b, vec sum[NR],
            ptrdiff_t i, ptrdiff_t col, const int nr)
{
    LA_EACH(r, MR) {
        T *dg = c->dg.x + (i + r) * c->dg.ld + col;
        LA_EACH(j, nr) {
            if (i + r < c->tokens) {
                vstore(&dg[j * VL], vload(&dg[j * VL]) + sum[j]);
                sum[j] = vfma(vload(&b.x[r * b.ld + j * VL]), y[r][j], sum[j]);
            }
        }
    }
}

/* y = far of MR rows from i on, times the decay until the end of the chunk; behind +=
 * b_j o far_j. */
INLINE void
far_of_writer(const struct decay_pairs *c, vec y[][NR], const struct decay_writer *w,
              vec behind[NR], ptrdiff_t i, ptrdiff_t col, const int nr,
              const int channels)
{
    const struct block b = block_at(w->x, i, col), dx = block_at(w->dx, i, col);
    LA_EACH(r, MR) {
        LA_EACH(j, nr) {
            const vec decay = channels ? vload(&c->decay->last[col + j * VL])
                                       : vset1(c->decay->end[i + r]);
            y[r][j] = vload(&dx.x[r * dx.ld + j * VL]) * decay;
            if (channels && i + r < c->tokens) {
                behind[j] = vfma(vload(&b.x[r * b.ld + j * VL]), y[r][j], behind[j]);
            }
        }
    }
}

/* db of one writer: one column tile, MR rows from i on; and dg of their pairs with
 * later readers.  `behind` is the contribution of `far` to all later decays. */
INLINE void
writer_rows(const struct decay_pairs *c, int writer, vec behind[NR], ptrdiff_t i,
            ptrdiff_t col, const int nr, const int channels)
{
    const struct decay_writer *w = &c->writer[writer];
    const struct block b = block_at(w->x, i, col), dx = block_at(w->dx, i, col);
    const ptrdiff_t later = i + MR, left = c->rows - later;
    vec y[MR][NR], sum[NR];
    LA_EACH(j, nr) {
        sum[j] = behind[j];
        if (channels && writer == 0) {
            sum[j] += vload(&c->across.x[i / MR * c->across.ld + col + j * VL]);
        }
    }
    far_of_writer(c, y, w, behind, i, col, nr, channels);
    for (int r = 0; r < c->readers; r++) {
        tile(y, MR, nr, block_at(c->x[r][writer], later, i), 1,
             block_at(c->reader[r].x, later, col), left);
    }
    if (channels) {
        near_writes(c, y, b, sum, i, col, nr);
    }
    for (int r = 0; r < c->readers; r++) {
        const struct block x = block_at(c->x[r][writer], i, i);
        const struct block a = block_at(c->reader[r].x, i, col);
        diagonal_up(y, nr, x, a, c->reader[r].strict);
    }
    LA_EACH(r, MR) {
        LA_EACH(j, nr) {
            if (channels) {
                const struct block down = block_at(c->decay->down, i + r, col);
                y[r][j] *= vload(&down.x[j * VL]);
            }
        }
    }
    tile_store(dx, y, nr);
}

/* One column tile of all gradients. */
INLINE void
gradient_tile(const struct decay_pairs *c, ptrdiff_t col, const int nr,
              const int channels)
{
    vec behind[2][NR];
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        for (int r = 0; r < c->readers; r++) {
            reader_rows(c, r, i, col, nr, channels);
        }
    }
    LA_EACH(j, nr) {
        behind[0][j] = vload(&c->state[col + j * VL]);
        behind[1][j] = (vec){0};
    }
    for (ptrdiff_t i = 0; i < c->rows; i += MR) {
        for (int w = 0; w < c->writers; w++) {
            writer_rows(c, w, behind[w], i, col, nr, channels);
        }
    }
}

/* da, db and dg from `far`, X and P; overwrites X. */
static void
decay_gradients(const struct decay_pairs *c)
{
    const ptrdiff_t cols = round_up(c->d, VL);
    if (c->decay->channels) {
        clear(c->across.x, c->rows / MR * c->across.ld);
        clear_rows(c->dg, 0, c->readers > 0 ? 0 : c->rows); /* readers set it */
        LA_BY_TILES(cols, gradient_tile(c, col, nr, 1));
        return;
    }
    token_gradient(c);
    for (int r = 0; r < c->readers; r++) {
        for (int w = 0; w < c->writers; w++) {
            decay_triangle(c->decay, c->x[r][w], c->rows, c->reader[r].before);
        }
    }
    LA_BY_TILES(cols, gradient_tile(c, col, nr, 0));
}

/* Stores dg of the tokens t, with 0 for those without a key. */
static void
store_decay_gradient(const struct la_head *h, const struct decay *decay,
                     const struct decay_pairs *c, struct span t)
{
    const ptrdiff_t keys = keys_left(h, t);
    for (ptrdiff_t l = 0; h->g.has_channels && l < h->d; l += VL) {
        /* The gradient is 0 at a reset. */
        const ivec reset = is_reset(vload(&decay->g.x[l]));
        vstore(&c->dg.x[l], vkeep(~reset, vload(&c->dg.x[l])));
    }
    if (h->g.has_channels) {
        clear_rows(c->dg, keys, t.rows);
        store_rows(&h->dg, t, h->d, c->dg, NULL);
        return;
    }
    for (ptrdiff_t i = keys; i < t.rows; i++) {
        c->dg_token[i] = 0;
    }
    if (decay->g.x[0] <= EXP_MIN) {
        c->dg_token[0] = 0;
    }
    store_numbers(&h->dg, t, c->dg_token);
}

#endif
