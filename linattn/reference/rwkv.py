# mypy: ignore-errors
"""NumPy twin of RWKV-4's attention, token by token: see `linattn.reference.linear`."""

import numpy as np

from . import states as _states
from .linear import State, _sum_to, _tokens, _wide


@_states.of_sequence
def wkv(
    k, v, w, u, *, key_lengths=None, cu_seqlens=None, initial_state=None, return_state=False,
):  # fmt: skip
    """RWKV-4's attention.

    ``num_t = e^-w num_{t-1} + e^k_t v_t``, ``den_t = e^-w den_{t-1} + e^k_t``,
    ``o_t = (num_{t-1} + e^(u + k_t) v_t) / (den_{t-1} + e^(u + k_t))``; num and den are held
    times e^-max, ``max_t = max(max_{t-1} - w, k_t)``.

    Parameters
    ----------
    k, v : array_like, (..., n, m)
    w, u : array_like, (..., m)
    initial_state : State of num, den and max, each (..., m), or (..., r, m) with `cu_seqlens`

    Returns
    -------
    o : ndarray, (..., n, m)
        And the final State with `return_state`.
    """
    k, v, w, u, state = _wide(k, v, w, u, state=initial_state)
    k, v = _keys(k, v, key_lengths)
    fields = _start(k, v, w, u, state, cu_seqlens)
    o = np.empty((*fields.shape[1:-2], k.shape[-2], k.shape[-1]), fields.dtype)
    for r, t in _tokens(cu_seqlens, k.shape[-2]):
        before = fields[..., r, :]
        o[..., t, :], _ = _read(before, k[..., t, :] + u, v[..., t, :])
        w_t = np.where(_has_key(key_lengths, t), w, 0)
        fields[..., r, :], _ = _write(before, w_t, k[..., t, :], v[..., t, :])
    return (o, _finish(fields, cu_seqlens)) if return_state else o


@_states.of_gradients
def wkv_backward(
    k, v, w, u, grad_out, *, key_lengths=None, cu_seqlens=None, initial_state=None,
    grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * wkv(k, v, w, u)) + sum(grad_state * final state)``.

    From the last token on, with R, Q and r the gradients of num, den and max, a and b the weights
    of the state and of the token's key as it is read, c and e those as it is written:
    ``p = g / den``, ``x = p b (v - o)``, ``dk = x + e (R v + Q)``, ``du += x``,
    ``dv = p b + e R``, ``dw -= c (R num + Q den)``, ``R = c R + a p``, ``Q = c Q - a p o``; r
    follows the larger of max - w and k.

    Returns
    -------
    dk, dv, dw, du : ndarray
        Summed to the shapes of k, v, w and u.
    dstate : State
        Only where `initial_state` or `grad_state` is given.
    """
    given = k, v, w, u
    k, v, w, u, g, state, last = _wide(k, v, w, u, grad_out, state=initial_state, last=grad_state)
    k, v = _keys(k, v, key_lengths)
    fields = _start(k, v, w, u, state, cu_seqlens, g)
    first, before = fields.copy(), {}
    for r, t in _tokens(cu_seqlens, k.shape[-2]):
        before[t] = r, fields[..., r, :].copy()
        w_t = np.where(_has_key(key_lengths, t), w, 0)
        fields[..., r, :], _ = _write(before[t][1], w_t, k[..., t, :], v[..., t, :])
    grads = _spread(_fields(last, cu_seqlens), fields.shape[1:], fields.dtype)
    grads[2] -= grads[0] * fields[0] + grads[1] * fields[1]
    dk, dv = (np.zeros((*fields.shape[1:-2], *k.shape[-2:]), fields.dtype) for _ in range(2))
    dw, du = (np.zeros((*fields.shape[1:-2], k.shape[-1]), fields.dtype) for _ in range(2))
    for t in sorted(before, reverse=True):
        r, s = before[t]
        has = _has_key(key_lengths, t)
        k_t, v_t, w_t = k[..., t, :], v[..., t, :], np.where(has, w, 0)
        o, (a, b, den) = _read(s, k_t + u, v_t)
        p = np.where(den != 0, g[..., t, :] / np.where(den != 0, den, 1), 0)
        x = p * b * (v_t - o)
        _, (c, e) = _write(s, w_t, k_t, v_t)
        big_r, big_q, small = grads[..., r, :]
        is_key = k_t > s[2] - w_t
        on = c * (big_r * s[0] + big_q * s[1]) + np.where(is_key, 0, small)
        dk_t = x + e * (big_r * v_t + big_q) + np.where(is_key, small, 0)
        dk[..., t, :], dv[..., t, :] = np.where(has, (dk_t, p * b + e * big_r), 0)
        du += x
        dw -= np.where(has, on, 0)
        grads[0][..., r, :] = c * big_r + a * p
        grads[1][..., r, :] = c * big_q - a * p * o
        grads[2][..., r, :] = np.where(is_key, 0, small)
    grads[2] += grads[0] * first[0] + grads[1] * first[1]
    sums = tuple(
        _sum_to(dx, np.asarray(x), core)
        for dx, x, core in zip((dk, dv, dw, du), given, (2, 2, 1, 1), strict=True)
    )
    if initial_state is None and grad_state is None:
        return sums
    dstate = _finish(grads, cu_seqlens)
    if initial_state is not None:
        core = 1 if cu_seqlens is None else 2
        dstate = State(*(_sum_to(dx, x, core) for dx, x in zip(dstate, state, strict=True)))
    return *sums, dstate


wkv_step = _states.step_of(wkv, "k v")


def _weights(x, y):
    """e^(x - max) and e^(y - max), and max; 0 for -inf."""
    top = np.maximum(x, y)
    safe = np.where(np.isinf(top), 0, top)
    a = np.where(x == top, 1, np.exp(np.minimum(x - safe, 0)))
    b = np.where(y == top, 1, np.exp(np.minimum(y - safe, 0)))
    a, b = (np.where((top == np.inf) & (z != top), 0, c) for z, c in ((x, a), (y, b)))
    return np.where(x == -np.inf, 0, a), np.where(y == -np.inf, 0, b), top


def _read(state, key, v):
    """The output of a token, and its weights and denominator."""
    a, b, _ = _weights(state[2], key)
    den = a * state[1] + b
    o = np.where(den != 0, (a * state[0] + b * v) / np.where(den != 0, den, 1), 0)
    return o, (a, b, den)


def _write(state, w, k, v):
    """The state after a token, and its weights."""
    c, e, top = _weights(state[2] - w, k)
    return np.stack(np.broadcast_arrays(c * state[0] + e * v, c * state[1] + e, top)), (c, e)


def _has_key(key_lengths, t):
    return True if key_lengths is None else t < np.asarray(key_lengths)[..., None]


def _keys(k, v, key_lengths):
    """k and v: -inf and 0 past the last key, and v 0 where k is -inf."""
    if key_lengths is None:
        return k, np.where(k == -np.inf, 0, v)
    exists = (np.arange(k.shape[-2]) < np.asarray(key_lengths)[..., None])[..., None]
    return _keys(np.where(exists, k, -np.inf), v, None)


def _fields(state, cu_seqlens):
    """num, den and max as one array (3, ..., r, m); zeros for None."""
    if state is None:
        return np.zeros((3, 1, 1))
    x = np.stack(np.broadcast_arrays(*state))
    return x if cu_seqlens is not None else x[..., None, :]


def _start(k, v, w, u, state, cu_seqlens, *others):
    """A fresh state (3, ..., r, m)."""
    r = 1 if cu_seqlens is None else len(cu_seqlens) - 1
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in (k, v, *others)), w.shape[:-1], u.shape[:-1])
    fields = _fields(state, cu_seqlens)
    if state is None:
        fields[2] = -np.inf
    lead = np.broadcast_shapes(lead, fields.shape[1:-2])
    return _spread(fields, (*lead, r, k.shape[-1]), k.dtype)


def _spread(fields, shape, dtype):
    """An array (3, *shape) of its own."""
    fields = fields.reshape(3, *(1,) * (len(shape) + 1 - fields.ndim), *fields.shape[1:])
    return np.broadcast_to(fields, (3, *shape)).astype(dtype)


def _finish(fields, cu_seqlens):
    return State(*(fields if cu_seqlens is not None else fields[..., 0, :]))
