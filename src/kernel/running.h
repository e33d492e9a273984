/* running.h: positive random features of any magnitude, without a look ahead.
 *
 * With e_jf = u_jf - |t k_j|^2 / 2 the exponent of feature f of key j, and M_if its
 * largest up to token i, the quotient of attention is left as it is by
 *
 *   b_jf = exp(e_jf - K_f),  a_if = exp(u_if + K_f - c_i),  c_i = max_f (u_if + M_if)
 *
 * where K_f = C round(M_if / C), C = 96 log 2, so that a change of K_f rescales a state
 * by a power of two.  A row at which any K_f changes, but for the first, ends the work.
 * The largest term of a_i.z_i is at least 1, and every number stays within 2^+-48.
 *
 * q (n,d), k (s,d), omega (d,f), t, how many keys there are, M (f) -> a (n,f), b (s,f),
 * M, rows done.  2 (n + s) d f flops and an exponential a feature; scratch as
 * project.h. */

#define STEP_HIGH ((T)66.53125) /* times a small integer exact */
#define STEP_LOW ((T)0.01087933375474970405)

struct FN(running_room) {
    struct FN(project_room) keys;
    T *u, *most, *c;             /* of queries */
    T *top, *high, *low, *limit; /* by feature: M, K in two parts, how far M may go */
    T *next;                     /* M with one key more */
    struct la_fetch ahead[2];    /* of queries, of keys */
    size_t bytes;
};

/* The task's dimensions are n, d, s, f. */
static struct FN(running_room) FN(cut_running)(const struct la_task *t)
{
    struct la_task keys = *t;
    keys.dim[2] = t->dim[3];
    struct FN(running_room) r = {.keys = FN(cut_project)(&keys)};
    struct FN(arena) arena = {t->scratch, r.keys.bytes};
    r.u = FN(take)(&arena, LA_BLOCK * r.keys.ldm);
    r.most = FN(take)(&arena, LA_BLOCK * VL);
    r.c = FN(take)(&arena, LA_BLOCK);
    r.top = FN(take)(&arena, r.keys.ldm);
    r.next = FN(take)(&arena, r.keys.ldm);
    r.high = FN(take)(&arena, r.keys.ldm);
    r.low = FN(take)(&arena, r.keys.ldm);
    r.limit = FN(take)(&arena, r.keys.ldm);
    r.bytes = arena.used;
    return r;
}

static size_t
FN(running_room)(const struct la_task *t)
{
    struct la_task dry = *t;
    dry.scratch = NULL;
    return FN(cut_running)(&dry).bytes;
}

/* K and the limit from M; a feature without keys counts as M = 0. */
static void
FN(set_steps)(const struct FN(running_room) * r)
{
    const vec magic = FN(set1)(ROUND_MAGIC),
              per_step = FN(set1)(1 / (STEP_HIGH + STEP_LOW));
    for (ptrdiff_t j = 0; j < r->keys.ldm; j += VL) {
        const vec top = FN(load)(&r->top[j]);
        const vec steps =
            (FN(keep)(top > FN(set1)(-LARGEST), top) * per_step + magic) - magic;
        FN(store)(&r->high[j], steps * FN(set1)(STEP_HIGH));
        FN(store)(&r->low[j], steps * FN(set1)(STEP_LOW));
        const vec limit = (steps + FN(set1)((T)0.5)) * FN(set1)(STEP_HIGH + STEP_LOW);
        FN(store)(&r->limit[j], FN(max)(limit, top));
    }
}

/* Key i's exponents, u becoming u - h, and M with them in r->next; whether one passed
 * its feature's limit. */
INLINE int
FN(exponents)(const struct FN(running_room) * r, ptrdiff_t i)
{
    T *u = r->keys.u + i * r->keys.ldm;
    const vec h = FN(set1)(r->keys.h[i]);
    ivec passed = {0};
    for (ptrdiff_t j = 0; j < r->keys.ldm; j += VL) {
        const vec e = FN(load)(&u[j]) - h;
        passed |= e > FN(load)(&r->limit[j]);
        FN(store)(&r->next[j], FN(max)(FN(load)(&r->top[j]), e));
        FN(store)(&u[j], e);
    }
    return FN(any)(passed);
}

/* In each lane, the largest u + M of a query; f of them count. */
INLINE vec
FN(largest)(const struct FN(running_room) * r, const T *u, ptrdiff_t f)
{
    const ivec lane = FN(iota)();
    vec most = FN(set1)(-(T)INFINITY);
    for (ptrdiff_t j = 0; j < f; j += VL) {
        const vec top = FN(load)(&r->top[j]);
        const vec sum = FN(load)(&u[j]) + FN(keep)(top > FN(set1)(-LARGEST), top);
        const ivec inside = lane < (ivec)((ivec){0} + (INT)(f - j));
        most = FN(max)(most, FN(select)(inside, sum, most));
    }
    return most;
}

/* c_i from its lanes, for `rows` queries: the network of lane_sums, with max for +. */
static void
FN(largest_lanes)(T *c, const T *most, ptrdiff_t rows)
{
    for (ptrdiff_t first = 0; first < rows; first += VL) {
        vec x[VL];
        for (ptrdiff_t i = 0; i < VL; i++) {
            x[i] = FN(load)(&most[(first + i) * VL]);
        }
        for (ptrdiff_t half = VL / 2; half > 0; half /= 2) {
            for (ptrdiff_t i = 0; i < half; i++) {
                x[i] = FN(max)(FN(zip_low)(x[i], x[i + half]),
                               FN(zip_high)(x[i], x[i + half]));
            }
        }
        FN(store)(&c[first], x[0]);
    }
}

/* x_ij = exp((x_ij + sign K_j) - c_i) for some rows; c NULL: 0. */
INLINE void
FN(exponentials)(const struct FN(running_room) * r, T *x, ptrdiff_t rows, T sign,
                 const T *c)
{
    const ptrdiff_t ld = r->keys.ldm;
    const vec side = FN(set1)(sign);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const vec offset = FN(set1)(c ? c[i] : 0);
        for (ptrdiff_t j = 0; j < ld; j += VL) {
            const vec y = (FN(load)(&x[i * ld + j]) + side * FN(load)(&r->high[j])) +
                          side * FN(load)(&r->low[j]);
            FN(store)(&x[i * ld + j], FN(exp)(y - offset));
        }
    }
}

/* Takes keys and queries into M one by one, from row `first`, and leaves the lanes of c
 * in r->most; how many rows went before one changed a K. */
static ptrdiff_t
FN(running_tops)(struct FN(running_room) * r, ptrdiff_t first, ptrdiff_t queries,
                 ptrdiff_t rows, ptrdiff_t f)
{
    ptrdiff_t i = 0;
    for (; i < queries || i < rows; i++) {
        if (i < rows) {
            const int passed = FN(exponents)(r, i);
            if (passed && first + i > 0) {
                break;
            }
            T *const before = r->top;
            r->top = r->next;
            r->next = before;
            if (first + i == 0) {
                FN(set_steps)(r);
            }
        }
        if (i < queries) {
            FN(store)(&r->most[i * VL], FN(largest)(r, r->u + i * r->keys.ldm, f));
        }
    }
    return i;
}

/* One block of rows from `first`; how many of them were done. */
static ptrdiff_t
FN(running_block)(const struct la_task *t, struct FN(running_room) * r, ptrdiff_t first,
                  ptrdiff_t queries, ptrdiff_t rows, ptrdiff_t keys)
{
    const ptrdiff_t d = t->dim[1], f = t->dim[3], ld = r->keys.ldm;
    const T root = FN(number)(&t->x[3]);
    struct FN(project_room) of_queries = r->keys;
    of_queries.u = r->u;
    of_queries.h = NULL; /* cancels in the quotient */
    FN(project_rows)(&of_queries, &t->x[0], first, queries, d, f, root, &r->ahead[0]);
    FN(project_rows)(&r->keys, &t->x[1], first, rows, d, f, root, &r->ahead[1]);
    ptrdiff_t there = keys - first < rows ? keys - first : rows;
    there = there > 0 ? there : 0;
    const ptrdiff_t done = FN(running_tops)(r, first, queries, there, f);
    const ptrdiff_t most = done < there ? done : queries > rows ? queries : rows;
    const ptrdiff_t a = most < queries ? most : queries, b = most < rows ? most : rows;
    FN(largest_lanes)(r->c, r->most, a);
    FN(exponentials)(r, r->u, a, 1, r->c);
    FN(exponentials)(r, r->keys.u, b < there ? b : there, -1, NULL);
    FN(clear_rows)(r->keys.u, ld, there, b);
    FN(store_rows)(&t->x[6], FN(rows_from)(first, a), f, r->u, ld, NULL);
    FN(store_rows)(&t->x[7], FN(rows_from)(first, b), f, r->keys.u, ld, NULL);
    return most;
}

static int
FN(task_running_features)(const struct la_task *t)
{
    struct FN(running_room) r = FN(cut_running)(t);
    const ptrdiff_t n = t->dim[0], s = t->dim[2], f = t->dim[3];
    const ptrdiff_t most = n > s ? n : s;
    const T root = FN(number)(&t->x[3]);
    FN(load_state)(r.keys.omega, &t->x[2], t->dim[1], f);
    for (ptrdiff_t i = 0; i < FN(state_size)(t->dim[1], f); i++) {
        r.keys.omega[i] *= root;
    }
    FN(load_vector)(r.top, r.keys.ldm, &t->x[5], f);
    FN(set_steps)(&r);
    ptrdiff_t done = 0;
    while (done < most) {
        const ptrdiff_t rows = most - done < LA_BLOCK ? most - done : LA_BLOCK;
        const ptrdiff_t queries = n - done < rows ? n - done : rows;
        const ptrdiff_t keys = s - done < rows ? s - done : rows;
        if (t->poll(t->poll_arg)) {
            return 1;
        }
        const ptrdiff_t here =
            FN(running_block)(t, &r, done, queries > 0 ? queries : 0,
                              keys > 0 ? keys : 0, (ptrdiff_t)FN(number)(&t->x[4]));
        done += here;
        if (here < rows) {
            break;
        }
    }
    FN(store_vector)(&t->x[8], r.top, r.keys.ldm, f);
    const T count = (T)done;
    memcpy(t->x[9].data, &count, sizeof(count));
    return 0;
}
