"""Operands of scans, and the comparison of results."""

from __future__ import annotations

import numpy as np
from states import flat

from linattn import State

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
N, M, R = 70, 13, 5


def linear(n=N, m=M, *, dtype="f8", lead=(2,), log=False, seed=0):
    """a, x, grad_out and a state."""
    rng = np.random.default_rng([seed, n, m])
    a = -rng.exponential(size=(*lead, n, m)) if log else rng.uniform(-1, 1, (*lead, n, m))
    x, grad_out = rng.standard_normal((2, *lead, n, m))
    state = rng.standard_normal((*lead, m)).astype(wide(dtype))
    return *(y.astype(dtype) for y in (a, x, grad_out)), State(state)


def selective(n=N, m=M, r=R, *, dtype="f8", lead=(2,), seed=0):
    """x, dt, A, B, C; D, z and dt_bias by name; grad_out and a state."""
    rng = np.random.default_rng([seed, n, m, r])
    x, z, grad_out = rng.standard_normal((3, *lead, n, m))
    B, C = rng.standard_normal((2, *lead, n, r))
    dt, A = 0.3 * rng.random((*lead, n, m)), -np.exp(rng.standard_normal((m, r)))
    D, dt_bias = rng.standard_normal(m), 0.3 * rng.random(m)
    given = [y.astype(dtype) for y in (x, dt, A, B, C)]
    more = {"D": D.astype(dtype), "z": z.astype(dtype), "dt_bias": dt_bias.astype(dtype)}
    state = State(rng.standard_normal((*lead, m, r)).astype(wide(dtype)))
    return given, more, grad_out.astype(dtype), state


def wide(dtype):
    """The dtype in which results of a dtype are computed."""
    return np.dtype("f4") if np.dtype(dtype).itemsize == 2 else np.dtype(dtype)


def doubled(x):
    """Arrays in float64, those of tuples, dicts and states too."""
    if isinstance(x, dict):
        return {key: doubled(y) for key, y in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(*map(doubled, x)) if isinstance(x, State) else [doubled(y) for y in x]
    return None if x is None else x.astype("f8")


def assert_close(result, expected, dtype, factor):
    """Allow `factor` roundings of the largest entry, and one rounding to the array's own dtype."""
    for i, (x, y) in enumerate(zip(flat(result), flat(expected), strict=True)):
        assert x.shape == y.shape, i
        largest = abs(y).max(initial=0)
        slack = factor * UNIT[wide(dtype).name] * largest + UNIT[x.dtype.name] * abs(y) + 1e-30
        assert (abs(x.astype("f8") - y) <= slack).all(), i
