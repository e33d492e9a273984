"""The recurrences over torch.distributed: each process has a stretch of the tokens of every head.

As LASP-2 does it: each process computes what its stretch does to the state, one all-gather makes
that known to all, and each then runs from its own state; backwards the same.  What is gathered is
a state, d m + d numbers a head, and a matrix d d where the recurrence has one; whatever the length
of the sequence.

The functions take this process's tokens, in the order of ranks, and a ``group`` (the whole world by
default) whose processes call together, forwards and backwards.  Gradients are those of the loss
summed over processes with respect to this process's operands: what DistributedDataParallel, whose
average divides by their number, then makes of parameters is as for batches on other processes.

There are no ``key_lengths``, ``cu_seqlens``, ``initial_state`` and ``return_state``; ``beta`` is
one number a token, not one a value channel, and `linattn.feature_maps.PositiveRandomFeatures`
need ``normalize=False``.

An error in one process is an error in all.  Where one dies, the others raise at once or when the
group's ``timeout`` is over, which `torch.distributed.init_process_group` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import linattn

from .. import _blocks, _ranks
from .._bridge_docs import RESCALING, Bridge, like
from .._masks import refuses_masks
from . import _maps
from ._docs import WORDS
from ._tensors import array, check, tensor, tensors, threads
from .operators import OPERATORS

__all__ = ["causal", "delta", "dplr", "gated", "gated_delta", "noncausal"]



_PROCESSES = Bridge(
    words=RESCALING | WORDS,
    parameters="""
    group : torch.distributed.ProcessGroup, optional
        The whole world by default.  All its processes call together, with the same arguments but
        for the tokens, forwards and backwards.""",
    also_raises="""
    ValueError
        If calls differ between processes, or this one is not in the group.
        If ``normalize`` is True and the map one of PositiveRandomFeatures.
        If ``beta`` is one number a value channel.
    RuntimeError
        If another process has an error.""",
    notes="One all-gather besides; where it takes a matrix, up to twice the time more.",
    example="""
    >>> import torch, torch.distributed as dist, linattn.torch.distributed
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x = torch.ones(3, 2)
    >>> o = {call}
    >>> o.shape
    torch.Size([3, 2])
    >>> dist.destroy_process_group()""",
)


@refuses_masks
@like(linattn.causal, _PROCESSES)
def causal(
    q: Tensor, k: Tensor, v: Tensor, *, group: Any = None, feature_map: Any = "elu",
    normalize: bool = True, eps: float = 1e-6, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """`linattn.torch.causal` of this process's tokens."""
    return _run("causal", (q, k, v), group, feature_map, normalize=normalize, eps=eps, scale=scale)


@refuses_masks
@like(linattn.noncausal, _PROCESSES)
def noncausal(
    q: Tensor, k: Tensor, v: Tensor, *, group: Any = None, feature_map: Any = "elu",
    normalize: bool = True, eps: float = 1e-6, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """`linattn.torch.noncausal` of this process's queries to the keys of all processes."""
    return _run(
        "noncausal", (q, k, v), group, feature_map, normalize=normalize, eps=eps, scale=scale
    )


@refuses_masks
@like(linattn.delta, _PROCESSES)
def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, group: Any = None, scale: float = 1.0,
    feature_map: Any = "identity",
) -> Tensor:  # fmt: skip
    """`linattn.torch.delta` of this process's tokens."""
    return _run("delta", (q, k, v, beta), group, feature_map, scale=scale)


@refuses_masks
@like(linattn.gated, _PROCESSES)
def gated(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, group: Any = None, scale: float = 1.0,
    feature_map: Any = "identity", bonus: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`linattn.torch.gated` of this process's tokens.

    The gradient of ``bonus``, which all processes have, is the sum over them.
    """
    return _run("gated", (q, k, v, g, bonus), group, feature_map, scale=scale)


@refuses_masks
@like(linattn.gated_delta, _PROCESSES)
def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, group: Any = None,
    scale: float = 1.0, feature_map: Any = "identity", erase: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`linattn.torch.gated_delta` of this process's tokens."""
    return _run("gated_delta", (q, k, v, g, beta, erase), group, feature_map, scale=scale)


@refuses_masks
@like(linattn.dplr, _PROCESSES)
def dplr(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, g: Tensor, *, group: Any = None,
    scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """`linattn.torch.dplr` of this process's tokens."""
    return _run("dplr", (q, k, v, a, b, g), group, "identity", scale=scale)


def _run(
    name: str, operands: Sequence[Tensor | None], group: Any, feature_map: Any, **options: Any
) -> Tensor:
    r, processes = OPERATORS[name], _Processes(group)
    options = {"normalize": False, "eps": 0.0} | options
    try:
        phi = _maps.resolve(name, feature_map)
        if isinstance(phi, _maps.TensorMap) and phi.rescaled:
            _blocks.check(name, _maps.restore(phi.text, phi.omega), options["normalize"])
        args, narrow = r.arguments(name, operands, feature_map, **options, key_lengths=None)
        args = [_plain(name, argument, x) for argument, x in zip(r.names, args, strict=False)]
    except Exception as error:
        _ranks.fail(processes, error)
    named = dict(zip(r.names, args, strict=False))
    known = ("feature_map", "normalize", "eps", "scale")
    given = {"feature_map": "identity"} | {x: named[x] for x in known if x in named}
    operands = args[: len(operands)]
    # Where one process computes gradients, it waits for all others to do so.
    recorded = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)
    o: Tensor = _Sequence.apply(name, processes, given, recorded, *operands)
    return o if narrow is None else o.to(narrow)


def _plain(name: str, argument: str, x: Any) -> Any:
    """A tensor whose memory can be read; anything else is an error here, not in the exchange."""
    if isinstance(x, Tensor):
        check(name, argument, x)
        x = x.resolve_neg()
        array(x.detach())
    return x


class _Sequence(torch.autograd.Function):
    """A recurrence over the processes of a group."""

    @staticmethod
    def forward(
        ctx: Any, name: str, processes: Any, options: Any, recorded: bool, *operands: Any
    ) -> Tensor:
        ctx.save_for_backward(*operands)
        ctx.call = name, processes, options
        alike = {"whether an operand requires grad": recorded}
        return tensor(_compute(ctx.call, operands, alike=alike))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        operands = ctx.saved_tensors
        found = iter(_compute(ctx.call, operands, array(grad.resolve_neg())))
        present = (None if x is None else next(found) for x in operands)
        grads = tensors(present, operands)
        return None, None, None, None, *(
            None if x is None else grad for x, grad in zip(operands, grads, strict=True)
        )  # fmt: skip


def _compute(call: Any, operands: Sequence[Any], *grad: Any, **alike: Any) -> Any:
    name, ranks, options = call
    arrays = tuple(None if x is None else array(x.detach()) for x in operands)
    with threads():
        if name == "noncausal":
            if grad:
                return _ranks.noncausal_backward(ranks, arrays, *grad, **options)
            return _ranks.noncausal(ranks, arrays, **alike, **options)
        if grad:
            return _ranks.backward(ranks, name, arrays, *grad, **options)
        return _ranks.forward(ranks, name, arrays, **alike, **options)


class _Processes:
    """The processes of a group."""

    def __init__(self, group: Any) -> None:
        self.group, self.rank = group, dist.get_rank(group)
        self.size = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("linattn.torch.distributed: this process is not in the group")

    def gather(self, x: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, x, group=self.group)
        return found

    def extremes(self, x: int) -> tuple[int, int]:
        both = torch.tensor([-x, x])
        dist.all_reduce(both, dist.ReduceOp.MAX, group=self.group)
        low, high = both.tolist()
        return -low, high

    def before(self, element: _blocks.Element) -> _blocks.Element | None:
        return _composed(self._elements(element)[: self.rank])

    def behind(self, element: _blocks.Element) -> _blocks.Element | None:
        return _composed(self._elements(element)[: self.rank : -1])

    def total(self, x: Any) -> Any:
        total = torch.from_numpy(np.array(x))
        dist.all_reduce(total, group=self.group)
        return total.numpy()

    def share(self, x: Any, root: int) -> Any:
        return self.gather(x)[root]

    def _elements(self, element: _blocks.Element) -> list[_blocks.Element]:
        """Those of all processes, by one all-gather."""
        mine = torch.from_numpy(_blocks.pack(element))
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(gathered, mine, group=self.group)
        return [_blocks.unpack(x.numpy(), element) for x in gathered]


def _composed(elements: Sequence[_blocks.Element]) -> _blocks.Element | None:
    if not elements:
        return None
    whole, *rest = elements
    for element in rest:
        whole = _blocks.compose(whole, element)
    return whole
