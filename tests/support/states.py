"""Calls with states, key lengths and packed sequences: operands, the twin, and the error bound.

The bound is that of `bounds`, from the same sums with every factor made positive.  The twin itself
computes them: of ``a = |scale phi(q)|``, ``b = |phi(k)|``, ``|v|`` and the states' absolute values,
with the identity for its map.  For gradients the normaliser is one more column of the values, which
is 1 in v, z in the state, and ``c_i``, the derivative with respect to the denominator, in the
cotangent.  A z is only used as a divisor, so its bound is half of that of a normalised output.

Weights are never negative here (identity gets positive operands, and z is positive).
"""

import numpy as np
from bounds import BACKWARD_MEAN, BACKWARD_SUM, FORWARD_MEAN, FORWARD_SUM, close, excess
from map_bounds import moved, spread

import linattn
from linattn import State
from linattn.reference import linear as ref
from linattn.reference import maps

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


def drawn(r, rng, core, normalize):
    """A state of recurrence r whose s has this shape; z is positive where it is divided by."""
    s, z = rng.standard_normal(core), None
    if r.stacked:
        z = rng.standard_normal(core)
    elif normalize:
        z = rng.random(core[:-1]) + 1
    return State(s, z)


def state(shape, *, seed=0, dtype="float32", normalize=True):
    """A state (*lead, d, m) such as some tokens might leave."""
    rng = np.random.default_rng([seed, 7, *shape])
    s = 3 * rng.standard_normal(shape)
    z = 0.1 + 3 * rng.random(shape[:-1])
    return State(s.astype(dtype), z.astype(dtype) if normalize else None)


def flat(result) -> list[np.ndarray]:
    """The arrays of a result, including those of its states."""
    if isinstance(result, (np.ndarray, np.generic)):
        return [np.asarray(result)]
    return [x for part in result if part is not None for x in flat(part)]


def _each(x, f):
    return x and State(*(y if y is None else f(y) for y in x))


def oracle(name, operands, **options) -> list[np.ndarray]:
    """The twin in a wider type: float64 for float32, long double for float64."""
    wide = np.longdouble if any(x.dtype == np.float64 for x in operands) else np.float64
    operands = [x.astype(wide) for x in operands]
    return flat(getattr(ref, name)(*operands, **options))


def bound(name, operands, **options) -> list[np.ndarray]:
    """The error allowed for each array of the result."""
    info = np.finfo(operands[0].dtype)
    unit, underflow = float(info.eps) / 2, 1e8 * float(info.tiny)
    return [unit * x + underflow for x in units(name, operands, **options)]


def units(name, operands, **options) -> list[np.ndarray]:
    """The bound in units of u."""
    options = {**DEFAULTS, **options}
    chosen = {key: options.pop(key) for key in DEFAULTS}
    phi, normalize = maps.get(chosen["feature_map"]), chosen["normalize"]
    q, k, v, *g = (abs(x) if i > 1 else x for i, x in enumerate(map(_double, operands)))
    a, b = abs(chosen["scale"] * phi(q)), abs(phi(k))
    moved_a, moved_b = a + abs(chosen["scale"]) * moved(phi, q), b + moved(phi, k)
    for key in ("initial_state", "grad_state"):
        if key in options:
            options[key] = _each(options[key], lambda x: abs(_double(x)))
    plain = {"feature_map": "identity", "normalize": False}
    eps, f = chosen["eps"], getattr(ref, name)
    if not normalize and g:
        magnitude = flat(f(moved_a, moved_b, v, *g, **options, **plain))
    elif not normalize:
        magnitude = flat(f(moved_a, moved_b, v, **options, **plain))
    elif g:
        magnitude = _gradients(name, (a, b), (moved_a, moved_b), v, g[0], options, eps)
    else:
        o, *state = _with_sums(name, (moved_a, moved_b), v, options)
        right = _with_sums(name, (a, b), v, options)[0]
        den = right[..., -1:] + eps
        o = o[..., :-1] / den + right[..., :-1] / den * (o[..., -1:] + eps) / den
        magnitude = [o / 2, *(x for s in state for x in (s[..., :-1], s[..., -1]))]
    if not g:
        factors = [2 * FORWARD_MEAN if normalize else FORWARD_SUM, FORWARD_SUM, FORWARD_MEAN]
    else:
        magnitude[0] = spread(phi, q, magnitude[0] * abs(chosen["scale"]))
        magnitude[1] = spread(phi, k, magnitude[1])
        factors = [2 * BACKWARD_MEAN if normalize else BACKWARD_SUM] * 5
    return [f * x for f, x in zip(factors, magnitude, strict=False)]


def _double(x):
    return x.astype(np.float64)


def _with_sums(name, features, v, options) -> list[np.ndarray]:
    """The forward sums over v and, in one column more, over the weights; then the state's."""
    forward = getattr(ref, name.removesuffix("_backward"))
    options = {key: x for key, x in options.items() if key != "grad_state"}
    v = np.concatenate((v, np.ones((*v.shape[:-1], 1))), -1)
    plain = {"feature_map": "identity", "normalize": False}
    return flat(forward(*features, v, **_with_column(options), **plain))


def _gradients(name, right, moved, v, g, options, eps):
    """Magnitudes of dq, dk, dv, ds0 and dz0, before the slopes of the map.

    Denominators are those of the right features; all that they divide may have moved.
    """
    den = _with_sums(name, right, v, options)[0][..., -1:] + eps
    sums = _with_sums(name, moved, v, options)[0]
    h = g / den * ((sums[..., -1:] + eps) / den)
    h = np.concatenate((h, (h * sums[..., :-1] / den).sum(-1, keepdims=True)), -1)
    v = np.concatenate((v, np.ones((*v.shape[:-1], 1))), -1)
    plain = {"feature_map": "identity", "normalize": False}
    dq, dk, dv, *ds = flat(getattr(ref, name)(*moved, v, h, **_with_column(options), **plain))
    return [dq, dk, dv[..., :-1], *(x for s in ds for x in (s[..., :-1], s[..., -1]))]


def _with_column(options):
    """States (s, z) as (s beside z,), with the leading axes of both."""
    states = ("initial_state", "grad_state")
    return {key: x and _join(x) if key in states else x for key, x in options.items()}


def _join(state: State) -> State:
    s, z = state.s, state.z[..., None]
    lead = np.broadcast_shapes(s.shape[:-2], z.shape[:-2])
    s, z = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (s, z))
    return State(np.concatenate((s, z), -1), None)


def check(name, operands, **options) -> list[np.ndarray]:
    """Run `linattn.<name>`, compare it with the twin, and return its result."""
    result = flat(getattr(linattn, name)(*operands, **options))
    compare(result, oracle(name, operands, **options), bound(name, operands, **options))
    return result


def compare(result, expected, allowed, what="") -> None:
    for i, (x, y, slack) in enumerate(zip(result, expected, allowed, strict=True)):
        assert x.shape == y.shape, f"{what} array {i} has shape {x.shape}, not {y.shape}"
        ratio = excess(x, y, slack)
        assert ratio <= 1, f"{what} array {i} is off by {ratio:.3g} times what is allowed"


def assert_same(result, expected, what="") -> None:
    """Assert equality to the bit, except for the payload of a NaN."""
    for i, (x, y) in enumerate(zip(flat(result), flat(expected), strict=True)):
        assert x.dtype == y.dtype, f"{what} array {i} has dtype {x.dtype}, not {y.dtype}"
        if x.shape != y.shape or x.tobytes() != y.tobytes():  # ten times as fast as what follows
            np.testing.assert_array_equal(x, y, err_msg=f"{what} array {i}")


def assert_close(result, expected, atol: float, rtol: float = 0.0) -> None:
    """`close` for all arrays."""
    for x, y in zip(flat(result), flat(expected), strict=True):
        close(x, y, atol=atol, rtol=rtol)
