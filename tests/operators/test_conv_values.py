"""What the convolution does alone: plain sums, silu, long sums, gufuncs, ONNX, errors."""

import numpy as np
import pytest
from bounds import close, excess, roundings
from conv_cases import DTYPES, make
from onnx_cases import onnx_cases

import linattn
from linattn.reference import conv as ref


def test_as_a_plain_convolution():
    x, weight, b, *_ = make(30, 5, 4, lead=())
    o = linattn.causal_conv1d(x, weight, b)
    for c in range(5):
        expected = np.convolve(x[:, c], weight[c, ::-1])[:30] + b[c]
        close(o[:, c], expected, atol=1e-13)


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
    f, g_state = linattn.ufuncs.causal_conv1d_bias, linattn.ufuncs.causal_conv1d_bias_state
    assert isinstance(f, np.ufunc)
    assert f.signature == "(n,m),(m,f),(m),()->(n,m)"
    expected = linattn.causal_conv1d(x, weight, b, activation="silu")
    np.testing.assert_array_equal(f(x, weight, b, 1.0), expected)
    # A state of any length is read from its end, and filled from its end.
    state = np.arange(12.0).reshape(1, 2, 6).swapaxes(-1, -2)
    o, s = g_state(x[0], weight, b, 0.0, [0], [20], state)
    full = np.concatenate([np.zeros((6, 1)), state[0]], 1)
    np.testing.assert_array_equal(o, linattn.causal_conv1d(x[0], weight, b, initial_state=full))
    np.testing.assert_array_equal(s, x[:1, -2:].swapaxes(-1, -2))
    long = np.arange(30.0).reshape(1, 5, 6).swapaxes(-1, -2)
    o, s = g_state(x[0, :3], weight, b, 0.0, [0], [3], long)
    padded = np.concatenate([np.zeros((6, 2)), weight], 1)
    again = linattn.causal_conv1d(x[0, :3], padded, b, initial_state=long[0])
    np.testing.assert_array_equal(o, again)
    np.testing.assert_array_equal(s[0], np.concatenate([long[0, :, 3:], x[0, :3].T], 1))
    grads = linattn.ufuncs.causal_conv1d_bias_state_backward(
        x[0, :3], weight, b, g[0, :3], 0.0, [0], [3], long, long
    )
    more = linattn.causal_conv1d_backward(
        x[0, :3], padded, g[0, :3], b, initial_state=long[0], grad_state=long[0]
    )
    np.testing.assert_array_equal(grads[0], more[0])
    np.testing.assert_array_equal(grads[1][0], more[1][:, 2:])
    np.testing.assert_array_equal(grads[3][0], more[3])


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


@pytest.mark.parametrize(
    ("error", "words", "changed"),
    [
        (ValueError, "weight has shape (3, 0)", {"weight": np.ones((3, 0))}),
        (ValueError, "bias has shape ()", {"bias": 1.0}),
        (ValueError, "activation is 'gelu'", {"activation": "gelu"}),
        (TypeError, "activation is True", {"activation": True}),
        (TypeError, "activation is array", {"activation": np.ones(2)}),
        (ValueError, "initial_state has shape (2, 3, 3)", {"initial_state": np.ones((2, 3, 3))}),
    ],
)
def test_errors(error, words, changed):
    given = {"x": np.ones((6, 3)), "weight": np.ones((3, 4))} | changed
    for name, more in (("", {}), ("_backward", {"grad_out": np.ones((6, 3))})):
        with pytest.raises(error) as caught:
            getattr(linattn, f"causal_conv1d{name}")(**given, **more)
        assert str(caught.value).startswith(f"causal_conv1d{name}: {words}")
