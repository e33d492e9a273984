"""Calls with states, key lengths and packed sequences: operands, the twin, and the error bound.

The bound is that of `bounds`, from the same sums with every factor made positive.  The twin itself
computes them: of ``a = |scale phi(q)|``, ``b = |phi(k)|``, ``|v|`` and the states' absolute values,
with the identity for its map.  For gradients the normaliser is one more column of the values, which
is 1 in v, z in the state, and ``c_i``, the derivative by the denominator, in the cotangent.  A z
is only ever divided by, and may be off by half of what a normalised output may.

Weights are never negative here (identity gets positive operands, and z is positive).
"""

import numpy as np
from bounds import BACKWARD_MEAN, BACKWARD_SUM, FORWARD_MEAN, FORWARD_SUM, excess, moved, through

import linattn
from linattn import State
from linattn import _reference as ref
from linattn import _reference_maps as maps

DEFAULTS = {"feature_map": "elu", "normalize": True, "eps": 1e-6, "scale": 1.0}


def tokens(shape, *, seed=0, dtype="float32", positive=False, cotangent=False):
    """q, k, v (and a cotangent) for a shape (*lead, n, d, m)."""
    *lead, n, d, m = shape
    rng = np.random.default_rng([seed, *shape])
    widths = (d, d, m, m) if cotangent else (d, d, m)
    arrays = [rng.standard_normal((*lead, n, w)) for w in widths]
    if positive:
        arrays[:2] = map(abs, arrays[:2])
    return [x.astype(dtype) for x in arrays]


def state(shape, *, seed=0, dtype="float32", normalize=True):
    """A state (*lead, d, m) as some tokens might have left it."""
    rng = np.random.default_rng([seed, 7, *shape])
    s = 3 * rng.standard_normal(shape)
    z = 0.1 + 3 * rng.random(shape[:-1])
    return State(s.astype(dtype), z.astype(dtype) if normalize else None)


def flat(result) -> list[np.ndarray]:
    """The arrays of a result, those of its states among them."""
    if isinstance(result, np.ndarray):
        return [result]
    return [x for part in result if part is not None for x in flat(part)]


def _each(x, f):
    return x and State(*(y if y is None else f(y) for y in x))


def oracle(name, operands, **options) -> list[np.ndarray]:
    """The twin in a wider type: float64 for float32, long double for float64."""
    wide = np.longdouble if any(x.dtype == np.float64 for x in operands) else np.float64
    operands = [x.astype(wide) for x in operands]
    return flat(getattr(ref, name)(*operands, **options))


def bound(name, operands, **options) -> list[np.ndarray]:
    """What each array of the result may be off by."""
    options = {**DEFAULTS, **options}
    chosen = {key: options.pop(key) for key in DEFAULTS}
    phi, normalize = maps.get(chosen["feature_map"]), chosen["normalize"]
    q, k, v, *g = (x.astype(np.float64) for x in operands)
    a, b = abs(phi(q)), abs(phi(k))
    if not isinstance(phi, maps.Elementwise):
        a, b = a + moved(phi, q), b + moved(phi, k)
    a = abs(chosen["scale"]) * a
    for key in ("initial_state", "grad_state"):
        if key in options:
            options[key] = _each(options[key], lambda x: abs(x).astype(np.float64))
    plain = {"feature_map": "identity", "eps": chosen["eps"]}
    if not g:
        magnitude = flat(getattr(ref, name)(a, b, abs(v), **options, **plain, normalize=normalize))
        factors = [2 * FORWARD_MEAN if normalize else FORWARD_SUM, FORWARD_SUM, FORWARD_MEAN]
    else:
        magnitude = _gradients(name, a, b, abs(v), abs(g[0]), options, plain, normalize)
        magnitude[0] = through(phi, q, magnitude[0]) * abs(chosen["scale"])
        magnitude[1] = through(phi, k, magnitude[1])
        factors = [2 * BACKWARD_MEAN if normalize else BACKWARD_SUM] * 5
    info = np.finfo(operands[0].dtype)
    unit, underflow = float(info.eps) / 2, 1e8 * float(info.tiny)
    return [f * unit * x + underflow for f, x in zip(factors, magnitude, strict=False)]


def _gradients(name, a, b, v, g, options, plain, normalize):
    """Magnitudes of dq, dk, dv, ds0 and dz0, before the slopes of the map."""
    backward = getattr(ref, name)
    if not normalize:
        return flat(backward(a, b, v, g, **options, **plain, normalize=False))
    forward = getattr(ref, name.removesuffix("_backward"))
    rest = {key: x for key, x in options.items() if key != "grad_state"}
    mean = forward(a, b, v, **rest, **plain)
    rest = _with_column(rest)
    ones = np.ones((*v.shape[:-1], 1))
    den = forward(a, b, np.concatenate((v, ones), -1), **rest, **plain, normalize=False)
    den = den[..., -1:] + plain["eps"]
    h = g / den
    h = np.concatenate((h, (h * mean).sum(-1, keepdims=True)), -1)
    v = np.concatenate((v, ones), -1)
    dq, dk, dv, *ds = flat(backward(a, b, v, h, **_with_column(options), **plain, normalize=False))
    return [dq, dk, dv[..., :-1], *(x for s in ds for x in (s[..., :-1], s[..., -1]))]


def _with_column(options):
    """States (s, z) as (s beside z,)."""
    join = lambda x: State(np.concatenate((x.s, x.z[..., None]), -1), None)  # noqa: E731
    states = ("initial_state", "grad_state")
    return {key: x and join(x) if key in states else x for key, x in options.items()}


def check(name, operands, **options) -> list[np.ndarray]:
    """Run `linattn.<name>` and compare it with the twin; what it returned."""
    result = flat(getattr(linattn, name)(*operands, **options))
    compare(result, oracle(name, operands, **options), bound(name, operands, **options))
    return result


def compare(result, expected, allowed, what="") -> None:
    for i, (x, y, slack) in enumerate(zip(result, expected, allowed, strict=True)):
        assert x.shape == y.shape, f"{what} array {i} has shape {x.shape}, not {y.shape}"
        ratio = excess(x, y, slack)
        assert ratio <= 1, f"{what} array {i} is off by {ratio:.3g} times what is allowed"


def assert_same(result, expected, what="") -> None:
    """To the bit, but for the payload of a NaN."""
    for i, (x, y) in enumerate(zip(flat(result), flat(expected), strict=True)):
        assert x.dtype == y.dtype, f"{what} array {i} has dtype {x.dtype}, not {y.dtype}"
        np.testing.assert_array_equal(x, y, err_msg=f"{what} array {i}")
