"""How wrong a result may be: the oracle of a case, its error bound, and the comparison.

Rounding errors are bounded by the same sums with every factor replaced by its absolute value.
With u the unit roundoff, a = scale phi(q), b = phi(k)::

    unnormalised  |error of o| <= 8 u |a| |b|^T |v|
    normalised    |error of o| <= 16 u (1 + kappa) |a| |b|^T |v| / |den|,   kappa = |a| |z| / |den|

kappa is 1, and the second line 32 u of the weighted |v|, for every map that is never negative.
Gradients are longer products of the same factors and get twice the constants.
"""

import numpy as np
from cases import Case, call, make

from linattn import _reference as ref
from linattn import _reference_maps as maps

FORWARD_SUM, FORWARD_MEAN = 8, 16
BACKWARD_SUM, BACKWARD_MEAN = 16, 32


def causal_product(x, y, z, chunk=128):
    """``sum_{j <= i} (x_i . y_j) z_j`` for every i, by chunks: affordable at any length."""
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2], z.shape[:-2])
    out = np.empty((*lead, x.shape[-2], z.shape[-1]), np.result_type(x, y, z))
    state = np.zeros((y.shape[-1], z.shape[-1]), out.dtype)
    for i in range(0, x.shape[-2], chunk):
        rows = (..., slice(i, i + chunk), slice(None))
        out[rows] = x[rows] @ state + np.tril(x[rows] @ y[rows].mT) @ z[rows]
        state = state + y[rows].mT @ z[rows]
    return out


def _products(causal: bool):
    """``read(x, y, z)_i`` sums over the keys j that query i sees; ``write`` over its transpose."""
    if not causal:
        both = lambda x, y, z: x @ (y.mT @ z)  # noqa: E731
        return both, both
    flip = (..., slice(None, None, -1), slice(None))
    return causal_product, lambda x, y, z: causal_product(x[flip], y[flip], z[flip])[flip]


def evaluate(case: Case, operands, dtype, magnitude=False):
    """The case by `causal_product` in `dtype`; or its magnitude, every factor made positive.

    An oracle independent of the twin's scan, and one that can do 65,536 tokens.
    """
    q, k, v, *g = (x.astype(dtype) for x in operands)
    size = np.abs if magnitude else np.asarray
    read, write = _products(case.causal)
    phi = maps.get(case.feature_map)
    a, b = case.scale * phi(q), phi(k)
    ones = np.ones((*k.shape[:-1], 1), dtype)
    den, kappa = dtype(1), dtype(1)
    if case.normalize:
        den = size(read(a, b, ones) + dtype(case.eps))
        if magnitude:
            kappa = (1 + (read(abs(a), abs(b), ones) + dtype(case.eps)) / den) / 2
    a, b, v = size(a), size(b), size(v)
    num = read(a, b, v)
    if not case.backward:
        return (num / den * kappa,)
    h = size(g[0]) / den * kappa
    da, db = read(h, v, b), write(v, h, a)
    if case.normalize:
        c = (h * num).sum(-1, keepdims=True) / den * kappa
        c = c if magnitude else -c
        da = da + read(c, ones, b)
        db = db + write(ones, c, a)
    slope_q, slope_k = (size(phi.backward(x, np.ones_like(x))) for x in (q, k))
    return abs(case.scale) * slope_q * da, slope_k * db, write(b, a, h)


def oracle(case: Case, operands):
    """The twin in a wider type: float64 for float32, long double for float64."""
    wide = np.float64 if case.dtype == "float32" else np.longdouble
    result = call(ref, case, [x.astype(wide) for x in operands])
    return result if case.backward else (result,)


def bound(case: Case, operands):
    """What each output may be off by."""
    if case.backward:
        factor = 2 * BACKWARD_MEAN if case.normalize else BACKWARD_SUM
    else:
        factor = 2 * FORWARD_MEAN if case.normalize else FORWARD_SUM
    info = np.finfo(case.dtype)
    underflow = 1e8 * float(info.tiny)
    unit = factor * float(info.eps) / 2
    return [unit * x + underflow for x in evaluate(case, operands, np.float64, magnitude=True)]


def excess(actual, expected, allowed) -> float:
    """max |actual - expected| / allowed: at most 1 is right."""
    if actual.size == 0:
        return 0.0
    return float(np.max(abs(actual - expected) / allowed))


def compare(case: Case, operands, result, expected=None, slack: float = 1.0) -> float:
    """Check a result of the case for shape, dtype and error; the excess it had."""
    result = result if case.backward else (result,)
    expected = oracle(case, operands) if expected is None else expected
    worst = 0.0
    names = ("dq", "dk", "dv") if case.backward else ("o",)
    for name, x, y, allowed in zip(names, result, expected, bound(case, operands), strict=True):
        assert x.shape == y.shape, f"{case}: {name} has shape {x.shape}, not {y.shape}"
        assert x.dtype == case.dtype, f"{case}: {name} has dtype {x.dtype}"
        ratio = excess(x, y, allowed)
        assert ratio <= slack, f"{case}: {name} is off by {ratio:.3g} times what is allowed"
        worst = max(worst, ratio)
    return worst


def check(module, case: Case, seed: int = 0) -> float:
    """Run the case on `module` and compare it with the oracle."""
    operands = make(case, seed)
    return compare(case, operands, call(module, case, operands))
