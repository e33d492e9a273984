"""Sequences across workers: two of them against one thread, and what a block, a call costs.

Two dask workers (threads) and two MPI ranks on one head of 2 million tokens, on two cores.  Runs in
a process whose C library keeps freed memory (see KEEP): the first touch of new memory costs a
virtual machine more than the computing, and not the same every time.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What lets the C library keep the memory of freed arrays.
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_ARENA_MAX": "1"}
D = 64
HERE = Path(__file__).parent


def main() -> int:
    from report import Report, options, write

    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    args = parser.parse_args()
    n, rounds = (2**18, 3) if args.quick else (2**21, 7)
    report = Report("Across workers", args.markdown)
    found: dict[str, Any] = {"tokens": n}
    for name, part in PARTS.items():
        if args.only in (None, name):
            for row in part(found, n, rounds):
                report.add(row)
    report.finish()
    write(args.json, report.data() | found)
    return 0


def ratio(what: str, times: list[tuple[float, float]], target: float | None = None) -> Any:
    """A row of the second times over the first, pair by pair."""
    from report import Figure

    ratios = [b / a for a, b in times]
    a, b = (statistics.median(x) for x in zip(*times, strict=True))
    return Figure(what, statistics.median(ratios), min(ratios), max(ratios), goal=target,
               detail=f"{b:.3f} against {a:.3f} s")  # fmt: skip


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def dask_against_one(found: dict[str, Any], n: int, rounds: int) -> Any:
    """Rows of two workers against one thread."""
    import dask
    import dask.array as da
    import numpy as np

    import linattn

    arrays = [np.random.default_rng(i).standard_normal((n, D), dtype=np.float32) for i in range(4)]
    for what, name, count, blocks, workers, target in (
        ("causal, two dask workers / one thread, 4 blocks", "causal", 3, 4, 2, 0.6),
        ("the same, 16 blocks", "causal", 3, 16, 2, None),
        ("the same, one dask worker, 16 blocks", "causal", 3, 16, 1, None),
        ("causal_backward, two dask workers / one thread, 4 blocks",
         "causal_backward", 4, 4, 2, None),
    ):  # fmt: skip
        function = getattr(linattn, name)
        given = [da.from_array(x, chunks=(n // blocks, D), name=f"x{i}{blocks}")
                 for i, x in enumerate(arrays[:count])]  # fmt: skip
        lazy = function(*given)
        pairs = [
            (
                timed(lambda f=function, c=count: f(*arrays[:c])),
                timed(
                    lambda x=lazy, w=workers: dask.persist(x, scheduler="threads", num_workers=w)
                ),
            )
            for _ in range(rounds + 1)
        ]
        found[what] = pairs[1:]
        yield ratio(what, pairs[1:], target)


def overheads(found: dict[str, Any], n: int, rounds: int) -> Any:
    """Rows of the overhead of blocks, and of a call within jit."""
    import dask
    import dask.array as da
    import distributed
    import numpy as np
    from report import Figure

    import linattn

    count, size = 256, 64
    y = da.from_array(np.ones((count * size, 4), np.float32), chunks=(size, 4))
    build = statistics.median(timed(lambda: linattn.causal(y, y, y)) for _ in range(5))
    lazy = linattn.causal(y, y, y)
    run = statistics.median(
        timed(lambda: dask.persist(lazy, scheduler="threads", num_workers=2)) for _ in range(5)
    )
    detail = f"building the graph {1e3 * build / count:.2f} ms of it"
    yield Figure("dask, a block beside its computing, threads", 1e3 * (build + run) / count,
              unit="ms", goal=3, detail=detail)  # fmt: skip
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        times = []
        for i in range(4):
            z = da.from_array(np.full((count * size, 4), i, np.float32), chunks=(size, 4))
            z = client.persist(z)
            distributed.wait(z)
            times.append(
                timed(lambda x=z: distributed.wait(client.persist(linattn.causal(x, x, x))))
            )
        seconds = statistics.median(times[1:])
    found["dask block"] = seconds / count
    yield Figure("dask, the same on a cluster of two processes", 1e3 * seconds / count, unit="ms",
              goal=3)  # fmt: skip
    try:
        import jax

        import linattn.jax
    except ImportError:
        yield Figure("linattn.jax.causal in jit", skipped="no JAX")
        return
    x = jax.numpy.ones((4, 8))
    nothing, call = (jax.jit(f) for f in (lambda x: x + 1, lambda x: linattn.jax.causal(x, x, x)))
    pairs = [tuple(1e6 * many(f, x) for f in (nothing, call)) for _ in range(21)]
    more = statistics.median(b - a for a, b in pairs)
    yield Figure("linattn.jax.causal of (4, 8) in jit, beyond x + 1", more, unit="us", goal=20)


def many(function: Any, x: Any, count: int = 500) -> float:
    """Seconds of a call of a jitted function."""
    function(x).block_until_ready()
    return timed(lambda: [function(x).block_until_ready() for _ in range(count)]) / count


BLOCK = """
import statistics, time, numpy as np, linattn
linattn.set_num_threads(1)
x = np.ones((65536, 64), np.float32)
def run():
    start = time.perf_counter()
    linattn.causal(x, x, x)
    return time.perf_counter() - start
print(statistics.median(run() for _ in range(40)))
"""


def ranks_against_one(found: dict[str, Any], n: int, rounds: int) -> Any:
    """Rows of two MPI ranks against one thread."""
    from report import Figure

    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if mpiexec is None:
        yield Figure("MPI ranks", skipped="no mpiexec beside Python")
        return
    run = [mpiexec, "-n", "2", sys.executable, str(HERE / "scale_ranks.py"), str(n), str(rounds)]
    ranks = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)
    found["mpi"] = ranks
    yield ratio("causal, two MPI ranks / one thread", ranks["causal"], 0.6)
    yield ratio("the same, each rank with as many tokens as the one", ranks["weak"])
    yield ratio("causal_backward, two MPI ranks / one thread", ranks["causal_backward"])
    yield Figure("linattn.mpi.causal, beyond linattn.causal", 1e3 * ranks["overhead"], unit="ms",
              goal=0.2, detail="two ranks, 64 tokens each")  # fmt: skip


def memory_rows(found: dict[str, Any], n: int, rounds: int) -> Any:
    """A block's time for each setting of the C library about freed memory."""

    plain = {x: y for x, y in os.environ.items() if not x.startswith("MALLOC_")}
    settings = {
        "dask's nanny: MALLOC_TRIM_THRESHOLD_=65536": {"MALLOC_TRIM_THRESHOLD_": "65536"},
        "and MALLOC_MMAP_THRESHOLD_=33554432": {
            "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": str(2**25),
        },
        "and MALLOC_TRIM_THRESHOLD_=1073741824": {
            "MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25),
        },
    }  # fmt: skip

    def block(environment: dict[str, str]) -> float:
        run = [sys.executable, "-c", BLOCK]
        env = plain | environment
        return float(subprocess.run(run, env=env, check=True, capture_output=True).stdout)

    for what, environment in settings.items():
        pairs = [(block({}), block(environment)) for _ in range(3)]
        yield ratio(f"a block of 65,536 tokens, {what} / none set", pairs)


PARTS = {
    "dask": dask_against_one, "overheads": overheads, "mpi": ranks_against_one,
    "memory": memory_rows,
}  # fmt: skip

if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in KEEP.items()):
        threads = {"LINATTN_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP | threads)
    sys.exit(main())
