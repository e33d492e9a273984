"""Operators with keys and values exchanged in what writes, but not in what reads.

``s_i = s_{i-1} diag(e^{g_i}) + k_i v_i^T``, ``o_i = scale s_i^T q_i``: values decay by channel, and
in the delta rule they erase.  The transposed state is that of an operator with keys and values
exchanged, and ``sum o_i.x_i = sum q_i.operator(x, v, k, g)_i``.  So o is the gradient of that sum
with respect to x, and its own gradients are those of that sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._states.state_arrays import State
from .._core.conversions import work_dtype


def exchanged(operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator whose gates g are of value channels; of 16-bit tokens it makes float32."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, *extras: Tensor, scale: float = 1.0,
        initial_state: State | None = None, return_state: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Any:  # fmt: skip
        start = None if initial_state is None else initial_state.s
        o, end = _Exchanged.apply(operator, scale, cu_seqlens, q, start, k, v, *extras)
        return (o, State(end, None)) if return_state else o

    return run


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, operator: Callable[..., Any], scale: float, cu_seqlens: Tensor | None, q: Tensor,
        *given: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.operator, ctx.scale = operator, scale
        ctx.save_for_backward(cu_seqlens, q, *given)
        v: Any = given[2]
        lead = torch.broadcast_shapes(q.shape[:-1], v.shape[:-1])
        x = q.new_zeros((*lead, v.shape[-1]), dtype=work_dtype(q.dtype)).requires_grad_()
        with torch.enable_grad():
            y, end = _transposed(operator, scale, cu_seqlens, x, *given)
            (o,) = torch.autograd.grad(y, x, q.to(y.dtype).expand_as(y))
        return o, end.detach().mT.contiguous()

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor, grad_end: Tensor) -> Any:
        cu_seqlens, q, *saved = ctx.saved_tensors
        given = [None if x is None else x.detach().requires_grad_() for x in saved]
        with torch.enable_grad():
            y, end = _transposed(ctx.operator, ctx.scale, cu_seqlens, grad_o, *given)
            there = [x for x in given if x is not None]
            grads = torch.autograd.grad((y, end), there, (q.to(y.dtype).expand_as(y), grad_end.mT))
        found = iter(grads)
        dq = y.detach().sum_to_size(q.shape).to(q.dtype)
        return None, None, None, dq, *(None if x is None else next(found) for x in given)


def _transposed(
    operator: Callable[..., Any], scale: float, cu_seqlens: Tensor | None, x: Tensor, start: Any,
    k: Any, v: Any, *extras: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What queries x read from the transposed states, and the last of them."""
    first = None if start is None else State(start.mT, None)
    y, end = operator(
        x, v, k, *extras, scale=scale, initial_state=first, return_state=True,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip
    return y, end.s
