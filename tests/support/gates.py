"""Cases of gated linear attention: operands, the twin, and the error bound.

Every result is a sum of products, so the twin on absolute values gives the total size of its terms.
A result may be off by `ROUNDINGS` u times that size: half as much again as for causal, since decays
are rounded too.  If gates sum to tens, the rounding of that sum exceeds u times what they leave, so
a result may also be off by `ROUNDINGS` u times u times the largest entry of the call.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
from bounds import excess
from gated_calls import GATES, both, oracle
from map_bounds import spread

from linattn import State
from linattn.reference import gated_attention as ref
from linattn.reference import maps

ROUNDINGS = {"o": 12, "s": 12, "gradients": 24}

#: Whether there is a gate a channel, and whether there is a bonus.
KINDS = pytest.mark.parametrize(
    ("channels", "bonus"), [(False, False), (True, False), (False, True), (True, True)]
)


class Case(NamedTuple):
    """q, k (*lead, n, d), v (*lead, n, m), g (*lead, n) or (*lead, n, d), bonus (*lead, d)."""

    n: int
    d: int
    m: int
    lead: tuple[int, ...] = ()
    channels: bool = False
    bonus: bool = False
    gates: str = "weak"
    feature_map: Any = "identity"
    dtype: str = "float32"
    scale: float = 0.5
    rule: str = "gated"
    twin: Any = ref

    @property
    def options(self) -> dict:
        return {"scale": self.scale, "feature_map": self.feature_map}


def make(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """The operands by name, the same in every run; `bonus` only if the case has one."""
    rng = np.random.default_rng([seed, case.n, case.d, case.m])
    tokens = (*case.lead, case.n)
    arrays = {
        "q": rng.standard_normal((*tokens, case.d)),
        "k": rng.standard_normal((*tokens, case.d)),
        "v": rng.standard_normal((*tokens, case.m)),
        "g": GATES[case.gates](rng, (*tokens, case.d) if case.channels else tokens),
        "grad_out": rng.standard_normal((*tokens, case.m)),
    }
    if case.bonus:
        arrays["bonus"] = rng.standard_normal((*case.lead, case.d))
    return {name: x.astype(case.dtype) for name, x in arrays.items()}


def magnitude(case: Case, arrays, **more) -> dict[str, np.ndarray]:
    """The results with every term positive."""
    phi = maps.get(case.feature_map)
    sizes = {name: x.astype("f8") for name, x in arrays.items()}
    q, k = sizes["q"], sizes["k"]
    sizes |= {"q": abs(phi(q)), "k": abs(phi(k)), "v": abs(sizes["v"])}
    sizes |= {name: abs(sizes[name]) for name in ("grad_out", "bonus") if name in sizes}
    more = {key: _size(x) for key, x in more.items()}
    plain = case._replace(feature_map="identity", scale=abs(case.scale))
    result = both(ref, plain, sizes, **more)
    for name, x in (("dq", q), ("dk", k)):
        result[name] = spread(phi, x, result[name])
    return result


def _size(x):
    return State(abs(x.s.astype("f8")), None) if isinstance(x, State) else x


def check(module, case: Case, seed: int = 0, **more) -> dict[str, float]:
    """Compare output, state and gradients of `module` with the oracle; return errors / bounds."""
    arrays = make(case, seed)
    return compare(case, arrays, both(module, case, arrays, **more), **more)


def compare(case: Case, arrays, actual, **more) -> dict[str, float]:
    expected, sizes = oracle(case, arrays, **more), magnitude(case, arrays, **more)
    info, used = np.finfo(case.dtype), {}
    unit, largest = float(info.eps) / 2, max(x.max(initial=0) for x in sizes.values())
    assert actual.keys() == expected.keys()
    for name, x in actual.items():
        y = expected[name]
        assert x.shape == y.shape, f"{case}: {name} has shape {x.shape}, not {y.shape}"
        assert x.dtype == case.dtype, f"{case}: {name} has dtype {x.dtype}"
        count = ROUNDINGS.get(name, ROUNDINGS["gradients"])
        allowed = count * unit * (sizes[name] + unit * largest) + 1e8 * float(info.tiny)
        used[name] = excess(x, y, allowed)
        assert used[name] <= 1, f"{case}: {name} is off by {used[name]:.3g} times what is allowed"
    return used
