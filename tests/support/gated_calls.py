"""Shared by the cases with gates: gates of every kind, states, and results by name.

A case has a `rule`, the public function; `options` of its calls; `twin`, the module of its twin;
and lead, d, m and dtype.
"""

import numpy as np

from linattn import State


def _weak(rng, shape):
    return -0.1 * rng.exponential(size=shape)


def _strong(rng, shape):
    return -5 * rng.exponential(size=shape)


def _growing(rng, shape):
    """Gates of both signs; the memory stays within e^3 or so of its size."""
    return rng.uniform(-0.3, 0.2, shape)


def _resets(rng, shape):
    """A mix of resets, near resets, runs of -60, and gates of 0."""
    g = _weak(rng, shape)
    for value, share in ((-np.inf, 0.05), (-1e30, 0.05), (-60, 0.3), (0, 0.1), (-300, 0.05)):
        g[rng.random(shape) < share] = value
    return g


GATES = {"weak": _weak, "strong": _strong, "growing": _growing, "resets": _resets}


def states(case, r: tuple[int, ...] = (), seed: int = 0) -> tuple[State, State]:
    """An initial state, and the gradient of the final one."""
    rng = np.random.default_rng([seed, 5, case.d, case.m])
    shape = (2, *case.lead, *r, case.d, case.m)
    first, last = rng.standard_normal(shape).astype(case.dtype)
    return State(first), State(last)


def forward(module, case, arrays, **more) -> dict[str, np.ndarray]:
    """Output and final state, by name."""
    given = {name: x for name, x in arrays.items() if name != "grad_out"}
    with np.errstate(all="ignore"):
        o, state = getattr(module, case.rule)(
            **given, **{**case.options, **more}, return_state=True
        )
    return {"o": o, "s": state.s}


def backward(module, case, arrays, **more) -> dict[str, np.ndarray]:
    """Gradients by name."""
    with np.errstate(all="ignore"):
        grads = getattr(module, f"{case.rule}_backward")(**arrays, **{**case.options, **more})
    names = [f"d{name}" for name in arrays if name != "grad_out"]
    if len(grads) > len(names):
        grads = (*grads[:-1], grads[-1].s)
        names.append("ds")
    return dict(zip(names, grads, strict=True))


def both(module, case, arrays, grad_state=None, **more) -> dict[str, np.ndarray]:
    late = more if grad_state is None else {**more, "grad_state": grad_state}
    return {**forward(module, case, arrays, **more), **backward(module, case, arrays, **late)}


def _wide(x, dtype):
    if isinstance(x, State):
        return State(x.s.astype(dtype), None)
    return x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def oracle(case, arrays, **more) -> dict[str, np.ndarray]:
    """The twin in a wider type: float64 for float32, long double for float64."""
    wide = np.longdouble if case.dtype == "float64" else np.float64
    arrays, more = ({key: _wide(x, wide) for key, x in all.items()} for all in (arrays, more))
    return both(case.twin, case, arrays, **more)


def same(actual, expected, message="") -> None:
    """Assert that the arrays are equal to the bit."""
    assert actual.keys() == expected.keys()
    for name, x in actual.items():
        np.testing.assert_array_equal(x, expected[name], err_msg=f"{name} {message}")
