"""Linear attention, with and without decay: linear_attn, simple_gla, gla, retention, ..."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators import causal, gated
from ._keywords import Given, states_v_first
from ._layout import check_shape, no_decay
from ._rules import rule

EPS = 1e-10  #: added to the denominator where outputs are normalised


def _normalization(name: str, given: Given) -> Given:
    normalize = given["normalize"]
    return {
        "feature_map": "identity", "normalize": normalize, "normalized": normalize, "eps": EPS,
    }  # fmt: skip


@rule(
    causal,
    {
        "chunk_linear_attn": "q k v scale initial_state output_final_state normalize=True "
        "cu_seqlens",
        "fused_chunk_linear_attn": "q k v scale initial_state output_final_state normalize=True "
        "cu_seqlens",
        "fused_recurrent_linear_attn": "q k v scale initial_state output_final_state reverse "
        "normalize cu_seqlens",
    },
    options=_normalization,
    types={"initial_state": "Tensor, [N, HV, K, V], or pair, optional"},
)
def _linear_attn(name: str, given: Given) -> Given:
    """Linear attention; with ``normalize`` a state is a pair (s, z [N, 1, H, K]).

    Returns
    -------
    o : Tensor, [B, T, HV, V]
    final_state : Tensor, [N, HV, K, V], or None
        float32 or float64; None without ``output_final_state``.  With ``normalize`` a pair of it
        and [N, 1, H, K].
    """
    return {}


def _per_head(name: str, v: Tensor, rates: Tensor) -> Given:
    check_shape(name, "g_gamma", rates, v.shape[2:3], "[HV]")
    return {"g": rates.expand(v.shape[:3])}


def _decay_or_none(name: str, given: Given) -> Given:
    return {"g": no_decay(given["v"]) if given["g"] is None else given["g"]}


@rule(
    gated,
    {
        "chunk_simple_gla": "q k v g=None g_gamma=None scale initial_state output_final_state "
        "state_v_first cu_seqlens cu_seqlens_cpu **kwargs",
        "fused_chunk_simple_gla": "q k v g=None g_gamma=None scale initial_state "
        "output_final_state cu_seqlens",
        "fused_recurrent_simple_gla": "q k v g=None g_gamma=None scale initial_state "
        "output_final_state reverse state_v_first cu_seqlens **kwargs",
    },
    former=states_v_first,
)
def _simple_gla(name: str, given: Given) -> Given:
    """Gated linear attention, one log decay per token and head, or ``g_gamma``, one per head."""
    if given["g_gamma"] is None:
        return _decay_or_none(name, given)
    if given["g"] is not None:
        raise ValueError(f"{name}: g and g_gamma are both given; expected one of them")
    return _per_head(name, given["v"], given["g_gamma"])


@rule(
    gated, {"parallel_simple_gla": "q k v g=None scale output_attentions cu_seqlens cu_seqlens_cpu"}
)
def _parallel_simple_gla(name: str, given: Given) -> Given:
    """Gated linear attention, one log decay per token and head, without states."""
    return _decay_or_none(name, given)


@rule(
    gated,
    {
        "chunk_gla": "q k v g scale initial_state output_final_state state_v_first cu_seqlens "
        "cu_seqlens_cpu",
    },
    channels=("g",),
    types={"g": "Tensor, [B, T, H, K]"},
)
def _gla(name: str, given: Given) -> Given:
    """Gated linear attention, one log decay per key channel, [B, T, H, K]."""
    return {"g": given["g"]}


@rule(
    gated,
    {
        "fused_recurrent_gla": "q k v gk=None gv scale initial_state output_final_state reverse "
        "state_v_first cu_seqlens **kwargs",
    },
    channels=("gk",),
    former=states_v_first,
)
def _recurrent_gla(name: str, given: Given) -> Given:
    """Gated linear attention, one log decay per key channel, and gv, one per value channel.

    gv makes each value channel a head, which takes V times the memory for decays, and longer.
    """
    gk = given["gk"]
    return {"g": no_decay(given["v"])} if gk is None else {"gk": gk}


@rule(
    gated,
    {
        "chunk_retention": "q k v scale initial_state output_final_state cu_seqlens **kwargs",
        "fused_chunk_retention": "q k v scale initial_state output_final_state cu_seqlens",
        "fused_recurrent_retention": "q k v scale initial_state output_final_state reverse "
        "state_v_first cu_seqlens **kwargs",
    },
    former=states_v_first,
)
def _retention(name: str, given: Given) -> Given:
    """Retention: per token, head h forgets a share 2^(-5 - h) of its state."""
    return _per_head(name, given["v"], torch.log1p(-(2.0 ** (-5.0 - _heads(given["q"])))))


@rule(gated, {"parallel_retention": "q k v scale output_attentions cu_seqlens"})
def _parallel_retention(name: str, given: Given) -> Given:
    """Retention: per token, head h forgets a share 2^(-5 - h) of its state; without states."""
    return _retention(name, given)


@rule(
    gated,
    {
        "chunk_lightning_attn": "q k v layer_idx num_layers scale initial_state "
        "output_final_state cu_seqlens **kwargs",
        "fused_recurrent_lightning_attn": "q k v layer_idx num_layers scale initial_state "
        "output_final_state reverse cu_seqlens",
    },
    former=states_v_first,
)
def _lightning_attn(name: str, given: Given) -> Given:
    """Lightning attention: log decays -8 h / H (1 - layer_idx / num_layers)."""
    heads = _heads(given["q"])
    slope = 8 / len(heads) * (1 - given["layer_idx"] / given["num_layers"])
    return _per_head(name, given["v"], -slope * heads)


def _heads(q: Tensor) -> Tensor:
    """0, 1, ... for each head."""
    return torch.arange(q.shape[2], dtype=torch.float32, device=q.device)


def _bonus(name: str, given: Given) -> Given:
    """u [H, K]; the G value heads of a key head share its row."""
    u, k, v = given["u"], given["k"], given["v"]
    check_shape(name, "u", u, (k.shape[2], k.shape[3]), "[H, K]")
    return {"bonus": u if v.shape[2] == k.shape[2] else u.unsqueeze(1)}


@rule(
    gated,
    {
        "chunk_rwkv6": "r k v w u scale initial_state output_final_state cu_seqlens "
        "cu_seqlens_cpu **kwargs",
        "fused_recurrent_rwkv6": "r k v w u scale initial_state output_final_state reverse "
        "cu_seqlens",
    },
    channels=("w",),
    options=_bonus,
)
def _rwkv6(name: str, given: Given) -> Given:
    """RWKV-6: log decays w [B, T, H, K] and a bonus u [H, K] of a token's own key."""
    return {"w": given["w"]}
