"""Cases of the gated delta rule and of DPLR: operands, twins, error bounds.

Removal keys have norm at most 1 and gates do not let the memory grow for long, so no error is
amplified from token to token.  A result may be off by some roundings of the largest entry of the
call, as for the delta rule.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import operands
import pytest
from bounds import DELTA_ROUNDINGS, close, roundings
from gated_calls import GATES, both, oracle
from operands import tokens

import linattn
from linattn.reference import gated_rules as ref

#: Of either side, where two results of the same dtype are compared.
ROUNDINGS = 2 * DELTA_ROUNDINGS
DTYPES = ("float32", "float64")


class Case(NamedTuple):
    """q, k (*lead, n, d), v (*lead, n, m), g (*lead, n[, d]), beta (*lead, n[, m]) and so on."""

    rule: str = "gated_delta"
    key_channels: bool = False  # a gate a key channel
    channels: bool = False  # a strength a value channel
    erase: bool = False
    n: int = 40
    d: int = 6
    m: int = 5
    lead: tuple[int, ...] = ()
    gates: str = "weak"
    feature_map: str = "identity"
    dtype: str = "float64"
    twin: Any = ref

    @property
    def options(self) -> dict:
        return {"scale": 0.5} | (
            {"feature_map": self.feature_map} if self.rule == "gated_delta" else {}
        )

    @property
    def dims(self) -> dict[str, str]:
        """Dimensions by operand, and of the cotangent."""
        marks = {"g": self.key_channels, "beta": self.channels, "erase": self.erase}
        more = " ".join(name for name, given in marks.items() if given)
        return operands.dims(self.rule, more) | {"grad_out": "nm"}

    @property
    def rows(self) -> set[str]:
        """Operands with an axis after that of the tokens."""
        return {name for name, letters in self.dims.items() if len(letters) > 1}


GATED_DELTA = [
    Case("gated_delta", *kind) for kind in product((False, True), (False, True), (False, True))
]
DPLR = [Case("dplr", key_channels) for key_channels in (False, True)]
KINDS = pytest.mark.parametrize(
    "kind",
    GATED_DELTA + DPLR,
    ids=lambda x: "-".join([x.rule, *(name for name in x._fields[1:4] if getattr(x, name))]),
)


def make(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """The operands by name, the cotangent last, the same in every run."""
    rng = np.random.default_rng([seed, case.n, case.d, case.m])
    sizes = {"n": case.n, "d": case.d, "m": case.m}
    arrays = operands.make(
        case.dims, sizes, rng,
        lead=case.lead, gates=GATES[case.gates], feature_map=case.feature_map,
    )  # fmt: skip
    return {name: x.astype(case.dtype) for name, x in arrays.items()}


def part(case: Case, arrays, begin: int, end: int) -> dict[str, np.ndarray]:
    """The operands of tokens [begin, end)."""
    return {name: tokens(case.dims[name], x, slice(begin, end)) for name, x in arrays.items()}


def token(case: Case, arrays, i: int) -> dict[str, np.ndarray]:
    """The operands of one token, as a step takes them."""
    return {name: tokens(case.dims[name], x, i) for name, x in arrays.items() if name != "grad_out"}


def compare(actual, expected, count=ROUNDINGS, dtype=None) -> None:
    """Forward and backward each within roundings of their largest entry."""
    assert actual.keys() == expected.keys()
    for names in ({"o", "s"}, expected.keys() - {"o", "s"}):
        some = {name: expected[name] for name in expected if name in names}
        if not some:
            continue
        atol = roundings(count, *some.values(), dtype=dtype)
        for name, y in some.items():
            close(actual[name], y, atol=atol)


def check(case: Case, module=linattn, seed: int = 0, **more) -> None:
    """Output, state and gradients on `module` against the oracle."""
    arrays = make(case, seed)
    actual = both(module, case, arrays, **more)
    for name, x in actual.items():
        assert x.dtype == case.dtype, f"{name} has dtype {x.dtype}"
    compare(actual, oracle(case, arrays, **more), DELTA_ROUNDINGS, case.dtype)
