/* causal.h: causal linear attention, one head, forward and backward, in chunks.
 *
 *   s_i = s_{i-1} + phi(k_i) v_i^T,  z_i = z_{i-1} + phi(k_i)
 *   o_i = scale phi(q_i)^T s_i / (scale phi(q_i).z_i + eps)
 *                                            Katharopoulos et al. 2020, eq. 9-12
 * About 4 n d m flops.  Scratch: the state, d m numbers, and a few chunks.
 * Nothing of row j > i reaches row i. */

struct FN(causal_room) {
    ptrdiff_t rows, ldd, ldm;
    T *a, *b, *v, *x, *o, *s, *e, *z, *ze, *den;
    size_t bytes;
};

static struct FN(causal_room) FN(causal_room)(const struct la_head *h, void *scratch)
{
    struct FN(causal_room) r;
    struct FN(arena) arena = {scratch, 0};
    r.rows = FN(chunk)(h->d);
    r.ldd = FN(ld)(h->d);
    r.ldm = FN(ld)(h->m);
    r.a = FN(take)(&arena, r.rows * r.ldd);
    r.b = FN(take)(&arena, r.rows * r.ldd);
    r.v = FN(take)(&arena, r.rows * r.ldm);
    r.x = FN(take)(&arena, r.rows * r.rows);
    r.o = FN(take)(&arena, r.rows * r.ldm);
    r.s = FN(take)(&arena, FN(state_size)(h->d, h->m));
    r.e = FN(take)(&arena, FN(state_size)(h->d, h->m));
    r.z = FN(take)(&arena, r.ldd);
    r.ze = FN(take)(&arena, r.ldd);
    r.den = FN(take)(&arena, r.rows);
    r.bytes = arena.used;
    return r;
}

static size_t
FN(causal_scratch)(const struct la_head *h)
{
    return FN(causal_room)(h, NULL).bytes;
}

static int
FN(causal)(const struct la_head *h)
{
    const struct FN(causal_room) r = FN(causal_room)(h, h->scratch);
    struct la_fetch ahead = {0};
    struct FN(scan) c = {
        .K = h->d,
        .W = FN(round_up)(h->m, VL),
        .a = r.a,
        .b = r.b,
        .v = r.v,
        .lda = r.ldd,
        .ldb = r.ldd,
        .ldv = r.ldm,
        .x = r.x,
        .ldx = r.rows,
        .o = r.o,
        .ldo = r.ldm,
        .s = r.s,
        .ahead = &ahead,
    };
    FN(load_state)(r.s, &h->s0, h->d, h->m);
    FN(compensate)(&c, r.e, h->n, r.rows);
    FN(load_vector)(r.z, r.ldd, &h->z0, h->d);
    FN(clear)(r.ze, r.ldd);
    for (ptrdiff_t i = 0; i < h->n; i += r.rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct FN(span) t = FN(span)(i, r.rows, i + r.rows, h->n, &ahead);
        c.rows = t.rows;
        FN(load_keys)(h, t, r.b, r.ldd, r.v, r.ldm);
        for (ptrdiff_t g = 0; g < h->group; g++) {
            const struct la_array q = FN(shifted)(&h->q, g * h->q_step);
            const struct la_array o = FN(shifted)(&h->o, g * h->o_step);
            FN(load_mapped)(r.a, r.ldd, &q, t, h->d, h->map);
            FN(look_ahead)(&o, t, h->m);
            FN(scores)(&c);
            if (h->normalize) {
                FN(score_sums)(r.den, &c, r.z);
            }
            FN(factors)(h, r.den, c.rows);
            FN(sweep)(&c, g + 1 < h->group ? LA_READ : LA_READ | LA_WRITE);
            FN(store_rows)(&o, t, h->m, r.o, r.ldm, r.den);
        }
        if (h->normalize) {
            FN(add_rows)(r.z, r.ze, r.b, r.ldd, c.rows);
        }
    }
    FN(store_states)(h, r.s, r.z, r.ldd);
    return 0;
}

/* Backward, in two scans (g is the cotangent, a = phi(q), b = phi(k)):
 *
 * forward    u_i = s_i g_i, which is causal attention of g to v and b;
 *            dq_i from u_i, z_i (scan.h), which leaves r_i and w_i, two numbers a
 *            token, for the second scan
 * reverse    R_j = sum_{i >= j} a_i (r_i g_i)^T
 *            dv_j = R_j^T b_j
 *            db_j = R_j v_j + sum_{i >= j} w_i a_i
 *
 * About 10 n d m flops.  Scratch: 2 d m + 2 n numbers, and a few chunks. */
struct FN(causal_backward_room) {
    ptrdiff_t rows, ldd, ldm;
    T *a, *b, *v, *g, *y, *da, *dv, *s, *t, *e, *z, *ze, *zs, *r, *w;
    size_t bytes;
};

static struct FN(causal_backward_room)
    FN(causal_backward_room)(const struct la_head *h, void *scratch)
{
    struct FN(causal_backward_room) r;
    struct FN(arena) arena = {scratch, 0};
    r.rows = FN(chunk)(h->d);
    r.ldd = FN(ld)(h->d);
    r.ldm = FN(ld)(h->m);
    r.a = FN(take)(&arena, r.rows * r.ldd);
    r.b = FN(take)(&arena, r.rows * r.ldd);
    r.v = FN(take)(&arena, r.rows * r.ldm);
    r.g = FN(take)(&arena, r.rows * r.ldm);
    r.y = FN(take)(&arena, r.rows * r.rows);
    r.da = FN(take)(&arena, r.rows * r.ldd);
    r.dv = FN(take)(&arena, r.rows * r.ldm);
    r.s = FN(take)(&arena, FN(state_size)(h->d, h->m));
    r.t = FN(take)(&arena, FN(state_size)(h->m, h->d));
    r.e = FN(take)(&arena, FN(state_size)(h->d, h->m) + FN(state_size)(h->m, h->d));
    r.z = FN(take)(&arena, r.ldd);
    r.ze = FN(take)(&arena, r.ldd);
    r.zs = FN(take)(&arena, r.rows * r.ldd);
    r.r = FN(take)(&arena, h->n + r.rows);
    r.w = FN(take)(&arena, h->n + r.rows);
    r.bytes = arena.used;
    return r;
}

static size_t
FN(causal_backward_scratch)(const struct la_head *h)
{
    return FN(causal_backward_room)(h, NULL).bytes;
}

/* The forward scan: dq, and r_i, w_i of every token. */
static int
FN(causal_dq)(const struct la_head *h, const struct FN(causal_backward_room) * r)
{
    struct la_fetch ahead = {0};
    struct FN(scan) c = {
        .K = h->m,
        .W = FN(round_up)(h->d, VL),
        .a = r->g,
        .b = r->v,
        .v = r->b,
        .lda = r->ldm,
        .ldb = r->ldm,
        .ldv = r->ldd,
        .x = r->y,
        .ldx = r->rows,
        .o = r->da,
        .ldo = r->ldd,
        .s = r->t,
        .ahead = &ahead,
    };
    const struct la_array s0_transposed = {h->s0.data, h->s0.cs, h->s0.rs, h->s0.type};
    FN(load_state)(r->t, &s0_transposed, h->m, h->d);
    FN(compensate)(&c, r->e, h->n, r->rows);
    FN(load_vector)(r->z, r->ldd, &h->z0, h->d);
    FN(clear)(r->ze, r->ldd);
    for (ptrdiff_t i = 0; i < h->n; i += r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct FN(span) t = FN(span)(i, r->rows, i + r->rows, h->n, &ahead);
        c.rows = t.rows;
        FN(load_mapped)(r->a, r->ldd, &h->q, t, h->d, h->map);
        FN(load_keys)(h, t, r->b, r->ldd, r->v, r->ldm);
        FN(load_plain)(r->g, r->ldm, &h->g, t, h->m);
        FN(look_ahead)(&h->dq, t, h->d);
        FN(scores)(&c);
        FN(sweep)(&c, LA_READ | LA_WRITE);
        if (h->normalize) {
            FN(running_sums)(r->zs, r->z, r->ze, r->b, r->ldd, c.rows);
        }
        FN(query_gradient)(h, r->da, r->a, r->zs, r->ldd, r->ldd, c.rows, r->r + i,
                           r->w + i);
        FN(chain)(r->da, &h->q, t, h->d, r->a, r->ldd, h->map);
        FN(store_rows)(&h->dq, t, h->d, r->da, r->ldd, NULL);
    }
    return 0;
}

/* The reverse scan: dk and dv.  s holds R and t its transpose. */
static int
FN(causal_dkv)(const struct la_head *h, const struct FN(causal_backward_room) * r)
{
    struct la_fetch ahead = {0};
    struct FN(scan) dv = {
        .K = h->d,
        .W = FN(round_up)(h->m, VL),
        .a = r->b,
        .b = r->a,
        .v = r->g,
        .lda = r->ldd,
        .ldb = r->ldd,
        .ldv = r->ldm,
        .x = r->y,
        .ldx = r->rows,
        .o = r->dv,
        .ldo = r->ldm,
        .s = r->s,
        .upper = 1,
        .ahead = &ahead,
    };
    struct FN(scan) db = {
        .K = h->m,
        .W = FN(round_up)(h->d, VL),
        .a = r->v,
        .b = r->g,
        .v = r->a,
        .lda = r->ldm,
        .ldb = r->ldm,
        .ldv = r->ldd,
        .x = r->y,
        .ldx = r->rows,
        .o = r->da,
        .ldo = r->ldd,
        .s = r->t,
        .bias = r->z,
        .upper = 1,
        .ahead = &ahead,
    };
    FN(load_state)(r->s, &h->gs, h->d, h->m);
    FN(transpose_state)(r->t, r->s, h->d, h->m);
    FN(compensate)(&dv, r->e, h->n, r->rows);
    FN(load_vector)(r->z, r->ldd, &h->gz, h->d);
    FN(clear)(r->ze, r->ldd);
    for (ptrdiff_t i = (h->n - 1) / r->rows * r->rows; i >= 0 && h->n > 0;
         i -= r->rows) {
        if (h->poll(h->poll_arg)) {
            return 1;
        }
        const struct FN(span) t = FN(span)(i, r->rows, i - r->rows, h->n, &ahead);
        dv.rows = db.rows = t.rows;
        FN(load_mapped)(r->a, r->ldd, &h->q, t, h->d, h->map);
        FN(load_keys)(h, t, r->b, r->ldd, r->v, r->ldm);
        FN(load_plain)(r->g, r->ldm, &h->g, t, h->m);
        FN(look_ahead)(&h->dk, t, h->d);
        FN(look_ahead)(&h->dv, t, h->m);
        FN(scale_rows)(r->g, r->ldm, t.rows, r->r + i);
        FN(scores)(&dv);
        FN(sweep)(&dv, LA_READ | LA_WRITE);
        FN(scores)(&db);
        if (h->normalize) {
            FN(add_to_rows)(r->y, r->rows, t.rows, r->w + i);
        }
        FN(sweep)(&db, LA_READ);
        FN(transpose_state)(r->t, r->s, h->d, h->m);
        if (h->normalize) {
            FN(add_weighted)(r->z, r->ze, r->a, r->ldd, r->w + i, t.rows);
        }
        FN(chain)(r->da, &h->k, t, h->d, r->b, r->ldd, h->map);
        FN(clear_rows)(r->da, r->ldd, FN(keys_left)(h, t), t.rows);
        FN(clear_rows)(r->dv, r->ldm, FN(keys_left)(h, t), t.rows);
        FN(store_rows)(&h->dk, t, h->d, r->da, r->ldd, NULL);
        FN(store_rows)(&h->dv, t, h->m, r->dv, r->ldm, NULL);
    }
    FN(store_state)(&h->ds0, r->s, h->d, h->m);
    FN(store_vector)(&h->dz0, r->z, r->ldd, h->d);
    return 0;
}

static int
FN(causal_backward)(const struct la_head *h)
{
    const struct FN(causal_backward_room) r = FN(causal_backward_room)(h, h->scratch);
    return FN(causal_dq)(h, &r) || FN(causal_dkv)(h, &r);
}
