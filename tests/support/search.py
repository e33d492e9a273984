"""Operands whose results come close to a bound of errors for all operands: what a search tries.

What rounds most is alike: terms of one size, whose sums round the same way again and again.  So
operands are constants of all mantissas with signs that change in turn, noise of all sizes, and
first tokens that are larger than all others, and the search changes one of these at a time where
that makes the error larger.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from bounds import WORST, evaluate, links, softmax_units, worst
from cases import Case
from states import flat
from table import Case as TableCase

import linattn
from linattn import reference
from linattn.reference import softmax as ref_softmax

LONG = 32768
FRICTION = 0.05


class Arithmetic(NamedTuple):
    """What operands are, what products are computed in, and how much a factor is rounded."""

    dtype: Any = np.dtype("f4")
    products: str = "float32"
    u: float = 2.0**-24

    def call(self, function: Callable, *args, **options):
        with linattn.products(self.products):
            return flat(function(*args, **options))

    def ratios(self, results, exact, sizes) -> float:
        """The largest error over u times its size, beyond the rounding of 16-bit results."""
        tiny, most = float(np.finfo("f4").tiny), 0.0
        for x, y, m in zip(results, exact, sizes, strict=False):
            wide = x.astype("f8")
            rounding = self.u * abs(wide) if x.dtype.itemsize == 2 else 0
            most = max(
                most, float(((abs(wide - y) - rounding) / (self.u * m + tiny)).max(initial=0))
            )
        return most


FLOATS = Arithmetic()


class Shape(NamedTuple):
    """Of an operand (n, width): where its numbers lie, and how they differ."""

    constant: float
    period: int  # of the sign, in tokens; 0: all positive
    noise: float  # relative to the constant
    first: int  # the first 16 tokens are 2^first times as large


CHOICES = {
    "constant": lambda rng: float(rng.uniform(1, 2)),
    "period": lambda rng: int(rng.choice([0, 0, 0, 2, 3, 5, 20, 64])),
    "noise": lambda rng: float(rng.choice([0, 0, 2.0**-20, 2.0**-10, 0.1, 0.5])),
    "first": lambda rng: int(rng.choice([0, 0, 0, 3, 8])),
}


def drawn(rng) -> Shape:
    return Shape(**{name: choose(rng) for name, choose in CHOICES.items()})


def changed(rng, shapes: dict[str, Shape]) -> dict[str, Shape]:
    """One property of one operand anew."""
    which, name = rng.choice([*shapes]), rng.choice([*CHOICES])
    return shapes | {which: shapes[which]._replace(**{name: CHOICES[name](rng)})}


def numbers(shape: Shape, n: int, width: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).uniform(1, 1 + shape.noise, (n, width)) * shape.constant
    x[:16] *= 2.0**shape.first
    if shape.period:
        x[shape.period - 1 :: shape.period] *= -1
    return x


class Target(NamedTuple):
    """`errors(operands)`: errors by result, each over u M; and the bound of that."""

    operands: tuple[str, ...]
    errors: Callable
    bound: float
    width: int = 16


def linear(name: str, d: int, by: Arithmetic = FLOATS, **options) -> Target:
    case = Case(name, 0, d, d, **options)

    def errors(arrays):
        operands = [x.astype(by.dtype) for x in arrays.values()]
        results = by.call(getattr(linattn, name), *operands, **case.options)
        exact = evaluate(case, operands, np.float64)
        sizes = evaluate(case, operands, np.float64, magnitude=True)
        return by.ratios(results, exact, sizes)

    return Target(_letters(case.backward), errors, worst(case), d)


def recurrence(rule: TableCase, d: int, backward: bool, by: Arithmetic = FLOATS) -> Target:
    gated = rule.name in ("gated", "ssd")
    if rule.name == "delta":  # the gradient through l2norm is a difference
        rule = rule.having(feature_map="identity")
    gates = [x for x in ("g", "mu") if x in rule.letters]
    names = [x for x in rule.letters if x not in ("g", "mu", "bonus")]

    def errors(arrays):
        n = len(arrays["v"])
        given = {x: arrays[x] for x in (*names, "grad_out") if x in arrays}
        for x in {"k", "a", "erase"} & {*given} if not gated else ():
            given[x] = given[x] / np.linalg.norm(given[x], axis=-1, keepdims=True)
        if "b" in given:
            given["b"] = -given["a"] * abs(given["b"][:, :1]) / abs(given["b"]).max()
        if "p" in given:
            given["p"] = given["k"] * abs(given["p"][:, :1]) / abs(given["p"]).max()
        for x in {"beta", "eta"} & {*given}:
            strength = abs(given[x]) / max(abs(given[x]).max(), 1)
            given[x] = strength if rule.letters[x] == "nm" else strength[:, 0]
        for x in {"strength", "D"} & {*given}:
            given[x] = given[x][:, 0] if x == "strength" else given[x][0]
        for x in gates:
            gate = abs(arrays[x]) - abs(arrays[x]).min()
            given[x] = -0.1 * (gate if rule.letters[x] == "nd" else gate[:, 0])
            given[x] -= FRICTION * (x == "mu")  # a momentum without friction swings for ever
        if (
            "mu" in gates
        ):  # so that the next keys damp what some have pushed, and do not swing it up
            given["eta"] *= -np.expm1(-FRICTION)
        given = {
            x: given[x].astype("f4" if x in gates else by.dtype)
            for x in (*rule.letters, "grad_out") if x in given
        }  # fmt: skip
        call = rule.backward if backward else rule.forward
        wide = {x: y.astype(float) for x, y in given.items()}
        module = reference if n < 1000 else linattn  # in double precision, which is faster
        results, exact = by.call(call, given), flat(call(wide, module))
        if gated:
            sizes = {x: y / 2 if x == "g" else abs(y) for x, y in wide.items()}
            return by.ratios(results, exact, flat(call(sizes, module)))
        most = max(float(abs(x).max()) for x in exact)
        if rule.name == "momentum_delta":  # rounds its two states at each token
            most *= 1 + 2 * n / bound
        return by.ratios(results, exact, [np.full(np.shape(x), most) for x in exact])

    kind = "gated" if gated else "delta backward" if backward else "delta"
    bound = WORST[kind] * links(d)
    operands = *names, *gates
    return Target((*operands, "grad_out") if backward else operands, errors, bound, d)


def softmax(name: str) -> Target:
    backward = name.endswith("backward")

    def errors(arrays):
        rows = slice(0, 16)
        for_queries = {"q", "grad_out"}
        operands = [x[rows] if y in for_queries else x for y, x in arrays.items()]
        operands = [x.astype("f4") for x in operands]
        exact = flat(getattr(ref_softmax, name)(*(x.astype(float) for x in operands)))
        sizes = softmax_units(operands, False, None, any_operands=True)
        return FLOATS.ratios(flat(getattr(linattn, name)(*operands)), exact, sizes)

    return Target(_letters(backward), errors, 1)


def _letters(backward: bool) -> tuple[str, ...]:
    return ("q", "k", "v", "grad_out") if backward else ("q", "k", "v")


def search(target: Target, n: int, tries: int, seed: int = 0):
    """The largest error over its bound that so many tries find, and for which operands."""
    rng = np.random.default_rng(seed)
    most, best = 0.0, {}
    for i in range(tries):
        fresh = not best or i % 8 == 0
        names = {*target.operands}
        shapes = {x: drawn(rng) for x in sorted(names)} if fresh else changed(rng, best)
        arrays = {x: numbers(shapes[x], n, target.width, j) for j, x in enumerate(target.operands)}
        share = target.errors(arrays) / target.bound
        if share > most:
            most, best = share, shapes
    return most, best


def check(target: Target, record_property: Callable, n: int, tries: int, seed: int = 0) -> None:
    """A few tries, of which the first is the same for all targets."""
    most, shapes = search(target, n, tries, seed)
    record_property("share", most)
    assert most <= 1, f"{most:.3g} times the bound, by {shapes}"


def check_longer(target: Target, record_property: Callable) -> None:
    """As many tries as LINATTN_TRIES says."""
    for n in (300, 3000):
        check(target, record_property, n, int(os.environ.get("LINATTN_TRIES", "30")), seed=n)
