"""Time and peak memory against N: linattn, PyTorch's softmax attention, NumPy's quadratic order.

All causal, one head, d = m = 64, float32, all cores. Memory is what a call adds to the process, its
results included, measured in a fresh one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plots
from processes import best, in_fresh_process
from report import machine, options, table, write

from linattn._cli import memory_use
from linattn._cli.bench import causal
from linattn._cli.peers import EPS, Call, NumPy, PyTorch, elu1, softmax

D = 64
LENGTHS = tuple(4**power for power in range(4, 11))  # 256 to 1,048,576
MODES = ("forward", "forward + backward")
#: Seconds the next call may be expected to take, where four times the N take 16 times the time.
PATIENCE = 20.0


@dataclass
class Point:
    name: str
    mode: str
    n: int
    seconds: float
    memory: int | None


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="up to N = 16,384")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figure to FILE")
    args = parser.parse_args()
    lengths = LENGTHS[:4] if args.quick else LENGTHS
    say(args, f"Scaling\n{machine()}")
    points: list[Point] = []
    for mode in MODES:
        for name in CONTENDERS:
            if name.startswith("PyTorch") and PyTorch.missing():
                say(args, f"{name}, {mode}: skipped, torch is not installed")
                continue
            points += climb(args, name, mode, lengths)
    text = summary(points)
    if args.markdown:
        print(f"## Scaling\n\n{machine()}.\n\n{text}")
    write(args.json, {"machine": machine(), "points": [asdict(point) for point in points]})
    if args.plot:
        plots.TEXT = f"## Scaling\n\n{text}"
        plots.scaling(plots.THEMES["light"]["colors"]).savefig(args.plot, dpi=110)
    return 0


def say(args: argparse.Namespace, text: str) -> None:
    print(text, file=sys.stderr if args.markdown else sys.stdout, flush=True)


def climb(args: argparse.Namespace, name: str, mode: str, lengths: Sequence[int]) -> list[Point]:
    """One contender's points, from the shortest N to the longest that is feasible."""
    points: list[Point] = []
    for n in lengths:
        have, last = memory_use.available(), points[-1] if points else None
        if last and 16 * last.seconds > PATIENCE:
            say(args, f"{name}, {mode}, N = {n:,}: skipped, would take too long")
            break
        if last and last.memory and have and 16 * last.memory > have and "NumPy" in name:
            say(args, f"{name}, {mode}, N = {n:,}: skipped, would not fit in memory")
            break
        try:
            seconds, memory = in_fresh_process(measure, name, mode, n, 0.2 if args.quick else 1.0)
        except MemoryError as error:
            say(args, f"{name}, {mode}, N = {n:,}: skipped, out of memory ({error})")
            break
        points.append(Point(name, mode, n, seconds, memory))
        size = "?" if memory is None else f"{memory / 2**20:.1f} MiB"
        say(args, f"{name}, {mode}, N = {n:,}: {seconds * 1e3:.3f} ms, {size}")
    return points


def measure(name: str, mode: str, n: int, budget: float) -> tuple[float, int | None]:
    """Best seconds of a call, and the bytes that the first one adds after a small call."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, n, D), dtype=np.float32) for _ in range(4)]
    make, backward = CONTENDERS[name], mode == MODES[1]
    make([np.ascontiguousarray(x[..., :64, :]) for x in arrays], backward)()
    call = make(arrays, backward)
    _, memory = memory_use.peak(call)
    return best(call, budget), memory


def ours(arrays: list[np.ndarray], backward: bool) -> Call:
    return partial(causal, backward, *arrays)


def in_torch(arrays: list[np.ndarray], backward: bool) -> Call:
    return PyTorch.call(softmax, arrays, backward)


def quadratic(arrays: list[np.ndarray], backward: bool) -> Call:
    """The same linear attention as (Q K^T) V, with its N x N matrix."""
    q, k, v, g = arrays

    def forward(xp: Any, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        weights = np.tril(elu1(xp, q) @ elu1(xp, k).mT)
        return (weights @ v) / (weights.sum(-1, keepdims=True) + EPS)

    def both() -> tuple[np.ndarray, ...]:
        a, b = elu1(np, q), elu1(np, k)
        weights = np.tril(a @ b.mT)
        den = weights.sum(-1, keepdims=True) + EPS
        out = (weights @ v) / den
        h = g / den
        slopes = np.tril(h @ v.mT - (h * out).sum(-1, keepdims=True))
        da, db = slopes @ b, slopes.mT @ a
        return out, da * np.minimum(a, 1), db * np.minimum(b, 1), weights.mT @ h

    return both if backward else NumPy.call(forward, arrays)


CONTENDERS = {
    "linattn": ours,
    "PyTorch softmax (SDPA)": in_torch,
    "NumPy (Q K^T) V": quadratic,
}


def summary(points: Sequence[Point]) -> str:
    """A Markdown table: one row an N, time and memory of each contender in each mode."""
    tables = []
    for mode in MODES:
        found = {(p.name, p.n): p for p in points if p.mode == mode}
        names = [name for name in CONTENDERS if any(key[0] == name for key in found)]
        rows = [
            [f"{n:,}", *(_cell(found.get((name, n))) for name in names)]
            for n in sorted({key[1] for key in found})
        ]
        tables.append(f"{mode.capitalize()}:\n\n{table(['N', *names], rows)}")
    return "\n".join(tables)


def _cell(point: Point | None) -> str:
    if point is None:
        return "-"
    memory = "" if point.memory is None else f", {point.memory / 2**20:,.1f} MiB"
    return f"{point.seconds * 1e3:,.2f} ms{memory}"


if __name__ == "__main__":
    sys.exit(main())
