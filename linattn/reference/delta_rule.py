# mypy: ignore-errors
"""NumPy twin of the delta rule, token by token: see `linattn.reference.linear`."""

import numpy as np

from . import maps
from . import states as _states
from .linear import (
    State,
    _chain,
    _exists,
    _finish,
    _gradient_of_state,
    _keys_exist,
    _matvec,
    _outer,
    _start,
    _sum_to,
    _tokens,
    _vecmat,
    _wide,
)


@_states.of_sequence
def delta(
    q, k, v, beta, *, scale=1.0, feature_map="identity",
    key_lengths=None, cu_seqlens=None, initial_state=None, return_state=False,
):  # fmt: skip
    """Fast weights with the delta rule: a write replaces what the memory held at k.

    ``s_i = s_{i-1} + b_i (beta_i (v_i - s_{i-1}^T b_i))^T``, ``o_i = a_i^T s_i``.
    Schlag et al. 2021, eq. 24-25.

    Parameters
    ----------
    q, k : array_like, (..., n, d)
    v : array_like, (..., n, m)
    beta : array_like, (..., n) or (..., n, m)
        Write strength, per token or per value channel.  It is per channel if beta has at least
        as many axes as each of q, k and v; a last axis of 1 then applies to all channels.

    Returns
    -------
    o : ndarray, (..., n, m)
        And the final State with `return_state`.
    """
    q, k, v, beta, initial_state = _wide(q, k, v, beta, state=initial_state)
    phi = maps.get(feature_map)
    a, b, u = _keys_exist(scale * phi(q), phi(k), v, key_lengths)
    strength = _exists(_channels(beta, q, k, v), key_lengths)
    s, z = _start(a, b, u, initial_state, cu_seqlens, strength)
    o = np.empty((*s.shape[:-3], q.shape[-2], v.shape[-1]), s.dtype)
    for r, i in _tokens(cu_seqlens, q.shape[-2]):
        error = u[..., i, :] - _vecmat(b[..., i, :], s[..., r, :, :])
        s[..., r, :, :] += _outer(b[..., i, :], strength[..., i, :] * error)
        o[..., i, :] = _vecmat(a[..., i, :], s[..., r, :, :])
    return (o, _finish(s, z, cu_seqlens, normalize=False)) if return_state else o


@_states.of_gradients
def delta_backward(
    q, k, v, beta, grad_out, *, scale=1.0, feature_map="identity",
    key_lengths=None, cu_seqlens=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * delta(q, k, v, beta)) + sum(grad_state * final state)``.

    With ``e_i = v_i - s_{i-1}^T b_i`` and r the gradient of s_i, from the last token on:
    ``da_i = s_i g_i``, ``r += a_i g_i^T``, ``x = r^T b_i``, ``dbeta_i = x e_i``,
    ``dv_i = beta_i x``, ``db_i = r (beta_i e_i) - s_{i-1} dv_i``, ``r -= b_i dv_i^T``.

    Returns
    -------
    dq, dk, dv, dbeta : ndarray
        Summed to the shapes of q, k, v and beta.
    State
        Gradient of the initial state; only where `initial_state` or `grad_state` is given.
    """
    q, k, v, beta, g, initial_state, grad_state = _wide(
        q, k, v, beta, grad_out, state=initial_state, grad_state=grad_state
    )
    phi = maps.get(feature_map)
    a, b, u = _keys_exist(scale * phi(q), phi(k), v, key_lengths)
    channels = _channels(beta, q, k, v)
    strength = _exists(channels, key_lengths)
    s, _ = _start(a, b, u, initial_state, cu_seqlens, strength, g)
    ds, dz = _start(a, b, u, grad_state, cu_seqlens, strength, g)
    lead, n = s.shape[:-3], q.shape[-2]
    da, db = (np.empty((*lead, n, s.shape[-2]), s.dtype) for _ in range(2))
    error, dv, dstrength = (np.empty((*lead, n, s.shape[-1]), s.dtype) for _ in range(3))
    before = []  # s_{i-1} of every token
    for r, i in _tokens(cu_seqlens, n):
        before.append(s[..., r, :, :].copy())
        error[..., i, :] = u[..., i, :] - _vecmat(b[..., i, :], before[-1])
        s[..., r, :, :] += _outer(b[..., i, :], strength[..., i, :] * error[..., i, :])
        da[..., i, :] = _matvec(s[..., r, :, :], g[..., i, :])
    for r, i in reversed(list(_tokens(cu_seqlens, n))):
        ds[..., r, :, :] += _outer(a[..., i, :], g[..., i, :])
        x = _vecmat(b[..., i, :], ds[..., r, :, :])
        dstrength[..., i, :] = x * error[..., i, :]
        dv[..., i, :] = strength[..., i, :] * x
        write = _matvec(ds[..., r, :, :], strength[..., i, :] * error[..., i, :])
        db[..., i, :] = write - _matvec(before.pop(), dv[..., i, :])
        ds[..., r, :, :] -= _outer(b[..., i, :], dv[..., i, :])
    db, dstrength = _exists(db, key_lengths), _exists(dstrength, key_lengths)
    if channels.shape[-1] == 1:  # one number for all channels
        dstrength = dstrength.sum(-1, keepdims=True)
    grads = (
        *_chain(phi, (q, scale * da), (k, db), (v, dv), key_lengths),
        _sum_to(dstrength, channels).reshape(beta.shape),
    )
    if initial_state is None and grad_state is None:
        return grads
    return *grads, _gradient_of_state(ds, dz, initial_state, cu_seqlens, normalize=False)


@_states.of_step
def delta_step(q, k, v, beta, state: State, *, scale=1.0, feature_map="identity"):
    """One token of `delta`: ``q, k (..., d)``, ``v (..., m)``, ``beta (...)`` or ``(..., m)``."""
    others = tuple(map(np.asarray, (q, k, v)))
    o, state = delta(
        *(x[..., None, :] for x in (*others, _token_channels(np.asarray(beta), *others))),
        scale=scale, feature_map=feature_map, initial_state=state, return_state=True,
    )  # fmt: skip
    return o[..., 0, :], state


def _channels(beta: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """beta with an axis of channels: (..., n, m) unchanged, (..., n) as (..., n, 1)."""
    return beta if beta.ndim >= max(x.ndim for x in others) else beta[..., None]


def _token_channels(x: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """The same for one token, with enough axes for `_channels` to see channels."""
    x = _channels(x, *others)
    return x.reshape((1,) * (max(y.ndim for y in others) - x.ndim) + x.shape)
