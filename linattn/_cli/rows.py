"""A ratio of times as an entry of a table: what, against what, on which sizes, its goal.

A machine's speed drifts by more than the ratios of interest, so the two calls take turns in one
process, A B A B, and the figure is the median of the ratios of neighbours.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from linattn._cli.peers import Call, Peer

HEADS8 = 8, 4096, 64  #: heads, tokens, width
#: The sizes, by their count, of a call that only shows that a row can be measured.
TINY = {1: (64,), 2: (64, 16), 3: (2, 128, 16), 4: (2, 128, 16, 8)}
#: Seconds that a sample takes at least: short calls are repeated.
SAMPLE = 0.02
#: Idle seconds before a sample of threads: a library's workers spin for a while after their last
#: job and would take the next one's core.
SETTLE = 0.05
#: Fewest and most pairs of samples.
PAIRS = 3, 25
UNITS = (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")


class Calls(NamedTuple):
    """The two calls of a row, and what is said about them."""

    a: Any  #: a call; in benchmarks also several by name, of which the fastest counts
    b: Call
    want: Any = None  #: what both return, in float64, or a call that does
    tokens: tuple[int, int] | None = None  #: heads times tokens of each, for times per token
    same: float = 1e-4  #: the largest error allowed, relative to the largest entry


@dataclass(frozen=True)
class Row:
    """One ratio: ``make(*sizes)`` gives its two calls."""

    name: str
    make: Callable[..., Any]
    sizes: tuple[int, ...] = HEADS8
    peers: Sequence[type[Peer]] = ()
    goal: float | None = None
    least: bool = False  #: the goal is a floor, not a ceiling
    threads: int = 1
    unit: str = "x"
    tiny: tuple[int, ...] = ()

    @property
    def missing(self) -> str:
        return ", ".join(filter(None, (peer.missing() for peer in self.peers)))

    def calls(self, tiny: bool = False) -> Any:
        if not tiny or not self.sizes:
            return self.make(*self.sizes)
        return self.make(*(self.tiny or map(min, self.sizes, TINY[len(self.sizes)])))


class Measured(NamedTuple):
    """Seconds of both calls, pair by pair, and the errors of both."""

    times: list[tuple[float, float]]
    errors: tuple[float, ...] = ()
    per: str = ""

    def spread(
        self, figure: Callable[[float, float], float] = lambda a, b: a / b
    ) -> tuple[float, float, float]:
        """Median, minimum and maximum of a figure of each pair, their ratio by default."""
        found = [figure(*pair) for pair in self.times]
        return statistics.median(found), min(found), max(found)

    @property
    def medians(self) -> tuple[float, ...]:
        return tuple(map(statistics.median, zip(*self.times, strict=True)))

    @property
    def detail(self) -> str:
        a, b = self.medians
        unit, name = next((x for x in UNITS if max(a, b) >= x[0]), UNITS[-1])
        return f"{a / unit:.3g} against {b / unit:.3g} {name}{self.per}"


def measure(name: str, calls: Calls, seconds: float, threads: int | None = 1) -> Measured:
    """The times of both calls, after a check, per token if there are any."""
    errors = check(name, calls)
    times = interleave(calls.a, calls.b, seconds, threads)
    if calls.tokens is None:
        return Measured(times, errors)
    a, b = calls.tokens
    return Measured([(x / a, y / b) for x, y in times], errors, " per token and head")


def check(name: str, calls: Calls) -> tuple[float, ...]:
    """The errors of both calls, which have to be small."""
    results = [calls.a(), calls.b()]
    if calls.want is None:
        return ()
    want = calls.want() if callable(calls.want) else calls.want
    errors = tuple(max(map(error, as_tuple(x), as_tuple(want))) for x in results)
    if not max(errors) < calls.same:
        raise ArithmeticError(f"{name}: these results differ, errors {errors}")
    return errors


def as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def error(got: Any, want: Any) -> float:
    """The largest error, relative to the largest entry."""
    got, want = (np.asarray(x.double() if hasattr(x, "double") else x) for x in (got, want))
    return float(np.abs(got - want).max() / np.abs(want).max())


def interleave(
    a: Call, b: Call, seconds: float, threads: int | None = 1
) -> list[tuple[float, float]]:
    """Seconds of a and of b in turn, for about so many seconds.

    One thread is timed by the processor, which leaves out other programs.
    """
    clock = time.process_time if threads == 1 else time.perf_counter

    def sample(call: Call, count: int = 1) -> float:
        time.sleep(SETTLE * (threads != 1))
        start = clock()
        for _ in range(count):
            call()
        return (clock() - start) / count

    first, second = (max(1, round(SAMPLE / max(sample(x), 1e-7))) for x in (a, b))
    gc.collect()
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(times) < PAIRS[0] or (len(times) < PAIRS[1] and time.perf_counter() < end):
        times.append((sample(a, first), sample(b, second)))
    return times


def timed(call: Call) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def limit_threads(count: int | None) -> contextlib.AbstractContextManager[Any]:
    """Hold linattn, NumPy's BLAS and PyTorch to ``count`` threads; None leaves them alone."""
    if count is None:
        return contextlib.nullcontext()
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")  # so that the limit applies to it
    limit: contextlib.AbstractContextManager[Any] = importlib.import_module(
        "threadpoolctl"
    ).threadpool_limits(count)
    return limit


def draw(heads: int, n: int, d: int, *, channels: bool = False) -> dict[str, np.ndarray]:
    """Operands by name: keys of norm 1, gates with mean -0.1, strengths from 0 to 1."""
    rng = np.random.default_rng(0)
    q, k, v, grad_out = rng.standard_normal((4, heads, n, d), dtype=np.float32)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = -0.1 * rng.standard_exponential((heads, n, d) if channels else (heads, n), np.float32)
    beta = rng.random((heads, n), dtype=np.float32)
    return {"q": q, "k": k, "v": v, "g": g, "beta": beta, "grad_out": grad_out}
