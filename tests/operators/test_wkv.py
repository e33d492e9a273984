"""RWKV-4's attention: values and gradients against the twin, states, keys of any size, errors."""

import bounds
import ml_dtypes
import numpy as np
import pytest

import linattn
from linattn import State
from linattn.reference import rwkv as ref

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
N, M = 37, 21


def draw(*lead, n=N, m=M, dtype=np.float64, size=1.0, seed=0):
    """k, v, w, u and a cotangent."""
    rng = np.random.default_rng(seed)
    k, v, g = (rng.standard_normal((*lead, n, m)) for _ in range(3))
    w, u = rng.exponential(size=m), rng.standard_normal(m)
    return tuple(x.astype(dtype) for x in (size * k, v, w, size * u, g))


def draw_state(*lead, dtype=np.float64, m=M, seed=1):
    rng = np.random.default_rng(seed)
    s, z, top = rng.standard_normal((3, *lead, m))
    return State(s.astype(dtype), np.abs(z).astype(dtype) + 1, top.astype(dtype))


def close(x, y, dtype, factor=64):
    """Within so many roundings of the largest number of the result; o is a mean of the values."""
    u = float(ml_dtypes.finfo(dtype).eps)
    y = np.asarray(y)
    atol = factor * u * max(1.0, np.max(np.abs(y), initial=0))
    bounds.close(np.asarray(x, np.float64), y, rtol=4 * u, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 200])
def test_values(dtype, n):
    k, v, w, u, _ = draw(2, n=n, dtype=dtype)
    o = linattn.wkv(k, v, w, u)
    assert o.dtype == dtype
    close(o, ref.wkv(k, v, w, u), dtype, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 16, 129, 300])
def test_gradients(dtype, m):
    k, v, w, u, g = draw(2, m=m, dtype=dtype)
    grads = linattn.wkv_backward(k, v, w, u, g)
    wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype
    assert [x.dtype for x in grads] == [dtype, dtype, wide, wide]
    for x, y, unit in zip(grads, ref.wkv_backward(k, v, w, u, g), (dtype, dtype, wide, wide),
                          strict=True):  # fmt: skip
        close(x, y, unit)


def test_any_layout_gives_the_same_bits():
    k, v, w, u, g = draw(2, 3, dtype=np.float32)
    expected = linattn.wkv(k, v, w, u), *linattn.wkv_backward(k, v, w, u, g)

    def by_columns(x):
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)

    def spread(x):
        return np.repeat(x, 2, -1)[..., ::2]

    for view in (by_columns, spread, lambda x: x[..., ::-1].copy()[..., ::-1]):
        args = view(k), view(v), w[::-1].copy()[::-1], u, view(g)
        got = linattn.wkv(*args[:4]), *linattn.wkv_backward(*args)
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_array_equal(x, y)
    out = by_columns(np.empty_like(k))
    assert linattn.wkv(k, v, w, u, out=out) is out
    np.testing.assert_array_equal(out, expected[0])
    np.testing.assert_array_equal(linattn.wkv(k, v, w, u, out=v), expected[0])


def test_leading_axes_broadcast_and_gradients_are_summed():
    k, v, _, _, g = draw(3, 4)
    w, u = np.random.default_rng(2).random((2, 4, M))
    k = k[:1]
    close(linattn.wkv(k, v, w, u), ref.wkv(k, v, w, u), np.float64, 4)
    for x, y in zip(linattn.wkv_backward(k, v, w, u, g), ref.wkv_backward(k, v, w, u, g),
                    strict=True):  # fmt: skip
        assert x.shape == y.shape
        close(x, y, np.float64)


@pytest.mark.parametrize("size", [100.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_keys_of_any_size(size, dtype):
    k, v, w, u, g = draw(2, dtype=dtype, size=size)
    k[0, 3:6], k[1, 0] = -np.inf, -np.inf
    o, last = linattn.wkv(k, v, w, u, return_state=True)
    expected, expected_last = ref.wkv(k, v, w, u, return_state=True)
    tolerance = np.finfo(dtype).eps * size * 4  # of u + k, and of max - w
    bounds.close(o, expected, rtol=tolerance, atol=tolerance)
    assert np.isfinite(o).all() and np.isfinite(last.s).all()
    bounds.close(last.log_scale, expected_last.log_scale, rtol=1e-5, atol=1e-5)
    for x, y in zip(linattn.wkv_backward(k, v, w, u, g), ref.wkv_backward(k, v, w, u, g),
                    strict=True):  # fmt: skip
        limit = tolerance * max(1, np.abs(y).max())
        bounds.close(x, y, rtol=tolerance, atol=limit)


def test_no_key_at_all_gives_zeros():
    k, v, w, u, g = draw()
    k[:] = -np.inf
    np.testing.assert_array_equal(linattn.wkv(k, v, w, u), 0)
    for x in linattn.wkv_backward(k, v, w, u, g):
        np.testing.assert_array_equal(x, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_reaches_earlier_outputs(bad):
    k, v, w, u, _ = draw(dtype=np.float32)
    expected = linattn.wkv(k, v, w, u)
    for x in (k, v):
        for t in (0, 13, 36):
            kept, x[t] = x[t].copy(), bad
            np.testing.assert_array_equal(linattn.wkv(k, v, w, u)[:t], expected[:t])
            x[t] = kept


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_states_cut_and_resumed(dtype):
    k, v, w, u, _ = draw(2, dtype=dtype)
    whole, last = linattn.wkv(k, v, w, u, return_state=True, initial_state=None)
    for cut in (0, 1, 17, 32, N):
        first, state = linattn.wkv(k[:, :cut], v[:, :cut], w, u, return_state=True)
        rest, end = linattn.wkv(
            k[:, cut:], v[:, cut:], w, u, initial_state=state, return_state=True
        )
        # What sums lost to rounding is no part of a state.
        close(np.concatenate([first, rest], -2), whole, dtype, 4)
        for x, y in zip(end, last, strict=True):
            close(x, y, dtype, 4)


@pytest.mark.parametrize("in_place", [False, True])
def test_steps(in_place):
    k, v, w, u, _ = draw(2, dtype=np.float32)
    start = draw_state(2, dtype=np.float32)
    whole, last = linattn.wkv(k, v, w, u, initial_state=start, return_state=True)
    state = State(*(x.copy() for x in start))
    for t in range(N):
        before = state
        o, state = linattn.wkv_step(k[:, t], v[:, t], w, u, state, in_place=in_place)
        close(o, whole[:, t], np.float32, N)  # each step rounds the state
        assert (state.s is before.s) is in_place
        assert (state is before) is in_place
    for x, y in zip(state, last, strict=True):
        close(x, y, np.float32, N)


OPTIONS = [
    {"key_lengths": [5, 0]},
    {"key_lengths": [33, N]},
    {"cu_seqlens": [0, 3, 3, N]},
    {"cu_seqlens": [0, 34, N], "key_lengths": [36, 2]},
    {},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("with_state", [False, True])
def test_options(options, with_state):
    k, v, w, u, g = draw(2)
    packed = (len(options["cu_seqlens"]) - 1,) if "cu_seqlens" in options else ()
    start, grad = draw_state(2, *packed), draw_state(1, *packed, seed=5)
    states = {"initial_state": start} if with_state else {}
    for length, x in zip(options.get("key_lengths", ()), (*k,), strict=False):
        x[length:] = np.nan  # what does not exist may hold anything
    o, last = linattn.wkv(k, v, w, u, return_state=True, **states, **options)
    expected, expected_last = ref.wkv(k, v, w, u, return_state=True, **states, **options)
    close(o, expected, np.float64, 16)
    for x, y in zip(last, expected_last, strict=True):
        bounds.close(x, y, rtol=1e-13, atol=1e-13)
    grad_state = {"grad_state": grad} if with_state else {}
    got = linattn.wkv_backward(k, v, w, u, g, **states, **grad_state, **options)
    wanted = ref.wkv_backward(k, v, w, u, g, **states, **grad_state, **options)
    for x, y in zip(got[:4], wanted[:4], strict=True):
        close(x, y, np.float64, 256)
    for x, y in zip(*(r[4] if with_state else () for r in (got, wanted)), strict=True):
        assert x.shape == y.shape
        close(x, y, np.float64, 256)


def test_gradients_are_the_twins_differences():
    k, v, w, u, g = draw(n=9, m=3)
    start, grad = draw_state(m=3), draw_state(m=3, seed=4)
    operands = [k, v, w, u, *start]

    def loss(operands):
        o, last = ref.wkv(*operands[:4], initial_state=State(*operands[4:]), return_state=True)
        return (o * g).sum() + sum((x * y).sum() for x, y in zip(last, grad, strict=True))

    *grads, dstate = linattn.wkv_backward(k, v, w, u, g, initial_state=start, grad_state=grad)
    rng, h = np.random.default_rng(7), 1e-6
    for i, dx in enumerate((*grads, *dstate)):
        way = rng.standard_normal(dx.shape)
        sides = [
            loss([x + s * h * way if i == j else x for j, x in enumerate(operands)])
            for s in (1, -1)
        ]
        difference = (sides[0] - sides[1]) / (2 * h)
        bounds.close((dx * way).sum(), difference, rtol=1e-7, atol=1e-7)


def test_values_have_an_adjoint():
    """o is linear in v and num: <J dv, g> = <dv, J^T g>."""
    k, v, w, u, g = draw(2)
    _, dv, *_ = linattn.wkv_backward(k, v, w, u, g)
    way = np.random.default_rng(3).standard_normal(v.shape)
    left, right = (linattn.wkv(k, way, w, u) * g).sum(), (way * dv).sum()
    bounds.close(left, right, rtol=1e-12, atol=1e-12)


def test_threads_give_the_same_bits():
    k, v, w, u, g = draw(3, n=100, m=300, dtype=np.float32)
    results = []
    before = linattn.get_num_threads()
    try:
        for threads in (1, 2, 3):
            linattn.set_num_threads(threads)
            results.append((linattn.wkv(k, v, w, u), *linattn.wkv_backward(k, v, w, u, g)))
    finally:
        linattn.set_num_threads(before)
    for other in results[1:]:
        for x, y in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(x, y)


def test_long_sums_of_gradients():
    """dw and du of many tokens, where little decays."""
    n = 20000
    k, v, w, u, g = draw(n=n, m=2, dtype=np.float32)
    w[:] = 1e-2
    got = linattn.wkv_backward(k, v, w, u, g)
    wide = linattn.wkv_backward(*(x.astype(np.float64) for x in (k, v, w, u, g)))
    for x, y in zip(got, wide, strict=True):
        bounds.close(x, y, rtol=1e-3, atol=1e-4 * np.abs(y).max())


SLOW = {
    "all keys alike": lambda k: np.full_like(k, 4),
    "the first key the largest": lambda k: np.concatenate([np.full_like(k[:1], 4), k[1:]]),
    "large keys": lambda k: 1000 + k,
}


@pytest.mark.parametrize("keys", SLOW)
def test_slow_decays(keys):
    """max - w rounds to a multiple of an ulp of max, against which w is small."""
    n, m, w = 8000, 3, 1e-4
    k, v, _, u, g = draw(n=n, m=m, dtype=np.float32)
    k = SLOW[keys](np.minimum(k, 4))
    v[n // 2 :] += 1
    operands = k, v, np.full(m, w, np.float32), u
    wide = [x.astype(np.float64) for x in operands]
    bounds.close(linattn.wkv(*operands), ref.wkv(*wide), rtol=0, atol=32 * 2.0**-24 * 5)
    got = linattn.wkv_backward(*operands, g)
    for x, y in zip(got, linattn.wkv_backward(*wide, g.astype(np.float64)), strict=True):
        bounds.close(x, y, rtol=0, atol=64 * 2.0**-24 * np.abs(y).max())


def test_slow_decays_token_by_token():
    """A step rounds num and den: roundings of 1 / w tokens add up, of either sign."""
    n, m, w = 10000, 3, 1e-4
    _, v, _, u, _ = draw(n=n, m=m, dtype=np.float32)
    k, w = np.full_like(v, 4), np.full(m, w, np.float32)
    v[n // 2 :] += 1
    expected = ref.wkv(*(x.astype(np.float64) for x in (k, v, w, u)))
    state = State(*np.zeros((2, m), np.float32), np.full(m, -np.inf, np.float32))
    got = np.empty_like(v)
    for t in range(n):
        got[t], state = linattn.wkv_step(k[t], v[t], w, u, state, in_place=True)
    bounds.close(got, expected, rtol=0, atol=4 * n**0.5 * 2.0**-24)


def test_it_is_what_transformers_computes():
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.rwkv.modeling_rwkv")
    k, v, decay, u, _ = draw(2, dtype=np.float32)
    tensors = [torch.from_numpy(x) for x in (decay, u, k, v)]
    expected, state = modeling.rwkv_linear_attention_cpu(*tensors, return_state=True)
    o, last = linattn.wkv(k, v, np.exp(decay), u, return_state=True)
    bounds.close(o, expected.numpy(), rtol=1e-5, atol=1e-6)
    for x, y in zip(last, state, strict=True):
        bounds.close(x, y.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"v": np.zeros((N, M + 1))}, ValueError, "wkv: v has shape"),
        ({"w": np.zeros(M + 1)}, ValueError, "wkv: w has shape"),
        ({"k": np.zeros((N, M), complex)}, TypeError, "wkv: k has dtype complex128"),
        ({"initial_state": np.zeros(M)}, TypeError, "wkv: initial_state is a ndarray"),
        ({"initial_state": State(*np.zeros((3, M + 1)))}, ValueError, "initial_state.s has shape"),
        ({"initial_state": State(np.zeros(M), None, None)}, TypeError, "initial_state.z is a None"),
        ({"out": np.zeros((N, M), np.float32)}, TypeError, "wkv: out has dtype float32"),
        ({"key_lengths": N + 1}, ValueError, "wkv: key_lengths has values"),
        ({"cu_seqlens": [0, 3]}, ValueError, "wkv: cu_seqlens ends with 3"),
    ],
)
def test_errors(change, error, message):
    k, v, w, u, _ = draw()
    with pytest.raises(error, match=message):
        linattn.wkv(**({"k": k, "v": v, "w": w, "u": u} | change))


def test_a_step_in_place_needs_arrays_of_its_own():
    k, v, w, u, _ = draw(2)
    with pytest.raises(ValueError, match=r"wkv_step: state\.s has shape"):
        linattn.wkv_step(k[:, 0], v[:, 0], w, u, draw_state(), in_place=True)


def shifted(k, dtype, to):
    """Keys on the grid of numbers near `to`, and the same keys less `to`, both exact."""
    k = np.round(k * 4) * np.spacing(dtype(to))
    return (dtype(to) + k).astype(dtype), k.astype(dtype)


def scanned(k, v, w, u, g, cut=None):
    """The output, the ratio of the final sums, and the gradients; with a cut, resumed there."""
    if cut is None:
        o, last = linattn.wkv(k, v, w, u, return_state=True)
        return o, last.s / last.z, *linattn.wkv_backward(k, v, w, u, g)
    first, state = linattn.wkv(k[:cut], v[:cut], w, u, return_state=True)
    rest, last = linattn.wkv(k[cut:], v[cut:], w, u, initial_state=state, return_state=True)
    *_, dstate = linattn.wkv_backward(k[cut:], v[cut:], w, u, g[cut:], initial_state=state)
    *grads, _ = linattn.wkv_backward(k[:cut], v[:cut], w, u, g[:cut], grad_state=dstate)
    return np.concatenate([first, rest]), last.s / last.z, *grads


@pytest.mark.parametrize("to", [3e6, 1e8, 1e15, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_keys_that_differ_by_a_constant(dtype, to):
    """Only differences of keys matter: all of them shifted, where exact, give the same bits."""
    k, v, w, u, g = draw(n=300, dtype=dtype)
    large, small = shifted(k, dtype, to)
    large[40:60] = small[40:60] = -np.inf
    o, ratio, *grads = scanned(large, v, w, u, g)
    expected, near, *wanted = scanned(small, v, w, u, g)
    for x, y in zip((o, *grads), (expected, *wanted), strict=True):
        np.testing.assert_array_equal(x, y)
    close(ratio, near, dtype, 4)  # what a state's log scale loses is no constant


@pytest.mark.parametrize("to", [3e6, 1e8])
def test_large_keys_cut_and_resumed(to):
    """The state's log scale is one number, which has few digits behind the point here."""
    k, v, w, u, g = draw(n=300, dtype=np.float32)
    k, _ = shifted(k, np.float32, to)
    whole = scanned(k, v, w / 64, u, g)
    for cut in (1, 150, 299):
        o, ratio, dk, dv, *_ = scanned(k, v, w / 64, u, g, cut)
        close(o, whole[0], np.float32, 4)
        close(ratio, whole[1], np.float32, 4)
        close(dk, whole[2][:cut], np.float32)
        close(dv, whole[3][:cut], np.float32)


@pytest.mark.parametrize("to", [0, 1e5, 1e8, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_million_tokens_that_write_nothing(dtype, to):
    """They read the first token's value, and what comes last outweighs it."""
    n, m = 1_100_000, 2
    k, v = np.full((n, m), -np.inf, dtype), np.full((n, m), np.nan, dtype)
    k[0], v[0], k[-2], v[-2:] = to, [2, 3], to, 7
    w, u, g = np.full(m, 7.4, dtype), np.zeros(m, dtype), np.zeros((n, m), dtype)
    g[-3:] = 1
    o, ratio, dk, dv, dw, _ = scanned(k, v, w, u, g)
    close(o[1:-2], np.broadcast_to(v[0], (n - 3, m)), dtype, 1)
    np.testing.assert_array_equal(o[-2:], 7)
    close(ratio, np.full(m, 7), dtype, 4)
    close(dv[[0, -2]], np.array([[1, 1], [2, 2]]), dtype, 4)
    np.testing.assert_array_equal(dv[1:-2], 0)
    u = np.finfo(dtype).eps
    bounds.close(dk, np.zeros_like(dk), atol=4 * 7 * u)
    bounds.close(dw, np.zeros_like(dw), atol=4 * 7 * u * n)  # a sum of so many zeros, rounded


@pytest.mark.parametrize("top", [-(2.0**18), 0.0, 1e8, 1e30])
def test_many_steps_that_write_nothing(top):
    """What the log scale loses to rounding, alike at each step, does not multiply up."""
    state = State(*np.float32([[2.0], [1.0], [top]]))
    w = np.float32([7.4])
    for _ in range(40_000):
        o, state = linattn.wkv_step(np.float32([-np.inf]), w, w, w, state, in_place=True)
        assert abs(o[0] - 2) < 1e-3
    scale = state.log_scale[0] + np.log(state.z[0])
    bounds.close(scale, top - 40_000 * 7.4, rtol=1e-5, atol=0)


def test_a_long_memory_and_its_decay():
    """The first key outweighs 2^20 later ones by less and less."""
    n, w = 1_200_000, np.float32([1e-5])
    k = np.zeros((n, 1), np.float32)
    k[0] = 12
    v = np.zeros_like(k)
    v[0] = 1
    o, last = linattn.wkv(k, v, w, np.zeros_like(w), return_state=True)
    wide = linattn.wkv(*(x.astype(np.float64) for x in (k, v, w, np.zeros_like(w))))
    bounds.close(o, wide, rtol=32 * 2.0**-24, atol=0)
    bounds.close(last.s / last.z, wide[-1], rtol=1e-3, atol=0)


def allowed(k, v, w, u):
    """What o may be off by, in units of u: weights times the roundings of their exponents.

    An exponent is top - k - age w, or less u; each of these operations rounds, and so do the
    exponential and its argument.  num and den carry the roundings of the weights in them.
    """
    num, den, off_num, off_den, age = np.zeros((5, *w.shape))
    top, o = np.full(w.shape, -np.inf), np.empty_like(v)
    for t, (kt, vt) in enumerate(zip(k, abs(v), strict=True)):
        d = np.where(np.isinf(top), -np.inf, top - kt - age * w)
        sizes = np.where(np.isinf(top), 0, abs(top - kt) + age * w)
        read, own = np.exp(np.minimum(d - u, 0)), np.exp(np.minimum(u - d, 0))
        e = 3 * (sizes + abs(u)) + 6
        sums, weights = read * num + own * vt, read * den + own
        off = read * off_num + own * vt * e + read * num * e
        off_weights = read * off_den + own * e + read * den * e
        o[t] = (off + sums / weights * off_weights) / weights + 2 * sums / weights
        d, sizes = d - w, sizes + w
        is_key, e = d < 0, 3 * sizes + 8
        keep, own = np.exp(np.minimum(d, 0)), np.exp(np.minimum(-d, 0))
        off_num = keep * off_num + own * vt * e + np.where(is_key, keep * num * e, 0)
        off_den = keep * off_den + own * e + np.where(is_key, keep * den * e, 0)
        num, den = keep * num + own * vt, keep * den + own
        top, age = np.where(is_key, kt, top), np.where(is_key, 0, age + 1)
    return o


@pytest.mark.parametrize("size", [0.1, 1, 30, 1e3, 1e6])
@pytest.mark.parametrize("decay", [1e-4, 1e-1, 5, 300])
def test_bound(size, decay):
    """The bound of docs/guarantees.md, in a search over sizes."""
    for seed in range(4):
        k, v, w, u, _ = draw(n=200, dtype=np.float32, size=size, seed=seed)
        k = np.minimum.accumulate(k) if seed == 2 else np.maximum.accumulate(k) if seed == 3 else k
        operands = k, v + seed % 2 * 4, w * np.float32(decay), u / np.float32(max(size, 1))
        wide = [x.astype(np.float64) for x in operands]
        error = abs(linattn.wkv(*operands) - ref.wkv(*wide))
        assert (error <= 2.0**-24 * allowed(*wide)).all()
