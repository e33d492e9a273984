"""Sequences across workers: two of them against one thread, and what a block or a call costs.

Two dask workers (threads) and two MPI ranks on one head, on two cores.  The C library keeps freed
memory: on a virtual machine the first touch of new memory takes longer than the computing, and not
the same every time.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from adapters import peer

import linattn
from linattn._cli.peers import Peer
from linattn._cli.rows import Calls, Measured, Row, draw, timed

FOLDER = Path(__file__).parent.parent
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_ARENA_MAX": "1"}
#: The same for mallopt: M_MMAP_MAX, M_TRIM_THRESHOLD (never), M_ARENA_MAX.
OPTIONS = ((-4, 0), (-1, -1), (-8, 1))


class MPI(Peer):
    name, packages = "MPI", ("mpi4py",)
    program = shutil.which("mpiexec", path=str(Path(sys.executable).parent))

    @classmethod
    def missing(cls) -> str:
        return super().missing() or ("" if cls.program else "mpiexec beside Python")


def one_thread() -> None:
    """For each worker, until the row ends."""
    for option in OPTIONS:
        ctypes.CDLL(None).mallopt(*option)
    linattn.set_num_threads(1)


def in_dask(name: str, n: int, d: int) -> Calls:
    dask, da = (importlib.import_module(x) for x in ("dask", "dask.array"))
    one_thread()
    x, function = draw(1, n, d), getattr(linattn, name)
    arrays = [x[key][0] for key in ("q", "k", "v", "grad_out")[: 3 + name.endswith("backward")]]
    lazy = function(*(da.from_array(x, chunks=(n // 4, d)) for x in arrays))
    run = partial(dask.persist, lazy, scheduler="threads", num_workers=2)
    return Calls(run, partial(function, *arrays))


def ones(blocks: int, tokens: int, width: int = 4) -> Any:
    """A lazy array of small blocks."""
    da = importlib.import_module("dask.array")
    return da.from_array(np.ones((blocks * tokens, width), np.float32), chunks=(tokens, width))


def block(blocks: int, tokens: int) -> list[float]:
    """Milliseconds of a block on threads, its part of building the graph included."""
    dask, y = importlib.import_module("dask"), ones(blocks, tokens)

    def run() -> None:
        dask.persist(linattn.causal(y, y, y), scheduler="threads", num_workers=2)

    return [1e3 * timed(run) / blocks for _ in range(5)]


def block_of_cluster(blocks: int, tokens: int) -> list[float]:
    distributed = importlib.import_module("distributed")
    one = {"threads_per_worker": 1, "dashboard_address": None}
    times = []
    with distributed.LocalCluster(2, **one) as cluster, distributed.Client(cluster) as client:

        def run() -> None:
            distributed.wait(client.persist(linattn.causal(x, x, x)))

        for i in range(4):
            distributed.wait(x := client.persist(ones(blocks, tokens) + np.float32(i)))
            times.append(1e3 * timed(run) / blocks)
    return times[1:]


@functools.cache
def ranks(n: int, rounds: int) -> dict[str, Any]:
    """What ranks.py prints."""
    run = [MPI.program, "-n", "2", sys.executable, FOLDER / "ranks.py", str(n), str(rounds)]
    found = subprocess.run(run, check=True, capture_output=True, env=os.environ | KEEP).stdout
    results: dict[str, Any] = json.loads(found)
    return results


def in_mpi(what: str, *sizes: int) -> Measured:
    """Both ranks, and the first one by itself."""
    return Measured([(both, one) for one, both in ranks(*sizes)[what]])


def figure(what: str, factor: float, *sizes: int) -> list[float]:
    return [factor * ranks(*sizes)[what]]


DASK, DISTRIBUTED = peer("dask"), peer("distributed")
#: Tokens and width; tokens and rounds.
SIZES, ROUNDS, BLOCKS = (2**21, 64), (2**21, 7), (256, 64)
ROWS = [
    *(Row(f"{name}, two dask workers / one thread, 4 blocks", partial(in_dask, name), SIZES, [DASK],
          goal, threads=2) for name, goal in (("causal", 0.6), ("causal_backward", None))),
    Row("dask, a block beside its computing, threads", block, BLOCKS, [DASK], 3, unit="ms"),
    Row("dask, the same on a cluster of two processes", block_of_cluster, BLOCKS, [DISTRIBUTED], 3,
        unit="ms"),
    *(Row(what, partial(in_mpi, name), ROUNDS, [MPI], goal)
      for what, name, goal in (
          ("causal, two MPI ranks / one thread", "causal", 0.6),
          ("the same, each rank with as many tokens as the one", "weak", None),
          ("causal_backward, two MPI ranks / one thread", "causal_backward", None))),
    Row("linattn.mpi.causal, beyond linattn.causal, 64 tokens a rank",
        partial(figure, "overhead", 1e3), ROUNDS, [MPI], 0.2, unit="ms"),
    *(Row(f"a step of the scan of ranks, {4 * 2**i} bytes", partial(figure, str(2**i), 1e6), ROUNDS,
          [MPI], unit="us") for i in (8, 12, 16, 18)),
]  # fmt: skip
