"""What scans do alone: the bound of linear_scan, axes that broadcast, dtypes, large results.

The bound is that of the equation: the twin runs on absolute values, and beside each number carries
how many roundings of its terms it may be off.
"""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from bounds import close
from layouts import LAYOUTS
from slow import looped, slow
from states import flat
from table import ALL

import linattn
from linattn import State, reference
from linattn._core.gufuncs import ufuncs
from linattn.reference import scan as ref

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
LINEAR = next(x for x in ALL if x.name == "linear_scan")
SELECTIVE = next(x for x in ALL if {"D", "z", "dt_bias"} <= {*x.letters})
SHAPES = [(7, 5), (5,), (7, 1), (1, 5), (), (2, 1, 1), (2, 7, 5), (3, 1, 7, 5)]  # of a, n = 7


def wide(dtype):
    """The dtype in which results of a dtype are computed."""
    return np.dtype("f4") if np.dtype(dtype).itemsize == 2 else np.dtype(dtype)


def assert_close(result, expected, dtype, factor):
    """Allow `factor` roundings of the largest entry, and one rounding to the array's own dtype."""
    for i, (x, y) in enumerate(zip(flat(result), flat(expected), strict=True)):
        assert x.shape == y.shape, i
        largest = abs(y).max(initial=0)
        slack = factor * UNIT[wide(dtype).name] * largest + UNIT[x.dtype.name] * abs(y) + 1e-30
        assert (abs(x.astype("f8") - y) <= slack).all(), i


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: np.dtype(x).name)
@pytest.mark.parametrize(("log", "reverse"), [*product((False, True), repeat=2)])
def test_bound_of_linear_scan(log, reverse, dtype):
    """h is off by (2 + 2 |log a|) u of |a| |h_before| a token, as the sums of absolutes show."""
    case, other = LINEAR._replace(options={"log": log, "reverse": reverse}), {"reverse": reverse}
    for n, m in [(0, 3), (1, 1), (33, 0), (5, 7), (33, 16), (70, 37), (129, 65)]:
        arrays = case.operands((2,), n, m=m, dtype=dtype)
        state = case.state((2,), m=m, dtype=wide(dtype))
        h = case.call(arrays, initial_state=state)
        a, x, start = (y.astype("f8") for y in (arrays["a"], arrays["x"], state.s))
        exact = ref.linear_scan(a, x, log=log, **other, initial_state=start)
        decay = np.exp(a) if log else abs(a)
        size = ref.linear_scan(decay, abs(x), **other, initial_state=abs(start))
        error = ref.linear_scan(decay, (3 + (2 * abs(a) if log else 0)) * size, **other)
        slack = UNIT[wide(dtype).name] * (error + size) + UNIT[np.dtype(dtype).name] * size
        assert (abs(h.astype("f8") - exact) <= slack).all()


@pytest.mark.parametrize("slow", [1e-3, 1e-4, 1e-5])
def test_bound_of_slow_decays(slow):
    """Constants of all mantissas, whose decays round alike at each token; `gated` compensates."""
    n, m, rng = int(2 / slow), 16, np.random.default_rng(0)
    a = (-slow * np.exp2(rng.random(m))).astype("f")
    x = np.exp2(rng.random(m)).astype("f")
    rows, g = np.broadcast_to(x, (n, m)), np.broadcast_to(a, (n, m))
    one, wide, decay = np.ones((n, 1), "f"), a.astype("f8"), np.exp(a.astype("f8"))
    # h_n = x (1 - decay^n) / (1 - decay), and the sum of such h, each decayed from its token on.
    exact = x * np.expm1(n * wide) / np.expm1(wide)
    off = (exact - n * x * decay**n) / -np.expm1(wide) * (3 - 2 * wide) * UNIT["float32"]
    h = linattn.linear_scan(g, rows, log=True)[-1]
    assert (abs(h - exact) <= off).all()
    y = linattn.selective_scan(rows, np.ones((n, m), "f"), a[:, None], one, one)[-1]
    assert (abs(y - exact) <= off).all()
    heads = linattn.gated(one, one, rows.T[..., None], np.ascontiguousarray(g.T))[:, -1, 0]
    close(heads, exact, rtol=8 * UNIT["float32"], atol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@looped(swapped=[False, True])
@looped(log=[False, True], reverse=[False, True], phase=[0, 1j])
def test_all_axes_of_linear_scan_broadcast(shape, swapped, phase, **options):
    rng = np.random.default_rng(0)
    a, x, g = (
        rng.uniform(-1, 1, y) for y in (shape, (2, 7, 5), np.broadcast_shapes(shape, (2, 7, 5)))
    )
    a, x, g = (y * np.exp(phase * rng.uniform(-3, 3, y.shape)) for y in (a, x, g))
    a, x = (x, a) if swapped else (a, x)
    h = linattn.linear_scan(a, x, **options)
    assert h.shape == g.shape
    close(h, ref.linear_scan(a, x, **options), rtol=1e-12, atol=1e-12)
    grads = linattn.linear_scan_backward(a, x, g, **options)
    for y, z in zip(grads, ref.linear_scan_backward(a, x, g, **options), strict=True):
        assert y.shape == z.shape
        close(y, z, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("where", [linattn, reference], ids=["linattn", "twin"])
def test_tokens_past_the_last_key_keep_their_skip(where):
    """With no key and no state, y = D x silu(z), and its gradients."""
    arrays = SELECTIVE.operands((2,), 70, d=5, m=13)
    x, D, z = arrays["x"], arrays["D"][:, None], arrays["z"]
    gate = z / (1 + np.exp(-z))
    y = SELECTIVE.call(arrays, where, key_lengths=0)
    assert_close(y, D * x * gate, "f8", 16)
    c = arrays["grad_out"] * gate
    grads = dict(
        zip(SELECTIVE.letters, SELECTIVE.backward(arrays, where, key_lengths=0), strict=True)
    )
    assert_close(grads["x"], D * c, "f8", 16)
    assert_close(grads["D"], (x * c).sum(-2), "f8", 16 + x.size)
    assert not any(grads[name].any() for name in ("dt", "A", "B", "C"))


def test_growing_states_are_allowed():
    """Positive rates and negative time steps."""
    x = np.ones((3, 1))
    y = linattn.selective_scan(x, x, np.log([[2.0]]), x, x)
    close(y[:, 0], np.array([1, 3, 7]), rtol=1e-14, atol=0)
    y = linattn.selective_scan(x, -x, np.log([[0.5]]), x, x)
    close(y[:, 0], np.array([-1, -3, -7]), rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: np.dtype(x).name)
@pytest.mark.parametrize("number", [1, 0.5, True, np.float32(0.5), np.float64(0.5), np.int64(1)])
def test_numbers_follow_the_promotion_of_numpy(dtype, number):
    """Those of Python have no say in the dtype; those of NumPy do."""
    x = np.ones((3, 2), dtype)
    weak = type(number) in (bool, int, float)
    full = np.full_like(x, number) if weak else np.full(x.shape, number)
    expected = linattn.linear_scan(full, x)
    found = linattn.linear_scan(number, x)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    da, dx = linattn.linear_scan_backward(number, x, x)
    assert da.shape == () and dx.dtype == linattn.linear_scan_backward(full, x, x)[1].dtype
    h, _ = linattn.linear_scan_step(number, x, State(np.ones(x.shape, wide(expected.dtype))))
    assert h.dtype == expected.dtype


@pytest.mark.parametrize("reverse", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "sizes", [(3, 13), (61, 3), (64, 0), *slow((3, 1), (16, 0), (64, 1), (300, 7))]
)
def test_results_larger_than_the_caches(sizes, dtype, reverse):
    """They are written past them, to every boundary of a vector, and no further."""
    m, first = sizes
    n, width = 9, -(-(first + m) // 16) * 16  # rows have the same boundaries
    heads = 2**22 // (n * m) + 1
    rng = np.random.default_rng(2)
    a, x = (rng.uniform(-1, 1, (n, m)).astype(dtype) for _ in range(2))
    expected = ufuncs["linear_scan"](a, x, 0.0, reverse)
    memory = np.zeros(heads * n * width + 64, dtype)
    start = -memory.ctypes.data % 64 // memory.itemsize
    whole = memory[start : start + heads * n * width].reshape(heads, n, width)
    whole[...] = 7
    out = whole[..., first : first + m]
    ufuncs["linear_scan"](np.broadcast_to(a, (heads, n, m)), x, 0.0, reverse, out=out)
    assert (out == expected).all()
    assert (whole[..., :first] == 7).all() and (whole[..., first + m :] == 7).all()


@pytest.mark.parametrize("dtype", ["f2", "f4", "c8"])
@looped(log=[False, True], reverse=[False, True], m=[1, 37], bounds=[[0, 300], [0, 5, 160, 300]])
def test_tokens_side_by_side(dtype, log, reverse, m, bounds):
    """Where tokens of a column are neighbours, in either order, blocks are narrow and long; no bit
    changes."""
    rng = np.random.default_rng(0)
    draw = lambda: rng.standard_normal((3, 300, m)).astype(dtype)  # noqa: E731
    a, x, grad = -abs(draw()), draw(), draw()
    start = State(rng.standard_normal((3, len(bounds) - 1, m)).astype(np.result_type(dtype, "f4")))
    how = {"log": log, "reverse": reverse, "cu_seqlens": bounds, "initial_state": start}
    for name, given in (("linear_scan", 2), ("linear_scan_backward", 3)):
        scan, operands = getattr(linattn, name), (a, x, grad)[:given]
        expected = flat(scan(*operands, **how))
        for layout in "features_first", "features_first_backwards":
            found = flat(scan(*map(LAYOUTS[layout], operands), **how))
            for y, z in zip(found, expected, strict=True):
                np.testing.assert_array_equal(y, z, strict=True)


def test_infinite_inputs():
    """No padding takes part in sums, whatever the number of states: it would make them NaN."""
    case = SELECTIVE
    for f in (1, 2, 3, 5, 7, 16):
        arrays, start = case.operands((), 9, d=f, m=5), case.state((), d=f, m=5)
        arrays |= {name: abs(arrays[name]) for name in ("x", "B", "C", "D", "z")}
        arrays["x"][4, 2] = np.inf
        start = State(abs(start.s))
        y, end = case.forward(arrays, initial_state=start)
        expected = np.zeros((9, 5), bool)
        expected[4:, 2] = True
        np.testing.assert_array_equal(y == np.inf, expected)
        assert np.isfinite(y[~expected]).all() and not np.isnan(end.s).any()
        assert np.isfinite(end.s[[0, 1, 3, 4]]).all()
        more = {"initial_state": start, "grad_state": start}
        grads = dict(zip(case.letters, case.backward(arrays, **more), strict=False))
        assert not np.isnan(grads["z"]).any() and not np.isnan(grads["x"]).any()
        out, _ = case.one_step(arrays, 4, start)
        np.testing.assert_array_equal(out == np.inf, expected[4])
