/* micro.h: the register tiles, on packed blocks (chunk.h).
 *
 * A tile is MR rows by up to NR vectors, held in registers while the sum runs.
 * Each number of a tile is one chain of multiply-adds in the order of the sum,
 * so its bits depend neither on the tile's width nor on its place in the matrix:
 * that is what lets value columns be cut into panels freely. */

/* How many rows of S are read per pass: KC rows of a full tile fill 32 KiB. */
#define KC ((ptrdiff_t)(32768 / (NR * LA_VBYTES)))

/* One contraction of the chunked recurrences over a state S (K, W):
 *   read:  O = X V + A S     with X (rows, rows) triangular, or absent
 *   write: S += B^T V
 * S is held by column tiles, each (K4, width) and contiguous. */
struct FN(scan) {
    ptrdiff_t rows, K, W;      /* W: padded to whole vectors */
    const T *a, *b, *v;        /* (rows, K) (rows, K) (rows, W) */
    ptrdiff_t lda, ldb, ldv;
    T *x;                      /* (rows, ldx) scores a_i.b_j, or NULL */
    ptrdiff_t ldx;
    T *o;                      /* (rows, W) */
    ptrdiff_t ldo;
    const T *bias;             /* (W) added to each row of O, or NULL */
    T *s;                      /* K rounded up to MR, times W */
    int upper;                 /* X keeps j >= i instead of j <= i */
};

/* c (rows, nr) += a (rows, k) b (k, nr) */
INLINE void
FN(tile)(vec c[][NR], const int rows, const int nr, const T *a, ptrdiff_t lda,
         const T *b, ptrdiff_t ldb, ptrdiff_t k)
{
#pragma GCC unroll 4
    for (ptrdiff_t l = 0; l < k; l++) {
        vec y[NR];
#pragma GCC unroll 4
        for (int j = 0; j < nr; j++) {
            y[j] = FN(load)(&b[l * ldb + j * VL]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const vec x = FN(set1)(a[i * lda + l]);
#pragma GCC unroll 4
            for (int j = 0; j < nr; j++) {
                c[i][j] += x * y[j];
            }
        }
    }
}

/* The diagonal MR x MR block of X V.  A score of a later token is skipped, not
 * multiplied by zero: what it would meet may be a NaN. */
INLINE void
FN(tile_diagonal)(vec c[][NR], const int nr, const T *x, ptrdiff_t ldx, const T *v,
                  ptrdiff_t ldv, const int upper)
{
#pragma GCC unroll 4
    for (int t = 0; t < MR; t++) {
#pragma GCC unroll 4
        for (int i = 0; i < MR; i++) {
            if (upper ? i > t : i < t) {
                continue;
            }
#pragma GCC unroll 4
            for (int j = 0; j < nr; j++) {
                c[i][j] += FN(set1)(x[i * ldx + t]) * FN(load)(&v[t * ldv + j * VL]);
            }
        }
    }
}

/* O = bias + X V + A S for one column tile of nr vectors. */
INLINE void
FN(read_tile)(const struct FN(scan) *c, ptrdiff_t col, const T *s, const int nr)
{
    const ptrdiff_t lds = nr * VL, rows = FN(round_up)(c->rows, MR);
    const T *v = c->v + col;
    for (ptrdiff_t k = 0; k == 0 || k < c->K; k += KC) {
        const ptrdiff_t kc = c->K - k < KC ? c->K - k : KC;
        for (ptrdiff_t i = 0; i < rows; i += MR) {
            vec acc[MR][NR];
            T *o = c->o + i * c->ldo + col;
#pragma GCC unroll 4
            for (int r = 0; r < MR; r++) {
#pragma GCC unroll 4
                for (int j = 0; j < nr; j++) {
                    acc[r][j] = k > 0     ? FN(load)(&o[r * c->ldo + j * VL])
                                : c->bias ? FN(load)(&c->bias[col + j * VL])
                                          : (vec){0};
                }
            }
            if (k == 0 && c->x != NULL) {
                const T *x = c->x + i * c->ldx;
                if (c->upper) {
                    FN(tile_diagonal)(acc, nr, x + i, c->ldx, v + i * c->ldv, c->ldv, 1);
                    FN(tile)(acc, MR, nr, x + i + MR, c->ldx, v + (i + MR) * c->ldv,
                             c->ldv, rows - i - MR);
                }
                else {
                    FN(tile)(acc, MR, nr, x, c->ldx, v, c->ldv, i);
                    FN(tile_diagonal)(acc, nr, x + i, c->ldx, v + i * c->ldv, c->ldv, 0);
                }
            }
            FN(tile)(acc, MR, nr, c->a + i * c->lda + k, c->lda, s + k * lds, lds, kc);
#pragma GCC unroll 4
            for (int r = 0; r < MR; r++) {
#pragma GCC unroll 4
                for (int j = 0; j < nr; j++) {
                    FN(store)(&o[r * c->ldo + j * VL], acc[r][j]);
                }
            }
        }
    }
}

/* S += B^T V for one column tile of nr vectors. */
INLINE void
FN(write_tile)(const struct FN(scan) *c, ptrdiff_t col, T *s, const int nr)
{
    const ptrdiff_t lds = nr * VL, rows = FN(round_up)(c->rows, MR);
    const T *v = c->v + col;
    for (ptrdiff_t l = 0; l < c->K; l += MR) {
        vec acc[MR][NR];
#pragma GCC unroll 4
        for (int r = 0; r < MR; r++) {
#pragma GCC unroll 4
            for (int j = 0; j < nr; j++) {
                acc[r][j] = FN(load)(&s[(l + r) * lds + j * VL]);
            }
        }
        for (ptrdiff_t t = 0; t < rows; t += MR) {
            const T *b = c->b + t * c->ldb + l, *y = v + t * c->ldv;
#pragma GCC unroll 4
            for (int u = 0; u < MR; u++) {
#pragma GCC unroll 4
                for (int r = 0; r < MR; r++) {
                    const vec x = FN(set1)(b[u * c->ldb + r]);
#pragma GCC unroll 4
                    for (int j = 0; j < nr; j++) {
                        acc[r][j] += x * FN(load)(&y[u * c->ldv + j * VL]);
                    }
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < MR; r++) {
#pragma GCC unroll 4
            for (int j = 0; j < nr; j++) {
                FN(store)(&s[(l + r) * lds + j * VL], acc[r][j]);
            }
        }
    }
}


INLINE void
FN(sweep_tile)(const struct FN(scan) *c, ptrdiff_t col, int what, const int nr)
{
    T *s = c->s + col * FN(round_up)(c->K, MR);
    if (what & LA_READ) {
        FN(read_tile)(c, col, s, nr);
    }
    if (what & LA_WRITE) {
        FN(write_tile)(c, col, s, nr);
    }
}

/* Reads, then writes, each column tile of the state while it is in cache. */
static void
FN(sweep)(const struct FN(scan) *c, int what)
{
    ptrdiff_t col = 0;
    for (; col + NR * VL <= c->W; col += NR * VL) {
        FN(sweep_tile)(c, col, what, NR);
    }
    switch ((c->W - col) / VL) {
#if LA_NR > 2
        case 3:
            FN(sweep_tile)(c, col, what, 3);
            break;
        case 2:
            FN(sweep_tile)(c, col, what, 2);
            break;
#endif
        case 1:
            FN(sweep_tile)(c, col, what, 1);
            break;
        default:
            break;
    }
}

/* One block of scores, SI rows by SJ columns, one vector in all: every product of
 * rows is summed lane by lane and the lanes are added together at the end, which
 * needs neither operand transposed. */
#define SI (VL < MR ? VL : MR)
#define SJ (VL / SI)

INLINE void
FN(score_block)(T *x, ptrdiff_t ldx, const T *a, ptrdiff_t lda, const T *b,
                ptrdiff_t ldb, ptrdiff_t K)
{
    _Alignas(LA_ALIGN) T sums[VL];
    vec acc[SI * SJ];
#pragma GCC unroll 16
    for (int t = 0; t < SI * SJ; t++) {
        acc[t] = (vec){0};
    }
    for (ptrdiff_t l = 0; l < K; l += VL) {
        vec y[SJ];
#pragma GCC unroll 4
        for (int j = 0; j < SJ; j++) {
            y[j] = FN(load)(&b[j * ldb + l]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < SI; i++) {
            const vec row = FN(load)(&a[i * lda + l]);
#pragma GCC unroll 4
            for (int j = 0; j < SJ; j++) {
                acc[i * SJ + j] += row * y[j];
            }
        }
    }
    FN(store)(sums, FN(lane_sums)(acc));
#pragma GCC unroll 4
    for (int i = 0; i < SI; i++) {
        memcpy(&x[i * ldx], &sums[i * SJ], SJ * sizeof(T));
    }
}

/* x_ij = a_i.b_j, at least where j <= i (upper: where j >= i). */
static void
FN(scores)(const struct FN(scan) *c)
{
    const ptrdiff_t rows = FN(round_up)(c->rows, MR);
    for (ptrdiff_t i = 0; i < rows; i += SI) {
        const ptrdiff_t first = c->upper ? i / SJ * SJ : 0;
        const ptrdiff_t end = c->upper ? rows : i + SI;
        for (ptrdiff_t j = first; j < end; j += SJ) {
            FN(score_block)(&c->x[i * c->ldx + j], c->ldx, c->a + i * c->lda, c->lda,
                            c->b + j * c->ldb, c->ldb, c->K);
        }
    }
}
