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
from ._keywords import Given
from ._layout import (
    check_axes,
    check_shape,
    check_tokens,
    count_sequences,
    state_in,
    state_out,
)
from ._parameters import ThreeResults
from ._rules import family

_NORM = L2Norm()


@family(
    "gated",
    {
        "chunk_mesa_net": "q k v g beta lamb h_kk_init h_kv_init output_final_state "
        "max_CG_iteration=30 use_qk_l2norm_in_kernel cu_seqlens cu_seqlens_cpu",
    },
    types={"v": "Tensor, [B, T, H, V]", "g": "Tensor, [B, T, H]", "beta": "Tensor, [B, T, H]"},
)
def _mesa_net(name: str, given: Given) -> ThreeResults:
    """MesaNet: a query reads what fits the values so far best, with the ridge ``lamb``.

    Returns
    -------
    o : Tensor, [B, T, H, V]
    h_kk, h_kv : Tensor, [N, H, K, K] and [N, H, K, V], or None
        float32 or float64; None without ``output_final_state``.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x = torch.ones(1, 3, 2, 4)
    >>> o, _, _ = fla.chunk_mesa_net(x, x, x, 0 * x[..., 0], x[..., 0], x[0, 0])
    >>> o.shape
    torch.Size([1, 3, 2, 4])
    """
    conversions.refuse_transforms(name)
    _check(name, given)
    cu_seqlens, wide = given["cu_seqlens"], conversions.work_dtype(given["dtype"])
    q, k, v, g, beta = (given[x].to(wide).transpose(1, 2) for x in ("q", "k", "v", "g", "beta"))
    if given["use_qk_l2norm_in_kernel"]:
        q, k = _NORM(q), _NORM(k)
    write = beta.unsqueeze(-1) * k
    h, s = (None if given[x] is None else state_in(given[x].to(wide), 1, cu_seqlens)
            for x in ("h_kk_init", "h_kv_init"))  # fmt: skip
    lamb = given["lamb"].to(wide).unsqueeze(1)
    x = _Solution.apply(q, write, k, g, lamb, h, cu_seqlens, given["max_CG_iteration"])
    o, s = _read(x, write, v, g, s, cu_seqlens)
    o = o.transpose(1, 2).to(given["dtype"]).contiguous()
    if not given["output_final_state"]:
        return o, None, None
    _, h = _read(k, write, k, g, h, cu_seqlens)
    return o, state_out(h, 1, cu_seqlens), state_out(s, 1, cu_seqlens)


_TOKEN = {"q": "[B, H, K]", "k": "[B, H, K]", "v": "[B, H, V]", "g": "[B, H]", "beta": "[B, H]"}


@family(
    "gated",
    {
        "mesa_net_decoding_one_step": "q k v g lamb beta prev_h_kk prev_h_kv max_CG_iteration=30",
    },
    types={x: f"Tensor, {letters}" for x, letters in _TOKEN.items()},
)
def _mesa_step(name: str, given: Given) -> ThreeResults:
    """One token of MesaNet.

    Returns
    -------
    o : Tensor, [B, H, V]
    h_kk, h_kv : Tensor, [B, H, K, K] and [B, H, K, V]

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
    for argument, letters in _TOKEN.items():
        x = given[argument]
        check_axes(name, argument, x, letters.count(",") + 1, letters)
        given[argument] = x.unsqueeze(1)
    o, h_kk, h_kv = _mesa_net(name, given | {
        "h_kk_init": given["prev_h_kk"], "h_kv_init": given["prev_h_kv"],
        "output_final_state": True, "use_qk_l2norm_in_kernel": False, "cu_seqlens": None,
    })  # fmt: skip
    return o[:, 0], h_kk, h_kv


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


def _check(name: str, given: Given) -> None:
    check_tokens(name, given, grouped=False)
    k, v, iterations = given["k"], given["v"], given["max_CG_iteration"]
    for argument in ("g", "beta"):
        check_shape(name, argument, given[argument], k.shape[:3], "[B, T, H]")
    check_shape(name, "lamb", given["lamb"], k.shape[2:], "[H, K]")
    n, (heads, d) = count_sequences(name, "q", k, given["cu_seqlens"]), k.shape[2:]
    for argument, width in (("h_kk_init", d), ("h_kv_init", v.shape[3])):
        if (x := given[argument]) is not None:
            check_shape(name, argument, x, (n, heads, d, width), "[N, H, K, K] or [N, H, K, V]")
    if not isinstance(iterations, int) or iterations < 0:
        raise ValueError(
            f"{name}: max_CG_iteration is {iterations!r}; expected an integer of at least 0"
        )
