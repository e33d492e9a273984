"""linattn against other libraries, in interleaved pairs with the same number of threads.

Each peer has the fastest of its forms and chunk sizes, chosen here.  The error of a result is its
largest error over its largest entry, against float64.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import BENCH, Bench, Call, best, interleave, make, relative_error, threads, truth
from report import Report, Row, options, say

import linattn

FORMS = ("forms_numpy", "forms_torch", "forms_jax")
#: How many times linattn's time the compilers are to take: forward, forward + backward.
COMPILERS = {"torch.compile": (5.0, 4.0), "jax.jit": (5.0, 4.0)}
#: (shape, threads, what part of the time of ONNX Runtime linattn is to take).
ONNX = (
    ("causal_sum-heads8", 1, 0.5),
    ("causal_sum-wide", 1, 0.35),
    ("causal_sum-one_head", 2, 0.45),
)


def main() -> int:
    args = options(__doc__).parse_args()
    os.environ["NPROC"] = "1"  # JAX's threads, read when it is imported
    forms = {name: _optional(name, args) for name in FORMS}
    onnx = _optional("forms_onnx", args)
    report = Report("Peers", args)
    rounds = 3 if args.quick else 11
    for backward in (False, True):
        with threads(1):
            frameworks(report, forms, backward, rounds)
    for name, count, target in ONNX:
        what = f"linattn / ONNX Runtime, {describe(BENCH[name], count)}"
        if onnx is None:
            report.add(Row(what, target=target, skipped="onnx or onnxruntime is not installed"))
            continue
        with threads(count):
            onnx_runtime(report, what, onnx, BENCH[name], count, target, rounds)
    return report.finish()


def _optional(name: str, args: Any) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        say(args, f"{name}: {error}")
        return None


def describe(bench: Bench, count: int) -> str:
    heads = "1 head" if bench.heads == 1 else f"{bench.heads} heads"
    many = "1 thread" if count == 1 else f"{count} threads"
    return f"{heads}, N = {bench.n:,}, d = {bench.d}, {many}"


def frameworks(report: Report, forms: dict[str, Any], backward: bool, rounds: int) -> None:
    """The normalised operator with the elu map, forward or forward and backward."""
    bench = BENCH["causal_backward-heads8" if backward else "causal-heads8"]
    operands = make(bench.case)
    what = "forward + backward" if backward else "forward"
    ours = _ours(operands, bench.case.options, backward)
    want = truth("causal_backward-heads8" if backward else "causal-heads8", operands)
    mine = _error(ours(), want)
    for module, form in forms.items():
        if form is None:
            report.add(Row(f"{module.removeprefix('forms_')}, {what}", skipped="not installed"))
            continue
        for library, calls in form.rivals(operands, backward).items():
            label = fastest(calls)
            pair = interleave(calls[label], ours, rounds, settle=True)
            report.add(
                Row(
                    f"{library} / linattn, {what}",
                    pair.ratio,
                    pair.low,
                    pair.high,
                    target=COMPILERS.get(library, (None, None))[backward],
                    at_least=True,
                    error=_error(calls[label](), want),
                    detail=f"{label}; {_nanoseconds(pair, bench)}; linattn's error {mine:.0e}",
                )
            )


def fastest(calls: dict[str, Call]) -> str:
    """The name of the fastest call, after compilation."""
    for call in calls.values():
        call()
    return min(calls, key=lambda name: best(calls[name], 0.3))


def _ours(operands: list[np.ndarray], keywords: dict[str, Any], backward: bool) -> Call:
    """The results of the peers' calls: the output, and the gradients if requested."""
    if not backward:
        return lambda: linattn.causal(*operands, **keywords)
    return lambda: (
        linattn.causal(*operands[:3], **keywords),
        *linattn.causal_backward(*operands, **keywords),
    )


def onnx_runtime(
    report: Report, what: str, onnx: Any, bench: Bench, count: int, target: float, rounds: int
) -> None:
    """The operator without map or normaliser; ONNX Runtime's has no backward."""
    operands = make(bench.case)
    out = np.empty_like(operands[2])
    theirs = onnx.linear(*operands, threads=count)
    ours: Callable[[], np.ndarray] = lambda: linattn.causal(  # noqa: E731
        *operands, **bench.case.options, out=out
    )
    want = truth(bench.name, operands)
    errors = _error(ours(), want), _error(theirs(), want)
    pair = interleave(ours, theirs, rounds, settle=count > 1)
    detail = f"{_nanoseconds(pair, bench)}; ONNX Runtime's error {errors[1]:.0e}"
    ratios = (pair.ratio, pair.low, pair.high)
    report.add(Row(what, *ratios, target=target, error=errors[0], detail=detail))


def _nanoseconds(pair: Any, bench: Bench) -> str:
    tokens = bench.heads * bench.n
    return f"{pair.a / tokens * 1e9:.0f} against {pair.b / tokens * 1e9:.0f} ns a token and head"


def _error(result: Any, want: tuple[np.ndarray, ...]) -> float:
    """The error of the last results: the output alone, or the gradients."""
    results = result if isinstance(result, tuple) else (result,)
    pairs = zip(results[-len(want) :], want, strict=True)
    return max(relative_error(got, expected) for got, expected in pairs)


if __name__ == "__main__":
    sys.exit(main())
