"""Operands of the convolution."""

import numpy as np

ACTIVATIONS = (None, "silu")
DTYPES = ("float32", "float64")


def make(n, c, w, lead=(2,), dtype="float64", seed=0):
    """x, weight, bias, grad_out, the initial state and the gradient of the final state."""
    rng = np.random.default_rng([seed, n, c, w])
    shapes = (*lead, n, c), (c, w), (c,), (*lead, n, c), (*lead, c, w - 1), (*lead, c, w - 1)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]
