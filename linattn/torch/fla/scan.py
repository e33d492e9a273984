"""Recurrences of single channels: HGRN and RWKV-4."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._states.state_arrays import State
from ..operators import linear_scan, wkv
from ._keywords import Given
from ._layout import check_axes, check_shape, count_sequences
from ._parameters import Result
from ._rules import family


@family(
    "linear_scan",
    {
        "chunk_hgrn": "x g initial_state output_final_state",
        "fused_recurrent_hgrn": "x g initial_state output_final_state cu_seqlens",
    },
    types={
        "x": "Tensor, [B, T, D]",
        "g": "Tensor, [B, T, D]",
        "initial_state": "Tensor, [N, D], optional",
    },
)
def _hgrn(name: str, given: Given) -> Result:
    """HGRN: h = e^g h + x in each channel.

    Returns
    -------
    o : Tensor, [B, T, D]
    final_state : Tensor, [N, D], or None
        float32 or float64; None without ``output_final_state``.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x = torch.ones(1, 3, 2)
    >>> fla.chunk_hgrn(x, torch.zeros(1, 3, 2))[0][..., 0]
    tensor([[1., 2., 3.]])
    """
    x, g, start = _channels(name, given, "x"), given["g"], given["initial_state"]
    check_shape(name, "g", g, x.shape, "[B, T, D], that of x")
    cu_seqlens = given.get("cu_seqlens")
    packed = cu_seqlens is not None
    n = count_sequences(name, "x", x, cu_seqlens)
    if start is not None:
        check_shape(name, "initial_state", start, (n, x.shape[2]), "[N, D]")
        start = State(start[None] if packed else start, None)
    final = given["output_final_state"]
    o: Any = linear_scan(
        g, x, log=True, cu_seqlens=cu_seqlens, initial_state=start, return_state=final
    )
    o, end = o if final else (o, None)
    if end is None:
        return o.to(x.dtype), None
    return o.to(x.dtype), end.s[0] if packed else end.s


@family(
    "wkv",
    {"fused_recurrent_rwkv4": "w u k v state"},
    types={
        "w": "Tensor, [D]",
        "u": "Tensor, [D]",
        "k": "Tensor, [B, T, D]",
        "v": "Tensor, [B, T, D]",
    },
)
def _rwkv4(name: str, given: Given) -> tuple[Tensor, Tensor]:
    """RWKV-4: a token decays the memory of a channel by e^-e^w; u is added to its own key.

    Returns
    -------
    o : Tensor, [B, T, D]
    state : Tensor, [B, 3, 1, D]
        That after the last token.

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
    k, v, w, u, state = _channels(name, given, "k"), *(given[x] for x in ("v", "w", "u", "state"))
    batch, _, d = k.shape
    check_shape(name, "v", v, k.shape, "[B, T, D], that of k")
    check_shape(name, "w", w, (d,), "[D]")
    check_shape(name, "u", u, (d,), "[D]")
    check_shape(name, "state", state, (batch, 3, 1, d), "[B, 3, 1, D]")
    start = State(*state.squeeze(2).unbind(1))
    rate = (w if w.dtype is torch.float64 else w.float()).exp()
    o, end = wkv(k, v, rate, u, initial_state=start, return_state=True)
    return o, torch.stack([*end], 1).unsqueeze(2)


def _channels(name: str, given: Given, argument: str) -> Tensor:
    """An argument [B, T, D]."""
    x: Tensor = given[argument]
    check_axes(name, argument, x, 3, "[B, T, D]")
    return x
