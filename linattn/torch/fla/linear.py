# mypy: disable-error-code="empty-body"
"""Linear attention, with and without decay: linear_attn, simple_gla, gla, retention, ...

Functions are declared by their signatures; `function` makes their bodies from a rule.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import causal, gated
from ._keywords import Given
from ._layout import check_shape, no_decay
from ._rules import Rule, function, named

__all__ = [
    "chunk_gla", "chunk_lightning_attn", "chunk_linear_attn", "chunk_retention", "chunk_rwkv6",
    "chunk_simple_gla", "fused_chunk_linear_attn", "fused_chunk_retention",
    "fused_chunk_simple_gla", "fused_recurrent_gla", "fused_recurrent_lightning_attn",
    "fused_recurrent_linear_attn", "fused_recurrent_retention", "fused_recurrent_rwkv6",
    "fused_recurrent_simple_gla", "parallel_retention", "parallel_simple_gla",
]  # fmt: skip

Result = tuple[Tensor, Any]
EPS = 1e-10  #: added to the denominator where outputs are normalised


def _normalization(name: str, given: Given) -> Given:
    normalize = given["normalize"]
    return {
        "feature_map": "identity", "normalize": normalize, "normalized": normalize, "eps": EPS,
    }  # fmt: skip


LINEAR_ATTN = Rule(causal, options=_normalization)


@function(LINEAR_ATTN)
def chunk_linear_attn(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, normalize: bool = True, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """Linear attention; with ``normalize`` a state is a pair (s, z [N, 1, H, K])."""


@function(LINEAR_ATTN)
def fused_chunk_linear_attn(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, normalize: bool = True, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """Linear attention; with ``normalize`` a state is a pair (s, z [N, 1, H, K])."""


@function(LINEAR_ATTN)
def fused_recurrent_linear_attn(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, reverse: bool = False, normalize: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """Linear attention; with ``normalize`` a state is a pair (s, z [N, 1, H, K])."""


def _decay(name: str, given: Given) -> dict[str, Tensor]:
    """Log decays [B, T, HV] from g or g_gamma; without either there is no decay."""
    g, g_gamma, v = given["g"], given["g_gamma"], given["v"]
    if g_gamma is None:
        return {"g": no_decay(v) if g is None else g}
    if g is not None:
        raise ValueError(f"{name}: g and g_gamma are both given; expected one of them")
    return _per_head(name, v, g_gamma)


def _per_head(name: str, v: Tensor, rates: Tensor) -> dict[str, Tensor]:
    check_shape(name, "g_gamma", rates, v.shape[2:3], "[HV]")
    return {"g": rates.expand(v.shape[:3])}


def _decay_or_none(name: str, given: Given) -> dict[str, Tensor]:
    return {"g": no_decay(given["v"]) if given["g"] is None else given["g"]}


SIMPLE_GLA = Rule(gated, _decay, v_first=True)


@function(SIMPLE_GLA)
def chunk_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Gated linear attention, one log decay per token and head, or ``g_gamma``, one per head."""


@function(SIMPLE_GLA)
def fused_chunk_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """Gated linear attention, one log decay per token and head, or ``g_gamma``, one per head."""


@function(SIMPLE_GLA._replace(extras=_decay_or_none), "parallel")
def parallel_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, scale: float | None = None,
    output_attentions: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:  # fmt: skip
    """Gated linear attention, one log decay per token and head, without states."""


@function(SIMPLE_GLA)
def fused_recurrent_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
    cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Gated linear attention, one log decay per token and head, or ``g_gamma``, one per head."""


def _gk(name: str, given: Given) -> dict[str, Tensor]:
    gk = given["gk"]
    return {"g": no_decay(given["v"])} if gk is None else {"gk": gk}


@function(Rule(gated, named("g"), channels=("g",), v_first=True), g="Tensor, [B, T, H, K]")
def chunk_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:  # fmt: skip
    """Gated linear attention, one log decay per key channel, [B, T, H, K]."""


@function(Rule(gated, _gk, channels=("gk",), v_first=True))
def fused_recurrent_gla(
    q: Tensor, k: Tensor, v: Tensor, gk: Tensor | None = None, gv: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
    cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Gated linear attention, one log decay per key channel, and gv, one per value channel.

    gv makes each value channel a head, which takes V times the memory for decays, and longer.
    """


def _retention(name: str, given: Given) -> dict[str, Tensor]:
    heads = _heads(given["q"])
    return _per_head(name, given["v"], torch.log1p(-(2.0 ** (-5.0 - heads))))


def _heads(q: Tensor) -> Tensor:
    """0, 1, ... for each head."""
    return torch.arange(q.shape[2], dtype=torch.float32, device=q.device)


RETENTION = Rule(gated, _retention, v_first=True)


@function(RETENTION)
def chunk_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Retention: per token, head h forgets a share 2^(-5 - h) of its state."""


@function(RETENTION)
def fused_chunk_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """Retention: per token, head h forgets a share 2^(-5 - h) of its state."""


@function(RETENTION, "parallel")
def parallel_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, output_attentions: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """Retention: per token, head h forgets a share 2^(-5 - h) of its state; without states."""


@function(RETENTION)
def fused_recurrent_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, reverse: bool = False,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Retention: per token, head h forgets a share 2^(-5 - h) of its state."""


def _lightning(name: str, given: Given) -> dict[str, Tensor]:
    heads = _heads(given["q"])
    slope = 8 / len(heads) * (1 - given["layer_idx"] / given["num_layers"])
    return _per_head(name, given["v"], -slope * heads)


LIGHTNING_ATTN = Rule(gated, _lightning, v_first=True)


@function(LIGHTNING_ATTN)
def chunk_lightning_attn(
    q: Tensor, k: Tensor, v: Tensor, layer_idx: int, num_layers: int, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Lightning attention: log decays -8 h / H (1 - layer_idx / num_layers)."""


@function(LIGHTNING_ATTN)
def fused_recurrent_lightning_attn(
    q: Tensor, k: Tensor, v: Tensor, layer_idx: int, num_layers: int, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """Lightning attention: log decays -8 h / H (1 - layer_idx / num_layers)."""


def _bonus(name: str, given: Given) -> Given:
    """u [H, K]; the G value heads of a key head share its row."""
    u, k, v = given["u"], given["k"], given["v"]
    check_shape(name, "u", u, (k.shape[2], k.shape[3]), "[H, K]")
    return {"bonus": u if v.shape[2] == k.shape[2] else u.unsqueeze(1)}


RWKV6 = Rule(gated, named("w"), channels=("w",), options=_bonus)


@function(RWKV6)
def chunk_rwkv6(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """RWKV-6: log decays w [B, T, H, K] and a bonus u [H, K] of a token's own key."""


@function(RWKV6)
def fused_recurrent_rwkv6(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """RWKV-6: log decays w [B, T, H, K] and a bonus u [H, K] of a token's own key."""
