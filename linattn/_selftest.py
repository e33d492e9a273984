"""``linattn selftest``: every operator against its float64 twin, on this machine."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import linattn
from linattn import (
    State,
    _config,
    _reference,
    _reference_conv,
    _reference_delta,
    _reference_gated,
    _reference_gated_delta,
    _reference_softmax,
)
from linattn._linattn import maps
from linattn._operator import MAPS
from linattn._progress import Bar

#: By operator, the module of its twin.
OPERATORS = {
    name: twins
    for stem, twins in (
        ("causal", _reference),
        ("noncausal", _reference),
        ("delta", _reference_delta),
        ("gated", _reference_gated),
        ("gated_delta", _reference_gated_delta),
        ("dplr", _reference_gated_delta),
        ("causal_conv1d", _reference_conv),
        ("log_decay", _reference_conv),
        ("softmax_attention", _reference_softmax),
        ("linformer", _reference_softmax),
    )
    for name in (stem, f"{stem}_backward", "step" if stem == "causal" else f"{stem}_step")
    if hasattr(linattn, name)
}

#: Largest error allowed, relative to the largest entry of the twin's answer (of all gradients
#: together, as one alone may be a difference of nothing). Shapes here are short, so a wrong tile or
#: a wrong sign is far outside and rounding well inside.
TOLERANCE = {"float32": 1e-4, "float64": 1e-12}

#: Maps of either sign, whose weights can sum to nothing: no bound holds where they are normalised.
SIGNED = tuple(name for name, row in maps.items() if row["signed"])

#: (heads, n, d, m): below, at and past a vector, a tile and a chunk.
SHAPES = ((2, 1, 1, 1), (2, 67, 5, 3), (1, 130, 64, 64), (2, 33, 65, 70))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="print every check")


def run(args: argparse.Namespace) -> int:
    """Print one line per operator and instruction set; 1 if any check failed."""
    failures = 0
    usual, isas = _config.get_isa(), _config.available_isas()
    bar = Bar(sys.stderr, len(isas) * len(OPERATORS))
    try:
        for isa, operator in itertools.product(isas, OPERATORS):
            linattn.set_isa(isa)
            bar.step(f"{isa}: {operator}")
            checks = list(_checks(operator))
            failed = [(name, error) for name, error, passed in checks if not passed]
            failures += len(failed)
            worst = max(error for _, error, _ in checks)
            bar.clear()
            verdict = f"{len(failed)} FAILED" if failed else "ok"
            print(f"{isa:12} {operator:26} {len(checks):3} checks, worst {worst:.1e}  {verdict}")
            for name, error in [c[:2] for c in checks] if args.verbose else failed:
                print(f"    {name}: {error:.1e}")
    finally:
        bar.clear()
        linattn.set_isa(usual)
    print("selftest failed" if failures else "selftest passed")
    return 1 if failures else 0


def _checks(operator: str) -> Iterator[tuple[str, float, bool]]:
    """(what was checked, error relative to the largest entry, whether it passed)."""
    rng = np.random.default_rng(0)
    for shape, dtype in itertools.product(SHAPES, TOLERANCE):
        operands = [x.astype(dtype) for x in _operands(operator, shape, rng)]
        for options in _options(operator):
            given: list[Any] = operands
            if operator.endswith("step") and "conv1d" not in operator:
                *token, s, z = operands
                given = [*token, State(s, z if options.get("normalize") else None)]
            got = getattr(linattn, operator)(*given, **options)
            want = getattr(OPERATORS[operator], operator)(*given, **options)
            error = _error(_flat(got), _flat(want))
            name = " ".join([dtype, str(shape), *(f"{k}={v}" for k, v in options.items())])
            yield name, error, error <= TOLERANCE[dtype]


def _operands(operator: str, shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    """All arrays; those of a step are of the first token, and a state s, z follows them."""
    heads, n, d, m = shape
    stem, _, last = operator.rpartition("_")
    stem = {"step": stem or "causal", "backward": stem}.get(last, operator)
    q, k, v, grad_out = (rng.standard_normal((heads, n, width)) for width in (d, d, m, m))
    # Longer keys let the memory of delta rules grow.
    unit = k / np.linalg.norm(k, axis=-1, keepdims=True)
    gate, strength = -rng.random((heads, n)), rng.random((heads, n))
    weight, bias, rate = rng.standard_normal((m, 4)), *rng.standard_normal((2, m))
    operands = {
        "causal_conv1d": [v, weight],
        "log_decay": [v, rate, bias],
        "delta": [q, unit, v, strength],
        "gated": [q, k, v, gate],
        "gated_delta": [q, unit, v, gate, strength],
        "dplr": [q, k, v, -unit, unit * strength[..., None], gate],
        "linformer": [q, k, v, *(rng.standard_normal((2, n, 5)) / n)],
    }.get(stem, [q, k, v])
    if last == "step":
        token = [x if x is weight else x[:, 0] for x in operands]
        if stem == "causal_conv1d":
            return [*token, rng.standard_normal((heads, m, 3))]
        return [*token, rng.standard_normal((heads, d, m)), rng.random((heads, d))]
    return [*operands, grad_out] if last == "backward" else operands


def _options(operator: str) -> Iterator[dict[str, Any]]:
    if "conv1d" in operator:
        yield from ({"activation": None}, {"activation": "silu"})
    elif operator.startswith("log_decay"):
        yield from ({"lower_bound": None}, {"lower_bound": -5.0})
    elif operator.startswith(("causal", "noncausal")) or operator == "step":
        for feature_map, normalize in itertools.product(MAPS, (True, False)):
            if feature_map not in SIGNED or not normalize:
                yield {"feature_map": feature_map, "normalize": normalize}
    elif operator.startswith("softmax"):
        yield from ({"causal": True}, {"causal": False})
    else:
        yield {}


def _flat(result: Any) -> tuple[np.ndarray, ...]:
    """The arrays of a result, those of a state among them."""
    if isinstance(result, tuple):
        return tuple(x for part in result for x in _flat(part))
    return () if result is None else (result,)


def _error(got: tuple[np.ndarray, ...], want: tuple[np.ndarray, ...]) -> float:
    pairs = list(zip(got, want, strict=True))
    if any(g.shape != w.shape or not np.isfinite(g).all() for g, w in pairs):
        return float("inf")
    largest = max(float(np.abs(w).max()) for w in want)
    return max(float(np.abs(g - w).max()) for g, w in pairs) / (largest or 1.0)
