"""linattn against attention written by hand: heads of width 64 in float32.

The peers are causal attention with elu(x) + 1 and its normaliser, chunk by chunk, as
benchmarks/forms_numpy.py and forms_torch.py have it among other forms.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import linattn
from linattn._cli.progress import Bar

HEADS, TOKENS, WIDTH = 8, 4096, 64
CHUNK = 64
EPS = 1e-6
TOLERANCE = 1e-4  #: for results of order 1
LINATTN = "linattn"

Call = Callable[[], Any]
#: By contender: the forward call, and that with gradients or None.
Calls = dict[str, tuple[Call, Call | None]]


@dataclass
class Row:
    """One contender: its best times in seconds, of the forward call and with gradients."""

    name: str
    forward: float
    both: float | None


class Library(NamedTuple):
    """The functions of NumPy or PyTorch that `chunked` needs."""

    elu1: Callable[[Any], Any]
    tril: Callable[[Any], Any]
    zeros: Callable[[tuple[int, ...]], Any]
    split: Callable[[Any], Sequence[Any]]
    join: Callable[[list[Any], int], Any]


def chunked(library: Library, q: Any, k: Any, v: Any) -> Any:
    """Causal attention chunk by chunk, carrying the state from chunk to chunk."""
    q, k, rows = library.elu1(q), library.elu1(k), []
    s, z = (library.zeros((HEADS, WIDTH, width)) for width in (WIDTH, 1))
    for a, b, c in zip(*map(library.split, (q, k, v)), strict=True):
        weights = library.tril(a @ b.mT)
        den = weights.sum(-1)[..., None] + a @ z + EPS
        rows.append((weights @ c + a @ s) / den)
        s, z = s + b.mT @ c, z + b.sum(-2)[..., None]
    return library.join(rows, -2)


def _numpy(q: Any, k: Any, v: Any, g: Any) -> Calls:
    library = Library(
        lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
        np.tril,
        partial(np.zeros, dtype=np.float32),
        lambda x: np.split(x, TOKENS // CHUNK, -2),
        np.concatenate,
    )
    return {"NumPy, chunked": (partial(chunked, library, q, k, v), None)}


def _torch(*arrays: Any) -> Calls:
    import torch

    library = Library(
        lambda x: torch.nn.functional.elu(x) + 1,
        torch.tril,
        torch.zeros,
        lambda x: x.split(CHUNK, -2),
        torch.cat,
    )
    q, k, v, g = map(torch.from_numpy, arrays)
    inputs = [x.requires_grad_() for x in (q, k, v)]

    def forward() -> Any:
        with torch.no_grad():
            return chunked(library, *inputs).numpy()

    def both() -> Any:
        return torch.autograd.grad(chunked(library, *inputs), inputs, g)

    return {"PyTorch, chunked": (forward, both)}


def _calls() -> Calls:
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((HEADS, TOKENS, WIDTH), dtype=np.float32) for _ in range(4))

    def both() -> Any:
        return linattn.causal(q, k, v), linattn.causal_backward(q, k, v, g)

    calls: Calls = {LINATTN: (lambda: linattn.causal(q, k, v), both)} | _numpy(q, k, v, g)
    return calls | _torch(q, k, v, g) if importlib.util.find_spec("torch") else calls


def rows(repeat: int, bar: Bar) -> list[Row]:
    """All contenders, checked against each other and then timed in turn."""
    calls = _calls()
    timed = [(name, i, f) for name, pair in calls.items() for i, f in enumerate(pair) if f]
    bar.total = len(calls) + repeat * len(timed)
    best: dict[tuple[str, int], float] = {}
    try:
        _check(calls, bar)
        for _ in range(repeat):
            for name, i, f in timed:
                bar.step(f"heads of {WIDTH}: timing {name}")
                start = time.perf_counter()
                f()
                taken = time.perf_counter() - start
                best[name, i] = min(taken, best.get((name, i), taken))
    finally:
        bar.clear()
    return [Row(name, best[name, 0], best.get((name, 1))) for name in calls]


def _check(calls: Calls, bar: Bar) -> None:
    """Compare every forward result with the first."""
    want = None
    for name, (forward, _) in calls.items():
        bar.step(f"heads of {WIDTH}: checking {name}")
        got = forward()
        want = got if want is None else want
        if not np.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE):
            raise ArithmeticError(f"{name} disagrees with {LINATTN}")


def table(rows: list[Row]) -> str:
    """The rows as text, with each time relative to linattn's."""
    title = f"{HEADS} heads, N = {TOKENS:,}, d = {WIDTH}, float32: causal, elu(x) + 1, normalised"
    lines = [title, f"{'':20} {'forward':>21} {'with gradients':>21}"]
    first = rows[0]
    for row in rows:
        pairs = ((row.forward, first.forward), (row.both, first.both))
        cells = [f"{1e3 * x:9.1f} ms {x / y:6.1f} x" for x, y in pairs if x and y]
        lines.append(" ".join([f"{row.name:20}", *(f"{x:>21}" for x in cells)]))
    return "\n".join(lines)


def conclusion(rows: list[Row]) -> str:
    """The table's result in a sentence."""
    first, *others = rows
    parts = []
    for what, mine, theirs in (
        ("forward", first.forward, [x.forward for x in others]),
        ("with gradients", first.both, [x.both for x in others if x.both]),
    ):
        if mine and theirs:
            parts.append(f"{min(theirs) / mine:.1f} times as fast {what}")
    return f"{LINATTN} is {' and '.join(parts)} as the fastest form written by hand."
