"""Gated linear attention whose values decay by channel, instead of its keys.

``s_i = s_{i-1} diag(e^{g_i}) + k_i v_i^T``, ``o_i = scale s_i^T q_i``.  The transposed state is
that of `gated` with keys and values exchanged, and ``sum o_i.x_i = sum q_i.gated(x, v, k, g)_i``.
So o is the gradient of that sum with respect to x, and its own gradients are those of that sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._state import State
from .._tensors import work_dtype
from ..operators import gated


def column_gated(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, scale: float = 1.0,
    initial_state: State | None = None, return_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Any:  # fmt: skip
    """As `linattn.torch.gated`, but g (..., n, m); the output is float32 for 16-bit tokens."""
    start = None if initial_state is None else initial_state.s
    o, end = _ColumnGated.apply(q, k, v, g, start, scale, cu_seqlens)
    return (o, State(end, None)) if return_state else o


class _ColumnGated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, start: Tensor | None, scale: float,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.save_for_backward(q, k, v, g, start, cu_seqlens)
        ctx.scale = scale
        x = torch.zeros((), dtype=work_dtype(q.dtype)).expand(*q.shape[:-1], v.shape[-1])
        x = x.contiguous().requires_grad_()
        with torch.enable_grad():
            y, end = _exchanged(x, k, v, g, start, scale, cu_seqlens)
            (o,) = torch.autograd.grad(y, x, q.to(y.dtype))
        return o, end.detach().mT

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor, grad_end: Tensor) -> Any:
        q, *given, cu_seqlens = ctx.saved_tensors
        given = [None if x is None else x.detach().requires_grad_() for x in given]
        with torch.enable_grad():
            k, v, g, start = given
            y, end = _exchanged(grad_o, k, v, g, start, ctx.scale, cu_seqlens)
            there = [x for x in given if x is not None]
            grads = torch.autograd.grad((y, end), there, (q.to(y.dtype), grad_end.mT))
        return y.detach().to(q.dtype), *grads, *[None] * (6 - len(grads))


def _exchanged(
    x: Tensor, k: Tensor, v: Tensor, g: Tensor, start: Tensor | None, scale: float,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What queries x read from the transposed states, and the last of them."""
    first = None if start is None else State(start.mT, None)
    y: Any = gated(
        x, v, k, g, scale=scale, initial_state=first, return_state=True, cu_seqlens=cu_seqlens
    )
    return y[0], y[1].s
