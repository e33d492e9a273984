# mypy: ignore-errors
"""NumPy twin of a memory that fades, token by token: see `linattn.reference.linear`."""

import numpy as np

from . import states as _states
from .linear import (
    _channels,
    _exists,
    _finish,
    _gradient_of_state,
    _matvec,
    _outer,
    _start,
    _sum_channels,
    _sum_to,
    _tokens,
    _vecmat,
    _wide,
)


def fade(
    q, k, v, rate, *, scale=1.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, return_state=False,
):  # fmt: skip
    """``o_i = scale s_{i-1}^T q_i``, ``s_i = c_i s_{i-1} + k_i v_i^T``, ``c = 1 / (1 + rate^2)``

    q, k (..., n, d), v (..., n, m), rate (..., n) or (..., n, d).
    """
    q, k, v, rate, initial_state = _wide(q, k, v, rate, state=initial_state)
    x = _exists(_channels(rate, q, k, v), key_lengths)
    k, v = _exists(k, key_lengths), _exists(v, key_lengths)
    c = 1 / (1 + x * x)
    s, z = _start(q, k, v, initial_state, cu_seqlens, x)
    o = np.empty((*s.shape[:-3], q.shape[-2], v.shape[-1]), s.dtype)
    for r, i in _tokens(cu_seqlens, q.shape[-2]):
        o[..., i, :] = scale * _vecmat(q[..., i, :], s[..., r, :, :])
        write = _outer(k[..., i, :], v[..., i, :])
        s[..., r, :, :] = c[..., i, :, None] * s[..., r, :, :] + write
    return (o, _finish(s, z, cu_seqlens)) if return_state else o


def fade_backward(
    q, k, v, rate, grad_out, *, scale=1.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * fade(q, k, v, rate)) + sum(grad_state * final state)``."""
    q, k, v, rate, g, initial_state, grad_state = _wide(
        q, k, v, rate, grad_out, state=initial_state, grad_state=grad_state
    )
    channels = _channels(rate, q, k, v)
    x, b, w = (_exists(y, key_lengths) for y in (channels, k, v))
    c = 1 / (1 + x * x)
    s, _ = _start(q, b, w, initial_state, cu_seqlens, x, g)
    ds, dz = _start(q, b, w, grad_state, cu_seqlens, x, g)
    lead, n = s.shape[:-3], q.shape[-2]
    dq, dk, dx = (np.empty((*lead, n, s.shape[-2]), s.dtype) for _ in range(3))
    dv = np.empty((*lead, n, s.shape[-1]), s.dtype)
    before = []  # s_{i-1} of every token: the twin can afford them
    for r, i in _tokens(cu_seqlens, n):
        before.append(s[..., r, :, :].copy())
        write = _outer(b[..., i, :], w[..., i, :])
        s[..., r, :, :] = c[..., i, :, None] * before[-1] + write
        dq[..., i, :] = scale * _matvec(before[-1], g[..., i, :])
    for r, i in reversed(list(_tokens(cu_seqlens, n))):
        dk[..., i, :] = _matvec(ds[..., r, :, :], w[..., i, :])
        dv[..., i, :] = _vecmat(b[..., i, :], ds[..., r, :, :])
        dc = (ds[..., r, :, :] * before.pop()).sum(-1)
        dx[..., i, :] = -2 * x[..., i, :] * c[..., i, :] ** 2 * dc
        read = scale * _outer(q[..., i, :], g[..., i, :])
        ds[..., r, :, :] = c[..., i, :, None] * ds[..., r, :, :] + read
    dk, dv, dx = (_exists(y, key_lengths) for y in (dk, dv, dx))
    grads = (_sum_to(y, of) for y, of in ((dq, q), (dk, k), (dv, v)))
    dstate = _gradient_of_state(ds, dz, initial_state, grad_state, cu_seqlens)
    return *grads, _sum_channels(dx, rate, q, k, v), *dstate


fade_step = _states.step_of(fade, "q k v", gates="rate")
