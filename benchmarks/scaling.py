"""Time and peak memory against N: linattn, PyTorch's softmax attention, NumPy's quadratic order.

All causal, one head, d = m = 64, float32, all cores. Memory is what a call adds to the process, its
results included, measured in a fresh one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from report import in_fresh_process, machine, options, table, write

from linattn._cli import memory_use
from linattn._cli.bench import call as of_linattn
from linattn._cli.peers import EPS, Call, PyTorch, elu1, softmax
from linattn._cli.rows import timed

D = 64
LENGTHS = tuple(4**power for power in range(4, 11))  # 256 to 1,048,576
MODES = ("forward", "forward + backward")
#: Seconds the next call may be expected to take, where four times the N take 16 times the time.
PATIENCE = 20.0
#: By name, mode and N: seconds and bytes.
Points = dict[tuple[str, str, int], tuple[float, int | None]]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="up to N = 16,384")
    args = parser.parse_args()
    say = partial(print, file=sys.stderr if args.markdown else sys.stdout, flush=True)
    say(f"Scaling\n{machine()}")
    points: Points = {}
    for mode in MODES:
        for name in CONTENDERS:
            climb(points, name, mode, LENGTHS[:4] if args.quick else LENGTHS, say)
    text = "\n".join(summary(points, mode) for mode in MODES)
    if args.markdown:
        print(f"## Scaling\n\n{machine()}.\n\n{text}")
    rows = [(*key, *value) for key, value in points.items()]
    write(args.json, {"machine": machine(), "name, mode, n, seconds, bytes": rows})
    return 0


def climb(
    points: Points, name: str, mode: str, lengths: tuple[int, ...], say: Callable[[str], None]
) -> None:
    """One contender's points, from the shortest N to the longest that is feasible."""
    last, memory = 0.0, None
    for n in lengths:
        what, have = f"{name}, {mode}, N = {n:,}", memory_use.available()
        skipped = "torch is not installed" if "PyTorch" in name and PyTorch.missing() else ""
        if 16 * last > PATIENCE:
            skipped = "would take too long"
        if memory and have and 16 * memory > have and "NumPy" in name:
            skipped = "would not fit in memory"
        if not skipped:
            try:
                last, memory = in_fresh_process(measure, name, mode, n)
            except MemoryError as error:
                skipped = f"out of memory ({error})"
        if skipped:
            return say(f"{what}: skipped, {skipped}")
        points[name, mode, n] = last, memory
        say(f"{what}: {cell(last, memory)}")
    return None


def measure(name: str, mode: str, n: int) -> tuple[float, int | None]:
    """Best seconds of a call, and the bytes that the first one adds after a small call."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, n, D), dtype=np.float32) for _ in range(4)]
    make, backward = CONTENDERS[name], mode == MODES[1]
    make(backward, *(np.ascontiguousarray(x[..., :64, :]) for x in arrays))()
    call = make(backward, *arrays)
    _, memory = memory_use.peak(call)
    return best(call, 1.0), memory


def best(call: Callable[[], Any], budget: float) -> float:
    """Least seconds of a call over about ``budget`` seconds, two calls at least."""
    taken: list[float] = []
    while len(taken) < 2 or (sum(taken) < budget and len(taken) < 100):
        taken.append(timed(call))
    return min(taken)


def quadratic(backward: bool, q: Any, k: Any, v: Any, g: Any) -> tuple[np.ndarray, ...]:
    """The same linear attention as (Q K^T) V, with its N x N matrix."""
    a, b = elu1(np, q), elu1(np, k)
    weights = np.tril(a @ b.mT)
    den = weights.sum(-1, keepdims=True) + EPS
    out = (weights @ v) / den
    if not backward:
        return (out,)
    h = g / den
    slopes = np.tril(h @ v.mT - (h * out).sum(-1, keepdims=True))
    da, db = slopes @ b, slopes.mT @ a
    return out, da * np.minimum(a, 1), db * np.minimum(b, 1), weights.mT @ h


CONTENDERS: dict[str, Callable[..., Call]] = {
    "linattn": lambda *x: partial(of_linattn, "causal", *x),
    "PyTorch softmax (SDPA)": lambda backward, *x: PyTorch.call(softmax, x, backward),
    "NumPy (Q K^T) V": lambda *x: partial(quadratic, *x),
}


def summary(points: Points, mode: str) -> str:
    """A Markdown table: one row an N, time and memory of each contender."""
    names = [name for name in CONTENDERS if any(key[:2] == (name, mode) for key in points)]
    rows = [
        [f"{n:,}", *(cell(*points.get((name, mode, n), (None, None))) for name in names)]
        for n in sorted({key[2] for key in points if key[1] == mode})
    ]
    return f"{mode.capitalize()}:\n\n{table(['N', *names], rows)}"


def cell(seconds: float | None, memory: int | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:,.2f} ms" + ("" if memory is None else f", {memory / 2**20:,.1f} MiB")


if __name__ == "__main__":
    sys.exit(main())
