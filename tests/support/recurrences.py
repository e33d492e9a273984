"""Every recurrence, in all its kinds, as one table: operands by name, and calls by name.

Keys and erase keys have norm 1 at most behind their map, and strengths are at most 1, so that no
memory grows: results may be off by some roundings of the largest number (`allowed`).
"""

from __future__ import annotations

import sys
from itertools import product
from types import ModuleType
from typing import NamedTuple

import numpy as np
from bounds import roundings
from gated_calls import GATES
from states import flat

import linattn
from linattn._layout import Operand
from linattn._linattn import operators
from linattn._operator import RECURRENCES
from linattn._selftest import OPERATORS

#: A side of a comparison may be off by so many u of the largest entry of it (`bounds`).
ROUNDINGS = 32


class Rule(NamedTuple):
    """A recurrence; letters are the axes of its operands: n tokens, d key and m value channels."""

    name: str
    letters: dict[str, str]
    options: dict
    twin: ModuleType

    def __str__(self) -> str:
        own = [f"{x}({y})" for x, y in self.letters.items() if x not in "qkv"]
        return "-".join([self.name, *own, *map(str, self.options.values())])


#: The recurrences that have states, in the order of their kernels.
SCANS = [RECURRENCES[x] for x in operators if x in RECURRENCES and not RECURRENCES[x].cross]
#: Options that recurrences with maps are called with; none for the others.
OPTIONS = {
    "causal": [
        {"feature_map": phi, "normalize": normalize}
        for phi, normalize in (("elu", True), ("identity", False), ("l2norm", False))
    ],
    "delta": [{"feature_map": "identity"}, {"feature_map": "l2norm"}],
}


def _rules() -> list[Rule]:
    """Every recurrence of the registry: each way to give its operands, each of its options."""
    rules = []
    for r in SCANS:
        twin = sys.modules[OPERATORS[r.name].__module__]
        ways, options = [*product(*map(_kinds, r.operands))], OPTIONS.get(r.name, [{}])
        for i in range(max(len(ways), len(options))):
            kinds = zip(r.operands, ways[i % len(ways)], strict=True)
            letters = {x.name: dims for x, dims in kinds if dims}
            rules.append(Rule(r.name, letters, options[i % len(options)] | {"scale": 0.5}, twin))
    return rules


def _kinds(x: Operand) -> list[str]:
    """The axes that an operand may have, none where it is left out."""
    return [*([""] if x.optional else []), x.dims, *([x.dims + x.channels] if x.channels else [])]


RULES = _rules()


def make(rule, n, d, m, *, seed=0, dtype="float64", gates="weak", lead=()) -> dict[str, np.ndarray]:
    """The operands by name, and grad_out."""
    rng = np.random.default_rng([seed, n, d, m])
    size = {"n": n, "d": d, "m": m}
    arrays = {}
    for name, letters in rule.letters.items():
        shape = (*lead, *(size[x] for x in letters))
        if name in ("k", "erase", "a"):
            x = rng.standard_normal(shape)
            arrays[name] = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1)
        elif name == "b":
            arrays[name] = -arrays["a"] * rng.random(shape[:-1])[..., None]
        elif name == "beta":
            arrays[name] = rng.random(shape)
        elif name == "g":
            arrays[name] = GATES[gates](rng, shape)
        else:
            arrays[name] = rng.standard_normal(shape)
    arrays["grad_out"] = rng.standard_normal((*lead, n, m))
    return {name: x.astype(dtype) for name, x in arrays.items()}


def part(rule, arrays, begin, end) -> dict[str, np.ndarray]:
    """The operands of tokens [begin, end)."""
    cut = {}
    for name, x in arrays.items():
        letters = rule.letters.get(name, "nm")
        rows = (slice(begin, end), *(slice(None) for _ in letters[1:]))
        cut[name] = x[(..., *rows)] if letters[0] == "n" else x
    return cut


def forward(module, rule, arrays, **more):
    """(o, state)"""
    given = {name: x for name, x in arrays.items() if name != "grad_out"}
    with np.errstate(all="ignore"):
        return getattr(module, rule.name)(**given, **rule.options, **more, return_state=True)


def backward(module, rule, arrays, **more):
    """Gradients in the order of the operands, then that of the initial state."""
    with np.errstate(all="ignore"):
        return getattr(module, f"{rule.name}_backward")(**arrays, **rule.options, **more)


def step(rule, arrays, t, state):
    """Token t."""
    now = {
        name: x if rule.letters[name][0] != "n" else x[..., t, :] if len(rule.letters[name]) > 1
        else x[..., t]
        for name, x in arrays.items() if name != "grad_out"
    }  # fmt: skip
    name = "step" if rule.name == "causal" else f"{rule.name}_step"
    return getattr(linattn, name)(**now, state=state, **rule.options)


def allowed(*results, sides=2) -> float:
    """What results may differ by, each of them off by `ROUNDINGS`."""
    return roundings(sides * ROUNDINGS, *flat(list(results)))
