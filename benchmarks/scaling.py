"""Time and peak memory against N: linattn, PyTorch's softmax attention, NumPy's quadratic order.

All causal, one head, d = m = 64, float32, all cores. Memory is what a call adds to the process, its
results included, measured in a fresh one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from forms_numpy import EPS, elu1
from harness import Call, best, in_fresh_process
from report import machine, markdown, options, say

import linattn
from linattn._cli import memory_use

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
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figure to FILE")
    args = parser.parse_args()
    lengths = LENGTHS[:4] if args.quick else LENGTHS
    say(args, f"Scaling\n{machine()}")
    points: list[Point] = []
    for mode in MODES:
        for name in CONTENDERS:
            if name.startswith("PyTorch") and importlib.util.find_spec("torch") is None:
                say(args, f"{name}, {mode}: skipped, torch is not installed")
                continue
            points += climb(args, name, mode, lengths)
    if args.markdown:
        print(f"## Scaling\n\n{machine()}.\n\n{summary(points)}")
    if args.json:
        data = {"machine": machine(), "points": [asdict(point) for point in points]}
        args.json.write_text(json.dumps(data, indent=2) + "\n")
    if args.plot:
        draw(points).savefig(args.plot, dpi=110)
    return 0


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
    arrays = [rng.standard_normal((1, 1, n, D), dtype=np.float32) for _ in range(4)]
    make, backward = CONTENDERS[name], mode == MODES[1]
    make([np.ascontiguousarray(x[..., :64, :]) for x in arrays], backward)()
    call = make(arrays, backward)
    _, memory = memory_use.peak(call)
    return best(call, budget), memory


def ours(arrays: list[np.ndarray], backward: bool) -> Call:
    q, k, v, g = arrays
    if not backward:
        return lambda: linattn.causal(q, k, v)
    return lambda: (linattn.causal(q, k, v), linattn.causal_backward(q, k, v, g))


def softmax(arrays: list[np.ndarray], backward: bool) -> Call:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v, g = map(torch.from_numpy, arrays)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    def both() -> tuple[torch.Tensor, ...]:
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        out = scaled_dot_product_attention(*inputs, is_causal=True)
        return out, *torch.autograd.grad(out, inputs, g)

    return both if backward else forward


def quadratic(arrays: list[np.ndarray], backward: bool) -> Call:
    """The same linear attention as (Q K^T) V, with its N x N matrix."""
    q, k, v, g = arrays

    def forward() -> np.ndarray:
        weights = np.tril(elu1(q) @ elu1(k).mT)
        return (weights @ v) / (weights.sum(-1, keepdims=True) + EPS)

    def both() -> tuple[np.ndarray, ...]:
        a, b = elu1(q), elu1(k)
        weights = np.tril(a @ b.mT)
        den = weights.sum(-1, keepdims=True) + EPS
        out = (weights @ v) / den
        h = g / den
        slopes = np.tril(h @ v.mT - (h * out).sum(-1, keepdims=True))
        da, db = slopes @ b, slopes.mT @ a
        return out, da * np.minimum(a, 1), db * np.minimum(b, 1), weights.mT @ h

    return both if backward else forward


CONTENDERS = {
    "linattn": ours,
    "PyTorch softmax (SDPA)": softmax,
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
        tables.append(f"{mode.capitalize()}:\n\n{markdown(['N', *names], rows)}")
    return "\n".join(tables)


def _cell(point: Point | None) -> str:
    if point is None:
        return "-"
    memory = "" if point.memory is None else f", {point.memory / 2**20:,.1f} MiB"
    return f"{point.seconds * 1e3:,.2f} ms{memory}"


def draw(points: Sequence[Point]):
    """Matplotlib figure, log-log: time above, memory below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 6.2), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, mode in enumerate(MODES):
        for color, name in enumerate(CONTENDERS):
            mine = [p for p in points if (p.name, p.mode) == (name, mode)]
            time = [(p.n, p.seconds) for p in mine]
            memory = [(p.n, p.memory / 2**20) for p in mine if p.memory]
            label = name.replace("K^T", "K$^T$")
            for row, line in enumerate((time, memory)):
                if line:
                    x, y = zip(*line, strict=True)
                    panels[row, column].plot(x, y, "o-", color=f"C{color}", label=label, ms=4)
        panels[0, column].set_title(mode)
        panels[1, column].set_xlabel("N (tokens)")
    for panel in panels.flat:
        panel.set(xscale="log", yscale="log")
        panel.grid(alpha=0.3)
    panels[0, 0].set_ylabel("seconds")
    panels[1, 0].set_ylabel("MiB beyond the operands")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


if __name__ == "__main__":
    sys.exit(main())
