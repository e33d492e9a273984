"""The short causal convolution: values, gradients, states, bits, bad input, onnx's own cases."""

from itertools import product

import numpy as np
import pytest
from bounds import close, excess, roundings
from layouts import LAYOUTS
from onnx_cases import onnx_cases

import linattn
from linattn import _config
from linattn import _reference_conv as ref

#: (n, c, w): around a vector, a chunk of tokens, a panel of channels, and eight taps.
SIZES = [
    (0, 3, 4), (1, 1, 1), (2, 5, 4), (3, 17, 2), (15, 16, 3), (16, 33, 4), (17, 64, 5),
    (33, 100, 6), (50, 31, 7), (64, 513, 4), (37, 40, 8), (20, 24, 9), (40, 19, 17), (5, 8, 20),
    (18, 1100, 4), (7, 0, 3),
]  # fmt: skip
ACTIVATIONS = (None, "silu")
DTYPES = ("float32", "float64")


def make(n, c, w, lead=(2,), dtype="float64", seed=0):
    """x, weight, bias, grad_out, initial state and the final one's gradient."""
    rng = np.random.default_rng([seed, n, c, w])
    shapes = (*lead, n, c), (c, w), (c,), (*lead, n, c), (*lead, c, w - 1), (*lead, c, w - 1)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def wide(*arrays):
    kind = np.longdouble if arrays[0].dtype == np.float64 else np.float64
    return [x if x is None else x.astype(kind) for x in arrays]


def allowed(count, dtype, *magnitudes):
    """So many roundings of each number of a magnitude, a sum of positive terms."""
    info = np.finfo(dtype)
    return [
        count * float(info.eps) / 2 * x.astype(np.float64) + 1e8 * info.tiny for x in magnitudes
    ]


def check_forward(module, n, c, w, dtype, activation, bias=True):
    x, weight, b, _, state, _ = make(n, c, w, dtype=dtype)
    b = b if bias else None
    options = {"activation": activation, "return_state": True}
    o, s = module.causal_conv1d(x, weight, b, initial_state=state, **options)
    X, W, B, S = wide(x, weight, b, state)
    expected, last = ref.causal_conv1d(X, W, B, initial_state=S, **options)
    size, _ = ref.causal_conv1d(
        abs(X), abs(W), None if B is None else abs(B), initial_state=abs(S), return_state=True
    )
    (slack,) = allowed(w + 8, dtype, 1.1 * size)  # |silu'| < 1.1
    assert o.dtype == dtype
    assert s.dtype == dtype
    assert excess(o, expected, slack) <= 1
    np.testing.assert_array_equal(s, last.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_against_the_twin(size, activation, dtype):
    check_forward(linattn, *size, dtype, activation)
    check_forward(linattn, *size, dtype, activation, bias=False)


def backward_magnitude(x, weight, b, g, state, last, activation):
    """Every factor of the gradients made positive, |silu'| < 1.1, its own error with it."""
    size, _ = ref.causal_conv1d(
        *map(abs, (x, weight, b)), initial_state=abs(state), return_state=True
    )
    g = abs(g) * (1.1 + size if activation else 1)
    return ref.causal_conv1d_backward(
        *map(abs, (x, weight)), g, abs(b), initial_state=abs(state), grad_state=abs(last)
    )


def check_backward(module, n, c, w, dtype, activation):
    x, weight, b, g, state, last = make(n, c, w, dtype=dtype)
    options = {"activation": activation}
    grads = module.causal_conv1d_backward(
        x, weight, g, b, initial_state=state, grad_state=last, **options
    )
    X, W, B, G, S, L = wide(x, weight, b, g, state, last)
    expected = ref.causal_conv1d_backward(X, W, G, B, initial_state=S, grad_state=L, **options)
    slack = allowed(4 * (w + 8), dtype, *backward_magnitude(X, W, B, G, S, L, activation))
    for name, y, z, a in zip(
        ("dx", "dweight", "dbias", "dstate"), grads, expected, slack, strict=True
    ):
        assert y.dtype == dtype, name
        assert y.shape == z.shape, name
        assert excess(y, z, a) <= 1, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients_against_the_twin(size, activation, dtype):
    check_backward(linattn, *size, dtype, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_twin_by_complex_steps(activation):
    """Every derivative of the twin, one number at a time."""
    x, weight, b, g, state, last = make(5, 2, 3, lead=())
    cuts = [0, 2, 2, 5]
    states = np.stack([state, 2 * state, state - 1])
    lasts = np.stack([last, last + 1, 3 * last])

    def loss(x, weight, b, state):
        o, s = ref.causal_conv1d(
            x, weight, b, activation=activation, cu_seqlens=cuts, initial_state=state,
            return_state=True,
        )  # fmt: skip
        return (g * o).sum() + (lasts * s).sum()

    operands = [x, weight, b, states]
    grads = ref.causal_conv1d_backward(
        x, weight, g, b, activation=activation, cu_seqlens=cuts, initial_state=states,
        grad_state=lasts,
    )  # fmt: skip
    for i, grad in enumerate(grads):
        for at in np.ndindex(grad.shape):
            moved = [y.astype(complex) for y in operands]
            moved[i][at] += 1e-30j
            close(grad[at], loss(*moved).imag / 1e-30, atol=1e-13)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_adjoint(activation):
    """<g, J dx> = <J^T g, dx>, J dx by central differences of the float64 operator."""
    x, weight, b, g, state, last = make(40, 33, 4)
    rng = np.random.default_rng(1)
    operands = [x, weight, b, state]
    moves = [rng.standard_normal(y.shape) for y in operands]

    def loss(h):
        y, w, c, s = (a + h * d for a, d in zip(operands, moves, strict=True))
        o, s = linattn.causal_conv1d(
            y, w, c, activation=activation, initial_state=s, return_state=True
        )
        return (g * o).sum() + (last * s).sum()

    grads = linattn.causal_conv1d_backward(
        x, weight, g, b, activation=activation, initial_state=state, grad_state=last
    )
    inner = sum((y * d).sum() for y, d in zip(grads, moves, strict=True))
    h = 1e-4
    slope = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)
    close(inner, slope, atol=1e-9 * abs(inner) + 1e-8)


def test_as_a_plain_convolution():
    x, weight, b, *_ = make(30, 5, 4, lead=())
    o = linattn.causal_conv1d(x, weight, b)
    for c in range(5):
        expected = np.convolve(x[:, c], weight[c, ::-1])[:30] + b[c]
        close(o[:, c], expected, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_split(activation, dtype):
    """A sequence cut anywhere continues from its state, to the bit, and so do its gradients."""
    for w, n in ((4, 37), (1, 5), (9, 20)):
        x, weight, b, g, state, last = make(n, 21, w, dtype=dtype)
        options = {"activation": activation}
        whole, end = linattn.causal_conv1d(
            x, weight, b, initial_state=state, return_state=True, **options
        )
        grads = linattn.causal_conv1d_backward(
            x, weight, g, b, initial_state=state, grad_state=last, **options
        )
        for cut in range(n + 1):
            o, middle = linattn.causal_conv1d(
                x[:, :cut], weight, b, initial_state=state, return_state=True, **options
            )
            rest, final = linattn.causal_conv1d(
                x[:, cut:], weight, b, initial_state=middle, return_state=True, **options
            )
            np.testing.assert_array_equal(np.concatenate((o, rest), 1), whole)
            np.testing.assert_array_equal(final, end)
            second = linattn.causal_conv1d_backward(
                x[:, cut:], weight, g[:, cut:], b, initial_state=middle, grad_state=last, **options
            )
            first = linattn.causal_conv1d_backward(
                x[:, :cut], weight, g[:, :cut], b, initial_state=state, grad_state=second[3],
                **options,
            )  # fmt: skip
            joined = (
                np.concatenate((first[0], second[0]), 1), first[1] + second[1],
                first[2] + second[2], first[3],
            )  # fmt: skip
            for y, z in zip(joined, grads, strict=True):
                close(y, z, atol=roundings(20 * (w + 8), z))


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed(dtype):
    """Packed sequences are so many calls, to the bit; empty ones hand their state through."""
    cuts = [0, 7, 7, 8, 40, 61]
    x, weight, b, g, *_ = make(61, 35, 4, dtype=dtype)
    rng = np.random.default_rng(3)
    states, lasts = (rng.standard_normal((2, 5, 35, 3)).astype(dtype) for _ in range(2))
    options = {"activation": "silu"}
    o, ends = linattn.causal_conv1d(
        x, weight, b, cu_seqlens=cuts, initial_state=states, return_state=True, **options
    )
    dx, dweight, dbias, dstates = linattn.causal_conv1d_backward(
        x, weight, g, b, cu_seqlens=cuts, initial_state=states, grad_state=lasts, **options
    )
    sums = [0, 0]
    for r in range(5):
        part = slice(cuts[r], cuts[r + 1])
        one, end = linattn.causal_conv1d(
            x[:, part], weight, b, initial_state=states[:, r], return_state=True, **options
        )
        np.testing.assert_array_equal(o[:, part], one)
        np.testing.assert_array_equal(ends[:, r], end)
        y, *more, s = linattn.causal_conv1d_backward(
            x[:, part], weight, g[:, part], b, initial_state=states[:, r],
            grad_state=lasts[:, r], **options,
        )  # fmt: skip
        np.testing.assert_array_equal(dx[:, part], y)
        np.testing.assert_array_equal(dstates[:, r], s)
        sums = [a.astype(np.float64) + z for a, z in zip(map(np.asarray, sums), more, strict=True)]
    for y, z in zip((dweight, dbias), sums, strict=True):
        close(y, z, atol=roundings(16, y))
    without = linattn.causal_conv1d(x, weight, b, cu_seqlens=cuts, **options)
    close(without[:, 40:], linattn.causal_conv1d(x[:, 40:], weight, b, **options), atol=0)
    dx, dweight = linattn.causal_conv1d_backward(x, weight, g, cu_seqlens=cuts)
    expected = ref.causal_conv1d_backward(*wide(x, weight, g), cu_seqlens=cuts)
    for y, z in zip((dx, dweight), expected, strict=True):
        close(y, z.astype(dtype), atol=roundings(64, y))


def test_steps_are_the_sequence():
    for dtype, w in product(("float16", "float32", "float64"), (1, 2, 4, 11)):
        x, weight, b, *_ = make(9, 20, w, lead=(2, 3), dtype=dtype)
        whole, end = linattn.causal_conv1d(x, weight, b, activation="silu", return_state=True)
        kept = np.zeros_like(end)
        state = np.zeros_like(end)
        for t in range(9):
            before = state
            o, state = linattn.causal_conv1d_step(x[..., t, :], weight, state, b, activation="silu")
            np.testing.assert_array_equal(o, whole[..., t, :])
            assert state is not before
            o, same = linattn.causal_conv1d_step(
                x[..., t, :], weight, kept, b, activation="silu", in_place=True
            )
            assert same is kept
            np.testing.assert_array_equal(o, whole[..., t, :])
            np.testing.assert_array_equal(kept, state)
        np.testing.assert_array_equal(state, end)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_rounded_once(dtype):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype, dtype))
    for n, c, w in SIZES:
        x, weight, b, g, *_ = (y.astype(dtype) for y in make(n, c, w))
        state, last = (y.astype(np.float32) for y in make(n, c, w)[4:])
        single = [y.astype(np.float32) for y in (x, weight, b, g)]
        options = {"activation": "silu", "initial_state": state}
        o, s = linattn.causal_conv1d(x, weight, b, return_state=True, **options)
        expected, t = linattn.causal_conv1d(*single[:3], return_state=True, **options)
        assert (o.dtype, s.dtype) == (dtype, np.float32)
        np.testing.assert_array_equal(o, expected.astype(dtype))
        np.testing.assert_array_equal(s, t)
        grads = linattn.causal_conv1d_backward(x, weight, g, b, grad_state=last, **options)
        expected = linattn.causal_conv1d_backward(
            *single[:2], single[3], single[2], grad_state=last, **options
        )
        for y, z in zip(grads, expected, strict=True):
            np.testing.assert_array_equal(y, z.astype(y.dtype))


@pytest.mark.parametrize("name", _config.available_isas())
@pytest.mark.parametrize("dtype", DTYPES)
def test_instruction_sets(isa, name, dtype):
    isa(name)
    for size, activation in product(SIZES, ACTIVATIONS):
        check_forward(linattn, *size, dtype, activation)
        check_backward(linattn, *size, dtype, activation)


def everything(x, weight, b, g, state, last):
    o, s = linattn.causal_conv1d(
        x, weight, b, activation="silu", initial_state=state, return_state=True
    )
    return (
        o,
        s,
        *linattn.causal_conv1d_backward(
            x, weight, g, b, activation="silu", initial_state=state, grad_state=last
        ),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(threads, dtype):
    for size in ((40000, 33, 4), (300, 700, 4), (2000, 64, 9)):
        operands = make(*size, lead=(), dtype=dtype)
        threads(1)
        expected = everything(*operands)
        cuts = [0, size[0] // 2, size[0]]
        packed = linattn.causal_conv1d(*operands[:3], cu_seqlens=cuts)
        for count in (2, 3, 7):
            threads(count)
            for y, z in zip(everything(*operands), expected, strict=True):
                np.testing.assert_array_equal(y, z)
            again = linattn.causal_conv1d(*operands[:3], cu_seqlens=cuts)
            np.testing.assert_array_equal(again, packed)


def test_large_results_have_the_same_bits():
    """16 MiB and more go past the cache, by whole vectors where these are aligned."""
    x, weight, b, *_ = make(9001, 520, 4, lead=(), dtype="float32")
    whole = linattn.causal_conv1d(x, weight, b, activation="silu")
    for rows in (slice(100), slice(4000, 4100), slice(8990, None)):
        part = slice(max(rows.start or 0, 3) - 3, rows.stop)
        y = linattn.causal_conv1d(x[part], weight, b, activation="silu")
        np.testing.assert_array_equal(y[len(y) - len(whole[rows]) :], whole[rows])
    out = np.empty(9001 * 520 + 3, np.float32)[3:].reshape(9001, 520)
    linattn.causal_conv1d(x, weight, b, activation="silu", out=out)
    np.testing.assert_array_equal(out, whole)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_change_no_bit(layout):
    for size in ((37, 33, 4), (20, 64, 9)):
        operands = make(*size, lead=(2, 3), dtype="float32")
        expected = everything(*operands)
        native = layout != "byte_swapped"  # states have to be of the very dtype
        changed = [
            LAYOUTS[layout](y) if y.ndim > 1 and (i < 4 or native) else y
            for i, y in enumerate(operands)
        ]
        for y, z in zip(everything(*changed), expected, strict=True):
            np.testing.assert_array_equal(y, z)


def test_out_may_overlap_an_operand():
    x, weight, b, *_ = make(50, 40, 4)
    expected = linattn.causal_conv1d(x, weight, b, activation="silu")
    y = x.copy()
    assert linattn.causal_conv1d(y, weight, b, activation="silu", out=y) is y
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_causality_to_the_bit(bad):
    for w in (2, 4, 9):
        x, weight, b, g, *_ = make(40, 18, w, dtype="float32")
        clean = linattn.causal_conv1d(x, weight, b, activation="silu")
        grads = linattn.causal_conv1d_backward(x, weight, g, b, activation="silu")
        for t in range(0, 40, 3):
            spoiled = x.copy()
            spoiled[:, t] = bad
            with np.errstate(all="ignore"):
                o = linattn.causal_conv1d(spoiled, weight, b, activation="silu")
            np.testing.assert_array_equal(o[:, :t], clean[:, :t])
            np.testing.assert_array_equal(o[:, t + w :], clean[:, t + w :])
            spoiled = g.copy()
            spoiled[:, t] = bad
            with np.errstate(all="ignore"):
                dx, *_ = linattn.causal_conv1d_backward(x, weight, spoiled, b, activation="silu")
            np.testing.assert_array_equal(dx[:, t + 1 :], grads[0][:, t + 1 :])


def test_silu_over_the_whole_range():
    for dtype in DTYPES:
        p = np.concatenate([np.linspace(-800, 800, 40001), [1e30, -1e30, 0.0]]).astype(dtype)
        o = linattn.causal_conv1d(p[:, None], np.ones((1, 1), dtype), activation="silu")[:, 0]
        x = p.astype(np.longdouble)
        e = np.exp(-abs(x))
        exact = x * np.where(x < 0, e, 1) / (1 + e)
        slack = 4 * np.finfo(dtype).eps * abs(exact) + 1e3 * np.finfo(dtype).tiny
        assert excess(o, exact, slack) <= 1


def test_long_sums_are_compensated():
    """A million equal terms: plain sums of them would be off by thousands of roundings."""
    n = 2**20
    x = np.full((n, 1), 0.1, np.float32)
    g = np.full((n, 1), 0.3, np.float32)
    _, dweight, dbias = linattn.causal_conv1d_backward(
        x, np.ones((1, 2), "f4"), g, np.zeros(1, "f4")
    )
    product_ = float(np.float32(0.1)) * float(np.float32(0.3))
    close(dweight[0, 1], n * product_, atol=0, rtol=4e-7)
    close(dbias[0], n * float(np.float32(0.3)), atol=0, rtol=4e-7)


def test_gradients_of_broadcast_operands():
    x, weight, b, g, *_ = make(20, 6, 4, lead=(3, 1))
    rng = np.random.default_rng(0)
    weight, b = rng.standard_normal((2, 6, 4)), rng.standard_normal((1, 6))
    g = np.broadcast_to(g, (3, 2, 20, 6))
    grads = linattn.causal_conv1d_backward(x, weight, g, b, activation="silu")
    expected = ref.causal_conv1d_backward(x, weight, g, b, activation="silu")
    for y, z, operand in zip(grads, expected, (x, weight, b), strict=True):
        assert y.shape == operand.shape
        close(y, z, atol=roundings(100, z))


def test_no_bias_has_no_say_in_the_dtype():
    """Integers with a float32 cotangent and states, as with a bias of integers."""
    x, weight, grad = np.ones((5, 3), "u1"), np.ones((3, 4), "i1"), np.ones((5, 3), "f4")
    given = {"initial_state": np.ones((3, 3), "f4")}
    for bias in (None, np.zeros(3, "u1")):
        grads = linattn.causal_conv1d_backward(x, weight, grad, bias, **given)
        assert {y.dtype for y in grads} == {np.dtype("f4")}


def test_gufuncs():
    x, weight, b, g, *_ = make(20, 6, 4)
    f = linattn.ufuncs.causal_conv1d
    assert isinstance(f, np.ufunc)
    assert f.signature == "(n,m),(f,m),(m),()->(n,m)"
    expected = linattn.causal_conv1d(x, weight, b, activation="silu")
    np.testing.assert_array_equal(f(x, weight.T, b, 1.0), expected)
    # A state of any length is read from its end, and filled from its end.
    state = np.arange(12.0).reshape(1, 2, 6)
    o, s = linattn.ufuncs.causal_conv1d_state(x[0], weight.T, b, 0.0, [0], [20], state)
    full = np.concatenate([np.zeros((1, 6)), state[0]]).T
    np.testing.assert_array_equal(o, linattn.causal_conv1d(x[0], weight, b, initial_state=full))
    np.testing.assert_array_equal(s, x[:1, -2:])
    long = np.arange(30.0).reshape(1, 5, 6)
    o, s = linattn.ufuncs.causal_conv1d_state(x[0, :3], weight.T, b, 0.0, [0], [3], long)
    padded = np.concatenate([np.zeros((6, 2)), weight], 1)
    again = linattn.causal_conv1d(x[0, :3], padded, b, initial_state=long[0].T)
    np.testing.assert_array_equal(o, again)
    np.testing.assert_array_equal(s[0], np.concatenate([long[0, 3:], x[0, :3]]))
    grads = linattn.ufuncs.causal_conv1d_state_backward(
        x[0, :3], weight.T, b, g[0, :3], 0.0, [0], [3], long, long
    )
    more = linattn.causal_conv1d_backward(
        x[0, :3], padded, g[0, :3], b, initial_state=long[0].T, grad_state=long[0].T
    )
    np.testing.assert_array_equal(grads[0], more[0])
    np.testing.assert_array_equal(grads[1][0].T, more[1][:, 2:])
    np.testing.assert_array_equal(grads[3][0].T, more[3])


BAD = [
    (ValueError, "weight", "(5, 4)", {"weight": np.ones((5, 4))}),
    (ValueError, "weight", "(3, 0)", {"weight": np.ones((3, 0))}),
    (ValueError, "weight", "(3,)", {"weight": np.ones(3)}),
    (ValueError, "weight", "(4,)", {"x": np.ones((2, 6, 3)), "weight": np.ones((4, 3, 2))}),
    (ValueError, "bias", "(4,)", {"bias": np.ones(4)}),
    (ValueError, "bias", "()", {"bias": 1.0}),
    (ValueError, "x", "(3,)", {"x": np.ones(3)}),
    (TypeError, "x", "complex", {"x": np.ones((6, 3), complex)}),
    (ValueError, "activation", "'gelu'", {"activation": "gelu"}),
    (TypeError, "activation", "True", {"activation": True}),
    (TypeError, "activation", "array", {"activation": np.ones(2)}),
    (ValueError, "initial_state", "(3, 2)", {"initial_state": np.ones((3, 2))}),
    (ValueError, "initial_state", "(2, 3, 3)", {"initial_state": np.ones((2, 3, 3))}),
    (TypeError, "initial_state", "float32", {"initial_state": np.ones((3, 3), "f4")}),
    (TypeError, "initial_state", "list", {"initial_state": [[0.0] * 3] * 3}),
    (ValueError, "cu_seqlens", "5", {"cu_seqlens": [0, 5]}),
]


@pytest.mark.parametrize(("error", "argument", "shown", "changed"), BAD, ids=lambda x: str(x)[:30])
def test_bad_input_names_the_argument(error, argument, shown, changed):
    good = {"x": np.ones((6, 3)), "weight": np.ones((3, 4))}
    out = np.full((6, 3), 7.0)
    with pytest.raises(error) as caught:
        linattn.causal_conv1d(**{**good, "out": out, **changed})
    assert "causal_conv1d: " in str(caught.value)
    assert argument in str(caught.value)
    assert shown in str(caught.value)
    assert (out == 7).all()
    with pytest.raises(error, match=argument):
        linattn.causal_conv1d_backward(**{**good, "grad_out": out, **changed})


def test_bad_gradients_and_states():
    x, weight = np.ones((6, 3)), np.ones((3, 4))
    with pytest.raises(ValueError, match="grad_out has shape"):
        linattn.causal_conv1d_backward(x, weight, np.ones((5, 3)))
    with pytest.raises(ValueError, match="grad_state has shape"):
        linattn.causal_conv1d_backward(x, weight, x, grad_state=np.ones((3, 4)))
    with pytest.raises(ValueError, match="out has shape"):
        linattn.causal_conv1d(x, weight, out=np.ones((5, 3)))
    for state, error, words in (
        (np.ones((3, 2)), ValueError, "state has shape"),
        (np.ones((3, 3), "f4"), TypeError, "state has dtype"),
        (np.broadcast_to(1.0, (3, 3)), ValueError, "state is read-only"),
        (np.ones((1, 3, 3)), ValueError, "state has shape"),
    ):
        with pytest.raises(error, match=words):
            linattn.causal_conv1d_step(x[0], weight, state, in_place=True)


class Mutant:
    """The operator with one thing wrong, on its way in or out."""

    def __init__(self, forward=None, backward=None):
        same = lambda f, *a, **o: f(*a, **o)  # noqa: E731
        self.forward, self.backward = forward or same, backward or same

    def causal_conv1d(self, *args, **options):
        return self.forward(linattn.causal_conv1d, *args, **options)

    def causal_conv1d_backward(self, *args, **options):
        return self.backward(linattn.causal_conv1d_backward, *args, **options)


FORWARD_MUTANTS = {
    "taps the other way": lambda f, x, w, b, **o: f(x, w[:, ::-1], b, **o),
    "no activation": lambda f, x, w, b, **o: f(x, w, b, **{**o, "activation": None}),
    "no bias": lambda f, x, w, b, **o: f(x, w, None, **o),
    "state newest first": lambda f, x, w, b, initial_state, **o: f(
        x, w, b, initial_state=initial_state[..., ::-1], **o
    ),
}
BACKWARD_MUTANTS = {
    "slope of nothing": lambda f, *a, **o: f(*a, **{**o, "activation": None}),
    "dx of the forward taps": lambda f, x, w, g, b, **o: (
        f(x, w[:, ::-1], g, b, **o)[0], *f(x, w, g, b, **o)[1:],
    ),
    "final state ignored": lambda f, *a, grad_state, **o: f(*a, grad_state=0 * grad_state, **o),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FORWARD_MUTANTS, *BACKWARD_MUTANTS])
def test_wrong_ones_are_found(name):
    module = Mutant(FORWARD_MUTANTS.get(name), BACKWARD_MUTANTS.get(name))
    check = check_forward if name in FORWARD_MUTANTS else check_backward
    check(linattn, 33, 20, 4, "float32", "silu")
    with pytest.raises(AssertionError):
        check(module, 33, 20, 4, "float32", "silu")


def test_onnx_cases():
    """CausalConvWithState of opset 27: channels before tokens."""
    onnx = pytest.importorskip("onnx")
    for case in onnx_cases("causal_conv_with_state", "CausalConvWithState"):
        node = case.model.graph.node[0]
        activation = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}.get(
            "activation", b"none"
        )
        for inputs, outputs in case.data_sets:
            arrays = dict(zip(filter(None, node.input), inputs, strict=True))
            x, weight, bias, state = (arrays.get(name) for name in (*node.input, *[""] * 4)[:4])
            o, last = linattn.causal_conv1d(
                np.moveaxis(x, 1, -1), weight[:, 0], bias,
                activation=None if activation == b"none" else "silu",
                initial_state=None if state is None else state.astype(linattn_state(x)),
                return_state=True,
            )  # fmt: skip
            expected, final = outputs
            eps = float(np.finfo(expected.dtype).eps)
            close(np.moveaxis(o, -1, 1), expected, atol=16 * eps, rtol=16 * eps)
            close(last, final, atol=0)


def linattn_state(x):
    return np.float32 if x.dtype.itemsize == 2 else x.dtype
