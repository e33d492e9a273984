# mypy: ignore-errors
"""NumPy twins of softmax attention and Linformer: see `linattn.reference.linear`."""

import numpy as np

from .linear import _sum_to, _wide

Array = np.ndarray


def softmax_attention(q, k, v, *, causal=False, scale=None) -> Array:
    """``softmax(scale q k^T) v``; keys j <= i where `causal`.  Vaswani et al. 2017, eq. 1."""
    q, k, v = _wide(q, k, v)
    return _weights(q, k, causal, scale) @ v


def softmax_attention_backward(q, k, v, grad_out, *, causal=False, scale=None):
    """Gradients of ``sum(grad_out * softmax_attention(q, k, v))``.

    ``dv = p^T g``, ``e = scale p (g v^T - g.o)``, ``dq = e k``, ``dk = e^T q``.
    """
    q, k, v, g = _wide(q, k, v, grad_out)
    p = _weights(q, k, causal, scale)
    slope = g @ v.mT
    e = _scale(q, scale) * p * (slope - (p * slope).sum(-1, keepdims=True))
    return tuple(_sum_to(x, y) for x, y in ((e @ k, q), (e.mT @ q, k), (p.mT @ g, v)))


def linformer(q, k, v, E, F, *, scale=None) -> Array:
    """``softmax_attention(q, E^T k, F^T v)``.  Wang et al. 2020, eq. 7."""
    q, k, v, E, F = _wide(q, k, v, E, F)
    return softmax_attention(q, E.mT @ k, F.mT @ v, scale=scale)


def linformer_backward(q, k, v, E, F, grad_out, *, scale=None):
    """Gradients of ``sum(grad_out * linformer(q, k, v, E, F))``, for all five."""
    q, k, v, E, F, g = _wide(q, k, v, E, F, grad_out)
    dq, dkeys, dvalues = softmax_attention_backward(q, E.mT @ k, F.mT @ v, g, scale=scale)
    grads = (dq, q), (E @ dkeys, k), (F @ dvalues, v), (k @ dkeys.mT, E), (v @ dvalues.mT, F)
    return tuple(_sum_to(x, y) for x, y in grads)


def _scale(q: Array, scale):
    return max(q.shape[-1], 1) ** -0.5 if scale is None else scale


def _weights(q: Array, k: Array, causal: bool, scale) -> Array:
    x = _scale(q, scale) * (q @ k.mT)
    if causal:
        x = np.where(np.tri(*x.shape[-2:], dtype=bool), x, -np.inf)
    p = np.exp(x - x.real.max(-1, keepdims=True, initial=-np.finfo(x.real.dtype).max))
    return p / p.sum(-1, keepdims=True)
