"""``linattn selftest``: every operator against its float64 twin, on this machine."""

from __future__ import annotations

import argparse
import importlib
import itertools
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import linattn
from linattn import State, _config
from linattn._linattn import maps
from linattn._operator import RECURRENCES, Recurrence
from linattn._progress import Bar

#: The recurrence of a function and its method.
METHODS = {name: (r, method) for r in RECURRENCES.values() for method, name in r.names.items()}
_OTHERS = ("causal_conv1d", "log_decay", "softmax_attention", "linformer")


def _twins() -> dict[str, Any]:
    """The NumPy twin of every operator, by its name: a function of a module `_reference*`."""
    functions: dict[str, Any] = {}
    for module in pkgutil.iter_modules(linattn.__path__):
        if module.name.startswith("_reference"):
            functions |= vars(importlib.import_module(f"linattn.{module.name}"))
    names = [*METHODS, *(x + end for x in _OTHERS for end in ("", "_backward", "_step"))]
    return {name: functions[name] for name in names if hasattr(linattn, name)}


OPERATORS = _twins()

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
            if METHODS.get(operator, ("", ""))[1] == "step":
                *token, s, z = operands
                given = [*token, State(s, z if options.get("normalize") else None)]
            got = getattr(linattn, operator)(*given, **options)
            want = OPERATORS[operator](*given, **options)
            error = _error(_flat(got), _flat(want))
            name = " ".join([dtype, str(shape), *(f"{k}={v}" for k, v in options.items())])
            yield name, error, error <= TOLERANCE[dtype]


def _operands(operator: str, shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    """All arrays; those of a step are of the first token, and a state s, z follows them."""
    heads, n, d, m = shape
    if operator in METHODS:
        return _of_recurrence(
            *METHODS[operator], heads, {"n": n, "s": n, "d": d, "m": m, "f": d}, rng
        )
    stem, _, last = operator.rpartition("_")
    x, grad_out = rng.standard_normal((2, heads, n, m))
    if operator == "causal_conv1d_step":
        return [x[:, 0], rng.standard_normal((m, 4)), rng.standard_normal((heads, m, 3))]
    stem = stem if last == "backward" else operator
    if stem == "causal_conv1d":
        operands = [x, rng.standard_normal((m, 4))]
    elif stem == "log_decay":
        operands = [x, *rng.standard_normal((2, m))]
    else:
        operands = [*rng.standard_normal((2, heads, n, d)), x]
        if stem == "linformer":
            operands += [*(rng.standard_normal((2, n, 5)) / n)]
    return [*operands, grad_out] if last == "backward" else operands


def _of_recurrence(
    r: Recurrence, method: str, heads: int, sizes: dict[str, int], rng: np.random.Generator
) -> list[np.ndarray]:
    """The same of a recurrence.

    Longer keys would let the memory of one that erases grow, as would gates, strengths and factors
    above 1.
    """
    rows = [row for row in r.operands if not row.optional]
    arrays = {}
    for row in rows:
        shape = heads, *(sizes[x] for x in row.dims)
        draw = rng.standard_normal if row in r.operands[: r.layout.leading] else rng.random
        draw = rng.random if row.name in ("a", "dt", "A") else draw
        arrays[row.name] = -draw(shape) if row.name in ("g", "A") else draw(shape)
    if r.transition == "matrix" and "k" in arrays:
        arrays["k"] /= np.linalg.norm(arrays["k"], axis=-1, keepdims=True)
        if "a" in arrays:
            arrays |= {"a": -arrays["k"], "b": arrays["k"] * rng.random((heads, sizes["n"], 1))}
    if method == "step":
        s, z = (rng.random((heads, *(sizes[x] for x in y))) for y in (r.layout.state, "d"))
        return [*(x[:, 0] if "n" in row.dims else x
                  for row, x in zip(rows, arrays.values(), strict=True)), s, z]  # fmt: skip
    if method == "forward":
        return [*arrays.values()]
    output = heads, *(sizes[x] for x in r.layout.output)
    return [*arrays.values(), rng.standard_normal(output)]


def _options(operator: str) -> Iterator[dict[str, Any]]:
    if operator in METHODS:
        if not METHODS[operator][0].normalizer:
            yield {}
            return
        for (feature_map, row), normalize in itertools.product(maps.items(), (True, False)):
            if not (row["signed"] and normalize):  # weights of either sign can sum to nothing
                yield {"feature_map": feature_map, "normalize": normalize}
    elif "conv1d" in operator:
        yield from ({"activation": None}, {"activation": "silu"})
    elif operator.startswith("log_decay"):
        yield from ({"lower_bound": None}, {"lower_bound": -5.0})
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
