/* noncausal.h: non-causal and cross linear attention, one head, forward and backward.
 *
 *   S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)
 *   o_i = scale phi(q_i)^T S / (scale phi(q_i).z + eps)
 *                                            Katharopoulos et al. 2020, eq. 5-6
 * 2 (n + s) d m flops.  Scratch: the state, d m numbers, and a few blocks of rows. */

/* Rows of one block: `a` and `b` hold features, `v` and `g` values. */
struct FN(noncausal_room) {
    ptrdiff_t rows, ldd, ldm;
    T *a, *v, *da, *dv, *s, *t, *e, *z, *ze, *rz, *r, *w;
    size_t bytes;
};

static struct FN(noncausal_room)
    FN(noncausal_room)(const struct la_head *h, void *scratch, int backward)
{
    struct FN(noncausal_room) r = {0};
    struct FN(arena) arena = {scratch, 0};
    /* No triangle limits it, and half as many sums to compensate. */
    r.rows = h->d <= 64 ? 32 : FN(chunk)(h->d);
    r.ldd = FN(ld)(h->d);
    r.ldm = FN(ld)(h->m);
    r.a = FN(take)(&arena, r.rows * r.ldd);
    r.v = FN(take)(&arena, r.rows * r.ldm);
    r.s = FN(take)(&arena, FN(state_size)(h->d, h->m));
    r.e = FN(take)(&arena, FN(state_size)(h->d, h->m));
    r.z = FN(take)(&arena, r.ldd);
    r.ze = FN(take)(&arena, r.ldd);
    r.r = FN(take)(&arena, r.rows);
    if (backward) {
        r.da = FN(take)(&arena, r.rows * r.ldd);
        r.dv = FN(take)(&arena, r.rows * r.ldm);
        r.t = FN(take)(&arena, FN(state_size)(h->m, h->d));
        r.rz = FN(take)(&arena, r.ldd);
        r.w = FN(take)(&arena, r.rows);
    }
    r.bytes = arena.used;
    return r;
}

static size_t
FN(noncausal_scratch)(const struct la_head *h)
{
    return FN(noncausal_room)(h, NULL, 0).bytes;
}

static size_t
FN(noncausal_backward_scratch)(const struct la_head *h)
{
    return FN(noncausal_room)(h, NULL, 1).bytes;
}

/* S and z over all keys. */
static int
FN(sum_keys)(const struct la_head *h, const struct FN(noncausal_room) * r)
{
    struct la_fetch ahead = {0};
    struct FN(scan) c = {
        .K = h->d,
        .W = FN(round_up)(h->m, VL),
        .b = r->a,
        .v = r->v,
        .ldb = r->ldd,
        .ldv = r->ldm,
        .s = r->s,
        .ahead = &ahead,
    };
    FN(clear)(r->s, FN(state_size)(h->d, h->m));
    FN(compensate)(&c, r->e, h->keys, r->rows);
    FN(clear)(r->z, r->ldd);
    FN(clear)(r->ze, r->ldd);
    for (ptrdiff_t j = 0; j < h->keys; j += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct FN(span) t = FN(span)(j, r->rows, j + r->rows, h->keys, &ahead);
        c.rows = t.rows;
        FN(load_keys)(h, t, r->a, r->ldd, r->v, r->ldm);
        FN(add_rows)(r->z, r->ze, r->a, r->ldd, c.rows);
        FN(sweep)(&c, LA_WRITE);
    }
    return 0;
}

/* The state behind all keys, alone. */
static int
FN(state)(const struct la_head *h)
{
    const struct FN(noncausal_room) r = FN(noncausal_room)(h, h->scratch, 0);
    if (FN(sum_keys)(h, &r)) {
        return 1;
    }
    FN(store_states)(h, r.s, r.z, r.ldd);
    return 0;
}

static size_t
FN(state_scratch)(const struct la_head *h)
{
    return FN(noncausal_scratch)(h);
}

static int
FN(noncausal)(const struct la_head *h)
{
    const struct FN(noncausal_room) r = FN(noncausal_room)(h, h->scratch, 0);
    struct la_fetch ahead = {0};
    struct FN(scan) c = {
        .K = h->d,
        .W = FN(round_up)(h->m, VL),
        .a = r.a,
        .lda = r.ldd,
        .o = r.v,
        .ldo = r.ldm,
        .s = r.s,
        .ahead = &ahead,
    };
    if (FN(sum_keys)(h, &r)) {
        return 1;
    }
    for (ptrdiff_t i = 0; i < h->n; i += r.rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct FN(span) t = FN(span)(i, r.rows, i + r.rows, h->n, &ahead);
        c.rows = t.rows;
        for (ptrdiff_t g = 0; g < h->group; g++) {
            const struct la_array q = FN(shifted)(&h->q, g * h->q_step);
            const struct la_array o = FN(shifted)(&h->o, g * h->o_step);
            FN(load_mapped)(r.a, r.ldd, &q, t, h->d, h->map);
            FN(look_ahead)(&o, t, h->m);
            if (h->normalize) {
                FN(row_dots)(r.r, r.a, r.ldd, r.z, 0, c.rows, r.ldd);
            }
            FN(factors)(h, r.r, c.rows);
            FN(sweep)(&c, LA_READ);
            FN(store_rows)(&o, t, h->m, r.v, r.ldm, r.r);
        }
    }
    return 0;
}

/* Backward, with g the cotangent, a = phi(q), b = phi(k), and S and z as above:
 *
 *   u_i = S g_i, and from it dq_i, r_i, w_i (scan.h)
 *   R = sum_i a_i (r_i g_i)^T,  dv_j = R^T b_j,  db_j = R v_j + sum_i w_i a_i
 *
 * 2 (3 n + 2 s) d m flops and more.  Scratch: two states and a few blocks of rows. */

/* dq, while R gathers in s and the sum of w_i a_i in rz; t holds S^T. */
static int
FN(noncausal_dq)(const struct la_head *h, const struct FN(noncausal_room) * r)
{
    struct la_fetch ahead = {0};
    struct FN(scan) u = {
        .K = h->m,
        .W = FN(round_up)(h->d, VL),
        .a = r->v,
        .lda = r->ldm,
        .o = r->da,
        .ldo = r->ldd,
        .s = r->t,
        .ahead = &ahead,
    };
    struct FN(scan) sum = {
        .K = h->d,
        .W = FN(round_up)(h->m, VL),
        .b = r->a,
        .v = r->v,
        .ldb = r->ldd,
        .ldv = r->ldm,
        .s = r->s,
        .ahead = &ahead,
    };
    FN(clear)(r->s, FN(state_size)(h->d, h->m));
    FN(compensate)(&sum, r->e, h->n, r->rows);
    FN(clear)(r->rz, r->ldd);
    FN(clear)(r->ze, r->ldd);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct FN(span) t = FN(span)(i, r->rows, i + r->rows, h->n, &ahead);
        u.rows = sum.rows = t.rows;
        FN(load_mapped)(r->a, r->ldd, &h->q, t, h->d, h->map);
        FN(load_plain)(r->v, r->ldm, &h->g, t, h->m);
        FN(look_ahead)(&h->dq, t, h->d);
        FN(sweep)(&u, LA_READ);
        FN(query_gradient)(h, r->da, r->a, r->z, 0, r->ldd, t.rows, r->r, r->w);
        FN(chain)(r->da, &h->q, t, h->d, r->a, r->ldd, h->map);
        FN(store_rows)(&h->dq, t, h->d, r->da, r->ldd, NULL);
        FN(scale_rows)(r->v, r->ldm, t.rows, r->r);
        FN(sweep)(&sum, LA_WRITE);
        if (h->normalize) {
            FN(add_weighted)(r->rz, r->ze, r->a, r->ldd, r->w, t.rows);
        }
    }
    return 0;
}

/* dk and dv, from R in s and R^T in t. */
static int
FN(noncausal_dkv)(const struct la_head *h, const struct FN(noncausal_room) * r)
{
    struct la_fetch ahead = {0};
    struct FN(scan) dv = {
        .K = h->d,
        .W = FN(round_up)(h->m, VL),
        .a = r->a,
        .lda = r->ldd,
        .o = r->dv,
        .ldo = r->ldm,
        .s = r->s,
        .ahead = &ahead,
    };
    struct FN(scan) db = {
        .K = h->m,
        .W = FN(round_up)(h->d, VL),
        .a = r->v,
        .lda = r->ldm,
        .o = r->da,
        .ldo = r->ldd,
        .s = r->t,
        .bias = r->rz,
        .ahead = &ahead,
    };
    for (ptrdiff_t j = 0; j < h->s; j += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct FN(span) t = FN(span)(j, r->rows, j + r->rows, h->s, &ahead);
        dv.rows = db.rows = t.rows;
        FN(load_keys)(h, t, r->a, r->ldd, r->v, r->ldm);
        FN(look_ahead)(&h->dk, t, h->d);
        FN(look_ahead)(&h->dv, t, h->m);
        FN(sweep)(&dv, LA_READ);
        FN(sweep)(&db, LA_READ);
        FN(chain)(r->da, &h->k, t, h->d, r->a, r->ldd, h->map);
        FN(clear_rows)(r->da, r->ldd, FN(keys_left)(h, t), t.rows);
        FN(clear_rows)(r->dv, r->ldm, FN(keys_left)(h, t), t.rows);
        FN(store_rows)(&h->dk, t, h->d, r->da, r->ldd, NULL);
        FN(store_rows)(&h->dv, t, h->m, r->dv, r->ldm, NULL);
    }
    return 0;
}

static int
FN(noncausal_backward)(const struct la_head *h)
{
    const struct FN(noncausal_room) r = FN(noncausal_room)(h, h->scratch, 1);
    if (FN(sum_keys)(h, &r)) {
        return 1;
    }
    FN(transpose_state)(r.t, r.s, h->d, h->m);
    if (FN(noncausal_dq)(h, &r)) {
        return 1;
    }
    FN(transpose_state)(r.t, r.s, h->d, h->m);
    return FN(noncausal_dkv)(h, &r);
}
