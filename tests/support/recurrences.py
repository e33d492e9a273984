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
from linattn._call.recurrence import RECURRENCES
from linattn._cli.selftest import OPERATORS
from linattn._core.layout import Operand
from linattn._linattn import operators

#: A side of a comparison may be off by so many u of the largest entry of it (`bounds`).
ROUNDINGS = 32


class Rule(NamedTuple):
    """A recurrence; letters are the axes of its operands: n tokens, d key and m value channels."""

    name: str
    letters: dict[str, str]
    options: dict
    twin: ModuleType
    state: str  #: the axes of a state

    def __str__(self) -> str:
        own = [f"{x}({y})" for x, y in self.letters.items() if x not in ("q", "k", "v")]
        return "-".join([self.name, *own, *map(str, self.options.values())])


#: The recurrences that have states, in the order of their kernels; those under a log scale have
#: tests of their own.
SCANS = [
    r
    for x in operators
    if (r := RECURRENCES.get(x)) is not None and not (r.cross or r.one_array) and r.decay is None
]
#: Options that recurrences with maps are called with; none for the others.
OPTIONS = {
    "causal": [
        {"feature_map": phi, "normalize": normalize}
        for phi, normalize in (("elu", True), ("identity", False), ("l2norm", False))
    ],
    "delta": [{"feature_map": "identity"}, {"feature_map": "l2norm"}],
    "linear_scan": [{}, {"log": True}, {"reverse": True}],
    "selective_scan": [{"softplus": True}, {}],
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
            scale = {"scale": 0.5} if r.scaled else {}
            given = options[i % len(options)] | scale
            rules.append(Rule(r.name, letters, given, twin, r.layout.state))
    return rules


def _kinds(x: Operand) -> list[str]:
    """The axes that an operand may have, none where it is left out."""
    return [*([""] if x.optional else []), x.dims, *([x.dims + x.channels] if x.channels else [])]


RULES = _rules()
#: Those of queries, keys and values; the others scan channels, each by itself.
ATTENTION = [rule for rule in RULES if "v" in rule.letters]


def core(rule, d, m) -> tuple[int, ...]:
    """The shape of a state, whose rows are d wide."""
    return tuple({"d": d, "m": m, "f": d}[x] for x in rule.state)


def make(rule, n, d, m, *, seed=0, dtype="float64", gates="weak", lead=()) -> dict[str, np.ndarray]:
    """The operands by name, and grad_out."""
    rng = np.random.default_rng([seed, n, d, m])
    size = {"n": n, "d": d, "m": m, "f": d}
    arrays = {}
    for name, letters in rule.letters.items():
        shape = (*lead, *(size[x] for x in letters))
        if "v" not in rule.letters:
            arrays[name] = _of_scan(rule, name, shape, rng)
        elif name in ("k", "erase", "a"):
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


def _of_scan(rule, name, shape, rng) -> np.ndarray:
    """Factors of 1 at most."""
    if name in ("a", "A"):
        decay = -np.exp(rng.standard_normal(shape))
        return decay if name == "A" or rule.options.get("log") else np.sin(decay)
    if name in ("dt", "dt_bias"):
        return 0.2 * rng.random(shape)
    return rng.standard_normal(shape)


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
    name, options = step_of(rule)
    return getattr(linattn, name)(**now, state=state, **options)


def step_of(rule) -> tuple[str, dict]:
    """The name and the options of the step."""
    r = RECURRENCES[rule.name]
    lacking = {*r.flags["forward"]} - {*r.flags["step"]}
    return r.names["step"], {x: y for x, y in rule.options.items() if x not in lacking}


def allowed(*results, sides=2) -> float:
    """What results may differ by, each of them off by `ROUNDINGS`."""
    return roundings(sides * ROUNDINGS, *flat(list(results)))
