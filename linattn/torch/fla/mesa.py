"""MesaNet: the least squares fit of the values so far, by conjugate gradients.

``s_i = e^{g_i} s_{i-1} + beta_i k_i v_i^T`` and h_i likewise with k_i in place of v_i;
``o_i = s_i^T x_i``, where x_i solves ``(h_i + diag(lamb)) x_i = q_i``.  `gated` multiplies the
queries of all tokens by their h_i at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._states.state_arrays import State
from .._core import conversions
from ..feature_maps import L2Norm
from ..operators import gated
from ._docs import documented
from ._layout import (
    check_shape,
    check_tensor,
    check_tokens,
    count_sequences,
    sequence_bounds,
    state_in,
    state_out,
)

__all__ = ["chunk_mesa_net", "mesa_net_decoding_one_step"]

_NORM = L2Norm()
Result = tuple[Tensor, Tensor | None, Tensor | None]


@documented("gated", returns="mesa", v="Tensor, [B, T, H, V]", g="Tensor, [B, T, H]",
            beta="Tensor, [B, T, H]")  # fmt: skip
def chunk_mesa_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lamb: Tensor,
    h_kk_init: Tensor | None = None, h_kv_init: Tensor | None = None,
    output_final_state: bool = False, max_CG_iteration: int = 30,
    use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:  # fmt: skip
    """MesaNet: a query reads what fits the values so far best, with the ridge ``lamb``.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x = torch.ones(1, 3, 2, 4)
    >>> o, _, _ = fla.chunk_mesa_net(x, x, x, 0 * x[..., 0], x[..., 0], x[0, 0])
    >>> o.shape
    torch.Size([1, 3, 2, 4])
    """
    return _mesa("chunk_mesa_net", q, k, v, g, beta, lamb, (h_kk_init, h_kv_init),
                 output_final_state, max_CG_iteration, use_qk_l2norm_in_kernel,
                 cu_seqlens)  # fmt: skip


@documented(
    "gated", returns="mesa_step", q="Tensor, [B, H, K]", k="Tensor, [B, H, K]",
    v="Tensor, [B, H, V]", g="Tensor, [B, H]", beta="Tensor, [B, H]",
)  # fmt: skip
def mesa_net_decoding_one_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, lamb: Tensor, beta: Tensor, prev_h_kk: Tensor,
    prev_h_kv: Tensor, max_CG_iteration: int = 30,
) -> Result:  # fmt: skip
    """One token of MesaNet.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x, state = torch.ones(1, 2, 4), torch.zeros(1, 2, 4, 4)
    >>> step = fla.mesa_net_decoding_one_step
    >>> o, _, _ = step(x, x, x, 0 * x[..., 0], x[0], x[..., 0], state, state)
    >>> o.shape
    torch.Size([1, 2, 4])
    """
    name = "mesa_net_decoding_one_step"
    for argument, x, letters in (("q", q, "[B, H, K]"), ("k", k, "[B, H, K]"),
                                 ("v", v, "[B, H, V]"), ("g", g, "[B, H]"),
                                 ("beta", beta, "[B, H]")):  # fmt: skip
        check_tensor(name, argument, x)
        if x.ndim != letters.count(",") + 1:
            raise ValueError(f"{name}: {argument} has shape {tuple(x.shape)}; expected {letters}")
    q, k, v, g, beta = (x.unsqueeze(1) for x in (q, k, v, g, beta))
    o, h_kk, h_kv = _mesa(name, q, k, v, g, beta, lamb, (prev_h_kk, prev_h_kv), True,
                          max_CG_iteration, False, None)  # fmt: skip
    return o[:, 0], h_kk, h_kv


def _mesa(
    name: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lamb: Tensor,
    states: tuple[Tensor | None, Tensor | None], output_final_state: bool, iterations: int,
    normalize: bool, cu_seqlens: Any,
) -> Result:  # fmt: skip
    cu_seqlens = None if cu_seqlens is None else sequence_bounds(cu_seqlens)
    _check(name, q, k, v, g, beta, lamb, states, iterations, cu_seqlens)
    dtype = conversions.promotion(x.dtype for x in (q, k, v))
    wide = conversions.work_dtype(dtype)
    q, k, v, g, beta = (x.to(wide).transpose(1, 2) for x in (q, k, v, g, beta))
    if normalize:
        q, k = _NORM(q), _NORM(k)
    write = beta.unsqueeze(-1) * k
    h, s = (x if x is None else state_in(x.to(wide), 1, cu_seqlens) for x in states)
    lamb = lamb.to(wide).unsqueeze(1)
    x = _Solution.apply(q, write, k, g, lamb, h, cu_seqlens, iterations)
    o, s = _read(x, write, v, g, s, cu_seqlens)
    o = o.transpose(1, 2).to(dtype).contiguous()
    if not output_final_state:
        return o, None, None
    _, h = _read(k, write, k, g, h, cu_seqlens)
    return o, state_out(h, 1, cu_seqlens), state_out(s, 1, cu_seqlens)


def _read(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, start: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What the queries read, and the last state."""
    first = None if start is None else State(start, None)
    o: Any = gated(q, k, v, g, initial_state=first, cu_seqlens=cu_seqlens, return_state=True)
    return o[0], o[1].s


class _Solution(torch.autograd.Function):
    """x of ``(h + diag(lamb)) x = q`` for all tokens; its gradient solves the same equations."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, write: Tensor, k: Tensor, g: Tensor, lamb: Tensor,
        start: Tensor | None, cu_seqlens: Tensor | None, iterations: int,
    ) -> Tensor:  # fmt: skip
        ctx.iterations = iterations
        given = write, k, g, start, cu_seqlens
        x = conjugate_gradients(lambda p: _read(p, *given)[0] + lamb * p, q, iterations)
        ctx.save_for_backward(x, lamb, *given)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, lamb, *given, cu_seqlens = ctx.saved_tensors
        fixed = *given, cu_seqlens
        u = conjugate_gradients(lambda p: _read(p, *fixed)[0] + lamb * p, grad, ctx.iterations)
        given = [y if y is None else y.detach().requires_grad_() for y in given]
        with torch.enable_grad():
            write, k, g, start = given
            y, _ = _read(x, write, k, g, start, cu_seqlens)
            grads = torch.autograd.grad(y, [z for z in given if z is not None], -u)
        dlamb = -(u * x).sum((0, 2)).unsqueeze(1)
        return u, *grads[:3], dlamb, *grads[3:], *[None] * (6 - len(grads))


def conjugate_gradients(product: Callable[[Tensor], Tensor], q: Tensor, iterations: int) -> Tensor:
    """x of ``A x = q`` in each row, where ``product`` multiplies rows by their symmetric A."""
    x, r, p = torch.zeros_like(q), q, q
    size = r.square().sum(-1, keepdim=True)
    enough = torch.finfo(q.dtype).eps ** 2 * size
    for _ in range(iterations):
        moving = size > enough
        if not moving.any():
            break
        a = product(p)
        step = torch.where(moving, size / (p * a).sum(-1, keepdim=True), 0.0)
        x, r = x + step * p, r - step * a
        before, size = size, r.square().sum(-1, keepdim=True)
        p = r + torch.where(moving, size / before, 0.0) * p
    return x


def _check(
    name: str, q: Any, k: Any, v: Any, g: Any, beta: Any, lamb: Any, states: Any,
    iterations: Any, cu_seqlens: Tensor | None,
) -> None:  # fmt: skip
    check_tokens(name, q, k, v, cu_seqlens)
    check_shape(name, "v", v, (*k.shape[:3], v.shape[3]), "[B, T, H, V]")
    check_shape(name, "g", g, k.shape[:3], "[B, T, H]")
    check_shape(name, "beta", beta, k.shape[:3], "[B, T, H]")
    check_shape(name, "lamb", lamb, k.shape[2:], "[H, K]")
    n, (heads, d) = count_sequences(name, "q", q, cu_seqlens), k.shape[2:]
    for argument, x, width in zip(("h_kk_init", "h_kv_init"), states, (d, v.shape[3]), strict=True):
        if x is not None:
            check_shape(name, argument, x, (n, heads, d, width), "[N, H, K, K] or [N, H, K, V]")
    if not isinstance(iterations, int) or iterations < 0:
        raise ValueError(
            f"{name}: max_CG_iteration is {iterations!r}; expected an integer of at least 0"
        )
