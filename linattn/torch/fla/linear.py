"""Sums that may decay: linear_attn, simple_gla, gla, retention, lightning_attn, rwkv6."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import causal, gated
from ._docs import documented
from ._layout import check_shape, no_decay, refuse, run, v_first

Result = tuple[Tensor, Any]
EPS = 1e-10  #: added to the denominator where outputs are normalised


@documented("causal")
def chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """Linear attention; with ``normalize`` a state is a pair (s, z [N, 1, H, K])."""
    return _linear(
        "chunk_linear_attn", q, k, v, normalize, scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("causal")
def fused_recurrent_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    reverse: bool = False,
    normalize: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """Linear attention; with ``normalize`` a state is a pair (s, z [N, 1, H, K])."""
    return _linear(
        "fused_recurrent_linear_attn", q, k, v, normalize, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state, reverse=reverse,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


def _linear(name: str, q: Tensor, k: Tensor, v: Tensor, normalize: bool, **options: Any) -> Result:
    return run(
        name, causal, q, k, v, {}, **options, feature_map="identity", normalize=normalize,
        normalized=normalize, eps=EPS,
    )  # fmt: skip


@documented("gated")
def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Gated linear attention, one log decay a token and head, or ``g_gamma``, one a head."""
    return _simple_gla(
        "chunk_simple_gla", q, k, v, g, g_gamma, kwargs, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state,
        state_v_first=state_v_first, cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated")
def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Gated linear attention, one log decay a token and head, or ``g_gamma``, one a head."""
    return _simple_gla(
        "fused_recurrent_simple_gla", q, k, v, g, g_gamma, kwargs, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state, reverse=reverse,
        state_v_first=state_v_first, cu_seqlens=cu_seqlens,
    )  # fmt: skip


def _simple_gla(
    name: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, g_gamma: Tensor | None,
    more: dict[str, Any], *, state_v_first: bool = False, **options: Any,
) -> Result:  # fmt: skip
    """Without either gate nothing decays."""
    options["state_v_first"] = v_first(name, state_v_first, more)
    refuse(name, more)
    if g is not None and g_gamma is not None:
        raise ValueError(f"{name}: g and g_gamma are both given; expected one of them")
    if g_gamma is not None:
        check_shape(name, "g_gamma", g_gamma, v.shape[2:3], "[HV]")
        g = g_gamma.expand(v.shape[:3])
    elif g is None:
        g = no_decay(v)
    return run(name, gated, q, k, v, {"g": g}, **options)


@documented("gated", g="Tensor, [B, T, H, K]")
def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:
    """Gated linear attention, one log decay a key channel, [B, T, H, K]."""
    return run(
        "chunk_gla", gated, q, k, v, {"g": g}, channels=("g",), scale=scale,
        initial_state=initial_state, output_final_state=output_final_state,
        state_v_first=state_v_first, cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated")
def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Gated linear attention, one log decay a key channel; gates of value channels are refused."""
    name = "fused_recurrent_gla"
    state_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, kwargs | {"gv": gv})
    gate = {"g": no_decay(v)} if gk is None else {"gk": gk}
    return run(
        name, gated, q, k, v, gate, channels=("gk",), scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, reverse=reverse, state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated")
def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Retention: head h forgets by 1 - 2^(-5 - h) a token."""
    return _simple_gla(
        "chunk_retention", q, k, v, None, _retention(q), kwargs, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated")
def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Retention: head h forgets by 1 - 2^(-5 - h) a token."""
    return _simple_gla(
        "fused_recurrent_retention", q, k, v, None, _retention(q), kwargs, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state, reverse=reverse,
        state_v_first=state_v_first, cu_seqlens=cu_seqlens,
    )  # fmt: skip


def _rwkv6(name: str, r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Any, **options: Any) -> Result:
    """u [H, K], for the G heads of values of each head of keys alike."""
    check_shape(name, "u", u, (k.shape[2], k.shape[3]), "[H, K]")
    if v.shape[2] != k.shape[2]:
        u = u.unsqueeze(1)
    return run(name, gated, r, k, v, {"w": w}, channels=("w",), bonus=u, **options)


def _retention(q: Tensor) -> Tensor:
    heads = torch.arange(q.shape[2], dtype=torch.float32, device=q.device)
    return torch.log1p(-(2.0 ** (-5.0 - heads)))


@documented("gated")
def chunk_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Lightning attention: log decays -8 h / H (1 - layer_idx / num_layers)."""
    return _simple_gla(
        "chunk_lightning_attn", q, k, v, None, _lightning(q, layer_idx, num_layers), kwargs,
        scale=scale, initial_state=initial_state, output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated")
def fused_recurrent_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """Lightning attention: log decays -8 h / H (1 - layer_idx / num_layers)."""
    return _simple_gla(
        "fused_recurrent_lightning_attn", q, k, v, None, _lightning(q, layer_idx, num_layers), {},
        scale=scale, initial_state=initial_state, output_final_state=output_final_state,
        reverse=reverse, cu_seqlens=cu_seqlens,
    )  # fmt: skip


def _lightning(q: Tensor, layer: int, layers: int) -> Tensor:
    heads = q.shape[2]
    each = torch.arange(heads, dtype=torch.float32, device=q.device)
    return -(8 / heads * (1 - layer / layers)) * each


@documented("gated")
def chunk_rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """RWKV-6: log decays w [B, T, H, K] and a bonus u [H, K] of a token's own key."""
    refuse("chunk_rwkv6", kwargs)
    return _rwkv6(
        "chunk_rwkv6", r, k, v, w, u, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated")
def fused_recurrent_rwkv6(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    u: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """RWKV-6: log decays w [B, T, H, K] and a bonus u [H, K] of a token's own key."""
    return _rwkv6(
        "fused_recurrent_rwkv6", r, k, v, w, u, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state, reverse=reverse,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip
