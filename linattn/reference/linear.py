# mypy: ignore-errors
"""NumPy twin of every operator: the specification, and the reference of the tests.

One token at a time, in the letters of the equations::

    a_i = scale phi(q_i)    b_i = phi(k_i)    s (f, m)    z (f)

Computes in float64, or in longdouble or complex128 if an operand has that dtype.  The state at
position i contains only tokens j <= i, so NaN and inf cannot affect earlier outputs.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from . import maps
from . import states as _states

Array = np.ndarray


class State(NamedTuple):
    """The state after some tokens: ``s (..., f, m)``, ``z (..., f)`` or None."""

    s: Array
    z: Array | None
    log_scale: Array | None = None


@_states.of_sequence
def causal(
    q, k, v, *, feature_map="elu", normalize=True, eps=1e-6, scale=1.0,
    key_lengths=None, cu_seqlens=None, block=None, initial_state=None, return_state=False,
):  # fmt: skip
    """Causal linear attention.

    ``s_i = s_{i-1} + b_i v_i^T``, ``z_i = z_{i-1} + b_i``, ``o_i = a_i^T s_i / (a_i . z_i + eps)``;
    without the normaliser ``o_i = a_i^T s_i``.  Katharopoulos et al. 2020, eq. 9-12.
    With ``block`` the state that a token reads is the one after the last token of its block.

    Parameters
    ----------
    q, k : array_like, (..., n, d)
    v : array_like, (..., n, m)
    key_lengths : array_like of int, (...), optional
        Keys and values from there on do not exist.
    cu_seqlens : array_like of int, (r + 1,), optional
        Ends of r sequences packed along n; states are then (..., r, f, m) and (..., r, f).
    initial_state : State, optional
    return_state : bool
        Return ``(o, State)``.

    Returns
    -------
    o : ndarray, (..., n, m)
    """
    q, k, v, initial_state = _wide(q, k, v, state=initial_state)
    phi = maps.get(feature_map)
    a, b, v = _keys_exist(scale * phi(q), phi(k), v, key_lengths)
    s, z = _start(a, b, v, initial_state, cu_seqlens)
    o = np.empty((*s.shape[:-3], q.shape[-2], v.shape[-1]), s.dtype)
    for r, tokens in _blocks(cu_seqlens, q.shape[-2], block):
        for i in tokens:
            s[..., r, :, :] += _outer(b[..., i, :], v[..., i, :])
            z[..., r, :] += b[..., i, :]
        for i in tokens:
            num = _vecmat(a[..., i, :], s[..., r, :, :])
            o[..., i, :] = num / (_dot(a[..., i, :], z[..., r, :]) + eps) if normalize else num
    return (o, _finish(s, z, cu_seqlens, normalize)) if return_state else o


@_states.of_gradients
def causal_backward(
    q, k, v, grad_out, *, feature_map="elu", normalize=True, eps=1e-6, scale=1.0,
    key_lengths=None, cu_seqlens=None, block=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * causal(q, k, v)) + sum(grad_state * final state)``.

    With ``den_i = a_i . z_i + eps``, ``h_i = g_i / den_i``, ``c_i = -(g_i . num_i) / den_i^2``,
    forwards:  ``da_i = s_i h_i + c_i z_i``;
    backwards: ``r += a_i h_i^T``, ``w += c_i a_i``, ``db_i = r v_i + w``, ``dv_i = r^T b_i``.
    Katharopoulos et al. 2020, eq. 13-15, with the derivative of the denominator added.

    Returns
    -------
    dq, dk, dv : ndarray
        Summed to the shapes of q, k and v.
    State
        Gradient of the initial state; only where `initial_state` or `grad_state` is given.
    """
    q, k, v, g, initial_state, grad_state = _wide(
        q, k, v, grad_out, state=initial_state, grad_state=grad_state
    )
    phi = maps.get(feature_map)
    a, b, u = _keys_exist(scale * phi(q), phi(k), v, key_lengths)
    s, z = _start(a, b, u, initial_state, cu_seqlens, g)
    lead, n = s.shape[:-3], q.shape[-2]
    da, db = (np.empty((*lead, n, s.shape[-2]), s.dtype) for _ in range(2))
    h, dv = (np.empty((*lead, n, s.shape[-1]), s.dtype) for _ in range(2))
    c = np.zeros((*lead, n, 1), s.dtype)
    for r, tokens in _blocks(cu_seqlens, n, block):
        for i in tokens:
            s[..., r, :, :] += _outer(b[..., i, :], u[..., i, :])
            z[..., r, :] += b[..., i, :]
        for i in tokens:
            h[..., i, :] = g[..., i, :]
            if normalize:
                den = _dot(a[..., i, :], z[..., r, :]) + eps
                h[..., i, :] /= den
                c[..., i, :] = -_dot(h[..., i, :], _vecmat(a[..., i, :], s[..., r, :, :])) / den
            da[..., i, :] = _matvec(s[..., r, :, :], h[..., i, :])
            if normalize:
                da[..., i, :] += c[..., i, :] * z[..., r, :]
    ds, dz = _start(a, b, u, grad_state, cu_seqlens, g)
    for r, tokens in reversed(list(_blocks(cu_seqlens, n, block))):
        for i in tokens:
            ds[..., r, :, :] += _outer(a[..., i, :], h[..., i, :])
            dz[..., r, :] += c[..., i, :] * a[..., i, :] if normalize else 0
        for i in tokens:
            db[..., i, :] = _matvec(ds[..., r, :, :], u[..., i, :]) + dz[..., r, :]
            dv[..., i, :] = _vecmat(b[..., i, :], ds[..., r, :, :])
    grads = _chain(phi, (q, scale * da), (k, db), (v, dv), key_lengths)
    return *grads, *_gradient_of_state(ds, dz, initial_state, grad_state, cu_seqlens, normalize)


def noncausal(
    q, k, v, *, feature_map="elu", normalize=True, eps=1e-6, scale=1.0, key_lengths=None
):  # fmt: skip
    """Non-causal linear attention: every query reads all keys.

    ``s = sum_j b_j v_j^T``, ``z = sum_j b_j``, ``o_i = a_i^T s / (a_i . z + eps)``; without the
    normaliser ``o_i = a_i^T s``.  Katharopoulos et al. 2020, eq. 5-6.

    Parameters
    ----------
    q : array_like, (..., n, d)
    k : array_like, (..., s, d)
    v : array_like, (..., s, m)
    key_lengths : array_like of int, (...), optional
        Keys and values from there on do not exist.

    Returns
    -------
    o : ndarray, (..., n, m)
    """
    q, k, v = _wide(q, k, v)
    phi = maps.get(feature_map)
    a, b, v = _keys_exist(scale * phi(q), phi(k), v, key_lengths)
    num = a @ (b.mT @ v)
    if not normalize:
        return num
    return num / (_dot(a, b.sum(-2, keepdims=True)) + eps)


def noncausal_backward(
    q, k, v, grad_out, *,
    feature_map="elu", normalize=True, eps=1e-6, scale=1.0, key_lengths=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * noncausal(q, k, v))``.

    ``h_i = g_i / den_i``, ``c_i = -(g_i . num_i) / den_i^2``, ``da_i = s h_i + c_i z``;
    ``r = sum_i a_i h_i^T``, ``w = sum_i c_i a_i``, ``db_j = r v_j + w``, ``dv_j = r^T b_j``.

    Returns
    -------
    dq, dk, dv : ndarray
        Summed to the shapes of q, k and v.
    """
    q, k, v, g = _wide(q, k, v, grad_out)
    phi = maps.get(feature_map)
    a, b, u = _keys_exist(scale * phi(q), phi(k), v, key_lengths)
    s, z = b.mT @ u, b.sum(-2, keepdims=True)
    if normalize:
        den = _dot(a, z) + eps
        h = g / den
        c = -_dot(h, a @ s) / den
        da = h @ s.mT + c * z
        db = u @ (h.mT @ a) + (c * a).sum(-2, keepdims=True)
    else:
        h = g
        da, db = h @ s.mT, u @ (h.mT @ a)
    dv = b @ (a.mT @ h)
    return _chain(phi, (q, scale * da), (k, db), (v, dv), key_lengths)


step = _states.step_of(causal, "q k v", name="step")


# The arithmetic of one token.  matmul, not vecdot and vecmat: those conjugate complex numbers.


def _outer(x: Array, y: Array) -> Array:
    return x[..., :, None] * y[..., None, :]


def _dot(x: Array, y: Array) -> Array:
    return (x * y).sum(-1, keepdims=True)


def _vecmat(x: Array, s: Array) -> Array:
    return (x[..., None, :] @ s)[..., 0, :]


def _matvec(s: Array, x: Array) -> Array:
    return (s @ x[..., :, None])[..., 0]


# Operands, masks and states.


def _wide(*arrays, **states):
    """Arrays, then states, all in their common dtype, at least float64."""
    arrays = [np.asarray(x) for x in arrays]
    leaves = [x for state in states.values() if state is not None for x in state if x is not None]
    dtype = np.result_type(np.float64, *arrays, *map(np.asarray, leaves))
    wide = [x.astype(dtype) for x in arrays]
    for state in states.values():
        wide.append(state and State(*(x if x is None else np.asarray(x, dtype) for x in state)))
    return wide


def _keys_exist(a, b: Array, v: Array, key_lengths):
    """a, and b and v with the rows from `key_lengths` on set to 0, whatever they held."""
    return a, _exists(b, key_lengths), _exists(v, key_lengths)


def _exists(x: Array, key_lengths):
    if key_lengths is None:
        return x
    exists = np.arange(x.shape[-2]) < np.asarray(key_lengths)[..., None]
    return np.where(exists[..., None], x, 0)


def _channels(beta: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """beta with an axis of channels: (..., n, m) unchanged, (..., n) as (..., n, 1)."""
    return beta if beta.ndim >= max(x.ndim for x in others) else beta[..., None]


def _tokens(cu_seqlens, n: int) -> Iterator[tuple[int, int]]:
    """(r, i) for every token i of every packed sequence r."""
    return ((r, i) for r, tokens in _blocks(cu_seqlens, n, None) for i in tokens)


def _blocks(cu_seqlens, n: int, block: int | None) -> Iterator[tuple[int, range]]:
    """(r, tokens) for every block of so many tokens, 1 by default, of every packed sequence r."""
    bounds = (0, n) if cu_seqlens is None else cu_seqlens
    for r, (start, stop) in enumerate(pairwise(bounds)):
        for begin in range(start, stop, block or 1):
            yield r, range(begin, min(begin + (block or 1), stop))


def _start(a: Array, b: Array, v: Array, state: State | None, cu_seqlens, *others: Array):
    """A new s (..., r, f, m) and z (..., r, f): zeros, or a copy of `state`; r = 1 if unpacked."""
    r = 1 if cu_seqlens is None else len(cu_seqlens) - 1
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in (a, b, v, *others)))
    s, z = np.zeros(()), np.zeros(())
    if state is not None:
        s = state.s if cu_seqlens is not None else state.s[..., None, :, :]
        lead = np.broadcast_shapes(lead, s.shape[:-3])
        if state.z is not None:
            z = state.z if cu_seqlens is not None else state.z[..., None, :]
    f, m = b.shape[-1], v.shape[-1]
    s = np.broadcast_to(s, (*lead, r, f, m)).astype(v.dtype)
    return s, np.broadcast_to(z, (*lead, r, f)).astype(v.dtype)


def _finish(s: Array, z: Array, cu_seqlens, normalize: bool = False) -> State:
    """The public form of the state: an axis r only if packed, z only if normalised."""
    if cu_seqlens is None:
        s, z = s[..., 0, :, :], z[..., 0, :]
    return State(s, z if normalize else None)


def _gradient_of_state(ds, dz, state, grad_state, cu_seqlens, normalize=False):
    """That of the initial state, the last of the gradients; none without states."""
    if state is None and grad_state is None:
        return ()
    ds, dz, _ = _finish(ds, dz, cu_seqlens, normalize)
    if state is None:
        return (State(ds, dz),)
    core = 2 if cu_seqlens is None else 3
    dz = dz if dz is None else _sum_to(dz, state.z, core - 1)
    return (State(_sum_to(ds, state.s, core), dz),)


def _chain(phi, dq, dk, dv, key_lengths) -> tuple[Array, Array, Array]:
    """(dq, dk, dv) from pairs (q, its gradient through phi), (k, ...), and (v, its gradient)."""
    q, k, v = dq[0], dk[0], dv[0]
    _, dk, dv = _keys_exist(None, phi.backward(*dk), dv[1], key_lengths)
    return _sum_to(phi.backward(*dq), q), _sum_to(dk, k), _sum_to(dv, v)


def _sum_to(grad: Array, operand: Array, core: int = 2) -> Array:
    """`grad` summed over the leading axes along which `operand` was broadcast.

    It is repeated along axes on which it does not depend.
    """
    lead = operand.shape[: operand.ndim - core]
    grad = np.broadcast_to(grad, np.broadcast_shapes(grad.shape, operand.shape))
    grad = grad.sum(axis=tuple(range(grad.ndim - core - len(lead))))
    stretched = tuple(i for i, size in enumerate(lead) if size == 1 and grad.shape[i] != 1)
    return grad.sum(axis=stretched, keepdims=True)


def _sum_channels(grad, operand, *others):
    """A gradient per channel, in the shape of an operand with or without channels."""
    wide = _channels(operand, *others)
    if wide.shape[-1] == 1:  # one number for all channels
        grad = grad.sum(-1, keepdims=True)
    return _sum_to(grad, wide).reshape(operand.shape)
