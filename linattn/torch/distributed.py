"""The recurrences over torch.distributed: each process has consecutive tokens of every head.

As in LASP-2, each process computes what its tokens do to the state, one all-gather shares that, and
each process then runs from its own state; the gradient goes the same way.  What is gathered is a
state, d m + d numbers per head, and a matrix d d where the recurrence has one, or, for scans, as
many numbers again, whatever the length of the sequence; for the gradients of ``mlstm`` and ``wkv``
it is three states.

The functions take this process's tokens, in the order of ranks, and a ``group`` (the whole world by
default) whose processes call together, forwards and backwards.  Gradients are those of the loss
summed over processes with respect to this process's operands, so that the gradients of parameters,
which DistributedDataParallel averages over processes, are as for batches on other processes.

There are no ``key_lengths``, ``cu_seqlens``, ``block``, ``initial_state``, ``return_state``,
``state_at`` and ``state_indices``, no transforms of torch.func, and no `linattn.torch.slstm`;
``beta`` is one number per token, not one per value channel;
`linattn.feature_maps.PositiveRandomFeatures` need ``normalize=False``; and `linear_scan` takes as
many factors as tokens: use ``a.expand(...)`` for factors that tokens share.

An error in one process is an error in all.  If a process dies, the others raise at once or after
the group's ``timeout``, which `torch.distributed.init_process_group` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from .._blocks import effects, over_ranks
from .._blocks.effects import AnyElement
from .._bridges.bridge import recurrences
from .._bridges.rows import DISTRIBUTED
from ._core import map_texts
from ._core.conversions import check, refuse_transforms, resolved
from ._core.direct import array, compute
from ._core.operator import OPERATORS, TensorOperator

if TYPE_CHECKING:
    from .._signatures.distributed import *  # noqa: F403


def _run(
    operator: TensorOperator, operands: Sequence[Any], *, group: Any = None, **options: Any
) -> Tensor:
    """The output of this process's tokens."""
    name = operator.name
    # Not told to the other processes: the tensors of messages would be transformed, too.
    refuse_transforms(f"linattn.torch.distributed.{name}")
    processes = _Processes(group)
    complex_too = operator.complex_too
    try:
        args, narrow = operator.arguments(name, operands, options)
        named = dict(zip(operator.names, args, strict=False))
        operands = [
            _plain(name, x.name, named.pop(x.name), complex_too=complex_too)
            for x in operator.operands
        ]
        if "feature_map" in named:
            omega = _plain(name, "omega", named.pop("omega"))
            named["feature_map"] = map_texts.restore(named["feature_map"], omega)
    except Exception as error:
        over_ranks.fail(processes, error)
    # Where one process computes gradients, it waits for all others to do so.
    recorded = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)
    o: Tensor = _Sequence.apply((name, processes, named), recorded, *operands)
    return o if narrow is None else o.to(narrow)


_functions = recurrences(DISTRIBUTED, forward=lambda r: partial(_run, OPERATORS[r.name]))
globals().update(_functions)
__all__ = [*_functions]


def _plain(name: str, argument: str, x: Any, *, complex_too: bool = False) -> Any:
    """A tensor whose memory can be read; anything else is an error here, not in the exchange."""
    if isinstance(x, Tensor):
        check(name, argument, x, complex_too=complex_too)
        x = resolved(x)
        array(x.detach())
    return x


class _Sequence(torch.autograd.Function):
    """A recurrence over the processes of a group."""

    @staticmethod
    def forward(ctx: Any, call: Any, recorded: bool, *operands: Any) -> Tensor:
        ctx.save_for_backward(*operands)
        ctx.call = call
        alike = {"whether an operand requires grad": recorded}
        return _compute(ctx.call, operands, alike=alike)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        operands = ctx.saved_tensors
        found = iter(_compute(ctx.call, operands, resolved(grad)))
        return None, None, *(None if x is None else next(found).to(x.dtype) for x in operands)


def _compute(call: Any, operands: Sequence[Any], *grad: Tensor, **more: Any) -> Any:
    name, ranks, options = call
    run: Any = over_ranks.backward if grad else over_ranks.forward
    return compute(
        lambda arrays, grad=(), **options: run(ranks, name, arrays, *grad, **options),
        tuple(None if x is None else x.detach() for x in operands),
        {"grad": grad}, more | options,
    )  # fmt: skip


class _Processes:
    """What connects the processes of a group, as `linattn._blocks.over_ranks.Ranks`."""

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

    def before(self, element: AnyElement) -> AnyElement | None:
        return _composed(self._elements(element)[: self.rank])

    def behind(self, element: AnyElement) -> AnyElement | None:
        return _composed(self._elements(element)[: self.rank : -1])

    def total(self, x: Any) -> Any:
        total = torch.from_numpy(np.array(x))
        dist.all_reduce(total, group=self.group)
        return total.numpy()

    def share(self, x: Any, root: int) -> Any:
        return self.gather(x)[root]

    def _elements(self, element: AnyElement) -> list[AnyElement]:
        """The elements of all processes, by one all-gather."""
        mine = torch.from_numpy(effects.pack(element))
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(gathered, mine, group=self.group)
        return [effects.unpack(x.numpy(), element) for x in gathered]


def _composed(elements: Sequence[AnyElement]) -> AnyElement | None:
    return reduce(effects.compose, elements) if elements else None
