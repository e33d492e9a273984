"""Every variant of every recurrence, with its operands and calls by name.

Keys and erase keys have norm 1 at most and strengths are at most 1, so that no memory grows:
results may differ by some roundings of the largest number (`allowed`).
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np
import operands
from bounds import roundings
from gated_calls import GATES
from operands import STEPS, dims, kinds, tokens, twin
from states import flat

import linattn
from linattn._operator import RECURRENCES

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


def _options(name: str, more: str) -> list[dict]:
    if RECURRENCES[name].normalizer:
        variants = [("elu", True), ("identity", False), ("l2norm", False)]
        return [{"feature_map": phi, "normalize": x, "scale": 0.5} for phi, x in variants]
    if name == "delta":
        return [{"feature_map": "l2norm" if more else "identity", "scale": 0.5}]
    return [{"scale": 0.5}]


RULES = [
    Rule(name, dims(name, more), options, twin(name))
    for name in STEPS
    for more in kinds(name)
    for options in _options(name, more)
]


def make(rule, n, d, m, *, seed=0, dtype="float64", gates="weak", lead=()) -> dict[str, np.ndarray]:
    """The operands by name, and grad_out."""
    rng = np.random.default_rng([seed, n, d, m])
    sizes = {"n": n, "d": d, "m": m}
    arrays = operands.make(rule.letters, sizes, rng, lead=lead, gates=GATES[gates])
    arrays["grad_out"] = rng.standard_normal((*lead, n, m))
    return {name: x.astype(dtype) for name, x in arrays.items()}


def part(rule, arrays, begin, end) -> dict[str, np.ndarray]:
    """The operands of tokens [begin, end)."""
    return {
        name: tokens(rule.letters.get(name, "nm"), x, slice(begin, end))
        for name, x in arrays.items()
    }


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
    now = {name: tokens(letters, arrays[name], t) for name, letters in rule.letters.items()}
    return getattr(linattn, STEPS[rule.name])(**now, state=state, **rule.options)


def allowed(*results, sides=2) -> float:
    """The allowed difference of results that may each be off by `ROUNDINGS`."""
    return roundings(sides * ROUNDINGS, *flat(list(results)))
