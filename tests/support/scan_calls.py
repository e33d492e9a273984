"""Calls of selective_scan's gufuncs and of its twin with operands by name, and their bounds."""

from __future__ import annotations

import numpy as np

from linattn._core.gufuncs import ufuncs

NAMES = ["x", "dt", "A", "B", "C", "D", "z", "dt_bias"]
GRADIENTS = ["dx", "ddt", "dA", "dB", "dC", "dD", "dz", "ddt_bias", "ds0"]
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
LAYOUTS = {
    "columns": lambda x: x.swapaxes(-1, -2).copy().swapaxes(-1, -2) if x.ndim > 1 else x,
    "spread": lambda x: np.repeat(x, 3, -1)[..., ::3],
    "negative": lambda x: x[..., ::-1].copy()[..., ::-1],
    "rows back": lambda x: x[::-1].copy()[::-1],
    "wide rows": lambda x: np.concatenate([x, x], -1)[..., : x.shape[-1]],
}


def operands(n, m, f, dtype="float64", lead=(), seed=0):
    """Time steps and rates as models have them, and states and cotangents."""
    rng = np.random.default_rng([n, m, f, seed])
    shapes = {
        "x": (n, m), "dt": (n, m), "A": (m, f), "B": (n, f), "C": (n, f), "D": (m,), "z": (n, m),
        "dt_bias": (m,), "s0": (m, f), "grad_out": (n, m), "grad_s": (m, f),
    }  # fmt: skip
    arrays = {key: rng.standard_normal(lead + shape) for key, shape in shapes.items()}
    arrays["A"] = -np.exp(arrays["A"])
    for key in ("dt", "dt_bias"):
        arrays[key] = 0.2 * np.abs(arrays[key])
    return {key: x.astype(dtype) for key, x in arrays.items()}


def whole(x):
    """The state with an axis for its only sequence."""
    return x[..., None, :] if x.ndim == 1 else np.expand_dims(x, -3)


def forward(arrays, softplus=0.0, cuts=None, keys=None, gate=True):
    """y and the states after the sequences, which are one if there are no cuts."""
    n = arrays["x"].shape[-2]
    cuts = np.array([0, n]) if cuts is None else cuts
    keys = np.diff(cuts) if keys is None else keys
    given = [arrays[key] for key in NAMES if gate or key != "z"]
    f = (
        ufuncs["selective_scan_D_gate_dt_bias_state"]
        if gate
        else ufuncs["selective_scan_D_dt_bias_state"]
    )
    return f(*given, softplus, cuts[:-1], cuts[1:], keys, arrays["s0"])


def backward(arrays, softplus=0.0, cuts=None, keys=None):
    n = arrays["x"].shape[-2]
    cuts = np.array([0, n]) if cuts is None else cuts
    keys = np.diff(cuts) if keys is None else keys
    grads = ufuncs["selective_scan_D_gate_dt_bias_state_backward"](
        *(arrays[key] for key in NAMES), arrays["grad_out"], softplus, cuts[:-1], cuts[1:], keys,
        arrays["s0"], arrays["grad_s"],
    )  # fmt: skip
    return dict(zip(GRADIENTS, grads, strict=True))


def one_sequence(arrays):
    return arrays | {key: whole(arrays[key]) for key in ("s0", "grad_s")}


def assert_within(result, expected, bound):
    assert result.shape == expected.shape
    assert (np.abs(result - expected) <= bound).all(), np.abs(result - expected).max(initial=0)


def close(result, expected, units, unit, size=None):
    """Within so many units of the largest number of `size`, or of what is expected."""
    size = np.abs(expected if size is None else size).max(initial=0)
    assert_within(result, expected, units * unit * max(size, 1e-30))
