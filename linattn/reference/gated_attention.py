# mypy: ignore-errors
"""NumPy twin of gated linear attention, token by token: see `linattn.reference.linear`."""

import numpy as np

from . import maps
from . import states as _states
from .linear import (
    _blocks,
    _chain,
    _channels,
    _exists,
    _finish,
    _gradient_of_state,
    _keys_exist,
    _matvec,
    _outer,
    _start,
    _sum_channels,
    _sum_to,
    _vecmat,
    _wide,
)


@_states.of_sequence
def gated(
    q, k, v, g, *, scale=1.0, feature_map="identity", bonus=None,
    key_lengths=None, cu_seqlens=None, block=None, initial_state=None, return_state=False,
):  # fmt: skip
    """Causal linear attention whose state decays before each write.

    ``s_i = exp(g_i) s_{i-1} + b_i v_i^T``, ``o_i = a_i^T s_i``; with a bonus u it reads before
    it decays and writes: ``o_i = a_i^T (s_{i-1} + (u b_i) v_i^T)``.  With ``block``, and without a
    bonus, the state that a token reads is the one after the last token of its block.

    Parameters
    ----------
    q, k : array_like, (..., n, d)
    v : array_like, (..., n, m)
    g : array_like, (..., n) or (..., n, d)
        Logarithm of the decay, per token or per key channel.  It is per channel if g has at
        least as many axes as each of q, k and v; a last axis of 1 then applies to all channels.
    bonus : array_like, (..., d)

    Returns
    -------
    o : ndarray, (..., n, m)
        And the final State with `return_state`.
    """
    q, k, v, g, initial_state = _wide(q, k, v, g, state=initial_state)
    phi = maps.get(feature_map)
    a, b, w = _keys_exist(scale * phi(q), phi(k), v, key_lengths)
    decay = _decay(g, (q, k, v), key_lengths)
    u = _bonus(bonus, b)
    s, z = _start(a, b, w, initial_state, cu_seqlens, decay, u)
    o = np.empty((*s.shape[:-3], q.shape[-2], v.shape[-1]), np.result_type(s, u))
    for r, tokens in _blocks(cu_seqlens, q.shape[-2], block):
        for i in tokens:
            write = _outer(b[..., i, :], w[..., i, :])
            if bonus is not None:  # then blocks have one token
                seen = s[..., r, :, :] + u[..., 0, :, None] * write
            s[..., r, :, :] = _kept(decay[..., i, :], s[..., r, :, :]) + write
        for i in tokens:
            o[..., i, :] = _vecmat(a[..., i, :], s[..., r, :, :] if bonus is None else seen)
    return (o, _finish(s, z, cu_seqlens)) if return_state else o


@_states.of_gradients
def gated_backward(
    q, k, v, g, grad_out, *, scale=1.0, feature_map="identity", bonus=None,
    key_lengths=None, cu_seqlens=None, block=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * gated(q, k, v, g)) + sum(grad_state * final state)``.

    With c the cotangent and r the gradient of s_i, from the last token on: ``da_i = s_i c_i``,
    ``r += a_i c_i^T``, ``dv_i = r^T b_i``, ``db_i = r v_i``, ``dg_i = (exp(g_i) s_{i-1} r) 1``,
    ``r = exp(g_i) r``.  With a bonus u ``a_i c_i^T`` is added to r after all that, and
    ``da_i = s_{i-1} c_i + u b_i p``, ``db_i += u a_i p``, ``dv_i += (a_i u . b_i) c_i``,
    ``du = sum_i a_i b_i p``, where ``p = c_i . v_i``.

    Returns
    -------
    dq, dk, dv, dg : ndarray
        Summed to the shapes of q, k, v and g.
    dbonus : ndarray
        Only where `bonus` is given.
    State
        Gradient of the initial state; only where `initial_state` or `grad_state` is given.
    """
    q, k, v, g, c, initial_state, grad_state = _wide(
        q, k, v, g, grad_out, state=initial_state, grad_state=grad_state
    )
    phi = maps.get(feature_map)
    a, b, w = _keys_exist(scale * phi(q), phi(k), v, key_lengths)
    decay = _decay(g, (q, k, v), key_lengths)
    u = _bonus(bonus, b)
    s, _ = _start(a, b, w, initial_state, cu_seqlens, decay, u, c)
    ds, dz = _start(a, b, w, grad_state, cu_seqlens, decay, u, c)
    lead, n, d = s.shape[:-3], q.shape[-2], s.shape[-2]
    da, db, dg = (np.empty((*lead, n, d), s.dtype) for _ in range(3))
    dv, du = np.empty((*lead, n, v.shape[-1]), s.dtype), np.zeros((*lead, 1, d), s.dtype)
    kept = []  # exp(g_i) s_{i-1} of every token
    for r, tokens in _blocks(cu_seqlens, n, block):
        for i in tokens:
            before = s[..., r, :, :].copy()
            kept.append(_kept(decay[..., i, :], before))
            s[..., r, :, :] = kept[-1] + _outer(b[..., i, :], w[..., i, :])
        for i in tokens:
            da[..., i, :] = _matvec(s[..., r, :, :] if bonus is None else before, c[..., i, :])
    for r, tokens in reversed(list(_blocks(cu_seqlens, n, block))):
        read = sum(_outer(a[..., i, :], c[..., i, :]) for i in tokens)
        if bonus is None:
            ds[..., r, :, :] += read
        for i in reversed(tokens):
            dv[..., i, :] = _vecmat(b[..., i, :], ds[..., r, :, :])
            db[..., i, :] = _matvec(ds[..., r, :, :], w[..., i, :])
            dg[..., i, :] = _gradient_of_gate(decay[..., i, :], kept.pop(), ds[..., r, :, :])
            ds[..., r, :, :] = _kept(decay[..., i, :], ds[..., r, :, :])
        if bonus is not None:
            ds[..., r, :, :] += read
            ub = u[..., 0, :] * b[..., i, :]
            p = (c[..., i, :] * w[..., i, :]).sum(-1, keepdims=True)
            da[..., i, :] += ub * p
            db[..., i, :] += u[..., 0, :] * a[..., i, :] * p
            dv[..., i, :] += (a[..., i, :] * ub).sum(-1, keepdims=True) * c[..., i, :]
            du[..., 0, :] += a[..., i, :] * b[..., i, :] * p
    db, dg = _exists(db, key_lengths), _exists(dg, key_lengths)
    grads = _chain(phi, (q, scale * da), (k, db), (v, dv), key_lengths)
    grads = *grads, _sum_channels(dg, g, q, k, v)
    if bonus is not None:
        grads = (*grads, _sum_to(du, u)[..., 0, :].reshape(np.shape(bonus)))
    return *grads, *_gradient_of_state(ds, dz, initial_state, grad_state, cu_seqlens)


gated_step = _states.step_of(gated, "q k v", gates="g")


def _decay(g: np.ndarray, others: tuple, key_lengths) -> np.ndarray:
    """exp(g) with an axis of channels, (..., n, d) or (..., n, 1); 1 where no key exists."""
    return np.exp(_exists(_channels(g, *others), key_lengths))


def _kept(decay: np.ndarray, s: np.ndarray) -> np.ndarray:
    """s (..., d, m) times a decay (..., d); 0 for a decay of 0, even if s is inf or NaN."""
    return np.where(decay[..., None] == 0, 0, decay[..., None] * s)


def _gradient_of_gate(decay: np.ndarray, kept: np.ndarray, ds: np.ndarray) -> np.ndarray:
    """The sum of kept * ds over the value channels; 0 for a decay of 0."""
    return np.where(decay == 0, 0, (kept * ds).sum(-1))


def _bonus(bonus, b: np.ndarray) -> np.ndarray:
    """The bonus as one row for all tokens, (..., 1, d)."""
    if bonus is None:
        return np.zeros((1, b.shape[-1]))
    bonus = np.asarray(bonus)
    return bonus.astype(np.result_type(np.float64, bonus))[..., None, :]
