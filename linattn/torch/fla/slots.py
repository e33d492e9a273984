"""LightNet, gated slot attention and ABC: keys or slots whose weights are softmaxes over time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import conversions
from ..operators import gated
from . import _layout
from ._columns import exchanged
from ._docs import documented
from ._keywords import refuse
from ._layout import check_shape, check_tensor, check_tokens, count_sequences, sequence_bounds
from ._rules import Rule, call, named

__all__ = [
    "chunk_abc", "chunk_gsa", "chunk_lightnet", "fused_recurrent_gsa", "fused_recurrent_lightnet",
]  # fmt: skip

Result = tuple[Tensor, Any]
Pair = tuple[Tensor | None, Tensor | None]


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
LIGHTNET = Rule(gated, named("g"), channels=("g",), v_first=True)
_PAIR = "pair of tensors, [N, H, K, V] and [N, 1, H, K], optional"


@documented("gated", returns="lightnet", v="Tensor, [B, T, H, V]", initial_state=_PAIR)
def chunk_lightnet(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
    initial_state: Pair | None = None, output_final_state: bool = False,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """LightNet: keys are softmaxes over the tokens so far, in each channel."""
    return _lightnet("chunk_lightnet", q, k, v, scale, initial_state, output_final_state,
                     state_v_first, cu_seqlens)  # fmt: skip


@documented("gated", returns="lightnet", v="Tensor, [B, T, H, V]", initial_state=_PAIR)
def fused_recurrent_lightnet(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
    initial_state: Pair | None = None, output_final_state: bool = False,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """LightNet: keys are softmaxes over the tokens so far, in each channel."""
    return _lightnet("fused_recurrent_lightnet", q, k, v, scale, initial_state,
                     output_final_state, state_v_first, cu_seqlens)  # fmt: skip


def _lightnet(
    name: str, q: Tensor, k: Tensor, v: Tensor, scale: float | None, initial_state: Any,
    output_final_state: bool, state_v_first: bool, cu_seqlens: Any,
) -> Result:  # fmt: skip
    cu_seqlens = None if cu_seqlens is None else sequence_bounds(cu_seqlens)
    check_tokens(name, q, k, v, cu_seqlens)
    check_shape(name, "v", v, (*k.shape[:3], v.shape[3]), "[B, T, H, V]")
    s, z = _pair(name, initial_state)
    if z is not None:
        n = count_sequences(name, "q", q, cu_seqlens)
        check_shape(name, "initial_state[1]", z, (n, 1, *k.shape[2:]), "[N, 1, H, K]")
    k, g, z = _softmax_over_time(k, z, cu_seqlens)
    given = {
        "q": q, "k": k, "v": v, "g": g, "scale": scale, "initial_state": s,
        "output_final_state": output_final_state, "state_v_first": state_v_first,
        "cu_seqlens": cu_seqlens,
    }  # fmt: skip
    o, s = call(LIGHTNET, name, given, {})
    return o, (s, z)


def _pair(name: str, state: Any) -> Any:
    if state is None:
        return None, None
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        raise TypeError(f"{name}: initial_state is a {type(state).__name__}; expected a pair")
    return state


_SLOTS = {
    "q": "Tensor, [B, T, HQ, K]", "k": "Tensor, [B, T, H, K]", "v": "Tensor, [B, T, H, V]",
    "g": "Tensor, [B, T, H, M], optional",
    "initial_state": "pair of tensors, [N, H, K, M] and [N, H, M, V], optional",
}  # fmt: skip


@documented("gated", returns="gsa", **_SLOTS)
def chunk_gsa(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor | None = None,
    scale: float | None = None, initial_state: Pair | None = None,
    output_final_state: bool = False, checkpoint_level: int = 2,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Gated slot attention: tokens write to M slots that decay; queries attend to the slots.

    Without g slots are softmaxes over the tokens so far, as in ABC.  HQ is a multiple of H.
    """
    refuse("chunk_gsa", kwargs)
    return _gsa("chunk_gsa", q, k, v, s, g, scale, initial_state, output_final_state, False,
                cu_seqlens)  # fmt: skip


@documented("gated", returns="gsa", **_SLOTS)
def fused_recurrent_gsa(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor | None = None,
    scale: float | None = None, initial_state: Pair | None = None,
    output_final_state: bool = False, reverse: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """Gated slot attention: tokens write to M slots that decay; queries attend to the slots.

    Without g slots are softmaxes over the tokens so far, as in ABC.  HQ is a multiple of H.
    """
    return _gsa("fused_recurrent_gsa", q, k, v, s, g, scale, initial_state, output_final_state,
                reverse, cu_seqlens)  # fmt: skip


@documented("gated", returns="gsa", **_SLOTS)
def chunk_abc(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, initial_state: Pair | None = None,
    output_final_state: bool = False,
) -> Result:  # fmt: skip
    """Attention with bounded memory: slots are softmaxes over the tokens so far."""
    o, state = _gsa("chunk_abc", q, k, v, s, None, None, initial_state, output_final_state, False,
                    None)  # fmt: skip
    return o, state if output_final_state else None


def _gsa(
    name: str, q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor | None,
    scale: float | None, initial_state: Any, output_final_state: bool, reverse: bool,
    cu_seqlens: Any,
) -> Result:  # fmt: skip
    cu_seqlens = None if cu_seqlens is None else sequence_bounds(cu_seqlens)
    groups = _check_slots(name, q, k, v, s, g, cu_seqlens)
    dtype = conversions.promotion(x.dtype for x in (q, k, v))
    starts = _check_states(name, initial_state, k, v, s, cu_seqlens)
    if g is None:
        s, g, _ = _softmax_over_time(s, None, cu_seqlens)
    if groups > 1:
        k, v, s, g = (x.repeat_interleave(groups, 2) for x in (k, v, s, g))
        starts = [x if x is None else x.repeat_interleave(groups, 1) for x in starts]
    options: Any = {
        "output_final_state": output_final_state, "cu_seqlens": cu_seqlens, "reverse": reverse,
    }  # fmt: skip
    o, hk = _layout.run(
        name,
        _COLUMN_GATED,
        q,
        k,
        s,
        {"g": g},
        scale=scale,
        initial_state=starts[0],
        dtype=conversions.work_dtype(dtype),
        **options,
    )
    o, hv = _layout.run(
        name,
        gated,
        o.softmax(-1),
        s,
        v,
        {"g": g},
        scale=1.0,
        initial_state=starts[1],
        dtype=dtype,
        **options,
    )
    if output_final_state and groups > 1:
        hk, hv = hk[:, ::groups].contiguous(), hv[:, ::groups].contiguous()
    return o, (hk, hv)


def _check_slots(
    name: str, q: Any, k: Any, v: Any, s: Any, g: Any, cu_seqlens: Tensor | None
) -> int:
    """Raise an error unless shapes match; returns the number of query heads per key head."""
    for argument, x, width in (("q", q, "K"), ("k", k, "K"), ("v", v, "V"), ("s", s, "M")):
        check_tensor(name, argument, x)
        if x.ndim != 4:
            raise ValueError(
                f"{name}: {argument} has shape {tuple(x.shape)}; expected [B, T, H, {width}]"
            )
    if k.shape[2] == 0 or q.shape[2] % k.shape[2] or q.shape[2] == 0:
        raise ValueError(
            f"{name}: q has {q.shape[2]} heads; expected a multiple of {k.shape[2]}, those of k"
        )
    check_shape(name, "k", k, (*q.shape[:2], k.shape[2], q.shape[3]), "[B, T, H, K]")
    check_shape(name, "v", v, (*k.shape[:3], v.shape[3]), "[B, T, H, V]")
    check_shape(name, "s", s, (*k.shape[:3], s.shape[3]), "[B, T, H, M]")
    if g is not None:
        check_shape(name, "g", g, s.shape, "[B, T, H, M]")
    count_sequences(name, "q", q, cu_seqlens)
    return int(q.shape[2] // k.shape[2])


def _check_states(
    name: str, states: Any, k: Tensor, v: Tensor, s: Tensor, cu_seqlens: Tensor | None
) -> list[Tensor | None]:
    n, heads, m = count_sequences(name, "q", k, cu_seqlens), k.shape[2], s.shape[3]
    expected = ((k.shape[3], m), "[N, H, K, M]"), ((m, v.shape[3]), "[N, H, M, V]")
    states = _pair(name, states)
    for i, (x, (core, letters)) in enumerate(zip(states, expected, strict=True)):
        if x is not None:
            check_shape(name, f"initial_state[{i}]", x, (n, heads, *core), letters)
    return list(states)
