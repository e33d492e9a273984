"""Recurrences of single channels: HGRN and RWKV-4."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._states.state_arrays import State
from ..operators import linear_scan, wkv
from ._docs import documented
from ._layout import check_shape, check_tensor, count_sequences, sequence_bounds

__all__ = ["chunk_hgrn", "fused_recurrent_hgrn", "fused_recurrent_rwkv4"]

Result = tuple[Tensor, Any]
_TYPES = {
    "x": "Tensor, [B, T, D]", "g": "Tensor, [B, T, D]", "initial_state": "Tensor, [N, D], optional",
}  # fmt: skip


@documented("linear_scan", **_TYPES)
def chunk_hgrn(
    x: Tensor, g: Tensor, initial_state: Tensor | None = None, output_final_state: bool = False
) -> Result:
    """HGRN: h = e^g h + x in each channel.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x = torch.ones(1, 3, 2)
    >>> fla.chunk_hgrn(x, torch.zeros(1, 3, 2))[0][..., 0]
    tensor([[1., 2., 3.]])
    """
    return _hgrn("chunk_hgrn", x, g, initial_state, output_final_state, None)


@documented("linear_scan", **_TYPES)
def fused_recurrent_hgrn(
    x: Tensor, g: Tensor, initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """HGRN: h = e^g h + x in each channel.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x = torch.ones(1, 3, 2)
    >>> fla.fused_recurrent_hgrn(x, torch.zeros(1, 3, 2))[0][..., 0]
    tensor([[1., 2., 3.]])
    """
    return _hgrn("fused_recurrent_hgrn", x, g, initial_state, output_final_state, cu_seqlens)


def _hgrn(
    name: str, x: Tensor, g: Tensor, initial_state: Tensor | None, output_final_state: bool,
    cu_seqlens: Tensor | None,
) -> Result:  # fmt: skip
    check_tensor(name, "x", x)
    if x.ndim != 3:
        raise ValueError(f"{name}: x has shape {tuple(x.shape)}; expected [B, T, D]")
    check_shape(name, "g", g, x.shape, "[B, T, D], that of x")
    packed = cu_seqlens is not None
    if packed:
        cu_seqlens = sequence_bounds(cu_seqlens)
    n = count_sequences(name, "x", x, cu_seqlens)
    start = None
    if initial_state is not None:
        check_shape(name, "initial_state", initial_state, (n, x.shape[2]), "[N, D]")
        start = State(initial_state[None] if packed else initial_state, None)
    o: Any = linear_scan(
        g, x, log=True, cu_seqlens=cu_seqlens, initial_state=start, return_state=output_final_state
    )
    o, end = o if output_final_state else (o, None)
    if end is None:
        return o.to(x.dtype), None
    return o.to(x.dtype), end.s[0] if packed else end.s


@documented("wkv", w="Tensor, [D]", u="Tensor, [D]", k="Tensor, [B, T, D]", v="Tensor, [B, T, D]")
def fused_recurrent_rwkv4(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """RWKV-4: a token decays the memory of a channel by e^-e^w; u is added to its own key.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x = torch.ones(1, 3, 2)
    >>> state = torch.zeros(1, 3, 1, 2)
    >>> state[:, 2] = -torch.inf
    >>> o, state = fla.fused_recurrent_rwkv4(x[0, 0], x[0, 0], x, x, state)
    >>> o[..., 0]
    tensor([[1., 1., 1.]])
    """
    name = "fused_recurrent_rwkv4"
    check_tensor(name, "k", k)
    if k.ndim != 3:
        raise ValueError(f"{name}: k has shape {tuple(k.shape)}; expected [B, T, D]")
    batch, _, d = k.shape
    check_shape(name, "v", v, k.shape, "[B, T, D], that of k")
    check_shape(name, "w", w, (d,), "[D]")
    check_shape(name, "u", u, (d,), "[D]")
    check_shape(name, "state", state, (batch, 3, 1, d), "[B, 3, 1, D]")
    start = State(*state.squeeze(2).unbind(1))
    rate = (w if w.dtype is torch.float64 else w.float()).exp()
    o, end = wkv(k, v, rate, u, initial_state=start, return_state=True)
    return o, torch.stack([*end], 1).unsqueeze(2)
