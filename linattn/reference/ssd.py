# mypy: ignore-errors
"""NumPy twin of gated linear attention with write strengths and a skip, token by token: see
`linattn.reference.linear`."""

import numpy as np

from . import states as _states
from .gated_attention import _gradient_of_gate, _kept
from .linear import (
    _exists,
    _finish,
    _gradient_of_state,
    _matvec,
    _outer,
    _start,
    _sum_to,
    _tokens,
    _vecmat,
    _wide,
)


@_states.of_sequence
def ssd(
    q, k, v, g, strength, *, D=None, scale=1.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, return_state=False,
):  # fmt: skip
    """Gated linear attention with a strength for each write, and a skip.

    ``s_i = exp(g_i) s_{i-1} + strength_i k_i v_i^T``, ``o_i = scale s_i^T q_i + D v_i``.
    Dao and Gu 2024, eq. 1.

    Parameters
    ----------
    q, k : array_like, (..., n, d)
    v : array_like, (..., n, m)
    g, strength : array_like, (..., n)
    D : array_like, (..., m)
        0 by default.

    Returns
    -------
    o : ndarray, (..., n, m)
        And the final State with `return_state`.
    """
    q, k, v, g, strength, initial_state = _wide(q, k, v, g, strength, state=initial_state)
    k, v, decay, strength = _written(k, v, g, strength, key_lengths)
    skip = _skip(D, v)
    s, z = _start(q, k, v, initial_state, cu_seqlens, decay, strength, skip)
    o = np.empty((*s.shape[:-3], q.shape[-2], v.shape[-1]), np.result_type(s, skip))
    for r, i in _tokens(cu_seqlens, q.shape[-2]):
        write = _outer(k[..., i, :], strength[..., i, :] * v[..., i, :])
        s[..., r, :, :] = _kept(decay[..., i, :], s[..., r, :, :]) + write
        read = scale * _vecmat(q[..., i, :], s[..., r, :, :])
        o[..., i, :] = read + _skipped(skip, v, i, key_lengths)
    return (o, _finish(s, z, cu_seqlens)) if return_state else o


@_states.of_gradients
def ssd_backward(
    q, k, v, g, strength, grad_out, *, D=None, scale=1.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * ssd(...)) + sum(grad_state * final state)``.

    With c the cotangent and r the gradient of s_i, from the last token on:
    ``dq_i = scale s_i c_i``, ``r += scale q_i c_i^T``, ``dk_i = strength_i r v_i``,
    ``dstrength_i = k_i^T r v_i``, ``dv_i = strength_i r^T k_i + D c_i``, ``dD = sum_i c_i v_i``,
    ``dg_i = exp(g_i) <r, s_{i-1}>``, ``r = exp(g_i) r``.

    Returns
    -------
    dq, dk, dv, dg, dstrength : ndarray
        Summed to the shapes of the operands.
    dD : ndarray
        Only where `D` is given.
    State
        Gradient of the initial state; only where `initial_state` or `grad_state` is given.
    """
    q, k, v, g, strength, c, initial_state, grad_state = _wide(
        q, k, v, g, strength, grad_out, state=initial_state, grad_state=grad_state
    )
    given = q, k, v, g[..., None], strength[..., None]
    k, v, decay, strength = _written(k, v, g, strength, key_lengths)
    skip = _skip(D, v)
    s, _ = _start(q, k, v, initial_state, cu_seqlens, decay, strength, skip, c)
    ds, dz = _start(q, k, v, grad_state, cu_seqlens, decay, strength, skip, c, s[..., 0, :, :])
    lead, n = s.shape[:-3], q.shape[-2]
    dq, dk, dv, dg, dstrength = (np.empty((*lead, n, x.shape[-1]), s.dtype) for x in given)
    dskip = np.zeros((*lead, 1, v.shape[-1]), s.dtype)
    kept = []  # exp(g_i) s_{i-1} of every token
    for r, i in _tokens(cu_seqlens, n):
        kept.append(_kept(decay[..., i, :], s[..., r, :, :]))
        s[..., r, :, :] = kept[-1] + _outer(k[..., i, :], strength[..., i, :] * v[..., i, :])
        dq[..., i, :] = scale * _matvec(s[..., r, :, :], c[..., i, :])
    for r, i in reversed(list(_tokens(cu_seqlens, n))):
        big_r = ds[..., r, :, :] + _outer(scale * q[..., i, :], c[..., i, :])
        dw = _vecmat(k[..., i, :], big_r)
        dk[..., i, :] = _matvec(big_r, strength[..., i, :] * v[..., i, :])
        dstrength[..., i, 0] = (v[..., i, :] * dw).sum(-1)
        dv[..., i, :] = strength[..., i, :] * dw + skip[..., 0, :] * c[..., i, :]
        dskip[..., 0, :] += _skipped(c, v, i, key_lengths)
        dg[..., i, 0] = _gradient_of_gate(decay[..., i, :], kept.pop(), big_r).sum(-1)
        ds[..., r, :, :] = _kept(decay[..., i, :], big_r)
    written = (_exists(x, key_lengths) for x in (dk, dv, dg, dstrength))
    grads = [_sum_to(x, y) for x, y in zip((dq, *written), given, strict=True)]
    grads[3:] = (x[..., 0] for x in grads[3:])
    if D is not None:
        grads.append(_sum_to(dskip, skip)[..., 0, :].reshape(np.shape(D)))
    return *grads, *_gradient_of_state(ds, dz, initial_state, grad_state, cu_seqlens)


ssd_step = _states.step_of(ssd, "q k v", numbers="g strength")


def _written(k, v, g, strength, key_lengths):
    """The operands, as if no token past `key_lengths` did anything.

    The decay and the strength have an axis of one channel.
    """
    k, v, g, strength = (_exists(x, key_lengths) for x in (k, v, g[..., None], strength[..., None]))
    return k, v, np.exp(g), strength


def _skip(D, v: np.ndarray) -> np.ndarray:
    """D as one row for all tokens, (..., 1, m)."""
    if D is None:
        return np.zeros((1, v.shape[-1]))
    D = np.asarray(D)
    return D.astype(np.result_type(np.float64, D))[..., None, :]


def _skipped(x: np.ndarray, v: np.ndarray, i: int, key_lengths) -> np.ndarray:
    """x v of token i, one row of x for all tokens or one for each; 0 where it has no value."""
    row = x[..., 0 if x.shape[-2] == 1 else i, :] * v[..., i, :]
    if key_lengths is None:
        return row
    return np.where(i < np.asarray(key_lengths)[..., None], row, 0)
