"""What rows/workers.py runs under mpiexec: calls on one rank and on all, in turn; prints JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

import linattn.mpi
from linattn._blocks.block_scan import Element
from linattn._cli.rows import timed

COMM = MPI.COMM_WORLD
D = 64


def main() -> None:
    n, rounds = map(int, sys.argv[1:])
    linattn.set_num_threads(1)
    arrays = [np.random.default_rng(i).standard_normal((n, D), dtype=np.float32) for i in range(4)]
    stretch = slice(n * COMM.rank // COMM.size, n * (COMM.rank + 1) // COMM.size)
    mine = [np.ascontiguousarray(x[stretch]) for x in arrays]
    found: dict[str, Any] = {"overhead": overhead()}
    for name, function, count, length in (
        ("causal", "causal", 3, n), ("causal_backward", "causal_backward", 4, n),
        ("weak", "causal", 3, n // 2),
    ):  # fmt: skip
        alone = partial(getattr(linattn, function), *(x[:length] for x in arrays[:count]))
        together = partial(getattr(linattn.mpi, function), *mine[:count])
        found[name] = in_turn(alone, together, rounds)
    for size in (2**8, 2**12, 2**16, 2**18):
        found[str(size)] = scan(size)
    if COMM.rank == 0:
        print(json.dumps(found))


def in_turn(alone: Callable[[], Any], together: Callable[[], Any], rounds: int) -> list[Any]:
    """Seconds on the first rank by itself and on all, round by round; a first one is left out."""
    times = []
    for _ in range(rounds + 1):
        one = timed(alone) if COMM.rank == 0 else 0.0
        meet()
        times.append((one, timed(together)))
    return times[1:]


def meet() -> None:
    """A barrier that leaves a waiting rank's core alone."""
    request = COMM.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)
    COMM.Barrier()


def overhead(count: int = 300) -> float:
    """Seconds that a call over the ranks takes more than one of this rank's tokens alone."""
    x = np.ones((64, D), np.float32)
    times = []
    for _ in range(count):
        COMM.Barrier()
        both = timed(lambda: linattn.mpi.causal(x, x, x))
        times.append(both - timed(lambda: linattn.causal(x, x, x)))
    return statistics.median(times)


def scan(size: int, count: int = 100) -> float:
    """Seconds of the scan of a state of so many numbers, on the slowest rank."""
    ranks, element = linattn.mpi._Ranks(COMM), Element(None, np.ones((size // D, D), np.float32))
    times = []
    for _ in range(count):
        COMM.Barrier()
        times.append(timed(lambda: ranks.before(element)))
    longest: float = COMM.allreduce(statistics.median(times), MPI.MAX)
    return longest


main()
