# mypy: ignore-errors
"""NumPy twins of the gated delta rule and of DPLR, token by token: see `linattn.reference.linear`.

The memory first decays, ``R_i = exp(g_i) s_{i-1}``: g is a number per token, or one per key
channel, which is a row of s.
"""

import numpy as np

from . import maps
from . import states as _states
from .gated_attention import _gradient_of_gate, _kept
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
    _tokens,
    _vecmat,
    _wide,
)


@_states.of_sequence
def gated_delta(
    q, k, v, g, beta, *, scale=1.0, feature_map="identity", erase=None,
    key_lengths=None, cu_seqlens=None, block=None, initial_state=None, return_state=False,
):  # fmt: skip
    """The delta rule on a memory that decays.

    ``s_i = R_i + b_i (beta_i (v_i - R_i^T e_i))^T``, ``o_i = a_i^T s_i``, with ``e_i = b_i`` or the
    erase key.  Yang et al. 2025, eq. 10.  With ``block`` the state that a token reads is the one
    after the last token of its block.

    Parameters
    ----------
    q, k : array_like, (..., n, d)
    v : array_like, (..., n, m)
    g : array_like, (..., n) or (..., n, d)
        Logarithm of the decay, per token or per key channel.  It is per channel if g has at
        least as many axes as each of q, k and v; a last axis of 1 then applies to all channels.
    beta : array_like, (..., n) or (..., n, m)
        Write strength, per token or per value channel in the same way.
    erase : array_like, (..., n, d), optional

    Returns
    -------
    o : ndarray, (..., n, m)
        And the final State with `return_state`.
    """
    q, k, v, g, beta, initial_state = _wide(q, k, v, g, beta, state=initial_state)
    a, b, e, u, decay, strength = _operands(
        q, k, v, g, beta, erase, scale, maps.get(feature_map), key_lengths
    )
    s, z = _start(a, b, u, initial_state, cu_seqlens, e, decay, strength)
    o = np.empty((*s.shape[:-3], q.shape[-2], v.shape[-1]), s.dtype)
    for r, tokens in _blocks(cu_seqlens, q.shape[-2], block):
        for i in tokens:
            s[..., r, :, :] = _kept(decay[..., i, :], s[..., r, :, :])
            error = u[..., i, :] - _vecmat(e[..., i, :], s[..., r, :, :])
            s[..., r, :, :] += _outer(b[..., i, :], strength[..., i, :] * error)
        for i in tokens:
            o[..., i, :] = _vecmat(a[..., i, :], s[..., r, :, :])
    return (o, _finish(s, z, cu_seqlens)) if return_state else o


@_states.of_gradients
def gated_delta_backward(
    q, k, v, g, beta, grad_out, *, scale=1.0, feature_map="identity", erase=None,
    key_lengths=None, cu_seqlens=None, block=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * gated_delta(...)) + sum(grad_state * final state)``.

    With ``x_i = v_i - R_i^T e_i`` and r the gradient of s_i, from the last token on:
    ``da_i = s_i h_i``, ``r += a_i h_i^T`` (h: grad_out), ``y = r^T b_i``, ``dbeta_i = y x_i``,
    ``dv_i = beta_i y``, ``db_i = r (beta_i x_i)``, ``de_i = -R_i dv_i``, ``r -= e_i dv_i^T``; r
    then is the gradient of R_i: ``dg_i = sum_m R_i r``, ``r *= exp(g_i)``.

    Returns
    -------
    dq, dk, dv, dg, dbeta : ndarray
        And derase with `erase`; summed to the shapes of the operands.
    State
        Gradient of the initial state; only where `initial_state` or `grad_state` is given.
    """
    q, k, v, g, beta, h, initial_state, grad_state = _wide(
        q, k, v, g, beta, grad_out, state=initial_state, grad_state=grad_state
    )
    phi = maps.get(feature_map)
    a, b, e, u, decay, strength = _operands(q, k, v, g, beta, erase, scale, phi, key_lengths)
    s, _ = _start(a, b, u, initial_state, cu_seqlens, e, decay, strength, h)
    ds, dz = _start(a, b, u, grad_state, cu_seqlens, s[..., 0, :, :])
    lead, n = s.shape[:-3], q.shape[-2]
    da, db, de, dg = (np.empty((*lead, n, s.shape[-2]), s.dtype) for _ in range(4))
    error, dv, dstrength = (np.empty((*lead, n, s.shape[-1]), s.dtype) for _ in range(3))
    decayed = []  # R_i of every token
    for r, tokens in _blocks(cu_seqlens, n, block):
        for i in tokens:
            s[..., r, :, :] = _kept(decay[..., i, :], s[..., r, :, :])
            decayed.append(s[..., r, :, :].copy())
            error[..., i, :] = u[..., i, :] - _vecmat(e[..., i, :], decayed[-1])
            s[..., r, :, :] += _outer(b[..., i, :], strength[..., i, :] * error[..., i, :])
        for i in tokens:
            da[..., i, :] = _matvec(s[..., r, :, :], h[..., i, :])
    for r, tokens in reversed(list(_blocks(cu_seqlens, n, block))):
        for i in tokens:
            ds[..., r, :, :] += _outer(a[..., i, :], h[..., i, :])
        for i in reversed(tokens):
            before = decayed.pop()
            y = _vecmat(b[..., i, :], ds[..., r, :, :])
            dstrength[..., i, :] = y * error[..., i, :]
            dv[..., i, :] = strength[..., i, :] * y
            db[..., i, :] = _matvec(ds[..., r, :, :], strength[..., i, :] * error[..., i, :])
            de[..., i, :] = -_matvec(before, dv[..., i, :])
            ds[..., r, :, :] -= _outer(e[..., i, :], dv[..., i, :])
            dg[..., i, :] = _gradient_of_gate(decay[..., i, :], before, ds[..., r, :, :])
            ds[..., r, :, :] = _kept(decay[..., i, :], ds[..., r, :, :])
    de, dg, dstrength = (_exists(x, key_lengths) for x in (de, dg, dstrength))
    if erase is None:
        db = db + de
    grads = (
        *_chain(phi, (q, scale * da), (k, db), (v, dv), key_lengths),
        _sum_channels(dg, g, q, k, v),
        _sum_channels(dstrength, beta, q, k, v),
        *(() if erase is None else (_sum_to(de, np.asarray(erase)),)),
    )
    return *grads, *_gradient_of_state(ds, dz, initial_state, grad_state, cu_seqlens)


gated_delta_step = _states.step_of(gated_delta, "q k v erase", gates="g beta")


@_states.of_sequence
def dplr(
    q, k, v, a, b, g, *, scale=1.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, return_state=False,
):  # fmt: skip
    """A memory whose transition is diagonal plus low rank: RWKV-7's generalised delta rule.

    ``s_i = R_i + b_i (s_{i-1}^T a_i)^T + k_i v_i^T``, ``o_i = scale s_i^T q_i``.
    Peng et al. 2025, eq. 15-17.

    Parameters
    ----------
    q, k, a, b : array_like, (..., n, d)
        a reads the memory before its decay, and b writes back what was read.
    v : array_like, (..., n, m)
    g : array_like, (..., n) or (..., n, d)
        As for `gated_delta`.

    Returns
    -------
    o : ndarray, (..., n, m)
        And the final State with `return_state`.
    """
    q, k, v, a, b, g, initial_state = _wide(q, k, v, a, b, g, state=initial_state)
    a, b, k, u, decay = _dplr_operands(q, k, v, a, b, g, key_lengths)
    s, z = _start(q, k, u, initial_state, cu_seqlens, a, b, decay)
    o = np.empty((*s.shape[:-3], q.shape[-2], v.shape[-1]), s.dtype)
    for r, i in _tokens(cu_seqlens, q.shape[-2]):
        x = _vecmat(a[..., i, :], s[..., r, :, :])
        s[..., r, :, :] = _kept(decay[..., i, :], s[..., r, :, :])
        s[..., r, :, :] += _outer(b[..., i, :], x) + _outer(k[..., i, :], u[..., i, :])
        o[..., i, :] = scale * _vecmat(q[..., i, :], s[..., r, :, :])
    return (o, _finish(s, z, cu_seqlens)) if return_state else o


@_states.of_gradients
def dplr_backward(
    q, k, v, a, b, g, grad_out, *, scale=1.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * dplr(...)) + sum(grad_state * final state)``.

    With ``x_i = s_{i-1}^T a_i`` and r the gradient of s_i, from the last token on (h: grad_out):
    ``dq_i = scale s_i h_i``, ``r += scale q_i h_i^T``, ``dk_i = r v_i``, ``dv_i = r^T k_i``,
    ``db_i = r x_i``, ``y = r^T b_i``, ``da_i = s_{i-1} y``, ``dg_i = sum_m R_i r``,
    ``r <- exp(g_i) r + a_i y^T``.

    Returns
    -------
    dq, dk, dv, da, db, dg : ndarray
        Summed to the shapes of the operands.
    State
        Gradient of the initial state; only where `initial_state` or `grad_state` is given.
    """
    given = _wide(q, k, v, a, b, g, grad_out, state=initial_state, grad_state=grad_state)
    q, k0, v0, a0, b0, g, h, initial_state, grad_state = given
    a, b, k, v, decay = _dplr_operands(q, k0, v0, a0, b0, g, key_lengths)
    s, _ = _start(q, k, v, initial_state, cu_seqlens, a, b, decay, h)
    ds, dz = _start(q, k, v, grad_state, cu_seqlens, s[..., 0, :, :])
    lead, n = s.shape[:-3], q.shape[-2]
    dq, dk, da, db, dg = (np.empty((*lead, n, s.shape[-2]), s.dtype) for _ in range(5))
    dv = np.empty((*lead, n, s.shape[-1]), s.dtype)
    before = []
    for r, i in _tokens(cu_seqlens, n):
        before.append(s[..., r, :, :].copy())
        s[..., r, :, :] = _kept(decay[..., i, :], s[..., r, :, :])
        s[..., r, :, :] += _outer(b[..., i, :], _vecmat(a[..., i, :], before[-1]))
        s[..., r, :, :] += _outer(k[..., i, :], v[..., i, :])
        dq[..., i, :] = scale * _matvec(s[..., r, :, :], h[..., i, :])
    for r, i in reversed(list(_tokens(cu_seqlens, n))):
        last = before.pop()
        ds[..., r, :, :] += scale * _outer(q[..., i, :], h[..., i, :])
        dk[..., i, :] = _matvec(ds[..., r, :, :], v[..., i, :])
        dv[..., i, :] = _vecmat(k[..., i, :], ds[..., r, :, :])
        db[..., i, :] = _matvec(ds[..., r, :, :], _vecmat(a[..., i, :], last))
        y = _vecmat(b[..., i, :], ds[..., r, :, :])
        da[..., i, :] = _matvec(last, y)
        ds[..., r, :, :] = _kept(decay[..., i, :], ds[..., r, :, :])
        dg[..., i, :] = _gradient_of_gate(decay[..., i, :], last, ds[..., r, :, :])
        ds[..., r, :, :] += _outer(a[..., i, :], y)
    dk, dv, da, db, dg = (_exists(x, key_lengths) for x in (dk, dv, da, db, dg))
    pairs = (dq, q), (dk, k0), (dv, v0), (da, a0), (db, b0)
    grads = (*(_sum_to(*pair) for pair in pairs), _sum_channels(dg, g, q, k0, v0))
    return *grads, *_gradient_of_state(ds, dz, initial_state, grad_state, cu_seqlens)


dplr_step = _states.step_of(dplr, "q k v a b", gates="g")


def _operands(q, k, v, g, beta, erase, scale, phi, key_lengths):
    """a, b, the erase key, v, exp(g) and beta, as if no token past `key_lengths` did anything."""
    a, b, u = _keys_exist(scale * phi(q), phi(k), v, key_lengths)
    e = phi(k) if erase is None else np.asarray(erase)
    gates = _channels(g, q, k, v), _channels(beta, q, k, v)
    e, g, strength = (_exists(x, key_lengths) for x in (e, *gates))
    return a, b, e, u, np.exp(g), strength


def _dplr_operands(q, k, v, a, b, g, key_lengths):
    """a, b, k, v and exp(g) likewise."""
    g = _channels(g, q, k, v)  # before the axes of the lengths come to k and v
    return *(_exists(x, key_lengths) for x in (a, b, k, v)), np.exp(_exists(g, key_lengths))
