"""Linearity in v and the order of keys, on thirty draws of sizes, dtypes and gates."""

import numpy as np
import pytest
from bounds import close, softmax_units
from slow import each
from states import flat
from table import ATTENTION, ROUNDINGS

import linattn

DRAWS = range(30)
DTYPES, GATES = ("float32", "float64"), ("weak", "strong", "growing", "resets")


def largest(*arrays) -> float:
    return max((float(abs(x).max(initial=0)) for x in arrays), default=0.0)


def roundings_of(o, dtype, sides, *magnitudes) -> float:
    """Of results whose terms together are at most that large."""
    return sides * ROUNDINGS * float(np.finfo(dtype).eps) / 2 * largest(o, *magnitudes) + 1e-30


@pytest.mark.slow
@each(ATTENTION, "rule")
@pytest.mark.parametrize("seed", DRAWS)
def test_is_linear_in_v(rule, seed):
    """f(v + c w) = f(v) + c f(w), the state and its gradient included; twice v is twice o exactly.

    With float64 all but the rounding of v + c w itself is far below float32's roundings.
    """
    rng = np.random.default_rng(seed)
    n, d, m = (int(x) for x in rng.integers(0, (71, 21, 21)))
    dtype, gates = rng.choice(DTYPES), rng.choice(GATES)
    arrays = rule.operands((), n, d=d, m=m, seed=seed, dtype=dtype, gates=gates)
    c = arrays["v"].dtype.type(rng.uniform(-4, 4))
    other = rng.standard_normal(arrays["v"].shape).astype(dtype)
    of = lambda v: flat(rule.forward(arrays | {"v": v}))  # noqa: E731
    one, two, both = of(arrays["v"]), of(other), of(arrays["v"] + c * other)
    columns = 2 if rule.options.get("normalize") else len(one)  # z knows no v
    magnitudes = [abs(x) + abs(c * y) for x, y in zip(one, two, strict=True)]
    slack = roundings_of(arrays["v"], dtype, 3, c * other, *magnitudes)
    for x, y, z in list(zip(one, two, both, strict=True))[:columns]:
        close(z, x + c * y, atol=slack * max(n, 1) ** 0.5)
    for x, y in list(zip(of(2 * arrays["v"]), one, strict=True))[:columns]:
        np.testing.assert_array_equal(x, 2 * y)


@pytest.mark.parametrize("name", ["noncausal", "softmax_attention"])
@pytest.mark.parametrize("seed", DRAWS)
def test_keys_in_any_order(seed, name):
    """Of what is not causal; gradients of k and v move with them."""
    rng = np.random.default_rng(seed)
    n, s, d, m = (int(x) for x in rng.integers(1, (71, 71, 21, 21)))
    dtype = rng.choice(DTYPES)
    shapes = (n, d), (s, d), (s, m), (n, m)
    q, k, v, g = (rng.standard_normal(x).astype(dtype) for x in shapes)
    order, u = rng.permutation(s), float(np.finfo(dtype).eps) / 2
    o = getattr(linattn, name)(q, k, v)
    moved = getattr(linattn, name)(q, k[order], v[order])
    if name == "noncausal":
        slack = [2 * 32 * u * linattn.noncausal(q, k, abs(v))]
        slack += [u * 2**9 * max(n, s) * largest(g) * largest(v, o) * max(largest(q, k), 1)] * 3
    else:
        slack = [2 * u * x for x in softmax_units((q, k, v), False, None)]
        slack += [2 * u * x for x in softmax_units((q, k, v, g), False, None)]
    assert (abs(moved - o) <= slack[0] + 1e-30).all()
    dq, dk, dv = getattr(linattn, f"{name}_backward")(q, k, v, g)
    dq1, dk1, dv1 = getattr(linattn, f"{name}_backward")(q, k[order], v[order], g)
    for x, y, most in zip((dq1, dk1, dv1), (dq, dk[order], dv[order]), slack[1:], strict=True):
        most = most if np.ndim(most) == 0 or x is dq1 else most[order]
        assert (abs(x - y) <= most + 1e-30).all()
