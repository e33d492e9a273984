"""``linattn selftest``: every operator against its float64 twin on this machine."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import linattn
from linattn import State, reference
from linattn._call.recurrence import Recurrence
from linattn._cli.progress import Bar
from linattn._core import settings
from linattn._linattn import maps
from linattn.operators.registry import RECURRENCES

#: The recurrence of a function and its method.
METHODS = {name: (r, method) for r in RECURRENCES.values() for method, name in r.names.items()}
#: By name, the twin of every operator.
OPERATORS = {name: x for name in reference.__all__ if callable(x := getattr(reference, name))}

#: Largest error allowed, relative to the largest entry of the twin's answer (of all gradients
#: together, since a single one may cancel to 0).  Shapes here are small: a wrong tile or sign is
#: far outside the tolerance, rounding well inside.
TOLERANCE = {"float32": 1e-4, "float64": 1e-12}

#: (heads, n, d, m): below, at and past a vector, a tile and a chunk.
SHAPES = ((2, 1, 1, 1), (2, 67, 5, 3), (1, 130, 64, 64), (2, 33, 65, 70))


#: By letter, the sizes that never change: in the layer of a fused step two heads share a key.
FIXED = {"2": 2, "t": 3, "w": 4, "r": 5}
#: The axes of the operands of what is no recurrence.
ARRAYS = {
    "softmax_attention": "hnd hnd hnm",
    "linformer": "hnd hnd hnm nr nr",
    "log_decay": "hnm m m",
    "fused_gated_delta_step": "hc h2 h2",
    "fused_gated_step": "hc h2",
}
#: Of fused steps, by name: those that both take, and each.
LAYER = {"A_log": "2", "dt_bias": "2", "weight": "cw", "bias": "c", "z": "hx"}
NAMED = {
    "fused_gated_delta_step": {"norm_weight": "m"},
    "fused_gated_step": {"norm_weight": "x", "D": "2"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="print every check")


def run(args: argparse.Namespace) -> int:
    """Print one line per instruction set and dtype; 1 if a check failed."""
    failures = 0
    usual, isas = settings.get_isa(), settings.available_isas()
    bar = Bar(sys.stderr, len(isas) * len(TOLERANCE) * len(OPERATORS))
    try:
        for isa, dtype in itertools.product(isas, TOLERANCE):
            linattn.set_isa(isa)
            checks: list[tuple[str, float, bool]] = []
            for operator in OPERATORS:
                bar.step(f"{isa}: {operator}")
                checks += _checks(operator, dtype)
            bar.clear()
            failed = [check for check in checks if not check[2]]
            failures += len(failed)
            worst = max(error for _, error, _ in checks)
            verdict = f"{len(failed)} FAILED" if failed else "ok"
            print(f"{isa:12} {dtype} {len(checks):5} checks, worst error {worst:.1e}  {verdict}")
            for name, error, _ in checks if args.verbose else failed:
                print(f"    {name}: {error:.1e}")
    finally:
        bar.clear()
        linattn.set_isa(usual)
    print("selftest failed" if failures else "selftest passed")
    return 1 if failures else 0


def _checks(operator: str, dtype: str) -> Iterator[tuple[str, float, bool]]:
    """(what was checked, error relative to the largest entry, whether it passed)."""
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        h, n, d, m = shape
        sizes = {"h": h, "n": n, "s": n, "d": d, "m": m, "f": max(d, 2)}
        sizes |= {"c": 2 * (d + m), "x": 2 * m}
        operands, named = _operands(operator, sizes | FIXED, rng)
        operands = [_cast(x, dtype) for x in operands]
        named = {key: _cast(x, dtype) for key, x in named.items()}
        for options in _options(operator):
            given = operands
            if options.get("normalize") is False and isinstance(given[-1], State):
                given = [*given[:-1], given[-1]._replace(z=None)]
            got = getattr(linattn, operator)(*given, **named, **options)
            want = OPERATORS[operator](*given, **named, **options)
            error = _error(_flat(got), _flat(want))
            name = " ".join(
                [operator, dtype, str(shape), *(f"{k}={v}" for k, v in options.items())]
            )
            yield name, error, error <= TOLERANCE[dtype]


def _cast(x: Any, dtype: str) -> Any:
    if isinstance(x, tuple):
        return type(x)(*(_cast(y, dtype) for y in x))
    return None if x is None else x.astype(dtype)


def _operands(
    operator: str, sizes: dict[str, int], rng: np.random.Generator
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """All arrays; for a step those of the first token, followed by a state; those given by name."""

    def draw(letters: str) -> np.ndarray:
        x = rng.standard_normal([sizes[y] for y in letters])
        return x / sizes["n"] if letters[0] == "n" else x  # a matrix over tokens

    if operator in METHODS:
        return _of_recurrence(*METHODS[operator], sizes["h"], sizes, rng), {}
    stem = operator.removesuffix("_backward")
    letters = [*ARRAYS[stem].split(), *(["hnm"] if stem != operator else [])]
    operands: list[Any] = [draw(x) for x in letters]
    if not operator.startswith("fused"):
        return operands, {}
    state = linattn.FusedState(draw("hct"), draw("h2dm"))
    return [*operands, state], {name: draw(x) for name, x in (LAYER | NAMED[operator]).items()}


def _of_recurrence(
    r: Recurrence, method: str, heads: int, sizes: dict[str, int], rng: np.random.Generator
) -> list[Any]:
    """The operands of a recurrence.

    Longer keys, gates above 0, and strengths and factors above 1 would let the memory grow.
    """
    sizes = sizes | dict(r.layout.fixed)
    rows = [row for row in r.operands if not row.optional]
    arrays = {}
    for row in rows:
        shape = heads, *(sizes[x] for x in row.dims)
        draw = rng.standard_normal if row in r.operands[: r.layout.leading] else rng.random
        draw = rng.random if row.name in ("a", "dt", "A") else draw
        arrays[row.name] = -draw(shape) if row.name in ("g", "mu", "A") else draw(shape)
    if r.transition == "matrix" and "k" in arrays:
        arrays["k"] /= np.linalg.norm(arrays["k"], axis=-1, keepdims=True)
        if "a" in arrays:
            arrays |= {"a": -arrays["k"], "b": arrays["k"] * rng.random((heads, sizes["n"], 1))}
        if "p" in arrays:
            arrays["p"] = arrays["k"]
    if method == "step":
        token = (
            x[:, 0] if "n" in row.dims else x for row, x in zip(rows, arrays.values(), strict=True)
        )
        cores = r.cores(sizes, True, heads)
        return [*token, r.public({x: rng.random(core) for x, core in cores.items()})]
    if method == "forward":
        return [*arrays.values()]
    output = heads, *(sizes[x] for x in r.layout.output)
    return [*arrays.values(), rng.standard_normal(output)]


def _options(operator: str) -> Iterator[dict[str, Any]]:
    if operator in METHODS:
        r = METHODS[operator][0]
        if "activation" in r.flags["forward"]:
            yield from ({"activation": None}, {"activation": "silu"})
        elif not r.normalizer:
            yield {}
        elif not r.mapped:
            yield from ({"normalize": True}, {"normalize": False})
        for (feature_map, row), normalize in itertools.product(maps.items(), (True, False)):
            # Weights of both signs can sum to 0.
            if r.mapped and r.normalizer and not (row["signed"] and normalize):
                yield {"feature_map": feature_map, "normalize": normalize}
    elif operator.startswith("log_decay"):
        yield from ({"lower_bound": None}, {"lower_bound": -5.0})
    elif operator.startswith("softmax"):
        yield from ({"causal": True}, {"causal": False})
    else:
        yield {}


def _flat(result: Any) -> tuple[np.ndarray, ...]:
    """The arrays of a result, including those of a state."""
    if isinstance(result, tuple):
        return tuple(x for part in result for x in _flat(part))
    return () if result is None else (result,)


def _error(got: tuple[np.ndarray, ...], want: tuple[np.ndarray, ...]) -> float:
    pairs = list(zip(got, want, strict=True))
    if any(g.shape != w.shape or not np.isfinite(g).all() for g, w in pairs):
        return float("inf")
    largest = max(float(np.abs(w).max()) for w in want)
    return max(float(np.abs(g - w).max()) for g, w in pairs) / (largest or 1.0)
