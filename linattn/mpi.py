"""linattn over an MPI communicator: each rank has a part of the tokens of every head.

The functions take what the NumPy functions take, for this rank's tokens, which follow those of the
rank before, and a communicator.  All ranks call together.  Each computes the effect of its tokens
on the state, one exclusive scan (log2(ranks) steps) puts these effects together, and each rank then
runs from its own state.  A message is a state, d m + d numbers per head, and a d x d matrix if the
recurrence has one, or, for scans, as many numbers again.  Gradients go the same way from the last
rank to the first; those of ``mlstm`` and ``wkv`` send three states.  With ``reverse`` a scan begins
on the last rank.

An error on one rank, or calls that differ in more than their tokens, raise on all ranks before any
of them waits.  A rank that is killed ends the job.  If a rank may end by another exception, run the
program under ``-m mpi4py``, or the others wait for it.

Not supported: ``cu_seqlens``, ``block``, ``state_at``, ``state_indices`` and ``out``;
`linattn.slstm`; ``beta`` per value channel; `linattn.feature_maps.PositiveRandomFeatures` with
``normalize=True``; and operands of `linear_scan` without an axis of this rank's tokens: use
``np.broadcast_to`` for factors that tokens share.

A batch job in which rank i reads its own tokens::

    #!/bin/sh
    #SBATCH --nodes=8 --ntasks-per-node=2 --cpus-per-task=16
    #SBATCH --hint=nomultithread --time=01:00:00
    export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
    srun --cpu-bind=cores python -m mpi4py program.py

with ``program.py``::

    import numpy as np
    from mpi4py import MPI
    import linattn.mpi

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    q, k, v = (np.load(f"{x}.npy", mmap_mode="r") for x in "qkv")  # (n, d) each
    stretch = slice(len(q) * rank // size, len(q) * (rank + 1) // size)
    np.save(f"o{rank}.npy", linattn.mpi.causal(q[stretch], k[stretch], v[stretch]))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from mpi4py import MPI
except ImportError as error:
    raise ImportError("linattn.mpi needs mpi4py: pip install -e '.[mpi]'") from error

from ._blocks import effects, over_ranks
from ._blocks.effects import AnyElement
from ._bridges.bridge import recurrences
from ._bridges.rows import MPI as BRIDGE
from ._call.recurrence import Recurrence

if TYPE_CHECKING:
    from ._signatures.mpi import *  # noqa: F403


class _Ranks:
    """The ranks of a communicator."""

    def __init__(self, comm: Any) -> None:
        self.comm = MPI.COMM_WORLD if comm is None else comm
        self.rank = self.comm.rank

    def gather(self, x: Any) -> list[Any]:
        found: list[Any] = self.comm.allgather(x)
        return found

    def extremes(self, x: int) -> tuple[int, int]:
        low, high = self.total(np.array([-x, x], float), MPI.MAX)
        return -int(low), int(high)

    def before(self, element: AnyElement) -> AnyElement | None:
        return _exscan(self.comm, element)

    def behind(self, element: AnyElement) -> AnyElement | None:
        mirrored = self.comm.Split(0, -self.rank)
        try:
            return _exscan(mirrored, element)
        finally:
            mirrored.Free()

    def total(self, x: Any, operation: Any = MPI.SUM) -> Any:
        total = np.empty(x.shape, x.dtype)
        self.comm.Allreduce(np.ascontiguousarray(x), total, operation)
        return total

    def share(self, x: Any, root: int) -> Any:
        return self.comm.bcast(x, root % self.comm.size)


def _exscan(comm: Any, element: AnyElement) -> AnyElement | None:
    """The effect of the ranks before this one on a state; None on the first."""
    mine = effects.pack(element)

    def read(buffer: Any) -> AnyElement:
        return effects.unpack(np.frombuffer(buffer, mine.dtype), element)

    def combine(first: Any, second: Any, datatype: Any) -> None:
        both = effects.compose(read(first), read(second))
        np.frombuffer(second, mine.dtype)[...] = effects.pack(both)

    numbers = MPI.DOUBLE if mine.dtype == np.float64 else MPI.FLOAT
    whole = numbers.Create_contiguous(mine.size).Commit()  # MPI must not cut an element
    operation = MPI.Op.Create(combine, commute=False)
    before = np.empty_like(mine)
    try:
        comm.Exscan([mine, 1, whole], [before, 1, whole], op=operation)
    finally:
        operation.Free()
        whole.Free()
    return None if comm.rank == 0 else read(before)


def _over_ranks(method: Callable[..., Any], r: Recurrence) -> Callable[..., Any]:
    def call(operands: tuple[Any, ...], *grad_out: Any, comm: Any = None, **options: Any) -> Any:
        return method(_Ranks(comm), r.name, operands, *grad_out, **options)

    return call


_made = recurrences(
    BRIDGE, forward=partial(_over_ranks, over_ranks.forward),
    backward=partial(_over_ranks, over_ranks.backward),
)  # fmt: skip
globals().update(_made)
__all__ = [*_made]
