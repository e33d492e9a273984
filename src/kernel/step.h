/* step.h: one token of causal linear attention on a state.
 *
 *   s <- s + phi(k) v^T,  z <- z + phi(k)
 *   o = scale phi(q)^T s / (scale phi(q).z + eps)
 *                                            Katharopoulos et al. 2020, eq. 16-20
 * 4 d m flops; reads and writes the state once, which is all its time.  Where no s0
 * is given the state is updated in place, in s1. */

struct FN(step_room) {
    ptrdiff_t ldd, ldm;
    T *a, *b, *v, *o, *z, *ze, *den;
    size_t bytes;
};

static struct FN(step_room)
FN(step_room)(const struct la_head *h, void *scratch)
{
    struct FN(step_room) r;
    struct FN(arena) arena = {scratch, 0};
    r.ldd = FN(ld)(h->d);
    r.ldm = FN(ld)(h->m);
    r.a = FN(take)(&arena, MR * r.ldd); /* blocks are whole tiles, of a single row too */
    r.b = FN(take)(&arena, MR * r.ldd);
    r.v = FN(take)(&arena, MR * r.ldm);
    r.o = FN(take)(&arena, r.ldm);
    r.z = FN(take)(&arena, r.ldd);
    r.ze = FN(take)(&arena, r.ldd);
    r.den = FN(take)(&arena, VL);
    r.bytes = arena.used;
    return r;
}

static size_t
FN(step_scratch)(const struct la_head *h)
{
    return FN(step_room)(h, NULL).bytes;
}

/* to = from + b v^T and o += a^T to, rows [l, end), nr vectors of columns from j on. */
INLINE void
FN(step_tile)(const struct FN(step_room) *r, const struct la_array *from,
              const struct la_array *to, ptrdiff_t l, ptrdiff_t end, ptrdiff_t j,
              const int nr)
{
    const ptrdiff_t byte = j * (ptrdiff_t)sizeof(T);
    vec v[NR], sum[NR];
    LA_EACH(t, nr) {
        v[t] = FN(load)(&r->v[j + t * VL]);
        sum[t] = (vec){0};
    }
    for (ptrdiff_t i = l; i < end; i++) {
        const char *in = from->data + i * from->rs + byte;
        char *out = to->data + i * to->rs + byte;
        const vec a = FN(set1)(r->a[i]), b = FN(set1)(r->b[i]);
        LA_EACH(t, nr) {
            const vec s = FN(load_any)(in + t * LA_VBYTES) + b * v[t];
            *(FN(vec_any) *)(out + t * LA_VBYTES) = (FN(vec_any))s;
            sum[t] = FN(fma)(a, s, sum[t]);
        }
    }
    LA_EACH(t, nr) {
        FN(store)(&r->o[j + t * VL], FN(load)(&r->o[j + t * VL]) + sum[t]);
    }
}

/* The same for one column, at any stride. */
static void
FN(step_column)(const struct FN(step_room) *r, const struct la_array *from,
                const struct la_array *to, ptrdiff_t l, ptrdiff_t end, ptrdiff_t j)
{
    T sum = 0;
    for (ptrdiff_t i = l; i < end; i++) {
        T s;
        memcpy(&s, from->data + i * from->rs + j * from->cs, sizeof(T));
        s += r->b[i] * r->v[j];
        memcpy(to->data + i * to->rs + j * to->cs, &s, sizeof(T));
        sum += r->a[i] * s;
    }
    r->o[j] += sum;
}

static int
FN(step)(const struct la_head *h)
{
    const struct FN(step_room) r = FN(step_room)(h, h->scratch);
    const struct la_array *s0 = h->s0.data ? &h->s0 : &h->s1;
    const struct la_array *z0 = h->z0.data ? &h->z0 : &h->z1;
    const struct FN(span) one = FN(rows_from)(0, 1);
    const int unit = s0->cs == (ptrdiff_t)sizeof(T) && h->s1.cs == (ptrdiff_t)sizeof(T);
    FN(load_mapped)(r.a, r.ldd, &h->q, one, h->d, h->map);
    FN(load_mapped)(r.b, r.ldd, &h->k, one, h->d, h->map);
    FN(load_plain)(r.v, r.ldm, &h->v, one, h->m);
    FN(clear)(r.o, r.ldm);
    /* Sums of so many rows each keep the error of a long column that of a short one. */
    for (ptrdiff_t l = 0; l < h->d; l += LA_BLOCK) {
        const ptrdiff_t end = h->d - l < LA_BLOCK ? h->d : l + LA_BLOCK;
        ptrdiff_t j = 0;
        for (; unit && j + NR * VL <= h->m; j += NR * VL) {
            FN(step_tile)(&r, s0, &h->s1, l, end, j, NR);
        }
        for (; unit && j + VL <= h->m; j += VL) {
            FN(step_tile)(&r, s0, &h->s1, l, end, j, 1);
        }
        for (; j < h->m; j++) {
            FN(step_column)(&r, s0, &h->s1, l, end, j);
        }
    }
    if (h->normalize) {
        FN(load_vector)(r.z, r.ldd, z0, h->d);
        FN(clear)(r.ze, r.ldd);
        FN(add_rows)(r.z, r.ze, r.b, r.ldd, 1);
        FN(row_dots)(r.den, r.a, r.ldd, r.z, r.ldd, 1, r.ldd);
        FN(store_vector)(&h->z1, r.z, r.ldd, h->d);
    }
    FN(factors)(h, r.den, 1);
    FN(store_rows)(&h->o, one, h->m, r.o, r.ldm, r.den);
    return 0;
}
