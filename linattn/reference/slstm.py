# mypy: ignore-errors
"""NumPy twin of sLSTM, token by token: see `linattn.reference.linear`."""

from typing import NamedTuple

import numpy as np

from . import states as _states
from .linear import _sum_to, _tokens


class SLSTMState(NamedTuple):
    """The state after some tokens, each array (..., heads, d)."""

    h: np.ndarray
    c: np.ndarray
    n: np.ndarray
    m: np.ndarray


@_states.of_sequence
def slstm(x, R, b, *, cu_seqlens=None, initial_state=None, return_state=False):
    """sLSTM.

    ``(i, f, z, o) = x_t + R h_{t-1} + b``, ``m_t = max(log sigma(f) + m_{t-1}, i)``,
    ``c_t = f' c_{t-1} + i' tanh(z)``, ``n_t = f' n_{t-1} + i'``, ``h_t = sigma(o) c_t / n_t`` with
    ``i' = e^(i - m_t)`` and ``f' = e^(log sigma(f) + m_{t-1} - m_t)``.  Where n is 0 nothing has
    been written: f' is 0 and m_t is i.

    Parameters
    ----------
    x : array_like, (..., n, 4, heads, d)
    R : array_like, (..., 4, heads, d, d)
    b : array_like, (..., 4, heads, d)
    initial_state : SLSTMState, optional

    Returns
    -------
    h : ndarray, (..., n, heads, d)
        And the final SLSTMState with `return_state`.
    """
    x, R, b, fields = _operands(x, R, b, initial_state, cu_seqlens)
    out = np.empty((*fields[0].shape[:-3], x.shape[-4], *x.shape[-2:]), x.dtype)
    for r, t in _tokens(cu_seqlens, x.shape[-4]):
        before = [y[..., r, :, :] for y in fields]
        _store(fields, r, _token(_gates(x, R, b, before[0], t), *before[1:])[:4])
        out[..., t, :, :] = fields[0][..., r, :, :]
    return (out, _finish(fields, cu_seqlens)) if return_state else out


@_states.of_gradients
def slstm_backward(x, R, b, grad_out, *, cu_seqlens=None, initial_state=None, grad_state=None):
    """Gradients of ``sum(grad_out * slstm(x, R, b)) + sum(grad_state * final state)``.

    By the chain rule from the last token on, through m as well: with the gradients of the state
    after token t, ``dc += dh sigma(o) / n``, ``dn -= dh h / n``,
    ``p = i' (dc tanh(z) + dn)``, ``q = f' (dc c_{t-1} + dn n_{t-1})``; the larger exponent gets
    ``dm - p - q``, i further p, and log sigma(f) + m_{t-1} further q.

    Returns
    -------
    dx, dR, db : ndarray
        Summed to the operands' shapes.
    dstate : SLSTMState
        Only where `initial_state` or `grad_state` is given.
    """
    given = [np.asarray(y) for y in (x, R, b)]
    x, R, b, fields, grads, g = _operands(x, R, b, initial_state, cu_seqlens, grad_out, grad_state)
    lead, before = fields[0].shape[:-3], {}
    for r, t in _tokens(cu_seqlens, x.shape[-4]):
        before[t] = r, [y[..., r, :, :].copy() for y in fields]
        _store(fields, r, _token(_gates(x, R, b, before[t][1][0], t), *before[t][1][1:])[:4])
    dx = np.zeros((*lead, *x.shape[-4:]), x.dtype)
    dR = np.zeros((*lead, *R.shape[-4:]), x.dtype)
    for t in sorted(before, reverse=True):
        r, (h0, c0, n0, m0) = before[t]
        gates = _gates(x, R, b, h0, t)
        dh, dc, dn, dm = (y[..., r, :, :] for y in grads)
        dh = dh + g[..., t, :, :]
        dgates, *rest = _reverse(gates, (c0, n0, m0), dh, dc, dn, dm)
        dx[..., t, :, :, :] = dgates
        dR += dgates[..., None] * h0[..., None, :, None, :]
        dh = (R.mT @ dgates[..., None])[..., 0].sum(-3)
        _store(grads, r, (dh, *rest))
    pairs = zip((dx, dR, dx.sum(-4)), given, (4, 4, 3), strict=True)
    sums = tuple(_sum_to(dy, y, core) for dy, y, core in pairs)
    if initial_state is None and grad_state is None:
        return sums
    dstate = _finish(grads, cu_seqlens)
    if initial_state is not None:
        core = 2 + (cu_seqlens is not None)
        pairs = zip(dstate, initial_state, strict=True)
        dstate = SLSTMState(*(_sum_to(dy, np.asarray(y), core) for dy, y in pairs))
    return *sums, dstate


@_states.of_step
def slstm_step(x, R, b, state):
    """One token of `slstm`, from a state: x (..., 4, heads, d)."""
    x = np.asarray(x)[..., None, :, :, :]
    h, state = slstm(x, R, b, initial_state=state, return_state=True)
    return h[..., 0, :, :], state


def _operands(x, R, b, state, cu_seqlens, grad_out=None, grad_state=None):
    """The operands in float64 or wider, and the state, each field (..., r, heads, d)."""
    leaves = [y for z in (state, grad_state) if z is not None for y in z]
    more = [] if grad_out is None else [grad_out]
    dtype = np.result_type(np.float64, *map(np.asarray, (x, R, b, *leaves, *more)))
    x, R, b, *more = (np.asarray(y, dtype) for y in (x, R, b, *more))
    r = 1 if cu_seqlens is None else len(cu_seqlens) - 1
    states = [_spread(z, r, x, cu_seqlens) for z in (state, *([grad_state] * len(more)))]
    lead = np.broadcast_shapes(
        x.shape[:-4], R.shape[:-4], b.shape[:-3], *(y.shape[:-3] for z in states for y in z),
        *(y.shape[:-3] for y in more),
    )  # fmt: skip
    states = [[np.broadcast_to(y, (*lead, *y.shape[-3:])).astype(dtype) for y in z] for z in states]
    return x, R, b, *states, *more


def _spread(state, r, x, cu_seqlens):
    """The fields of a state with an axis r; zeros for None."""
    if state is None:
        return [np.zeros((r, *x.shape[-2:]), x.dtype)] * 4
    packed = cu_seqlens is not None
    return [np.asarray(y) if packed else np.asarray(y)[..., None, :, :] for y in state]


def _gates(x, R, b, h, t):
    return x[..., t, :, :, :] + (R @ h[..., None, :, :, None])[..., 0] + b


def _token(gates, c, n, m):
    """h, c, n and m after a token; then sigma(o), tanh z, i', f', and whether m is i."""
    i, f, z, o = (gates[..., k, :, :] for k in range(4))
    past = np.where(n == 0, -np.inf, m - np.logaddexp(0, -f))
    is_input = i > past
    lead = np.where(i == past, 0, i - past)
    w = np.exp(-np.abs(lead))
    i_weight = np.where(i == -np.inf, 0, np.where(lead >= 0, 1, w))
    f_weight = np.where(past == -np.inf, 0, np.where(lead <= 0, 1, w))
    value, gate = np.tanh(z), _sigma(o)
    c = f_weight * c + i_weight * value
    n = f_weight * n + i_weight
    h = gate * np.where(n == 0, 0, c / np.where(n == 0, 1, n))
    return h, c, n, np.where(is_input, i, past), gate, value, i_weight, f_weight, is_input


def _reverse(gates, cell, dh, dc, dn, dm):
    """The gradients of the gates, and of c, n and m before the token."""
    c0, n0, _ = cell
    _, c, n, _, gate, value, i_weight, f_weight, is_input = _token(gates, *cell)
    there = np.where(n == 0, 1, n)
    per = np.where(n == 0, 0, gate / there)
    do = dh * np.where(n == 0, 0, c / there) * gate * (1 - gate)
    dc, dn = dc + dh * per, dn - dh * per * c / there
    p, q = i_weight * (dc * value + dn), f_weight * (dc * c0 + dn * n0)
    rest = dm - p - q
    before = np.where(n0 == 0, 0, q + np.where(is_input, 0, rest))
    di = p + np.where(is_input, rest, 0)
    df = before * _sigma(-gates[..., 1, :, :])
    dz = dc * i_weight * (1 - value**2)
    return np.stack((di, df, dz, do), -3), f_weight * dc, f_weight * dn, before


def _sigma(x):
    return np.exp(-np.logaddexp(0, -x))


def _store(fields, r, values):
    for y, value in zip(fields, values, strict=True):
        y[..., r, :, :] = value


def _finish(fields, cu_seqlens):
    """The state of these arrays, without the axis r unless sequences are packed."""
    return SLSTMState(*(y if cu_seqlens is not None else y[..., 0, :, :] for y in fields))
