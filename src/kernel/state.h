/* state.h: the state S (K, W) as the kernels hold it: by column tiles of NR vectors,
 * each contiguous (micro.h), in from the caller's array and out again. */

/* A zeroed state's room, (K, W): rows to whole vectors, so that it transposes. */
INLINE ptrdiff_t
FN(state_size)(ptrdiff_t K, ptrdiff_t W)
{
    return FN(round_up)(K, VL > MR ? VL : MR) * FN(round_up)(W, VL);
}

/* Where row l, column j of a state (K, W) lies, j a multiple of VL. */
INLINE T *
FN(state_at)(T *s, ptrdiff_t K, ptrdiff_t W, ptrdiff_t l, ptrdiff_t j)
{
    const ptrdiff_t tile = j / (NR * VL) * (NR * VL);
    const ptrdiff_t width = W - tile < NR * VL ? W - tile : NR * VL;
    return s + tile * FN(round_up)(K, MR) + l * width + (j - tile);
}

/* s = the caller's state (K, m), or zeros where there is none. */
static void
FN(load_state)(T *s, const struct la_array *x, ptrdiff_t K, ptrdiff_t m)
{
    const ptrdiff_t W = FN(round_up)(m, VL);
    FN(clear)(s, FN(state_size)(K, m));
    if (x->data == NULL) {
        return;
    }
    for (ptrdiff_t j = 0; j < W; j += NR * VL) {
        const ptrdiff_t width = W - j < NR * VL ? W - j : NR * VL;
        const struct la_array part = {x->data + j * x->cs, x->rs, x->cs, x->type};
        FN(load_plain)(FN(state_at)(s, K, W, 0, j), width, &part, FN(rows_from)(0, K),
                       m - j < width ? m - j : width);
    }
}

/* The caller's state = s (K, m), where the caller wants it. */
static void
FN(store_state)(const struct la_array *x, T *s, ptrdiff_t K, ptrdiff_t m)
{
    const ptrdiff_t W = FN(round_up)(m, VL);
    for (ptrdiff_t j = 0; x->data != NULL && j < W; j += NR * VL) {
        const ptrdiff_t width = W - j < NR * VL ? W - j : NR * VL;
        const struct la_array part = {x->data + j * x->cs, x->rs, x->cs, x->type};
        FN(store_rows)(&part, FN(rows_from)(0, K), m - j < width ? m - j : width,
                       FN(state_at)(s, K, W, 0, j), width, NULL);
    }
}

/* z = the caller's vector, or zeros; and back. */
static void
FN(load_vector)(T *z, ptrdiff_t ld, const struct la_array *x, ptrdiff_t count)
{
    FN(clear)(z, ld);
    if (x->data != NULL) {
        FN(load_row)(z, ld, x->data, x->cs, count, FN(phi_identity), LA_NATIVE);
    }
}

static void
FN(store_vector)(const struct la_array *x, const T *z, ptrdiff_t ld, ptrdiff_t count)
{
    if (x->data != NULL) {
        FN(store_rows)(x, FN(rows_from)(0, 1), count, z, ld, NULL);
    }
}

/* The state behind the last token, to every head of the group. */
static void
FN(store_states)(const struct la_head *h, T *s, const T *z, ptrdiff_t ld)
{
    for (ptrdiff_t g = 0; g < h->group; g++) {
        const struct la_array s1 = FN(shifted)(&h->s1, g * h->s1_step);
        const struct la_array z1 = FN(shifted)(&h->z1, g * h->z1_step);
        FN(store_state)(&s1, s, h->d, h->m);
        FN(store_vector)(&z1, z, ld, h->d);
    }
}

/* dst (W, K) = src (K, W) transposed, both held by column tiles. */
static void
FN(transpose_state)(T *dst, T *src, ptrdiff_t K, ptrdiff_t W)
{
    const ptrdiff_t Kp = FN(round_up)(K, VL), Wp = FN(round_up)(W, VL);
    const ptrdiff_t K4 = FN(round_up)(K, MR), W4 = FN(round_up)(W, MR);
    for (ptrdiff_t l = 0; l < K; l += VL) {
        for (ptrdiff_t j = 0; j < W; j += VL) {
            vec x[VL];
            LA_EACH(r, VL) {
                x[r] = l + r < K4 ? FN(load)(FN(state_at)(src, K, Wp, l + r, j))
                                  : (vec){0};
            }
            FN(transpose)(x);
            LA_EACH(r, VL) {
                if (j + r < W4) {
                    FN(store)(FN(state_at)(dst, W, Kp, j + r, l), x[r]);
                }
            }
        }
    }
}
