"""Every recurrence, in all its kinds, as one table: operands by name, and calls by name.

Keys and erase keys have norm 1 at most behind their map, and strengths are at most 1, so that no
memory grows: results may be off by some roundings of the largest number (`allowed`).
"""

from __future__ import annotations

from itertools import product
from types import ModuleType
from typing import NamedTuple

import numpy as np
from bounds import roundings
from gated_calls import GATES
from states import flat

import linattn
from linattn import _reference as ref
from linattn import _reference_delta as ref_delta
from linattn import _reference_gated as ref_gated
from linattn import _reference_gated_delta as ref_gated_delta

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


def _rules() -> list[Rule]:
    qkv, gate, strength = {"q": "nd", "k": "nd", "v": "nm"}, ("n", "nd"), ("n", "nm")
    rules = [
        Rule("causal", qkv, {"feature_map": phi, "normalize": normalize, "scale": 0.5}, ref)
        for phi, normalize in (("elu", True), ("identity", False), ("l2norm", False))
    ]
    rules += [
        Rule("delta", qkv | {"beta": x}, {"feature_map": phi, "scale": 0.5}, ref_delta)
        for x, phi in (("n", "identity"), ("nm", "l2norm"))
    ]
    for g, bonus in product(gate, ({}, {"bonus": "d"})):
        rules.append(Rule("gated", qkv | {"g": g} | bonus, {"scale": 0.5}, ref_gated))
    for g, beta, erase in product(gate, strength, ({}, {"erase": "nd"})):
        letters = qkv | {"g": g, "beta": beta} | erase
        rules.append(Rule("gated_delta", letters, {"scale": 0.5}, ref_gated_delta))
    for g in gate:
        letters = qkv | {"a": "nd", "b": "nd", "g": g}
        rules.append(Rule("dplr", letters, {"scale": 0.5}, ref_gated_delta))
    return rules


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
