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

There is no ``cu_seqlens`` and no ``out``; ``beta`` is one number a token, not one a value channel,
and `linattn.feature_maps.PositiveRandomFeatures` need ``normalize=False``.

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

import linattn

from . import _blocks, _ranks
from ._bridge_docs import RESCALING, Bridge, like
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

_MPI = Bridge(
    words=RESCALING,
    parameters="""
    comm : mpi4py.MPI.Comm, optional
        COMM_WORLD by default.  All its ranks call together, with the same arguments but for the
        tokens; lengths and states are those of the whole sequence, alike on every rank.""",
    also_raises="""
    ValueError
        If calls differ between ranks.
        If ``normalize`` is True and the map one of PositiveRandomFeatures.
        If ``beta`` is one number a value channel.
    RuntimeError
        If another rank has an error.""",
    notes="A scan over the ranks besides; where it takes a matrix, up to twice the time more.",
)


@refuses_masks
@like(linattn.causal, _MPI)
def causal(
    q: Any, k: Any, v: Any, *, comm: Any = None, feature_map: Any = "elu", normalize: bool = True,
    eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None,
    initial_state: State | None = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.causal` of this rank's tokens."""
    return _ranks.forward(
        _Ranks(comm), "causal", (q, k, v), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.causal_backward, _MPI)
def causal_backward(
    q: Any, k: Any, v: Any, grad_out: Any, *, comm: Any = None, feature_map: Any = "elu",
    normalize: bool = True, eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None,
    initial_state: State | None = None, grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """`linattn.causal_backward` of this rank's tokens."""
    return _ranks.backward(
        _Ranks(comm), "causal", (q, k, v), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.delta, _MPI)
def delta(
    q: Any, k: Any, v: Any, beta: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", key_lengths: Any = None, initial_state: State | None = None,
    return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.delta` of this rank's tokens."""
    return _ranks.forward(
        _Ranks(comm), "delta", (q, k, v, beta), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.delta_backward, _MPI)
def delta_backward(
    q: Any, k: Any, v: Any, beta: Any, grad_out: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", key_lengths: Any = None, initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """`linattn.delta_backward` of this rank's tokens."""
    return _ranks.backward(
        _Ranks(comm), "delta", (q, k, v, beta), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.gated, _MPI)
def gated(
    q: Any, k: Any, v: Any, g: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", bonus: Any = None, key_lengths: Any = None,
    initial_state: State | None = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.gated` of this rank's tokens."""
    return _ranks.forward(
        _Ranks(comm), "gated", (q, k, v, g, bonus), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.gated_backward, _MPI)
def gated_backward(
    q: Any, k: Any, v: Any, g: Any, grad_out: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", bonus: Any = None, key_lengths: Any = None,
    initial_state: State | None = None, grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """`linattn.gated_backward` of this rank's tokens, but dbonus is the sum over ranks."""
    return _ranks.backward(
        _Ranks(comm), "gated", (q, k, v, g, bonus), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.gated_delta, _MPI)
def gated_delta(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, comm: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", erase: Any = None, key_lengths: Any = None,
    initial_state: State | None = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.gated_delta` of this rank's tokens."""
    return _ranks.forward(
        _Ranks(comm), "gated_delta", (q, k, v, g, beta, erase), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.gated_delta_backward, _MPI)
def gated_delta_backward(
    q: Any, k: Any, v: Any, g: Any, beta: Any, grad_out: Any, *, comm: Any = None,
    scale: float = 1.0, feature_map: Any = "identity", erase: Any = None, key_lengths: Any = None,
    initial_state: State | None = None, grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """`linattn.gated_delta_backward` of this rank's tokens."""
    return _ranks.backward(
        _Ranks(comm), "gated_delta", (q, k, v, g, beta, erase), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map=feature_map, scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.dplr, _MPI)
def dplr(
    q: Any, k: Any, v: Any, a: Any, b: Any, g: Any, *, comm: Any = None, scale: float = 1.0,
    key_lengths: Any = None, initial_state: State | None = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.dplr` of this rank's tokens."""
    return _ranks.forward(
        _Ranks(comm), "dplr", (q, k, v, a, b, g), key_lengths=key_lengths,
        initial_state=initial_state, return_state=return_state,
        feature_map="identity", scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.dplr_backward, _MPI)
def dplr_backward(
    q: Any, k: Any, v: Any, a: Any, b: Any, g: Any, grad_out: Any, *, comm: Any = None,
    scale: float = 1.0, key_lengths: Any = None, initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """`linattn.dplr_backward` of this rank's tokens."""
    return _ranks.backward(
        _Ranks(comm), "dplr", (q, k, v, a, b, g), grad_out, key_lengths=key_lengths,
        initial_state=initial_state, grad_state=grad_state,
        feature_map="identity", scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.noncausal, _MPI)
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
@like(linattn.noncausal_backward, _MPI)
def noncausal_backward(
    q: Any, k: Any, v: Any, grad_out: Any, *, comm: Any = None, feature_map: Any = "elu",
    normalize: bool = True, eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """`linattn.noncausal_backward` of this rank's tokens."""
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
