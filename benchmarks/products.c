/* products.c: products of bfloat16 operands by vdpbf16ps (AVX512-BF16) beside the
 * kernels' float32 tiles: tiles alone, packing alone, and a whole causal form.
 *
 * Compiled for the processor at hand by products.py, with the kernels' headers.
 * vdpbf16ps adds two products to each float32 lane.  Its operands are pairs of numbers
 * that are adjacent along the sum: rows of q and k already are; keys, values and the
 * state are packed by pairs of rows.
 *
 * d = m is a multiple of COLS and at most D_MAX; a chunk has a multiple of MR rows and
 * at most ROWS_MAX. */
#include "tiles/micro.h"

#ifndef __AVX512BF16__
#error "products.c needs AVX512-BF16"
#endif

typedef uint16_t bfloat;
typedef uint32_t pair; /* two bfloats; the lower half comes first */

enum { COLS = NR * 16, D_MAX = 256, ROWS_MAX = 64, TILE_ROWS = 16 };

/* The state by column tiles, as the kernels store it, and as pairs of rows. */
static _Alignas(LA_ALIGN) float state[D_MAX * D_MAX];
static _Alignas(LA_ALIGN) pair state_pairs[D_MAX / 2 * D_MAX];
/* A chunk's keys and values as pairs of tokens, and its scores: rows of pairs and, in
 * float32, the diagonal blocks. */
static _Alignas(LA_ALIGN) pair keys[ROWS_MAX / 2 * D_MAX], values[ROWS_MAX / 2 * D_MAX];
static _Alignas(LA_ALIGN) bfloat x[ROWS_MAX * ROWS_MAX];
static _Alignas(LA_ALIGN) float x_diagonal[ROWS_MAX * MR];
static _Alignas(LA_ALIGN) float queries[TILE_ROWS * D_MAX], result[TILE_ROWS * COLS];

/* c (MR, NR vectors) += A B over k pairs; a's pair l of row i is at i row + l step. */
INLINE void
tile_pairs(vec c[][NR], const pair *a, ptrdiff_t row, ptrdiff_t step, const pair *b,
           ptrdiff_t ld, ptrdiff_t k)
{
    LA_UNROLL_BY_4
    for (ptrdiff_t l = 0; l < k; l++) {
        __m512bh y[NR];
        LA_EACH(j, NR) {
            y[j] = (__m512bh)_mm512_load_si512(b + l * ld + j * VL);
        }
        LA_EACH(i, MR) {
            const __m512i both = _mm512_set1_epi32((int)a[i * row + l * step]);
            LA_EACH(j, NR) {
                c[i][j] = (vec)_mm512_dpbf16_ps((__m512)c[i][j], (__m512bh)both, y[j]);
            }
        }
    }
}

/* Shuffle of the numbers [first, first + 16) of two vectors of bfloats, `apart` apart,
 * into pairs. */
INLINE __m512i
into_pairs(int first, int apart)
{
    bfloat at[32];
    for (int i = 0; i < 16; i++) {
        at[2 * i] = (bfloat)(first + i);
        at[2 * i + 1] = (bfloat)(first + i + apart);
    }
    return _mm512_loadu_si512(at);
}

/* to (rows / 2, d) = pairs of the rows of a contiguous matrix (rows, d) of bfloats */
INLINE void
pack_rows(pair *to, const bfloat *from, ptrdiff_t rows, ptrdiff_t d)
{
    const __m512i low = into_pairs(0, 32), high = into_pairs(16, 32);
    for (ptrdiff_t i = 0; i < rows; i += 2, from += 2 * d) {
        for (ptrdiff_t l = 0; l < d; l += 32, to += 32) {
            const __m512i first = _mm512_loadu_si512(from + l);
            const __m512i second = _mm512_loadu_si512(from + d + l);
            _mm512_store_si512(to, _mm512_permutex2var_epi16(first, low, second));
            _mm512_store_si512(to + 16, _mm512_permutex2var_epi16(first, high, second));
        }
    }
}

/* Two vectors of floats, rounded, as pairs. */
INLINE __m512i
round_to_pairs(vec first, vec second)
{
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    return _mm512_permutexvar_epi16(into_pairs(0, 16), (__m512i)both);
}

/* --- tiles and packing alone ------------------------------------------------- */

/* A product (TILE_ROWS, k) (k, COLS) whose operands lie in the first-level cache. */
void
tiles_float(long rounds, long k)
{
    const struct block a = {queries, k}, b = {state, COLS};
    for (long round = 0; round < rounds; round++) {
        for (ptrdiff_t i = 0; i < TILE_ROWS; i += MR) {
            vec acc[MR][NR];
            clear_tile(acc, MR, NR);
            tile(acc, MR, NR, block_at(a, i, 0), 0, b, k);
            LA_EACH(r, MR) {
                LA_EACH(j, NR) {
                    vstore(result + (i + r) * COLS + j * VL, acc[r][j]);
                }
            }
        }
    }
}

void
tiles_pairs(long rounds, long k)
{
    for (long round = 0; round < rounds; round++) {
        for (ptrdiff_t i = 0; i < TILE_ROWS; i += MR) {
            vec acc[MR][NR];
            clear_tile(acc, MR, NR);
            tile_pairs(acc, (const pair *)queries + i * k / 2, k / 2, 1, state_pairs,
                       COLS, k / 2);
            LA_EACH(r, MR) {
                LA_EACH(j, NR) {
                    vstore(result + (i + r) * COLS + j * VL, acc[r][j]);
                }
            }
        }
    }
}

/* Packs the keys and the values of a chunk, and a state. */
void
pack_chunk(long rounds, const bfloat *k, const bfloat *v, ptrdiff_t rows, ptrdiff_t d)
{
    for (long round = 0; round < rounds; round++) {
        pack_rows(keys, k, rows, d);
        pack_rows(values, v, rows, d);
        for (ptrdiff_t i = 0; i < d * d; i += 2 * COLS) {
            LA_EACH(j, NR) {
                const vec first = vload(state + i + j * VL);
                const vec second = vload(state + i + COLS + j * VL);
                _mm512_store_si512(state_pairs + i / 2 + j * VL,
                                   round_to_pairs(first, second));
            }
        }
    }
}

/* --- a whole form ------------------------------------------------------------ */

/* X = tril(Q K^T) of a chunk: rounded below the diagonal blocks, where rows of products
 * sum pairs; the diagonal blocks stay in float32, since products with later values are
 * skipped there, not multiplied by zero. */
INLINE void
scores_of_pairs(const bfloat *q, const bfloat *k, ptrdiff_t rows, ptrdiff_t d)
{
    for (ptrdiff_t i = 0; i < rows; i += MR) {
        for (ptrdiff_t j = 0; j <= i; j += MR) {
            vec acc[MR * MR];
            LA_EACH(t, MR * MR) {
                acc[t] = (vec){0};
            }
            for (ptrdiff_t l = 0; l < d; l += 32) {
                __m512bh y[MR];
                LA_EACH(t, MR) {
                    y[t] = (__m512bh)_mm512_loadu_si512(k + (j + t) * d + l);
                }
                LA_EACH(r, MR) {
                    const __m512i row = _mm512_loadu_si512(q + (i + r) * d + l);
                    LA_EACH(t, MR) {
                        acc[r * MR + t] = (vec)_mm512_dpbf16_ps((__m512)acc[r * MR + t],
                                                                (__m512bh)row, y[t]);
                    }
                }
            }
            const vec sums = lane_sums(acc);
            if (i == j) {
                vstore(x_diagonal + i * MR, sums);
                continue;
            }
            _Alignas(32) bfloat block[MR * MR];
            _mm256_store_si256((__m256i *)block,
                               (__m256i)_mm512_cvtneps_pbh((__m512)sums));
            LA_EACH(r, MR) {
                memcpy(x + (i + r) * ROWS_MAX + j, block + MR * r, MR * sizeof(bfloat));
            }
        }
    }
}

/* o = X V + Q S for rows [i, i + MR) of a chunk and the column tile at `col`. */
INLINE void
read_pairs(const bfloat *q, const bfloat *v, bfloat *o, ptrdiff_t i, ptrdiff_t col,
           ptrdiff_t d)
{
    vec acc[MR][NR];
    clear_tile(acc, MR, NR);
    tile_pairs(acc, (const pair *)(q + i * d), d / 2, 1, state_pairs + col * d / 2,
               COLS, d / 2);
    tile_pairs(acc, (const pair *)(x + i * ROWS_MAX), ROWS_MAX / 2, 1, values + col, d,
               i / 2);
    LA_EACH(t, MR) {
        LA_EACH(j, NR) {
            const vec y =
                vread((const char *)(v + (i + t) * d + col + j * VL), LA_BFLOAT);
            LA_UNROLL
            for (int r = t; r < MR; r++) {
                acc[r][j] = vfma(vset1(x_diagonal[(i + r) * MR + t]), y, acc[r][j]);
            }
        }
    }
    LA_EACH(r, MR) {
        LA_EACH(j, NR / 2) {
            const __m512bh both =
                _mm512_cvtne2ps_pbh((__m512)acc[r][2 * j + 1], (__m512)acc[r][2 * j]);
            _mm512_storeu_si512(o + (i + r) * d + col + j * 32, (__m512i)both);
        }
    }
}

/* S += K^T V for rows [l, l + MR) of the column tile at `col`; packs them as well. */
INLINE void
write_pairs(ptrdiff_t rows, ptrdiff_t l, ptrdiff_t col, ptrdiff_t d)
{
    const ptrdiff_t at = col * d + l * COLS;
    vec acc[MR][NR];
    clear_tile(acc, MR, NR);
    tile_pairs(acc, keys + l, 1, d, values + col, d, rows / 2);
    LA_EACH(r, MR) {
        LA_EACH(j, NR) {
            float *s = state + at + r * COLS + j * VL;
            acc[r][j] += vload(s);
            vstore(s, acc[r][j]);
        }
    }
    LA_EACH(r, MR / 2) {
        LA_EACH(j, NR) {
            _mm512_store_si512(state_pairs + at / 2 + r * COLS + j * VL,
                               round_to_pairs(acc[2 * r][j], acc[2 * r + 1][j]));
        }
    }
}

/* o_i = q_i sum_{j <= i} k_j v_j^T of one head, contiguous (n, d), n a multiple of
 * `rows`.  The state is float32; its rounded copy is read. */
void
causal_pairs(const bfloat *q, const bfloat *k, const bfloat *v, bfloat *o, ptrdiff_t n,
             ptrdiff_t d, ptrdiff_t rows)
{
    memset(state, 0, sizeof(state));
    memset(state_pairs, 0, sizeof(state_pairs));
    for (ptrdiff_t t = 0; t < n * d; t += rows * d) {
        scores_of_pairs(q + t, k + t, rows, d);
        pack_rows(keys, k + t, rows, d);
        pack_rows(values, v + t, rows, d);
        for (ptrdiff_t col = 0; col < d; col += COLS) {
            for (ptrdiff_t i = 0; i < rows; i += MR) {
                read_pairs(q + t, v + t, o + t, i, col, d);
            }
            for (ptrdiff_t l = 0; l < d; l += MR) {
                write_pairs(rows, l, col, d);
            }
        }
    }
}
