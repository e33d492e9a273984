"""RWKV-4's attention: values and gradients against the twin, states, keys of any size, errors."""

import bounds
import numpy as np
import pytest
from bounds import close_to_largest as close
from slow import grid, slow
from states import assert_same

import linattn
from linattn import State
from linattn.reference import rwkv as ref

N, M = 37, 21


def draw(*lead, n=N, m=M, dtype=np.float64, size=1.0, seed=0):
    """k, v, w, u and a cotangent."""
    rng = np.random.default_rng(seed)
    k, v, g = (rng.standard_normal((*lead, n, m)) for _ in range(3))
    w, u = rng.exponential(size=m), rng.standard_normal(m)
    return tuple(x.astype(dtype) for x in (size * k, v, w, size * u, g))


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


@grid(lambda keys: keys == "all keys alike", keys=SLOW)
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


@pytest.mark.any_isa
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
    assert_same((o, *grads), (expected, *wanted))
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


@pytest.mark.parametrize("to", [*slow(0, 1e5), 1e8, *slow(1e30)])
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


@pytest.mark.parametrize("top", [-(2.0**18), *slow(0.0, 1e8), 1e30])
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


@pytest.mark.parametrize("size", [0.1, *slow(1), 30, *slow(1e3), 1e6])
@pytest.mark.parametrize("decay", [1e-4, *slow(1e-1), 5, *slow(300)])
def test_bound(size, decay):
    """The bound of docs/guarantees.md, in a search over sizes."""
    for seed in range(4):
        k, v, w, u, _ = draw(n=200, dtype=np.float32, size=size, seed=seed)
        k = np.minimum.accumulate(k) if seed == 2 else np.maximum.accumulate(k) if seed == 3 else k
        operands = k, v + seed % 2 * 4, w * np.float32(decay), u / np.float32(max(size, 1))
        wide = [x.astype(np.float64) for x in operands]
        error = abs(linattn.wkv(*operands) - ref.wkv(*wide))
        assert (error <= 2.0**-24 * allowed(*wide)).all()
