"""Operands and sizes of the delta rule's tests, and how wrong a result may be.

Keys have norm 1 at most behind their map, the case the rule is made for: nothing is amplified
from token to token, and a result may be off by some roundings of its largest entry.
"""

from typing import NamedTuple

import numpy as np
from cases import LENGTHS, WIDTHS

from linattn import _reference_delta as ref

#: Roundings of the largest entry; all gradients together, as one alone may be a difference of
#: nothing.
ROUNDINGS = 12


class Delta(NamedTuple):
    """q, k (*lead, n, d), v (*lead, n, m), beta (*lead, n) or, per channel, (*lead, n, m)."""

    n: int
    d: int
    m: int
    lead: tuple[int, ...] = ()
    channels: bool = False
    feature_map: str = "identity"
    dtype: str = "float32"
    scale: float = 0.5

    @property
    def options(self) -> dict:
        return {"feature_map": self.feature_map, "scale": self.scale}


def make(case: Delta, seed: int = 0) -> list[np.ndarray]:
    """q, k, v, beta and a cotangent, the same ones every time; beta lies in [0, 2]."""
    rng = np.random.default_rng([seed, case.n, case.d, case.m])
    q, k = rng.standard_normal((2, *case.lead, case.n, case.d))
    v, g = rng.standard_normal((2, *case.lead, case.n, case.m))
    beta = rng.uniform(0, 2, v.shape if case.channels else v.shape[:-1])
    if case.feature_map in ("identity", "relu"):
        k /= np.linalg.norm(k, axis=-1, keepdims=True) + 1e-30
    else:
        k -= 0.5 * np.log(max(case.d, 1)) + 2  # about exp(k), and so of norm 0.2
    return [x.astype(case.dtype) for x in (q, k, v, beta, g)]


def wide(x):
    """The type that judges: float64 for float32, long double for float64."""
    return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


def assert_close(actual, expected, dtype, what=""):
    """Arrays of one call, within so many roundings of the largest entry of all."""
    largest = max((abs(x).max(initial=0) for x in expected), default=0)
    allowed = ROUNDINGS * np.finfo(dtype).eps * largest + np.finfo(dtype).tiny
    for x, y in zip(actual, expected, strict=True):
        assert x.shape == y.shape, what
        assert x.dtype == dtype, what
        error = abs(x - y).max(initial=0)
        assert error <= allowed, f"{what}: off by {error / allowed:.3g} times what is allowed"


def check(module, case: Delta, **options) -> None:
    """Forward and backward on `module` against the twin."""
    *operands, g = make(case)
    options = {**case.options, **options}
    expected = ref.delta(*map(wide, operands), **options)
    assert_close([module.delta(*operands, **options)], [expected], case.dtype, f"{case}: o")
    expected = ref.delta_backward(*map(wide, operands), wide(g), **options)
    actual = module.delta_backward(*operands, g, **options)
    assert_close(actual, expected, case.dtype, f"{case}: gradients")


def _sizes() -> list[tuple[int, int, int]]:
    """(n, d, m): every length, at a round and at a ragged width; every pair of neighbour widths."""
    w = len(WIDTHS)
    ragged = [(n, WIDTHS[(5 * i + 1) % w], WIDTHS[(3 * i + 2) % w]) for i, n in enumerate(LENGTHS)]
    widths = [(37, d, WIDTHS[(i + 1) % w]) for i, d in enumerate(WIDTHS)]
    return [*((n, 16, 32) for n in LENGTHS), *ragged, *widths]


SIZES = [*_sizes(), (97, 72, 69), (65, 196, 200), (300, 8, 8), (600, 4, 4), (19, 500, 500)]
