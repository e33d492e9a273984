/* scan.h: what the recurrences share: scratch, denominators, cotangents, and the
 * state's transpose. */

struct FN(arena) {
    char *base;
    size_t used;
};

/* The next `count` numbers of the scratch, or just their room where base is NULL. */
INLINE T *
FN(take)(struct FN(arena) *arena, ptrdiff_t count)
{
    T *p = arena->base ? (T *)(arena->base + arena->used) : NULL;
    arena->used += ((size_t)count * sizeof(T) + LA_ALIGN - 1) / LA_ALIGN * LA_ALIGN;
    return p;
}

/* sum_i = x_i.y_i; a row step of zero repeats one row. */
static void
FN(row_dots)(T *sum, const T *x, ptrdiff_t ldx, const T *y, ptrdiff_t ldy,
             ptrdiff_t rows, ptrdiff_t cols)
{
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        const ptrdiff_t some = rows - first < VL ? rows - first : VL;
        vec part[VL];
        for (ptrdiff_t i = 0; i < VL; i++) {
            part[i] = (vec){0};
            for (ptrdiff_t l = 0; i < some && l < cols; l += VL) {
                part[i] += FN(load)(&x[(first + i) * ldx + l]) *
                           FN(load)(&y[(first + i) * ldy + l]);
            }
        }
        FN(store)(&sum[first], FN(lane_sums)(part));
    }
}

/* sum_i = a_i.z + the scores x_ij of j <= i: with z the sum of earlier b_j, that is
 * a_i times the sum of all b_j it may see.  Rows of X are whole vectors. */
static void
FN(score_sums)(T *sum, const struct FN(scan) *c, const T *z)
{
    for (ptrdiff_t first = 0; first < c->rows; first += VL) {
        vec part[VL];
        for (ptrdiff_t r = 0; r < VL; r++) {
            const ptrdiff_t i = first + r < c->rows ? first + r : c->rows - 1;
            part[r] = (vec){0};
            for (ptrdiff_t l = 0; l < c->lda; l += VL) {
                part[r] += FN(load)(&c->a[i * c->lda + l]) * FN(load)(&z[l]);
            }
            for (ptrdiff_t j = 0; j <= i; j += VL) {
                const ivec seen = FN(iota)() <= (ivec)((ivec){0} + (INT)(i - j));
                part[r] += FN(keep)(seen, FN(load)(&c->x[i * c->ldx + j]));
            }
        }
        FN(store)(&sum[first], FN(lane_sums)(part));
    }
}

/* Row i of zs = z + b_0 + ... + b_i; z is left at the last. */
static void
FN(running_sums)(T *zs, T *z, const T *b, ptrdiff_t ld, ptrdiff_t rows)
{
    for (ptrdiff_t l = 0; l < ld; l += VL) {
        vec sum = FN(load)(&z[l]);
        for (ptrdiff_t i = 0; i < rows; i++) {
            sum += FN(load)(&b[i * ld + l]);
            FN(store)(&zs[i * ld + l], sum);
        }
        FN(store)(&z[l], sum);
    }
}

/* z += sum of the rows of b */
static void
FN(add_rows)(T *z, const T *b, ptrdiff_t ld, ptrdiff_t rows)
{
    for (ptrdiff_t l = 0; l < ld; l += VL) {
        vec sum = (vec){0};
        for (ptrdiff_t i = 0; i < rows; i++) {
            sum += FN(load)(&b[i * ld + l]);
        }
        FN(store)(&z[l], FN(load)(&z[l]) + sum);
    }
}

/* factor_i = scale / (scale den_i + eps), in place; scale where not normalised. */
static void
FN(factors)(const struct la_head *h, T *den, ptrdiff_t rows)
{
    const vec scale = FN(set1)((T)h->scale), eps = FN(set1)((T)h->eps);
    for (ptrdiff_t i = 0; i < rows; i += VL) {
        const vec y = FN(load)(&den[i]);
        FN(store)(&den[i], h->normalize ? scale / (scale * y + eps) : scale);
    }
}

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
    const struct FN(span) all = FN(span)(0, K, 0, K);
    FN(clear)(s, FN(state_size)(K, m));
    if (x->data == NULL) {
        return;
    }
    for (ptrdiff_t j = 0; j < W; j += NR * VL) {
        const ptrdiff_t width = W - j < NR * VL ? W - j : NR * VL;
        const struct la_array part = {x->data + j * x->cs, x->rs, x->cs, x->type};
        FN(load_plain)(FN(state_at)(s, K, W, 0, j), width, &part, all,
                       m - j < width ? m - j : width);
    }
}

/* The caller's state = s (K, m), where the caller wants it. */
static void
FN(store_state)(const struct la_array *x, T *s, ptrdiff_t K, ptrdiff_t m)
{
    const ptrdiff_t W = FN(round_up)(m, VL);
    const struct FN(span) all = FN(span)(0, K, 0, K);
    for (ptrdiff_t j = 0; x->data != NULL && j < W; j += NR * VL) {
        const ptrdiff_t width = W - j < NR * VL ? W - j : NR * VL;
        const struct la_array part = {x->data + j * x->cs, x->rs, x->cs, x->type};
        FN(store_rows)(&part, all, m - j < width ? m - j : width,
                       FN(state_at)(s, K, W, 0, j), width, NULL);
    }
}

/* z = the caller's vector, or zeros; and back. */
static void
FN(load_vector)(T *z, ptrdiff_t ld, const struct la_array *x, ptrdiff_t count)
{
    FN(clear)(z, ld);
    if (x->data != NULL) {
        FN(load_row)(z, ld, x->data, x->cs, x->type, count, 0, FN(phi_identity));
    }
}

static void
FN(store_vector)(const struct la_array *x, const T *z, ptrdiff_t ld, ptrdiff_t count)
{
    if (x->data != NULL) {
        FN(store_rows)(x, FN(span)(0, 1, 0, 1), count, z, ld, NULL);
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

/* Rows [from, to) of x (., ld) = 0: tokens that do not exist. */
static void
FN(clear_rows)(T *x, ptrdiff_t ld, ptrdiff_t from, ptrdiff_t to)
{
    if (from < to) {
        FN(clear)(x + from * ld, (to - from) * ld);
    }
}

/* How many of the `rows` tokens from i on have a key. */
INLINE ptrdiff_t
FN(keys_left)(const struct la_head *h, ptrdiff_t i, ptrdiff_t rows)
{
    const ptrdiff_t left = h->keys - i;
    return left < 0 ? 0 : left < rows ? left : rows;
}

/* phi(k) and v of the chunk t; 0 where no key exists. */
static void
FN(load_keys)(const struct la_head *h, struct FN(span) t, T *b, ptrdiff_t ldd, T *v,
              ptrdiff_t ldm)
{
    const struct FN(span) some = {t.first, FN(keys_left)(h, t.first, t.rows), t.next};
    FN(load_mapped)(b, ldd, &h->k, some, h->d, h->map);
    FN(load_plain)(v, ldm, &h->v, some, h->m);
    FN(clear_rows)(b, ldd, some.rows, FN(round_up)(t.rows, MR));
    FN(clear_rows)(v, ldm, some.rows, FN(round_up)(t.rows, MR));
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
                x[r] = l + r < K4 ? FN(load)(FN(state_at)(src, K, Wp, l + r, j)) : (vec){0};
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

/* x_ij += w_j */
static void
FN(add_to_rows)(T *x, ptrdiff_t ld, ptrdiff_t rows, const T *w)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j < rows; j++) {
            x[i * ld + j] += w[j];
        }
    }
}

/* Row i of x (rows, ld) times factor[i]. */
static void
FN(scale_rows)(T *x, ptrdiff_t ld, ptrdiff_t rows, const T *factor)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        const vec scale = FN(set1)(factor[i]);
        for (ptrdiff_t l = 0; l < ld; l += VL) {
            FN(store)(&x[i * ld + l], FN(load)(&x[i * ld + l]) * scale);
        }
    }
}

/* z += sum_i w_i a_i */
static void
FN(add_weighted)(T *z, const T *a, ptrdiff_t ld, const T *w, ptrdiff_t rows)
{
    for (ptrdiff_t l = 0; l < ld; l += VL) {
        vec sum = (vec){0};
        for (ptrdiff_t i = 0; i < rows; i++) {
            sum += FN(set1)(w[i]) * FN(load)(&a[i * ld + l]);
        }
        FN(store)(&z[l], FN(load)(&z[l]) + sum);
    }
}

/* The gradient for a = phi(q) of some rows, from u_i = S_i g_i:
 *   r_i = scale / (scale a_i.z_i + eps)      left in r
 *   w_i = -r_i^2 a_i.u_i                     left in w
 *   da_i = r_i u_i + w_i z_i                 in place of u
 * Since g_i.num_i = a_i.u_i, the output itself is not needed.  Columns of u past the
 * last whole vector hold nothing yet. */
static void
FN(query_gradient)(const struct la_head *h, T *u, const T *a, const T *zs,
                   ptrdiff_t ldz, ptrdiff_t ld, ptrdiff_t rows, T *r, T *w)
{
    const ptrdiff_t cols = FN(round_up)(h->d, VL);
    if (h->normalize) {
        FN(row_dots)(r, a, ld, zs, ldz, rows, cols);
        FN(row_dots)(w, a, ld, u, ld, rows, cols);
    }
    FN(factors)(h, r, rows);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const T wi = h->normalize ? -r[i] * (r[i] * w[i]) : 0;
        w[i] = wi;
        for (ptrdiff_t l = 0; l < cols; l += VL) {
            vec da = FN(set1)(r[i]) * FN(load)(&u[i * ld + l]);
            if (h->normalize) {
                da += FN(set1)(wi) * FN(load)(&zs[i * ldz + l]);
            }
            FN(store)(&u[i * ld + l], da);
        }
    }
}
