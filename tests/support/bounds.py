"""How wrong a result may be: the oracle of a case, its error bound, and the comparison.

Rounding errors are bounded by the same sums with every factor replaced by its absolute value, M:
with u the unit roundoff, a = scale phi(q), b = phi(k)::

    unnormalised  M = |a| |b|^T |v|
    normalised    M = (1 + kappa) / 2 |a| |b|^T |v| / |den|,   kappa = |a| |z| / |den|

kappa is 1 for every map that is never negative.  Gradients are longer products of the same factors.
A map that is not a function per element has an error of its own, as if its x were off by some u.
This adds |J| |x| to |phi(x)|, where J is its Jacobian.

Each operator has two bounds.  The first holds for all operands and is derived: a term is rounded
once per link of the longest chain of additions it goes through (`links`, `WORST`), and each
rounding is at most u times a partial sum, which M bounds.  The second holds for operands drawn from
a normal distribution, whose roundings partly cancel; it is a tenth of the first or less
(`FORWARD_SUM` and so on).  A wrong formula that the first bound might hide exceeds the second.

Softmax attention: a score x_ij may be off by u |scale| |q_i| . |k_j|, a weight p by as much
relative to itself, and the sum of the weights by their mean.

The delta rules: mapped keys have norm at most 1, so no error is amplified from token to token, and
a result may be off by some roundings of the largest entry of the call.  The error of a token
propagates to later tokens like a change of its value.  How far depends on the operands, so no bound
that ignores them holds for all operands.
"""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import ml_dtypes
import numpy as np
from cases import DELTA, Case, call, make

from linattn.reference import delta_rule as ref_delta
from linattn.reference import linear as ref
from linattn.reference import maps
from linattn.reference import softmax as ref_softmax

FORWARD_SUM, FORWARD_MEAN = 8, 16
BACKWARD_SUM, BACKWARD_MEAN = 16, 32
#: All gradients of the delta rule together, as one alone may be a difference of nothing.
DELTA_ROUNDINGS = 24

#: For all operands, in `links` of the widest contraction: a denominator is a sum of its own, and a
#: gradient has a numerator, two denominators and the sum over their products.  Two for a gated
#: one: its decays are rounded, too (`gates.py`).  What a delta rule writes has been read before,
#: and so has what its gradient passes on; 16 is not derived: a search found up to 8.5.
WORST = {
    "forward sum": 1, "forward mean": 2, "backward sum": 1, "backward mean": 4,
    "gated": 2, "delta": 2, "delta backward": 16,
}  # fmt: skip


def links(width: int) -> float:
    """The largest number of roundings of a term in a contraction over `width` channels.

    A chunk (tuning.h has the lengths) is summed token by token, which takes `tokens` roundings.
    Its scores are summed first, in lanes of at least 16 bytes and in parts (micro.h).  The chunk is
    then added to the state, with compensation or as one of at most LA_PLAIN_SUMS plain sums.
    A read of the state continues the same sum over 64 channels at a time.  The remaining roundings
    are those of factors, scale and products that are not fused.
    """
    tokens = 32 if width <= 192 else 64
    scores = min(width, 128) / 2 + width / 128
    return tokens + max(scores, 16) + min(width, 64) + width / 64 + 8


#: What a map that is not its argument or 0 may be off by, twice: 4 units of the last place each.
OF_MAPS = 16


def worst(case: Case) -> float:
    """`links` and `WORST` of linear attention, in units of u M."""
    kind = "backward " if case.backward else "forward "
    kind += "mean" if case.normalize else "sum"
    exact = case.feature_map in ("identity", "relu")
    width = max(case.d, case.m) if case.backward else case.d
    return WORST[kind] * (links(width) + (0 if exact else OF_MAPS))


def roundings(count: float, *arrays, dtype=None) -> float:
    """`count` roundings (u) of the largest entry of the arrays, by default in their dtype."""
    largest = max((float(abs(x).max(initial=0)) for x in arrays), default=0.0)
    info = np.finfo(dtype or np.result_type(*arrays))
    return count * float(info.eps) / 2 * largest + float(info.tiny)


def close(actual, expected, atol: float, rtol: float = 0.0) -> None:
    """`assert_allclose` without its default rtol of 1e-7, which would hide a smaller atol.

    NumPy is asked only if a plain comparison, which takes a fifth of its time, fails.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    wide = expected.astype(np.result_type(expected, 1.0), copy=False)
    with np.errstate(all="ignore"):
        off, allowed = abs(actual - wide), atol + rtol * abs(wide)
    if not np.all((off <= allowed) & (off < np.inf)):
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)  # noqa: TID251


def close_to_largest(actual, expected, dtype, count=64) -> None:
    """`close` within so many units in the last place of the largest entry, or of 1."""
    unit, expected = float(ml_dtypes.finfo(dtype).eps), np.asarray(expected)
    atol = count * unit * max(1.0, np.max(np.abs(expected), initial=0))
    close(np.asarray(actual, np.float64), expected, rtol=4 * unit, atol=atol)


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
    """The case, or its magnitude with every factor positive, by `causal_product` in `dtype`.

    This oracle is independent of the twin's scan, and fast enough for 65,536 tokens.
    """
    q, k, v, *g = (x.astype(dtype) for x in operands)
    size = np.abs if magnitude else np.asarray
    read, write = _products(case.causal)
    phi = twin_of(case.feature_map)
    a, b = case.scale * phi(q), phi(k)
    ones = np.ones((*k.shape[:-1], 1), dtype)
    den, kappa = dtype(1), dtype(1)
    if case.normalize:
        den = size(read(a, b, ones) + dtype(case.eps))
        if magnitude:
            kappa = (1 + (read(abs(a), abs(b), ones) + dtype(case.eps)) / den) / 2
    a, b, v = size(a), size(b), size(v)
    if magnitude and not isinstance(phi, maps.Elementwise):
        a, b = a + abs(case.scale) * sensitivity(phi, q), b + sensitivity(phi, k)
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
    dv = write(b, a, h)
    if not magnitude:
        return phi.backward(q, case.scale * da), phi.backward(k, db), dv
    return abs(case.scale) * through(phi, q, da), through(phi, k, db), dv


def through(phi, x, grad):
    """The magnitude of the gradient of x, from that of the gradient of phi(x)."""
    if isinstance(phi, maps.Elementwise):
        return abs(phi.backward(x, np.ones_like(x))) * grad
    return (_jacobian(phi, x) @ grad[..., None])[..., 0]


def twin_of(feature_map):
    """The twin of a map, given by its name or as an object."""
    return maps.get(feature_map) if isinstance(feature_map, str) else maps.twin(feature_map)


def _jacobian(phi, x):
    """|d phi_j / d x_i|, (..., d, f), by complex steps.

    The Jacobian of l2norm, (I - y y^T) / norm, is a difference, and both of its terms count.
    """
    if isinstance(phi, maps.L2Norm):
        y = abs(phi(x))
        inner = np.eye(x.shape[-1]) + y[..., :, None] * y[..., None, :]
        return inner / phi._norm(x)[..., None]
    steps = 1e-30j * np.eye(x.shape[-1])
    return np.stack([abs(phi(x + step).imag) / 1e-30 for step in steps], -2)


def sensitivity(phi, x):
    """|J| |x|: how far phi moves if each element of x moves in proportion to its size."""
    return (_jacobian(phi, x) * abs(x)[..., None]).sum(-2)


def oracle(case: Case, operands):
    """The twin in a wider type: float64 for float32, long double for float64."""
    wide = np.float64 if case.dtype == "float32" else np.longdouble
    twin = OPERATORS[case.forward].twin
    case = case._replace(feature_map=twin_of(case.feature_map))
    result = call(twin, case, [x.astype(wide) for x in operands])
    return result if case.backward else (result,)


def linear_bound(case: Case, operands, expected):
    if case.backward:
        factor = 2 * BACKWARD_MEAN if case.normalize else BACKWARD_SUM
    else:
        factor = 2 * FORWARD_MEAN if case.normalize else FORWARD_SUM
    return [factor * x for x in evaluate(case, operands, np.float64, magnitude=True)]


def delta_bound(case: Case, operands, expected):
    count, phi = DELTA_ROUNDINGS, twin_of(case.feature_map)
    if not isinstance(phi, maps.Elementwise):
        q, k = (x.astype(np.float64) for x in operands[:2])
        count *= 1 + max(sensitivity(phi, x).max() / abs(phi(x)).max() for x in (q, k))
    largest = max(abs(x).max(initial=0) for x in expected)
    return [np.full(x.shape, count * largest) for x in expected]


def softmax_bound(case: Case, operands, expected):
    return softmax_units(operands, case.causal, case.scale)


def softmax_units(operands, causal, scale, sizes=None, any_operands=False):
    """The bound of softmax attention; `sizes` are the magnitudes of k and v if these are sums.

    With `any_operands`, a score is rounded once per term and once when the maximum is subtracted.
    A weighted sum is rounded as often as `links` says, with chunks of 64 keys.
    """
    q, k, v, *g = (x.astype(np.float64) for x in operands)
    scale = ref_softmax._scale(q, scale)
    p = ref_softmax._weights(q, k, causal, scale)
    q, k, v, *g = map(abs, (q, *(sizes or (k, v)), *g))
    forward, backward = (1, 2) if any_operands else (FORWARD_SUM, BACKWARD_SUM)
    score, count = abs(scale) * (q @ k.mT), 1
    if any_operands:
        most = score.max(-1, keepdims=True, initial=0)
        count = 32 + links(max(q.shape[-1], v.shape[-1], 64))
        score = (q.shape[-1] + 2) * score + 6 * most
    w = p * (count + score)  # what p may be off by, relative to u
    w = w + p * w.sum(-1, keepdims=True)
    if not g:
        return [forward * (w @ v)]
    slope = g[0] @ v.mT
    e = w * (slope + (p * slope).sum(-1, keepdims=True))
    e = abs(scale) * (e + p * (w * slope).sum(-1, keepdims=True))
    return [backward * x for x in (e @ k, e.mT @ q, w.mT @ g[0])]


class Operator(NamedTuple):
    """A row of the table: the module that holds the twin, and the bound in units of u."""

    twin: ModuleType
    bound: Callable


OPERATORS = {
    "causal": Operator(ref, linear_bound),
    "noncausal": Operator(ref, linear_bound),
    "delta": Operator(ref_delta, delta_bound),
    "softmax_attention": Operator(ref_softmax, softmax_bound),
}


def bound(case: Case, operands, expected=None):
    """The error allowed for each output."""
    info = np.finfo(case.dtype)
    unit, underflow = float(info.eps) / 2, 1e8 * float(info.tiny)
    units = OPERATORS[case.forward].bound(case, operands, expected)
    return [unit * x + underflow for x in units]


def excess(actual, expected, allowed) -> float:
    """max |actual - expected| / allowed; at most 1 passes."""
    if actual.size == 0:
        return 0.0
    return float(np.max(abs(actual - expected) / allowed))


def compare(case: Case, operands, result, expected=None, slack: float = 1.0) -> float:
    """Check shape, dtype and error of a result; return its excess."""
    result = result if case.backward else (result,)
    expected = oracle(case, operands) if expected is None else expected
    worst = 0.0
    names = ("dq", "dk", "dv", "dbeta")[: len(expected)] if case.backward else ("o",)
    allowances = bound(case, operands, expected)
    for name, x, y, allowed in zip(names, result, expected, allowances, strict=True):
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


def check_delta(module, case: Case) -> None:
    """The delta rule and its gradient, both on the operands of a `delta_case`."""
    for operator in DELTA:
        check(module, case._replace(operator=operator))
