"""The operators of linattn on tensors, differentiable: names and arguments of the NumPy ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._state import State
from ..attention import CAUSAL, NONCAUSAL
from ..delta import DELTA
from ..dplr import DPLR
from ..gated import GATED
from ..gated_delta import GATED_DELTA
from ._functions import CONVOLUTION, LINFORMER, LOG_DECAY, SOFTMAX
from ._recurrence import TensorRecurrence

_CAUSAL = TensorRecurrence(CAUSAL)
_NONCAUSAL = TensorRecurrence(NONCAUSAL)
_DELTA = TensorRecurrence(DELTA)
_GATED = TensorRecurrence(GATED)
_GATED_DELTA = TensorRecurrence(GATED_DELTA)
_DPLR = TensorRecurrence(DPLR)


def causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: Any = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.causal` on tensors (..., n, d), (..., n, d), (..., n, m)."""
    return _CAUSAL.forward(
        (q, k, v), feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state,
    )  # fmt: skip


def noncausal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: Any = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: Any = None,
) -> Tensor:
    """`linattn.noncausal` on tensors (..., n, d), (..., s, d), (..., s, m)."""
    o: Tensor = _NONCAUSAL.forward(
        (q, k, v), feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        key_lengths=key_lengths,
    )  # fmt: skip
    return o


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State,
    *,
    feature_map: Any = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.step`, one token of `causal`: tensors (..., d), (..., d), (..., m)."""
    return _CAUSAL.step(
        (q, k, v), state, feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        in_place=in_place,
    )  # fmt: skip


def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.delta` on tensors."""
    return _DELTA.forward(
        (q, k, v, beta), scale=scale, feature_map=feature_map, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


def delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: State,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.delta_step`, one token of `delta`."""
    return _DELTA.step(
        (q, k, v, beta), state, scale=scale, feature_map=feature_map, in_place=in_place
    )


def gated(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    bonus: Tensor | None = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.gated` on tensors."""
    return _GATED.forward(
        (q, k, v, g, bonus), scale=scale, feature_map=feature_map, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


def gated_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    state: State,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    bonus: Tensor | None = None,
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.gated_step`, one token of `gated`."""
    return _GATED.step(
        (q, k, v, g, bonus), state, scale=scale, feature_map=feature_map, in_place=in_place
    )


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    erase: Tensor | None = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.gated_delta` on tensors."""
    return _GATED_DELTA.forward(
        (q, k, v, g, beta, erase), scale=scale, feature_map=feature_map, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


def gated_delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: State,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    erase: Tensor | None = None,
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.gated_delta_step`, one token of `gated_delta`."""
    return _GATED_DELTA.step(
        (q, k, v, g, beta, erase), state, scale=scale, feature_map=feature_map, in_place=in_place
    )


def dplr(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.dplr` on tensors."""
    return _DPLR.forward(
        (q, k, v, a, b, g), scale=scale, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


def dplr_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    state: State,
    *,
    scale: float = 1.0,
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.dplr_step`, one token of `dplr`."""
    return _DPLR.step((q, k, v, a, b, g), state, scale=scale, in_place=in_place)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    cu_seqlens: Any = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.causal_conv1d` on tensors x (..., n, c), weight (c, w)."""
    return CONVOLUTION.forward(x, weight, bias, activation, cu_seqlens, initial_state, return_state)


def causal_conv1d_step(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    in_place: bool = False,
) -> tuple[Tensor, Tensor]:
    """`linattn.causal_conv1d_step`, one token of `causal_conv1d`."""
    return CONVOLUTION.step(x, weight, state, bias, activation, in_place)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """`linattn.softmax_attention` on tensors."""
    return SOFTMAX(q, k, v, causal=causal, scale=scale)


def linformer(
    q: Tensor, k: Tensor, v: Tensor, E: Tensor, F: Tensor, *, scale: float | None = None
) -> Tensor:
    """`linattn.linformer` on tensors."""
    return LINFORMER(q, k, v, E, F, scale=scale)


def log_decay(x: Tensor, A_log: Any, dt_bias: Any, *, lower_bound: float | None = None) -> Tensor:
    """`linattn.log_decay` on tensors."""
    return LOG_DECAY(x, A_log, dt_bias, lower_bound=lower_bound)
