"""linattn for JAX: the operators on CPU arrays, differentiable, under jit, vmap and shard_map.

Names and arguments are those of the NumPy functions but for ``out``.  Where linattn was built with
JAX installed, a call goes from XLA to the C kernels without Python or a copy; otherwise through
`jax.pure_callback` (`IN_C` tells).  Gradients are reverse-mode and flow through states; there are
none of gradients.  ``scale`` and ``eps`` are numbers when a function is traced.

Within `jax.shard_map`, ``axis_name`` says along which axis of the mesh the tokens are cut: each
device computes what its stretch does to the state, and one all-gather of that is all that is sent.
"""

from __future__ import annotations

import math
from typing import Any

try:
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError(f"linattn.jax needs {error.name}: pip install 'linattn[jax]'") from error

from .._masks import refuses_masks
from .._state import State
from ..attention import CAUSAL, NONCAUSAL
from ..delta import DELTA
from ..dplr import DPLR
from ..gated import GATED
from ..gated_delta import GATED_DELTA
from . import _functions, _recurrence, _sharded
from ._call import IN_C, promoted, work_dtype

__all__ = [
    "IN_C",
    "State",
    "causal",
    "causal_conv1d",
    "causal_conv1d_step",
    "delta",
    "delta_step",
    "dplr",
    "dplr_step",
    "gated",
    "gated_delta",
    "gated_delta_step",
    "gated_step",
    "initial_state",
    "linformer",
    "log_decay",
    "noncausal",
    "softmax_attention",
    "step",
]


def _forward(axis_name: str | None, r: Any, operands: dict[str, Any], **options: Any) -> Any:
    if axis_name is None:
        return _recurrence.forward(r, operands, **options)
    return _sharded.forward(r, operands, axis_name, **options)


@refuses_masks
def causal(
    q: Any, k: Any, v: Any, *, feature_map: Any = "elu", normalize: bool = True,
    eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.causal` on JAX's arrays.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, linattn.jax
    >>> x = jnp.ones((3, 2))
    >>> jax.grad(lambda v: linattn.jax.causal(x, x, v, eps=0.0).sum())(x).sum(0)
    Array([3., 3.], dtype=float32)
    """
    return _forward(
        axis_name, CAUSAL,
        {"q": q, "k": k, "v": v}, feature_map=feature_map, normalize=normalize, eps=eps,
        scale=scale, key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state,
    )  # fmt: skip


@refuses_masks
def noncausal(
    q: Any, k: Any, v: Any, *, feature_map: Any = "elu", normalize: bool = True,
    eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None,
) -> Any:  # fmt: skip
    """`linattn.noncausal` on JAX's arrays."""
    return _recurrence.forward(
        NONCAUSAL, {"q": q, "k": k, "v": v}, feature_map=feature_map, normalize=normalize,
        eps=eps, scale=scale, key_lengths=key_lengths,
    )  # fmt: skip


def step(
    q: Any, k: Any, v: Any, state: State, *, feature_map: Any = "elu", normalize: bool = True,
    eps: float = 1e-6, scale: float = 1.0,
) -> tuple[Any, State]:  # fmt: skip
    """`linattn.step`, one token of `causal`."""
    return _recurrence.step(
        CAUSAL, {"q": q, "k": k, "v": v}, state, feature_map=feature_map, normalize=normalize,
        eps=eps, scale=scale,
    )  # fmt: skip


@refuses_masks
def initial_state(
    q: Any, k: Any, v: Any, *others: Any, operator: str = "causal", feature_map: Any = "elu",
    normalize: bool = True, cu_seqlens: Any = None,
) -> State:  # fmt: skip
    """`linattn.initial_state` as JAX's arrays.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.ones((2, 4))
    >>> linattn.jax.initial_state(x, x, x, operator="step").s.shape
    (2, 4, 4)
    """
    return _recurrence.initial_state(
        (q, k, v, *others), operator, feature_map, normalize, cu_seqlens
    )


@refuses_masks
def delta(
    q: Any, k: Any, v: Any, beta: Any, *, scale: float = 1.0, feature_map: Any = "identity",
    key_lengths: Any = None, cu_seqlens: Any = None, initial_state: State | None = None,
    return_state: bool = False, axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.delta` on JAX's arrays."""
    return _forward(
        axis_name, DELTA,
        {"q": q, "k": k, "v": v, "beta": beta}, scale=scale, feature_map=feature_map,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state,
    )  # fmt: skip


def delta_step(
    q: Any, k: Any, v: Any, beta: Any, state: State, *, scale: float = 1.0,
    feature_map: Any = "identity",
) -> tuple[Any, State]:  # fmt: skip
    """`linattn.delta_step`, one token of `delta`."""
    return _recurrence.step(
        DELTA, {"q": q, "k": k, "v": v, "beta": beta}, state, scale=scale,
        feature_map=feature_map,
    )  # fmt: skip


@refuses_masks
def gated(
    q: Any, k: Any, v: Any, g: Any, *, scale: float = 1.0, feature_map: Any = "identity",
    bonus: Any = None, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.gated` on JAX's arrays."""
    return _forward(
        axis_name, GATED,
        {"q": q, "k": k, "v": v, "g": g, "bonus": bonus}, scale=scale,
        feature_map=feature_map, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


def gated_step(
    q: Any, k: Any, v: Any, g: Any, state: State, *, scale: float = 1.0,
    feature_map: Any = "identity", bonus: Any = None,
) -> tuple[Any, State]:  # fmt: skip
    """`linattn.gated_step`, one token of `gated`."""
    return _recurrence.step(
        GATED, {"q": q, "k": k, "v": v, "g": g, "bonus": bonus}, state, scale=scale,
        feature_map=feature_map,
    )  # fmt: skip


@refuses_masks
def gated_delta(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float = 1.0,
    feature_map: Any = "identity", erase: Any = None, key_lengths: Any = None,
    cu_seqlens: Any = None, initial_state: State | None = None, return_state: bool = False,
    axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.gated_delta` on JAX's arrays."""
    return _forward(
        axis_name, GATED_DELTA,
        {"q": q, "k": k, "v": v, "g": g, "beta": beta, "erase": erase}, scale=scale,
        feature_map=feature_map, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


def gated_delta_step(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: State, *, scale: float = 1.0,
    feature_map: Any = "identity", erase: Any = None,
) -> tuple[Any, State]:  # fmt: skip
    """`linattn.gated_delta_step`, one token of `gated_delta`."""
    return _recurrence.step(
        GATED_DELTA, {"q": q, "k": k, "v": v, "g": g, "beta": beta, "erase": erase}, state,
        scale=scale, feature_map=feature_map,
    )  # fmt: skip


@refuses_masks
def dplr(
    q: Any, k: Any, v: Any, a: Any, b: Any, g: Any, *, scale: float = 1.0,
    key_lengths: Any = None, cu_seqlens: Any = None, initial_state: State | None = None,
    return_state: bool = False, axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.dplr` on JAX's arrays."""
    return _forward(
        axis_name, DPLR,
        {"q": q, "k": k, "v": v, "a": a, "b": b, "g": g}, scale=scale,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state,
    )  # fmt: skip


def dplr_step(
    q: Any, k: Any, v: Any, a: Any, b: Any, g: Any, state: State, *, scale: float = 1.0
) -> tuple[Any, State]:
    """`linattn.dplr_step`, one token of `dplr`."""
    return _recurrence.step(
        DPLR, {"q": q, "k": k, "v": v, "a": a, "b": b, "g": g}, state, scale=scale
    )


@refuses_masks
def causal_conv1d(
    x: Any, weight: Any, bias: Any = None, *, activation: str | None = None,
    cu_seqlens: Any = None, initial_state: Any = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.causal_conv1d` on JAX's arrays x (..., n, c), weight (c, w)."""
    name = "causal_conv1d"
    if activation not in (None, "silu"):
        raise ValueError(f"{name}: activation is {activation!r}; expected None or 'silu'")
    if bias is None:
        bias = jnp.zeros(jnp.shape(x)[-1], jnp.asarray(x).dtype)
    x, weight, bias = promoted(name, {"x": x, "weight": weight, "bias": bias})
    n, (c, w) = x.shape[-2], weight.shape[-2:]
    if x.shape[-1] != c or bias.shape[-1] != c:
        raise ValueError(
            f"{name}: weight has shape {weight.shape} and bias {bias.shape}; expected "
            f"({x.shape[-1]}, w) and ({x.shape[-1]},), as x has shape {x.shape}"
        )
    bounds = jnp.asarray([0, n] if cu_seqlens is None else cu_seqlens, jnp.int32)
    dtype, packed = work_dtype(x.dtype), cu_seqlens is not None
    if initial_state is None:
        state = jnp.zeros((len(bounds) - 1, w - 1, c), dtype)
    else:
        state = jnp.asarray(initial_state, dtype).mT
        state = state if packed else state[..., None, :, :]
    o, end = _functions.convolution(
        float(activation is not None), (x, weight.mT, bias), (bounds[:-1], bounds[1:]), state
    )
    if not return_state:
        return o
    return o, (end if packed else end[..., 0, :, :]).mT


def causal_conv1d_step(
    x: Any, weight: Any, state: Any, bias: Any = None, *, activation: str | None = None
) -> tuple[Any, Any]:
    """`linattn.causal_conv1d_step`, one token of `causal_conv1d`."""
    o, after = causal_conv1d(
        jnp.asarray(x)[..., None, :], weight, bias, activation=activation, initial_state=state,
        return_state=True,
    )  # fmt: skip
    return o[..., 0, :], after


@refuses_masks
def softmax_attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None
) -> Any:
    """`linattn.softmax_attention` on JAX's arrays."""
    q, k, v = promoted("softmax_attention", {"q": q, "k": k, "v": v})
    if k.shape[-1] != q.shape[-1] or v.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"softmax_attention: q, k and v have shapes {q.shape}, {k.shape} and {v.shape}; "
            "expected (..., n, d), (..., s, d) and (..., s, m)"
        )
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    return _functions.softmax(scale, bool(causal), q, k, v)


@refuses_masks
def linformer(q: Any, k: Any, v: Any, E: Any, F: Any, *, scale: float | None = None) -> Any:
    """`linattn.linformer` on JAX's arrays."""
    q, k, v, E, F = promoted("linformer", {"q": q, "k": k, "v": v, "E": E, "F": F})
    return softmax_attention(q, E.mT @ k, F.mT @ v, scale=scale)


def log_decay(x: Any, A_log: Any, dt_bias: Any, *, lower_bound: float | None = None) -> Any:
    """`linattn.log_decay` on JAX's arrays, by its own operations."""
    z = jnp.asarray(x) + dt_bias
    if lower_bound is None:
        return -jnp.exp(A_log) * jnp.logaddexp(z, 0.0)
    return lower_bound / (1 + jnp.exp(-jnp.exp(A_log) * z))
