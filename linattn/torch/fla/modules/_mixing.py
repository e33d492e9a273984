"""What mixes tokens or channels besides the recurrences: shifts, convolutions, rotations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import convolution
from ._activations import wide

Optional = Tensor | None


def token_shift(
    x: Tensor, cu_seqlens: Optional = None, cache: Optional = None, output_cache: bool = False,
    chunk_indices: Optional = None,
) -> tuple[Tensor, Optional]:  # fmt: skip
    """The token before each, minus it; the last token of each sequence [N, D] is the cache."""
    before = torch.cat([x.new_zeros(x[:, :1].shape), x[:, :-1]], 1)
    if cu_seqlens is None:
        if cache is not None:
            before = torch.cat([cache.to(x.dtype).unsqueeze(1), before[:, 1:]], 1)
        return before - x, x[:, -1].clone() if output_cache else None
    begin, end = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    full = end > begin
    first = torch.zeros_like(x[0, : len(begin)]) if cache is None else cache.to(x.dtype)
    before = before.index_copy(1, begin[full], first[full].unsqueeze(0))
    last = None
    if output_cache:
        last = torch.where(full[:, None], x[0, (end - 1).clamp(min=0)], first)
    return before - x, last


def shift_tokens(
    x: Tensor, cu_seqlens: Optional = None, cache: Optional = None, output_cache: bool = False,
    chunk_indices: Optional = None,
) -> Any:  # fmt: skip
    """`token_shift`; only with ``output_cache`` the cache too."""
    shifted, after = token_shift(x, cu_seqlens, cache, output_cache)
    return (shifted, after) if output_cache else shifted


def rotary_embedding_fwdbwd(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Optional = None, interleaved: bool = False, inplace: bool = False,
    conjugate: bool = False, chunk_indices: Optional = None,
) -> Tensor:  # fmt: skip
    """x [B, T, H, D] rotated by the angles of its positions, cos and sin [TR, R / 2]."""
    half, at = cos.shape[-1], _positions(x, seqlen_offsets, cu_seqlens)
    if x.shape[-1] < 2 * half:
        raise ValueError(
            f"rotary_embedding: x has {x.shape[-1]} channels; expected at least {2 * half}, twice "
            "those of cos"
        )
    if at.numel() and int(at.max()) >= len(cos):
        raise ValueError(
            f"rotary_embedding: a token is at position {int(at.max())}; expected less than "
            f"{len(cos)}, the length of cos"
        )
    padding = at < 0  # before a sequence; its result is 0
    c, s = (wide(t[at.clamp(min=0)]).unsqueeze(2) for t in (cos, sin))
    s = -s if conjugate else s
    turned, rest = wide(x[..., : 2 * half]), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        y = torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        y = torch.cat([a * c - b * s, a * s + b * c], -1)
    y = y.masked_fill(padding[..., None, None], 0).to(x.dtype)
    y = torch.cat([y, rest], -1) if rest.shape[-1] else y
    return x.copy_(y) if inplace else y


def _positions(x: Tensor, offsets: int | Tensor, cu_seqlens: Optional) -> Tensor:
    """The position of each token in its sequence, (B or 1, T)."""
    at = torch.arange(x.shape[1], device=x.device)[None]
    if cu_seqlens is None:
        return at + (offsets if isinstance(offsets, int) else offsets.long()[:, None])
    lengths = cu_seqlens.diff().long()
    shift = cu_seqlens[:-1].long() - offsets
    return at - shift.repeat_interleave(lengths)


def causal_conv1d(
    x: Tensor, weight: Optional = None, bias: Optional = None, residual: Optional = None,
    initial_state: Optional = None, output_final_state: bool | None = False,
    activation: str | None = None, cu_seqlens: Optional = None, cu_seqlens_cpu: Optional = None,
    chunk_indices: Optional = None, chunk_size: int = 64,
) -> tuple[Tensor, Optional]:  # fmt: skip
    """`linattn.torch.fla.causal_conv1d`, also of x [B, T, H, D / H]."""
    y, state = convolution.causal_conv1d(
        x.flatten(2), weight, bias, None if residual is None else residual.flatten(2),
        initial_state, output_final_state, activation, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    return y.view(x.shape), state


def addcmul_rwkv7(
    hidden_states: Tensor, delta: Tensor, x_r: Tensor, x_w: Tensor, x_k: Tensor, x_v: Tensor,
    x_a: Tensor, x_g: Optional,
) -> tuple[Optional, ...]:  # fmt: skip
    weights = (x_r, x_w, x_k, x_v, x_a, x_g)
    return tuple(None if w is None else torch.addcmul(hidden_states, delta, w) for w in weights)


def fused_addcmul_rwkv7(
    hidden_states: Tensor, delta: Tensor, xr: Tensor, xw: Tensor, xk: Tensor, xv: Tensor,
    xa: Tensor, xg: Optional = None,
) -> tuple[Optional, ...]:  # fmt: skip
    """hidden_states + delta w for each of the weights w; None for one that is None."""
    return addcmul_rwkv7(hidden_states, delta, xr, xw, xk, xv, xa, xg)


def k_update_rwkv7(
    k: Tensor, a: Tensor, ka: Tensor, cu_seqlens: Optional = None, cu_seqlens_cpu: Optional = None
) -> Tensor:
    return k.addcmul(k * (a - 1), ka)


def gate_output_correction(
    o: Tensor, r: Tensor, k: Tensor, r_k: Tensor, v: Tensor, g: Tensor
) -> Tensor:
    """(o + (r . k r_k) v) g of RWKV-7; r, k, v are [B, T, H, K] and o, g [B, T, H K]."""
    correction = (wide(r) * wide(k) * wide(r_k)).sum(-1, keepdim=True) * wide(v)
    return ((wide(o) + correction.flatten(2)) * wide(g)).to(o.dtype)
