"""Functions of JAX's arrays that are no recurrences: softmax attention and the convolution."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._call import call, like, summed, with_lead, work_dtype


def _lead(arrays: Any, ranks: Any) -> tuple[Any, Any]:
    """All with the same number of leading axes, and those axes."""
    lead = jnp.broadcast_shapes(
        *(x.shape[: x.ndim - rank] for x, rank in zip(arrays, ranks, strict=True))
    )
    return tuple(with_lead(x, r, len(lead)) for x, r in zip(arrays, ranks, strict=True)), lead


# --- softmax attention ------------------------------------------------------------------


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
    outputs = [like((*lead, *x.shape[-2:]), x.dtype) for x in arrays]
    found = call("softmax_backward", (*arrays, grad), (scale, float(causal)), 4, outputs)
    return tuple(summed(x, y.shape, y.dtype) for x, y in zip(found, given, strict=True))


softmax.defvjp(_softmax_forward, _softmax_backward)


# --- the convolution ----------------------------------------------------------------------

RANKS = (2, 2, 1)  #: axes of x, of the taps (w, c) and of the bias that are no leading ones


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
        like((*lead, *x.shape[-2:]), x.dtype),
        like((*lead, r, *taps.shape[-2:]), wide),
        like((*lead, r, bias.shape[-1]), wide),
        like((*lead, *state.shape[-3:]), state.dtype),
    ]
    grad, grad_state = grads
    operands = (*padded[:3], grad.astype(x.dtype), *padded[3:], grad_state)
    dx, dtaps, dbias, ds = call("causal_conv1d_state_backward", operands, (silu,), 4, outputs)
    found = (dx, dtaps.sum(-3), dbias.sum(-2))
    first = tuple(summed(y, z.shape, z.dtype) for y, z in zip(found, arrays, strict=True))
    nothing = tuple(np.zeros(y.shape, jax.dtypes.float0) for y in indices)
    return first, nothing, summed(ds, state.shape, state.dtype)


convolution.defvjp(_convolution_forward, _convolution_backward)
