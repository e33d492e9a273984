"""The cases of gated recurrences, their oracle in a wider type, and the error bounds.

Every result of gated linear attention is a sum of products, so the twin on absolute values gives
the total size of its terms.  A result may be off by `ROUNDINGS` u times that size: half as much
again as for causal, since decays are rounded too.  If gates sum to tens, the rounding of that sum
exceeds u times what they leave, so a result may also be off by `ROUNDINGS` u times u times the
largest entry of the call.

Removal keys of the gated delta rule and of DPLR have norm at most 1 and gates do not let the memory
grow for long, so no error is amplified from token to token.  A result may be off by some roundings
of the largest entry of the call, as for the delta rule.
"""

import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, close, excess, roundings
from map_bounds import spread
from table import CASES, Case, wide

import linattn
from linattn import State, reference
from linattn.reference import maps

ROUNDINGS = {"o": 12, "s": 12, "gradients": 24}
WITHOUT_FMA = ("x86-64-v2", "generic")
#: Of either side, where two results of a delta rule in the same dtype are compared.
RULE_ROUNDINGS = 2 * DELTA_ROUNDINGS
DTYPES = ("float32", "float64")

GATED = [x for x in CASES if x.name in ("gated", "ssd")]
GATED_DELTA = [x for x in CASES if x.name == "gated_delta"]
DPLR = [x for x in CASES if x.name == "dplr"]
each_gated = pytest.mark.parametrize("case", GATED, ids=str)
each_rule = pytest.mark.parametrize("case", GATED_DELTA + DPLR, ids=str)


def by_channel(case: Case) -> bool:
    """Whether there is a gate per key channel."""
    return case.letters["g"] == "nd"


def oracle(case: Case, arrays, **more) -> dict[str, np.ndarray]:
    """The twin in a wider type: float64 for float32, long double for float64."""
    return case.named(wide(arrays), reference, **wide(more))


def magnitude(case: Case, arrays, **more) -> dict[str, np.ndarray]:
    """The results with every term positive."""
    phi = maps.get(case.options.get("feature_map", "identity"))
    sizes = {name: x.astype("f8") for name, x in arrays.items()}
    q, k = sizes["q"], sizes["k"]
    sizes |= {name: abs(x) for name, x in sizes.items() if name != "g"}
    sizes |= {"q": abs(phi(q)), "k": abs(phi(k))}
    more = {x: State(abs(y.s.astype("f8"))) for x, y in more.items()}
    plain = case._replace(options={"scale": abs(case.options["scale"])})
    result = plain.named(sizes, reference, **more)
    for name, x in (("dq", q), ("dk", k)):
        result[name] = spread(phi, x, result[name])
    return result


def compare(case: Case, arrays, actual, **more) -> None:
    """Results of gated attention by name are within the bound of the oracle's."""
    expected, sizes = oracle(case, arrays, **more), magnitude(case, arrays, **more)
    dtype = arrays["q"].dtype
    info = np.finfo(dtype)
    unit, largest = float(info.eps) / 2, max(x.max(initial=0) for x in sizes.values())
    assert actual.keys() == expected.keys()
    for name, x in actual.items():
        y = expected[name]
        assert x.shape == y.shape, f"{case}: {name} has shape {x.shape}, not {y.shape}"
        assert x.dtype == dtype, f"{case}: {name} has dtype {x.dtype}"
        count = ROUNDINGS.get(name, ROUNDINGS["gradients"])
        if linattn.get_isa() in WITHOUT_FMA:  # a product is rounded before it is added
            count *= 2
        allowed = count * unit * (sizes[name] + unit * largest) + 1e8 * float(info.tiny)
        ratio = excess(x, y, allowed)
        assert ratio <= 1, f"{case}: {name} is off by {ratio:.3g} times what is allowed"


def compare_rules(actual, expected, count=RULE_ROUNDINGS) -> None:
    """Results by name; forward and backward each within roundings of their largest entry."""
    assert actual.keys() == expected.keys()
    for names in ({"o", "s"}, expected.keys() - {"o", "s"}):
        some = {name: expected[name] for name in expected if name in names}
        if not some:
            continue
        atol = roundings(count, *some.values())
        for name, y in some.items():
            close(actual[name], y, atol=atol)


def same(actual, expected, message="") -> None:
    """Assert that the arrays are equal to the bit."""
    assert actual.keys() == expected.keys()
    for name, x in actual.items():
        np.testing.assert_array_equal(x, expected[name], err_msg=f"{name} {message}")
