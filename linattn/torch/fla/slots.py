"""LightNet, gated slot attention and ABC: keys or slots whose weights are softmaxes over time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import conversions
from ..operators import gated
from . import _layout
from ._columns import exchanged
from ._keywords import Given
from ._layout import check_axes, check_shape, check_tokens, count_sequences
from ._parameters import Result
from ._rules import family


def _softmax_over_time(
    x: Tensor, start: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights e^{x - z}, log decays and the last z [N, 1, ...], where z = log sum e^x so far.

    ``start`` is the z before the first token, [N, 1, ...].
    """
    wide = x.to(conversions.work_dtype(x.dtype))
    if cu_seqlens is None:
        return _normalizer(x.dtype, wide, start)
    parts = wide.split(cu_seqlens.diff().tolist(), 1)
    starts = [None] * len(parts) if start is None else start.split(1)
    weights, decays, last = zip(
        *(_normalizer(x.dtype, *both) for both in zip(parts, starts, strict=True)), strict=True
    )
    return torch.cat(weights, 1), torch.cat(decays, 1), torch.cat(last)


def _normalizer(
    dtype: torch.dtype, x: Tensor, start: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`_softmax_over_time` of one sequence."""
    if start is None:
        start = x.new_full((x.shape[0], 1, *x.shape[2:]), -torch.inf)
    empty = start.isneginf()
    # The gradient of a sum of nothing, whose logarithm is -inf, would be nan.
    start = start.to(x.dtype).clamp(min=torch.finfo(x.dtype).min / 2)
    z = torch.cat([start, x], 1).logcumsumexp(1)
    before, z = z[:, :-1], z[:, 1:]
    decays = before - z
    decays = torch.cat([decays[:, :1].masked_fill(empty, 0.0), decays[:, 1:]], 1)
    if not x.shape[1]:
        return x.to(dtype), x, start.masked_fill(empty, -torch.inf)
    return (x - z).exp().to(dtype), decays, z[:, -1:]


_COLUMN_GATED = exchanged(gated)
_SLOTS = {
    "q": "Tensor, [B, T, HQ, K]", "k": "Tensor, [B, T, H, K]", "v": "Tensor, [B, T, H, V]",
    "initial_state": "pair of tensors, [N, H, K, M] and [N, H, M, V], optional",
}  # fmt: skip


@family(
    "gated",
    dict.fromkeys(
        ("chunk_lightnet", "fused_recurrent_lightnet"),
        "q k v scale initial_state output_final_state state_v_first cu_seqlens",
    ),
    types={
        "v": "Tensor, [B, T, H, V]",
        "initial_state": "pair of tensors, [N, H, K, V] and [N, 1, H, K], optional",
    },
)
def _lightnet(name: str, given: Given) -> Result:
    """LightNet: keys are softmaxes over the tokens so far, in each channel.

    Returns
    -------
    o : Tensor, [B, T, H, V]
    final_state : pair of tensors, [N, H, K, V] and [N, 1, H, K]
        The state, None without ``output_final_state``, and the logarithms of the sums of the keys'
        exponentials; float32 or float64.
    """
    check_tokens(name, given, grouped=False)
    k, cu_seqlens = given["k"], given["cu_seqlens"]
    given["initial_state"], z = _pair(name, given["initial_state"])
    if z is not None:
        n = count_sequences(name, "q", k, cu_seqlens)
        check_shape(name, "initial_state[1]", z, (n, 1, *k.shape[2:]), "[N, 1, H, K]")
    given["k"], g, z = _softmax_over_time(k, z, cu_seqlens)
    o, s = _layout.run(name, gated, given, {"g": g})
    return o, (s, z)


def _pair(name: str, state: Any) -> Any:
    if state is None:
        return None, None
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        raise TypeError(f"{name}: initial_state is a {type(state).__name__}; expected a pair")
    return state


@family(
    "gated",
    {
        "chunk_gsa": "q k v s g scale initial_state output_final_state checkpoint_level "
        "cu_seqlens cu_seqlens_cpu **kwargs",
        "fused_recurrent_gsa": "q k v s g scale initial_state output_final_state reverse "
        "cu_seqlens",
    },
    types=_SLOTS | {"g": "Tensor, [B, T, H, M], optional"},
)
def _gsa(name: str, given: Given) -> Result:
    """Gated slot attention: tokens write to M slots that decay; queries attend to the slots.

    Without g slots are softmaxes over the tokens so far, as in ABC.  HQ is a multiple of H.

    Returns
    -------
    o : Tensor, [B, T, HQ, V]
    final_state : pair of tensors, [N, H, K, M] and [N, H, M, V], or of None
        float32 or float64; None without ``output_final_state``.
    """
    conversions.refuse_transforms(name)
    groups = _check_slots(name, given)
    dtype = conversions.promotion(given[x].dtype for x in "qkv")
    starts = _check_states(name, given)
    q, k, v, s, g = (given[x] for x in ("q", "k", "v", "s", "g"))
    if g is None:
        s, g, _ = _softmax_over_time(s, None, given.get("cu_seqlens"))
    if groups > 1:
        k, v, s, g = (x.repeat_interleave(groups, 2) for x in (k, v, s, g))
        starts = [x if x is None else x.repeat_interleave(groups, 1) for x in starts]
    keys = {"q": q, "k": k, "v": s, "initial_state": starts[0]}
    keys["dtype"] = conversions.work_dtype(dtype)
    o, hk = _layout.run(name, _COLUMN_GATED, given | keys, {"g": g})
    values = {"q": o.softmax(-1), "k": s, "v": v, "initial_state": starts[1]}
    o, hv = _layout.run(name, gated, given | values | {"dtype": dtype, "scale": 1.0}, {"g": g})
    if given["output_final_state"] and groups > 1:
        hk, hv = hk[:, ::groups].contiguous(), hv[:, ::groups].contiguous()
    return o, (hk, hv)


@family("gated", {"chunk_abc": "q k v s initial_state output_final_state"}, types=_SLOTS)
def _abc(name: str, given: Given) -> Result:
    """Attention with bounded memory: slots are softmaxes over the tokens so far.

    Returns
    -------
    o : Tensor, [B, T, HQ, V]
    final_state : pair of tensors, [N, H, K, M] and [N, H, M, V], or of None
        float32 or float64; None without ``output_final_state``.
    """
    o, state = _gsa(name, given | {"g": None, "scale": None})
    return o, state if given["output_final_state"] else None


def _check_slots(name: str, given: Given) -> int:
    """Raise an error unless shapes match; returns the number of query heads per key head."""
    for argument, width in (("q", "K"), ("k", "K"), ("v", "V"), ("s", "M")):
        x = given[argument]
        check_axes(name, argument, x, 4, f"[B, T, H, {width}]")
    q, k, v, s, g = (given[x] for x in ("q", "k", "v", "s", "g"))
    if k.shape[2] == 0 or q.shape[2] % k.shape[2] or q.shape[2] == 0:
        raise ValueError(
            f"{name}: q has {q.shape[2]} heads; expected a multiple of {k.shape[2]}, those of k"
        )
    check_shape(name, "k", k, (*q.shape[:2], k.shape[2], q.shape[3]), "[B, T, H, K]")
    check_shape(name, "v", v, (*k.shape[:3], v.shape[3]), "[B, T, H, V]")
    check_shape(name, "s", s, (*k.shape[:3], s.shape[3]), "[B, T, H, M]")
    if g is not None:
        check_shape(name, "g", g, s.shape, "[B, T, H, M]")
    count_sequences(name, "q", q, given.get("cu_seqlens"))
    return int(q.shape[2] // k.shape[2])


def _check_states(name: str, given: Given) -> list[Tensor | None]:
    k, v, m = given["k"], given["v"], given["s"].shape[3]
    n, heads = count_sequences(name, "q", k, given.get("cu_seqlens")), k.shape[2]
    expected = ((k.shape[3], m), "[N, H, K, M]"), ((m, v.shape[3]), "[N, H, M, V]")
    states = _pair(name, given["initial_state"])
    for i, (x, (core, letters)) in enumerate(zip(states, expected, strict=True)):
        if x is not None:
            check_shape(name, f"initial_state[{i}]", x, (n, heads, *core), letters)
    return list(states)
