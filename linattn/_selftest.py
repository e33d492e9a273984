"""``python -m linattn selftest``: every operator against its float64 twin, on this machine."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy as np

import linattn
from linattn import _config, _reference

MAPS = ("identity", "relu", "elu", "softplus", "exp")
OPERATORS = ("causal", "noncausal", "causal_backward", "noncausal_backward")

#: Largest error allowed, relative to the largest entry of the twin's answer (of all gradients
#: together, as one alone may be a difference of nothing). Shapes here are short, so a wrong tile or
#: a wrong sign is far outside and rounding well inside.
TOLERANCE = {"float32": 1e-4, "float64": 1e-12}

#: (heads, n, d, m): below, at and past a vector, a tile and a chunk.
SHAPES = ((2, 1, 1, 1), (2, 67, 5, 3), (1, 130, 64, 64), (2, 33, 65, 70))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="print every check")


def run(args: argparse.Namespace) -> int:
    """Print one line per operator and instruction set; 1 if any check failed."""
    failures = 0
    usual = _config.get_isa()
    try:
        for isa, operator in itertools.product(_config.available_isas(), OPERATORS):
            linattn.set_isa(isa)
            checks = list(_checks(operator))
            failed = [(name, error) for name, error, passed in checks if not passed]
            failures += len(failed)
            worst = max(error for _, error, _ in checks)
            verdict = f"{len(failed)} FAILED" if failed else "ok"
            print(f"{isa:12} {operator:20} {len(checks):3} checks, worst {worst:.1e}  {verdict}")
            for name, error in [c[:2] for c in checks] if args.verbose else failed:
                print(f"    {name}: {error:.1e}")
    finally:
        linattn.set_isa(usual)
    print("selftest failed" if failures else "selftest passed")
    return 1 if failures else 0


def _checks(operator: str) -> Iterator[tuple[str, float, bool]]:
    """(what was checked, error relative to the largest entry, whether it passed)."""
    rng = np.random.default_rng(0)
    for (heads, n, d, m), dtype in itertools.product(SHAPES, TOLERANCE):
        sizes = [(n, d), (n, d), (n, m), (n, m)]
        arrays = [rng.standard_normal((heads, *size)).astype(dtype) for size in sizes]
        operands = arrays if operator.endswith("backward") else arrays[:3]
        for feature_map, normalize in itertools.product(MAPS, (True, False)):
            # The signed weights of the identity can sum to nothing: no bound holds there.
            if feature_map == "identity" and normalize:
                continue
            options = {"feature_map": feature_map, "normalize": normalize}
            got = getattr(linattn, operator)(*operands, **options)
            want = getattr(_reference, operator)(*operands, **options)
            error = _error(_tuple(got), _tuple(want))
            name = f"{dtype} {(heads, n, d, m)} {feature_map} normalize={normalize}"
            yield name, error, error <= TOLERANCE[dtype]


def _tuple(result: np.ndarray | tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return result if isinstance(result, tuple) else (result,)


def _error(got: tuple[np.ndarray, ...], want: tuple[np.ndarray, ...]) -> float:
    pairs = list(zip(got, want, strict=True))
    if any(g.shape != w.shape or not np.isfinite(g).all() for g, w in pairs):
        return float("inf")
    largest = max(float(np.abs(w).max()) for w in want)
    return max(float(np.abs(g - w).max()) for g, w in pairs) / (largest or 1.0)
