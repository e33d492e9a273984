"""RWKV-4's attention: values and gradients against the twin, states, keys of any size, errors."""

import ml_dtypes
import numpy as np
import pytest
from support import bounds

import linattn
from linattn import State
from linattn import _reference_wkv as ref

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
