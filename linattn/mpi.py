"""linattn over an MPI communicator: each rank has a stretch of the tokens of every head.

The functions take what the NumPy functions take, of this rank's stretch, in the order of ranks,
and a communicator; all ranks call together.  Each computes its stretch's effect on the state, the
effects are put together by one exclusive scan with an operation of our own (log2(ranks) steps),
and each rank then runs from its own state: what crosses the network is a state, d m + d numbers a
head, and a matrix d d where the recurrence has one.  Gradients go the same way from the last rank
to the first.

An error on one rank is an error on all of them, and so are calls that differ in more than their
tokens, before anything waits.  A rank that is killed ends the job, as MPI does; one that leaves by
an exception of its own would keep the others waiting, unless it runs under ``-m mpi4py``.

A job of a batch system, in which rank i reads its own tokens::

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

from typing import Any

import numpy as np

try:
    from mpi4py import MPI
except ImportError as error:
    raise ImportError("linattn.mpi needs mpi4py: pip install 'linattn[mpi]'") from error

from . import _blocks, _ranks
from ._masks import refuses_masks
from ._state import State

__all__ = [
    "causal",
    "causal_backward",
    "delta",
    "delta_backward",
    "dplr",
    "dplr_backward",
    "gated",
    "gated_backward",
    "gated_delta",
    "gated_delta_backward",
    "noncausal",
    "noncausal_backward",
]


@refuses_masks
def causal(
    q: Any, k: Any, v: Any, *, comm: Any = None, feature_map: Any = "elu", normalize: bool = True,
    eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None,
    initial_state: State | None = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.causal` of this rank's tokens.

    ``comm`` is COMM_WORLD by default; ``key_lengths`` count from the first token of all, and
    ``initial_state`` and the returned state are those of all, alike on every rank.
    """
    return _ranks.forward(
        _Ranks(comm), "causal", (q, k, v), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
    )  # fmt: skip


@refuses_masks
def causal_backward(
    q: Any, k: Any, v: Any, grad_out: Any, *, comm: Any = None, feature_map: Any = "elu",
    normalize: bool = True, eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None,
    initial_state: State | None = None, grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of `causal`: those of this rank's operands, and that of the first state."""
    return _ranks.backward(
        _Ranks(comm), "causal", (q, k, v), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
    )  # fmt: skip


@refuses_masks
def delta(
    q: Any, k: Any, v: Any, beta: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", key_lengths: Any = None, initial_state: State | None = None,
    return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.delta` of this rank's tokens; see `causal`."""
    return _ranks.forward(
        _Ranks(comm), "delta", (q, k, v, beta), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
def delta_backward(
    q: Any, k: Any, v: Any, beta: Any, grad_out: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", key_lengths: Any = None, initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of `delta`; see `causal_backward`."""
    return _ranks.backward(
        _Ranks(comm), "delta", (q, k, v, beta), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
def gated(
    q: Any, k: Any, v: Any, g: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", bonus: Any = None, key_lengths: Any = None,
    initial_state: State | None = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.gated` of this rank's tokens; see `causal`."""
    return _ranks.forward(
        _Ranks(comm), "gated", (q, k, v, g, bonus), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
def gated_backward(
    q: Any, k: Any, v: Any, g: Any, grad_out: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", bonus: Any = None, key_lengths: Any = None,
    initial_state: State | None = None, grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of `gated`; see `causal_backward`.  That of ``bonus`` is the sum over ranks."""
    return _ranks.backward(
        _Ranks(comm), "gated", (q, k, v, g, bonus), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
def gated_delta(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", erase: Any = None, key_lengths: Any = None,
    initial_state: State | None = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.gated_delta` of this rank's tokens; see `causal`."""
    return _ranks.forward(
        _Ranks(comm), "gated_delta", (q, k, v, g, beta, erase), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
def gated_delta_backward(
    q: Any, k: Any, v: Any, g: Any, beta: Any, grad_out: Any, *, comm: Any = None,
    scale: float = 1.0, feature_map: Any = "identity", erase: Any = None, key_lengths: Any = None,
    initial_state: State | None = None, grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of `gated_delta`; see `causal_backward`."""
    return _ranks.backward(
        _Ranks(comm), "gated_delta", (q, k, v, g, beta, erase), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
def dplr(
    q: Any, k: Any, v: Any, a: Any, b: Any, g: Any, *, comm: Any = None, scale: float = 1.0,
    key_lengths: Any = None, initial_state: State | None = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.dplr` of this rank's tokens; see `causal`."""
    return _ranks.forward(
        _Ranks(comm), "dplr", (q, k, v, a, b, g), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map="identity", scale=scale,
    )  # fmt: skip


@refuses_masks
def dplr_backward(
    q: Any, k: Any, v: Any, a: Any, b: Any, g: Any, grad_out: Any, *, comm: Any = None,
    scale: float = 1.0, key_lengths: Any = None, initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of `dplr`; see `causal_backward`."""
    return _ranks.backward(
        _Ranks(comm), "dplr", (q, k, v, a, b, g), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map="identity", scale=scale,
    )  # fmt: skip


@refuses_masks
def noncausal(
    q: Any, k: Any, v: Any, *, comm: Any = None, feature_map: Any = "elu", normalize: bool = True,
    eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None,
) -> Any:  # fmt: skip
    """`linattn.noncausal` of this rank's queries to the keys of all ranks."""
    return _ranks.noncausal(
        _Ranks(comm), (q, k, v), key_lengths=key_lengths, feature_map=feature_map,
        normalize=normalize, eps=eps, scale=scale,
    )  # fmt: skip


@refuses_masks
def noncausal_backward(
    q: Any, k: Any, v: Any, grad_out: Any, *, comm: Any = None, feature_map: Any = "elu",
    normalize: bool = True, eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of `noncausal`: those of this rank's operands."""
    return _ranks.noncausal_backward(
        _Ranks(comm), (q, k, v), grad_out, key_lengths=key_lengths, feature_map=feature_map,
        normalize=normalize, eps=eps, scale=scale,
    )  # fmt: skip


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

    def before(self, element: _blocks.Element) -> _blocks.Element | None:
        return _exscan(self.comm, element)

    def behind(self, element: _blocks.Element) -> _blocks.Element | None:
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


def _exscan(comm: Any, element: _blocks.Element) -> _blocks.Element | None:
    """What the ranks before this one do to a state; None on the first."""
    mine = _blocks.pack(element)

    def read(buffer: Any) -> _blocks.Element:
        return _blocks.unpack(np.frombuffer(buffer, mine.dtype), element)

    def combine(first: Any, second: Any, datatype: Any) -> None:
        both = _blocks.compose(read(first), read(second))
        np.frombuffer(second, mine.dtype)[...] = _blocks.pack(both)

    numbers = MPI.DOUBLE if mine.dtype == np.float64 else MPI.FLOAT
    whole = numbers.Create_contiguous(mine.size).Commit()  # an element is passed as a whole
    operation = MPI.Op.Create(combine, commute=False)
    before = np.empty_like(mine)
    try:
        comm.Exscan([mine, 1, whole], [before, 1, whole], op=operation)
    finally:
        operation.Free()
        whole.Free()
    return None if comm.rank == 0 else read(before)
