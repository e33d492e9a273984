"""Operands of the convolution, and the error allowed for its results."""

import numpy as np
from bounds import excess

from linattn.reference import conv as ref

ACTIVATIONS = (None, "silu")
DTYPES = ("float32", "float64")


def make(n, c, w, lead=(2,), dtype="float64", seed=0):
    """x, weight, bias, grad_out, the initial state and the gradient of the final state."""
    rng = np.random.default_rng([seed, n, c, w])
    shapes = (*lead, n, c), (c, w), (c,), (*lead, n, c), (*lead, c, w - 1), (*lead, c, w - 1)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def wide(*arrays):
    kind = np.longdouble if arrays[0].dtype == np.float64 else np.float64
    return [x if x is None else x.astype(kind) for x in arrays]


def allowed(count, dtype, *magnitudes):
    """`count` roundings per element of a magnitude, which is a sum of positive terms."""
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


def backward_magnitude(x, weight, b, g, state, last, activation):
    """The gradients with every factor positive; |silu'| < 1.1, its own error included."""
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
