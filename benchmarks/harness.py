"""Timing in interleaved pairs, thread counts, fresh processes.

A machine's speed drifts by more than the ratios of interest, so two contenders are timed in turn,
A B A B, in one process, and the figure is the median of the ratios of neighbours.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import linattn

# One table of cases for the tests and the benchmarks.
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from bounds import evaluate
from cases import BENCH as BENCH
from cases import Bench as Bench
from cases import make as make

#: Seconds one sample lasts at least: short calls are repeated to fill it.
SAMPLE = 0.02
#: Idle seconds before a sample: a library's workers spin or clear up for a while after their last
#: job and would take the next contender's core.
SETTLE = 0.05

Call = Callable[[], Any]
Clock = Callable[[], float]


@dataclass
class Pair:
    """Seconds of each side (medians) and the median, least and largest ratio of neighbours."""

    a: float
    b: float
    ratio: float
    low: float
    high: float


def interleave(
    a: Call, b: Call, rounds: int, *, settle: bool = False, clock: Clock = time.perf_counter
) -> Pair:
    """Time a and b in turn, ``rounds`` times each, after a warm-up of both.

    With ``settle`` the machine is idle before each sample: for calls that leave threads at work.
    """
    repeats = [_repeats(call, clock) for call in (a, b)]
    gc.collect()
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        pair = []
        for call, count in zip((a, b), repeats, strict=True):
            if settle:
                time.sleep(SETTLE)
            pair.append(_sample(call, count, clock))
        times.append((pair[0], pair[1]))
    ratios = [x / y for x, y in times]
    middle = [statistics.median(side) for side in zip(*times, strict=True)]
    return Pair(*middle, statistics.median(ratios), min(ratios), max(ratios))


def best(call: Call, budget: float) -> float:
    """Least seconds of a call over about ``budget`` seconds, two calls at least."""
    taken = [_sample(call, 1)]
    while len(taken) < 2 or (sum(taken) < budget and len(taken) < 100):
        taken.append(_sample(call, 1))
    return min(taken)


def _repeats(call: Call, clock: Clock) -> int:
    call()
    return max(1, round(SAMPLE / max(_sample(call, 1, clock), 1e-7)))


def _sample(call: Call, count: int, clock: Clock = time.perf_counter) -> float:
    start = clock()
    for _ in range(count):
        call()
    return (clock() - start) / count


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Hold linattn, NumPy's BLAS and, where imported, torch to ``count`` threads.

    JAX reads its number once, before it is imported: see ``forms.jax_threads``. An ONNX Runtime
    session gets its own when made.
    """
    torch = sys.modules.get("torch")
    usual = linattn.get_num_threads(), torch and torch.get_num_threads()
    linattn.set_num_threads(count)
    if torch:
        torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        linattn.set_num_threads(usual[0])
        if torch:
            torch.set_num_threads(usual[1])


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` in a new interpreter; a process the system kills is a MemoryError."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            raise MemoryError("the process was killed") from None


def truth(name: str, operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Results of a shape in float64."""
    return evaluate(BENCH[name].case, operands, np.float64)


def relative_error(got: Any, want: np.ndarray) -> float:
    """Largest error as a part of the largest entry of ``want``."""
    return float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())
