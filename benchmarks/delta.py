"""The delta rule: against causal attention, its own backward, PyTorch and ONNX Runtime.

One thread, float32, 8 heads, N = 4096, d = m = 64, keys of norm 1, unless the row says otherwise.
The error of a result is its largest one as a part of the largest entry, against float64.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from core import ratio
from harness import best, in_fresh_process, interleave, relative_error, threads
from report import Report, Row, options, say

import linattn
from linattn._cli import memory_use

HEADS8, WIDE, ONE_HEAD = (8, 4096, 64), (16, 2048, 128), (1, 32768, 64)
#: (heads, n, d), threads, what part of the time of ONNX Runtime linattn is to take.
ONNX = ((HEADS8, 1, 0.6), (WIDE, 1, 0.45), (ONE_HEAD, 2, 0.5))
#: How many times linattn's time the forms in PyTorch are to take.
TORCH = {
    "PyTorch, token by token": 20.0,
    "PyTorch, chunked": 4.0,
    "torch.compile, chunked": 4.0,
}


def main() -> int:
    args = options(__doc__).parse_args()
    report = Report("Delta rule", args)
    rounds = 5 if args.quick else 25
    with threads(1):
        itself(report, rounds)
        step(report, rounds)
    two_threads(report, rounds)
    memory(report)
    if onnx := _optional("forms_onnx", args):
        onnx_runtime(report, onnx, max(3, rounds // 3))
    if torch := _optional("forms_delta_torch", args):
        for backward in (False, True):
            with threads(1):
                pytorch(report, torch, backward, 3 if args.quick else 7)
    return report.finish()


def _optional(name: str, args: Any) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        say(args, f"{name}: {error}")
        return None


def make(heads: int, n: int, d: int) -> list[np.ndarray]:
    """q, k of norm 1, v, beta in [0, 1], and a cotangent."""
    rng = np.random.default_rng(0)
    q, k, v, g = rng.standard_normal((4, heads, n, d), dtype=np.float32)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return [q, k, v, rng.random((heads, n), dtype=np.float32), g]


def itself(report: Report, rounds: int) -> None:
    *operands, g = make(*HEADS8)
    q, k, v, _ = operands
    out, tokens = np.empty_like(v), (q.shape[0] * q.shape[1],) * 2
    forward: Callable = lambda: linattn.delta(*operands, out=out)  # noqa: E731
    ratio(
        report,
        "delta / causal, both identity, unnormalised",
        forward,
        lambda: linattn.causal(q, k, v, feature_map="identity", normalize=False, out=out),
        rounds,
        target=1.6,
        tokens=tokens,
    )
    # Into given arrays: whether new ones cost page faults is up to chance.
    outs, reverse = tuple(map(np.empty_like, operands)), linattn.ufuncs.delta_backward_identity
    ratio(
        report,
        "delta_backward / delta",
        lambda: reverse(*operands, g, 1.0, out=outs),
        forward,
        rounds,
        target=3.5,
        tokens=tokens,
    )


def step(report: Report, rounds: int) -> None:
    """One token of 32 heads, in place."""
    q, k, v, beta, _ = (x[:, 0] for x in make(32, 1, 64))
    state = linattn.State(np.zeros((32, 64, 64), np.float32))
    plain = {"feature_map": "identity", "normalize": False, "in_place": True}
    ratio(
        report,
        "delta_step / step, 32 heads in place",
        lambda: linattn.delta_step(q, k, v, beta, state, in_place=True),
        lambda: linattn.step(q, 1e-9 * k, v, state, **plain),
        rounds,
        target=1.5,
        tokens=(32, 32),
    )


def two_threads(report: Report, rounds: int) -> None:
    """One head cannot be shared out by heads: the columns of its values are."""
    heads, n, d = ONE_HEAD
    operands = make(heads, n, d)[:4]
    out = np.empty_like(operands[2])

    def with_threads(count: int) -> None:
        linattn.set_num_threads(count)
        linattn.delta(*operands, out=out)

    with threads(2):
        ratio(
            report,
            f"delta, one head of N = {n:,}, two threads / one",
            lambda: with_threads(2),
            lambda: with_threads(1),
            rounds,
            target=0.65,
            tokens=(n, n),
            threads=2,
        )


def memory(report: Report) -> None:
    n = 1 << 18
    mebibytes = in_fresh_process(beyond_arrays, n) / 2**20
    what = f"delta_backward, N = {n:,}: memory beyond the arrays"
    report.add(Row(what, mebibytes, unit="MiB", target=64, detail="one head, d = m = 64"))


def beyond_arrays(n: int) -> int:
    """Bytes that a call adds to the process besides its results, after a small call."""
    operands = [x[0] for x in make(1, n, 64)]
    linattn.delta_backward(*(x[:64] for x in operands))
    results, peak = memory_use.peak(lambda: linattn.delta_backward(*operands))
    if peak is None:
        raise OSError("this system does not tell the peak of resident memory")
    return max(0, peak - sum(x.nbytes for x in results))


def truth(operands: list[np.ndarray], backward: bool) -> tuple[np.ndarray, ...]:
    """The result in float64."""
    *wide, g = (x.astype(np.float64) for x in operands)
    return linattn.delta_backward(*wide, g) if backward else (linattn.delta(*wide),)


def _error(result: Any, want: tuple[np.ndarray, ...]) -> float:
    """The error of the last results: the output alone, or the gradients."""
    results = result if isinstance(result, tuple) else (result,)
    pairs = zip(results[-len(want) :], want, strict=True)
    return max(relative_error(got, expected) for got, expected in pairs)


def onnx_runtime(report: Report, onnx: Any, rounds: int) -> None:
    for (heads, n, d), count, target in ONNX:
        operands = make(heads, n, d)
        out = np.empty_like(operands[2])
        many = "1 thread" if count == 1 else f"{count} threads"
        with threads(count):
            theirs = onnx.linear(*operands[:4], threads=count)
            ours = partial(linattn.delta, *operands[:4], out=out)
            want = truth(operands, backward=False)
            errors = _error(ours(), want), _error(theirs(), want)
            pair = interleave(ours, theirs, rounds, settle=count > 1)
        report.add(
            Row(
                f"linattn / ONNX Runtime, {heads} heads, N = {n:,}, d = {d}, {many}",
                pair.ratio,
                pair.low,
                pair.high,
                target=target,
                error=errors[0],
                detail=f"{_nanoseconds(pair, heads * n)}; ONNX Runtime's error {errors[1]:.0e}",
            )
        )


def pytorch(report: Report, form: Any, backward: bool, rounds: int) -> None:
    operands = make(*HEADS8)
    *inputs, g = operands
    what = "forward + backward" if backward else "forward"
    ours: Callable = lambda: linattn.delta(*inputs)  # noqa: E731
    if backward:
        ours = lambda: (linattn.delta(*inputs), *linattn.delta_backward(*inputs, g))  # noqa: E731
    want = truth(operands, backward)
    mine = _error(ours(), want)
    for library, calls in form.rivals(operands, backward).items():
        label = min(calls, key=lambda name: best(calls[name], 0.2))
        pair = interleave(calls[label], ours, rounds)
        report.add(
            Row(
                f"{library} / linattn, {what}",
                pair.ratio,
                pair.low,
                pair.high,
                target=TORCH[library],
                at_least=True,
                error=_error(calls[label](), want),
                detail=f"{label}; {_nanoseconds(pair, 8 * 4096)}; linattn's error {mine:.0e}",
            )
        )


def _nanoseconds(pair: Any, tokens: int) -> str:
    return f"{pair.a / tokens * 1e9:.0f} against {pair.b / tokens * 1e9:.0f} ns a token and head"


if __name__ == "__main__":
    sys.exit(main())
