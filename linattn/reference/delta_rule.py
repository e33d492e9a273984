# mypy: ignore-errors
"""NumPy twin of the delta rule, token by token: see `linattn.reference.linear`."""

import numpy as np

from . import maps
from . import states as _states
from .gated_rules import gated_delta_backward
from .linear import (
    _blocks,
    _channels,
    _exists,
    _finish,
    _keys_exist,
    _outer,
    _start,
    _vecmat,
    _wide,
)


@_states.of_sequence
def delta(
    q, k, v, beta, *, scale=1.0, feature_map="identity",
    key_lengths=None, cu_seqlens=None, block=None, initial_state=None, return_state=False,
):  # fmt: skip
    """Fast weights with the delta rule: a write replaces what the memory held at k.

    ``s_i = s_{i-1} + b_i (beta_i (v_i - s_{i-1}^T b_i))^T``, ``o_i = a_i^T s_i``.
    Schlag et al. 2021, eq. 24-25.  With ``block`` the state that a token reads is the one after
    the last token of its block.

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
    for r, tokens in _blocks(cu_seqlens, q.shape[-2], block):
        for i in tokens:
            error = u[..., i, :] - _vecmat(b[..., i, :], s[..., r, :, :])
            s[..., r, :, :] += _outer(b[..., i, :], strength[..., i, :] * error)
        for i in tokens:
            o[..., i, :] = _vecmat(a[..., i, :], s[..., r, :, :])
    return (o, _finish(s, z, cu_seqlens)) if return_state else o


@_states.of_gradients
def delta_backward(
    q, k, v, beta, grad_out, *, scale=1.0, feature_map="identity",
    key_lengths=None, cu_seqlens=None, block=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * delta(q, k, v, beta)) + sum(grad_state * final state)``.

    With ``e_i = v_i - s_{i-1}^T b_i`` and r the gradient of s_i, from the last token on:
    ``da_i = s_i g_i``, ``r += a_i g_i^T``, ``x = r^T b_i``, ``dbeta_i = x e_i``,
    ``dv_i = beta_i x``, ``db_i = r (beta_i e_i) - s_{i-1} dv_i``, ``r -= b_i dv_i^T``: those of
    `gated_delta` without decay.

    Returns
    -------
    dq, dk, dv, dbeta : ndarray
        Summed to the shapes of q, k, v and beta.
    State
        Gradient of the initial state; only where `initial_state` or `grad_state` is given.
    """
    dq, dk, dv, _, *others = gated_delta_backward(
        q, k, v, np.zeros(np.shape(q)[-2]), beta, grad_out, scale=scale, feature_map=feature_map,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, block=block, initial_state=initial_state,
        grad_state=grad_state,
    )  # fmt: skip
    return dq, dk, dv, *others


delta_step = _states.step_of(delta, "q k v", gates="beta")
