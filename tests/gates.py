"""Cases of gated linear attention: operands, gates of every kind, the twin, and the error bound.

Every result is a sum of products, so that the twin on absolute values tells how large its terms
are together.  A result may be off by `ROUNDINGS` u of that: half as much again as causal's, for the
decays are rounded too.  Where gates sum to some tens that sum itself is rounded by more than u of
what they leave: there a result may be off by as many u of u times the largest entry of all.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
from bounds import excess
from map_bounds import spread

import linattn
from linattn import State
from linattn import _reference_gated as ref
from linattn import _reference_maps as maps

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


def _weak(rng, shape):
    return -0.1 * rng.exponential(size=shape)


def _strong(rng, shape):
    return -5 * rng.exponential(size=shape)


def _growing(rng, shape):
    """Up and down: the memory stays within e^3 or so of its size."""
    return rng.uniform(-0.3, 0.28, shape)


def _resets(rng, shape):
    """A little of everything: nothing kept, next to nothing, runs of -60, all kept."""
    g = _weak(rng, shape)
    for value, share in ((-np.inf, 0.05), (-1e30, 0.05), (-60, 0.3), (0, 0.1), (-300, 0.05)):
        g[rng.random(shape) < share] = value
    return g


GATES = {"weak": _weak, "strong": _strong, "growing": _growing, "resets": _resets}


def make(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """The operands by name, the same ones every time; `bonus` only where the case has one."""
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


def states(case: Case, r: tuple[int, ...] = (), seed: int = 0) -> tuple[State, State]:
    """An initial state, and the gradient of the final one."""
    rng = np.random.default_rng([seed, 5, case.d, case.m])
    shape = (2, *case.lead, *r, case.d, case.m)
    first, last = rng.standard_normal(shape).astype(case.dtype)
    return State(first), State(last)


def options(case: Case) -> dict:
    return {"scale": case.scale, "feature_map": case.feature_map}


def forward(module, case: Case, arrays, **more) -> dict[str, np.ndarray]:
    """Output and final state, by name."""
    given = {name: x for name, x in arrays.items() if name != "grad_out"}
    with np.errstate(all="ignore"):
        o, state = module.gated(**given, **{**options(case), **more}, return_state=True)
    return {"o": o, "s": state.s}


def backward(module, case: Case, arrays, **more) -> dict[str, np.ndarray]:
    """Gradients by name."""
    with np.errstate(all="ignore"):
        grads = module.gated_backward(**arrays, **{**options(case), **more})
    names = ["dq", "dk", "dv", "dg", *(["dbonus"] if "bonus" in arrays else [])]
    if len(grads) > len(names):
        grads = (*grads[:-1], grads[-1].s)
        names.append("ds")
    return dict(zip(names, grads, strict=True))


def both(module, case: Case, arrays, grad_state=None, **more) -> dict[str, np.ndarray]:
    more_backward = more if grad_state is None else {**more, "grad_state": grad_state}
    return {
        **forward(module, case, arrays, **more), **backward(module, case, arrays, **more_backward),
    }  # fmt: skip


def _wide(x, dtype):
    if isinstance(x, State):
        return State(x.s.astype(dtype), None)
    return x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def oracle(case: Case, arrays, **more) -> dict[str, np.ndarray]:
    """The twin in a wider type: float64 for float32, long double for float64."""
    wide = np.longdouble if case.dtype == "float64" else np.float64
    arrays, more = ({key: _wide(x, wide) for key, x in all.items()} for all in (arrays, more))
    return both(ref, case, arrays, **more)


def magnitude(case: Case, arrays, **more) -> dict[str, np.ndarray]:
    """The same with every term positive."""
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
    """Output, state and gradients on `module` against the oracle; the share of the bound taken."""
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


__all__ = ["KINDS", "Case", "State", "both", "check", "linattn", "make", "states"]
