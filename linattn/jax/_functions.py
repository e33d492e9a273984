"""Functions of JAX's arrays that are no recurrences: softmax attention, convolution, decays."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import conv, decay
from .._check import number
from ..linformer import _operands as linformer_operands
from ..softmax import _operands as softmax_operands
from . import _check
from ._call import (
    call,
    gradient,
    like,
    promoted,
    spread,
    summed,
    total,
    with_lead,
    work_dtype,
)


def _lead(arrays: Any, ranks: Any) -> tuple[Any, Any]:
    """All with the same number of leading axes, and those axes."""
    lead = jnp.broadcast_shapes(
        *(x.shape[: x.ndim - rank] for x, rank in zip(arrays, ranks, strict=True))
    )
    return tuple(with_lead(x, r, len(lead)) for x, r in zip(arrays, ranks, strict=True)), lead


# --- softmax attention ------------------------------------------------------------------


def softmax_attention(q: Any, k: Any, v: Any, causal: bool, scale: Any) -> Any:
    name = "softmax_attention"
    q, k, v = promoted(name, {"q": q, "k": k, "v": v})
    given = _check.stand_in(q), _check.stand_in(k), _check.stand_in(v)
    *_, (scale, _) = softmax_operands(name, *given, causal, scale)
    return softmax(scale, bool(causal), q, k, v)


def linformer(q: Any, k: Any, v: Any, E: Any, F: Any, scale: Any) -> Any:
    name = "linformer"
    q, k, v, E, F = promoted(name, {"q": q, "k": k, "v": v, "E": E, "F": F})
    given = [_check.stand_in(x) for x in (q, k, v, E, F)]
    *_, scale, _, _ = linformer_operands(name, *given, scale)
    work = work_dtype(q.dtype)
    return projected(scale, *(x.astype(work) for x in (q, k, v, E, F))).astype(q.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def projected(scale: float, q: Any, k: Any, v: Any, E: Any, F: Any) -> Any:
    """`softmax` of the keys ``E^T k`` and the values ``F^T v``."""
    return softmax(scale, False, q, E.mT @ k, F.mT @ v)


def _projected_forward(scale: float, *given: Any) -> Any:
    return projected(scale, *given), given


def _projected_backward(scale: float, given: Any, grad: Any) -> Any:
    q, k, v, E, F = given
    dq, dkeys, dvalues = _softmax_backward(scale, False, (q, E.mT @ k, F.mT @ v), grad)
    found = dq, E @ dkeys, F @ dvalues, k @ dkeys.mT, v @ dvalues.mT
    return tuple(summed(x, y.shape, y.dtype) for x, y in zip(found, given, strict=True))


projected.defvjp(_projected_forward, _projected_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def softmax(scale: float, causal: bool, q: Any, k: Any, v: Any) -> Any:
    """softmax(scale q k^T) v, of arrays of one dtype."""
    (q, k, v), lead = _lead((q, k, v), (2, 2, 2))
    shape = (*lead, q.shape[-2], v.shape[-1])
    return call("softmax", (q, k, v), (scale, float(causal)), 3, [like(shape, q.dtype)])[0]


def _softmax_forward(scale: float, causal: bool, q: Any, k: Any, v: Any) -> Any:
    return softmax(scale, causal, q, k, v), (q, k, v)


def _softmax_backward(scale: float, causal: bool, given: Any, grad: Any) -> Any:
    arrays, lead = _lead(given, (2, 2, 2))
    outputs = [gradient(lead, x, y) for x, y in zip(arrays, given, strict=True)]
    found = call("softmax_backward", (*arrays, grad), (scale, float(causal)), 4, outputs)
    return tuple(summed(x, y.shape, y.dtype) for x, y in zip(found, given, strict=True))


softmax.defvjp(_softmax_forward, _softmax_backward)


# --- the convolution ----------------------------------------------------------------------

RANKS = (2, 2, 1)  #: axes of x, of the taps (w, c) and of the bias that are no leading ones


def causal_conv1d(
    x: Any, weight: Any, bias: Any, activation: Any, cu_seqlens: Any, state: Any,
    name: str = "causal_conv1d", field: str = "initial_state",
) -> tuple[Any, Any]:  # fmt: skip
    """The output, and the state after the last token."""
    if bias is None:
        bias = jnp.zeros(jnp.shape(x)[-1:], jnp.asarray(x).dtype)
    x, weight, bias = promoted(name, {"x": x, "weight": weight, "bias": bias})
    given = _check.stand_in(x), _check.stand_in(weight), _check.stand_in(bias)
    *_, shape, silu = conv._operands(name, *given, activation, 2)
    (n, c), w, packed = x.shape[-2:], weight.shape[-1], cu_seqlens is not None
    bounds = _check.cu_seqlens(name, cu_seqlens, n)
    r, dtype = bounds.shape[0] - 1, work_dtype(x.dtype)
    if state is None and field != "state":
        fields = jnp.zeros((r, w - 1, c), dtype)
    else:
        core = (r, c, w - 1) if packed else (c, w - 1)
        fields = _check.inputs(name, field, state, shape[:-2], core, dtype).mT
        fields = fields if packed else fields[..., None, :, :]
    o, end = convolution(silu, (x, weight.mT, bias), (bounds[:-1], bounds[1:]), fields)
    return o, (end if packed else end[..., 0, :, :]).mT


def causal_conv1d_step(
    x: Any, weight: Any, state: Any, bias: Any, activation: Any
) -> tuple[Any, Any]:
    """The output of one token, and the state after it."""
    name = "causal_conv1d_step"
    token = jnp.asarray(x)[..., None, :]
    o, after = causal_conv1d(token, weight, bias, activation, None, state, name, "state")
    return o[..., 0, :], after


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def convolution(silu: float, arrays: Any, indices: Any, state: Any) -> Any:
    """The convolution of x with taps (w, c), from a state (..., r, w - 1, c), and the next."""
    padded, lead = _lead((*arrays, *indices, state), (*RANKS, 1, 1, 3))
    x = padded[0]
    outputs = [
        like((*lead, *x.shape[-2:]), x.dtype),
        like((*lead, *state.shape[-3:]), state.dtype),
    ]
    return call("causal_conv1d_state", padded, (silu,), 3, outputs)


def _convolution_forward(silu: float, arrays: Any, indices: Any, state: Any) -> Any:
    return convolution(silu, arrays, indices, state), (arrays, indices, state)


def _convolution_backward(silu: float, saved: Any, grads: Any) -> Any:
    arrays, indices, state = saved
    padded, lead = _lead((*arrays, *indices, state), (*RANKS, 1, 1, 3))
    x, taps, bias = padded[:3]
    wide, r = work_dtype(x.dtype), indices[0].shape[-1]
    outputs = [
        gradient(lead, x, arrays[0]),
        like((*lead, r, *taps.shape[-2:]), wide),
        like((*lead, r, bias.shape[-1]), wide),
        like((*lead, *state.shape[-3:]), state.dtype),
    ]
    grad, grad_state = grads
    operands = (*padded[:3], grad.astype(x.dtype), *padded[3:], grad_state)
    dx, dtaps, dbias, ds = call("causal_conv1d_state_backward", operands, (silu,), 4, outputs)
    found = dx, total(dtaps, dtaps.ndim - 3).squeeze(-3), total(dbias, dbias.ndim - 2).squeeze(-2)
    first = tuple(summed(y, z.shape, z.dtype) for y, z in zip(found, arrays, strict=True))
    nothing = tuple(np.zeros(y.shape, jax.dtypes.float0) for y in indices)
    return first, nothing, summed(ds, state.shape, state.dtype)


convolution.defvjp(_convolution_forward, _convolution_backward)


# --- decays -------------------------------------------------------------------------------


def log_decay(x: Any, A_log: Any, dt_bias: Any, lower_bound: Any) -> Any:
    """By JAX's own operations."""
    x = jnp.asarray(x)
    A_log, dt_bias = (
        y if isinstance(y, (int, float)) else jnp.asarray(y) for y in (A_log, dt_bias)
    )
    given = [_check.stand_in(y) for y in (x, A_log, dt_bias)]
    arrays, _ = decay._operands("log_decay", *given)
    dtype = jnp.result_type(x, A_log, dt_bias, float)
    shape = jnp.broadcast_shapes(*(jnp.shape(y) for y in (x, A_log, dt_bias)))
    x, A_log, dt_bias = (
        spread(jnp.asarray(y, work_dtype(dtype)), shape) for y in (x, A_log, dt_bias)
    )
    z = x + dt_bias
    if lower_bound is None:
        return (-jnp.exp(A_log) * jnp.logaddexp(z, 0.0)).astype(dtype)
    bound = number("log_decay", "lower_bound", lower_bound, *arrays)
    return (bound / (1 + jnp.exp(-jnp.exp(A_log) * z))).astype(dtype)
