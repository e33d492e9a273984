# mypy: ignore-errors
"""NumPy twins of the scans, token by token: see `linattn.reference.linear`."""

import numpy as np

from . import states as _states
from .conv import _sequences, _sigmoid, _slope, _sum_to
from .linear import _exists
from .maps import _softplus


@_states.of_sequence
def linear_scan(
    a, x, *, log=False, reverse=False, cu_seqlens=None, initial_state=None, return_state=False
):
    """``h_i = a_i h_{i-1} + x_i``, each number by itself; ``exp(a_i)`` for ``a_i`` with `log`.

    Parameters
    ----------
    a, x : array_like, (..., n, m)
        The axes of each are broadcast against the other's.
    reverse : bool
        Scan from each sequence's last token to its first.
    initial_state : array_like, (..., m), or (..., r, m) with `cu_seqlens`

    Returns
    -------
    h : ndarray, (..., n, m)
        And the last h with `return_state`.
    """
    a, x, start = _wide(a, x, _array(initial_state))
    a, x = np.broadcast_arrays(np.exp(a) if log else a, x)
    lead = np.broadcast_shapes(x.shape[:-2], _lead(start, cu_seqlens, 1))
    h = np.empty((*lead, *x.shape[-2:]), x.dtype)
    states = []
    for r, (begin, end) in enumerate(_sequences(cu_seqlens, x.shape[-2])):
        s = _start(start, r, cu_seqlens, h.shape[:-2] + h.shape[-1:], 1, h.dtype)
        for i in _tokens(begin, end, reverse):
            s = a[..., i, :] * s + x[..., i, :]
            h[..., i, :] = s
        states.append(s)
    return (h, _stacked(states, cu_seqlens, -2)) if return_state else h


@_states.of_gradients
def linear_scan_backward(
    a, x, grad_out, *, log=False, reverse=False, cu_seqlens=None, initial_state=None,
    grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out h) + sum(grad_state last h)``.

    With r the gradient of h_i, from the last token on: ``r = g_i + a_{i+1} r``, ``dx_i = r``,
    ``da_i = r h_{i-1}``, times ``a_i`` with `log`.  Of complex operands what r is multiplied by
    is conjugated: gradients are dL/dRe + i dL/dIm of real L.

    Returns
    -------
    da, dx : ndarray
        Summed to the shapes of a and x.
    dstate : ndarray
        Only where `initial_state` or `grad_state` is given.
    """
    given, initial_state, grad_state = (a, x), _array(initial_state), _array(grad_state)
    a, x, g, start, grad = _wide(a, x, grad_out, initial_state, grad_state)
    h = linear_scan(
        a, x, log=log, reverse=reverse, cu_seqlens=cu_seqlens, initial_state=initial_state
    )
    factor = np.broadcast_to(np.exp(a) if log else a, h.shape)
    da, dx, dstates = np.empty_like(h), np.empty_like(h), []
    for q, (begin, end) in enumerate(_sequences(cu_seqlens, h.shape[-2])):
        shape = h.shape[:-2] + h.shape[-1:]
        r = _start(grad, q, cu_seqlens, shape, 1, h.dtype).copy()
        before = _start(start, q, cu_seqlens, shape, 1, h.dtype)
        tokens = list(_tokens(begin, end, reverse))
        for place in reversed(range(len(tokens))):
            i = tokens[place]
            r = r + g[..., i, :]
            dx[..., i, :] = r
            da[..., i, :] = r * (h[..., tokens[place - 1], :] if place > 0 else before).conj()
            r = factor[..., i, :].conj() * r
        dstates.append(r)
    da = da * factor.conj() if log else da
    grads = _sum_to(da, np.asarray(given[0])), _sum_to(dx, np.asarray(given[1]))
    if initial_state is None and grad_state is None:
        return grads
    return *grads, _gradient_of_start(dstates, start, cu_seqlens, -2)


linear_scan_step = _states.step_of(linear_scan, "a x")


@_states.of_sequence
def selective_scan(
    x, dt, A, B, C, *, D=None, z=None, dt_bias=None, softplus=False,
    key_lengths=None, cu_seqlens=None, initial_state=None, return_state=False,
):  # fmt: skip
    """The selective scan of Mamba.

    ``h_i[m,f] = exp(dt_i[m] A[m,f]) h_{i-1}[m,f] + dt_i[m] B_i[f] x_i[m]``,
    ``y_i[m] = sum_f C_i[f] h_i[m,f] + D[m] x_i[m]``, times ``silu(z_i[m])``; dt stands for
    ``dt + dt_bias``, or its softplus.  Past the last key dt and B are zeros.

    Parameters
    ----------
    x, dt, z : array_like, (..., n, m)
    A : array_like, (..., m, f)
    B, C : array_like, (..., n, f)
    D, dt_bias : array_like, (..., m)
    initial_state : array_like, (..., m, f), or (..., r, m, f) with `cu_seqlens`

    Returns
    -------
    y : ndarray, (..., n, m)
        And the last state with `return_state`.
    """
    initial_state = _array(initial_state)
    ops = _Operands(x, dt, A, B, C, D, z, dt_bias, softplus, key_lengths, initial_state)
    p, states = _read(ops, initial_state, cu_seqlens)[:2]
    y = p if ops.z is None else p * ops.z * _sigmoid(ops.z)
    return (y, _stacked(states, cu_seqlens, -3)) if return_state else y


@_states.of_gradients
def selective_scan_backward(
    x, dt, A, B, C, grad_out, *, D=None, z=None, dt_bias=None, softplus=False,
    key_lengths=None, cu_seqlens=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out y) + sum(grad_state last state)``.

    With c the cotangent before the gate and r the gradient of h_i, from the last token on:
    ``r += C_i c_i``, ``dB_i = sum_m r dt_i x_i``, ``dC_i = sum_m c_i h_i``,
    ``du = sum_f r B_i``, ``q = r exp(dt_i A) h_{i-1}``, ``dA += dt_i q``,
    ``ddt_i = du x_i + sum_f A q``, ``dx_i = du dt_i + D c_i``, ``r = exp(dt_i A) r``.

    Returns
    -------
    dx, ddt, dA, dB, dC : ndarray
        Summed to the operands' shapes; then dD, dz and ddt_bias of those that are given.
    dstate : ndarray
        Only where `initial_state` or `grad_state` is given.
    """
    initial_state, grad_state = _array(initial_state), _array(grad_state)
    ops = _Operands(
        x, dt, A, B, C, D, z, dt_bias, softplus, key_lengths, initial_state, grad_out, grad_state
    )
    p, _, before = _read(ops, initial_state, cu_seqlens)
    c = np.broadcast_to(np.asarray(grad_out).astype(p.dtype), p.shape)
    dz = None if ops.z is None else c * p * _slope(ops.z)
    c = c if ops.z is None else c * ops.z * _sigmoid(ops.z)
    du, ddt = np.zeros_like(p), np.zeros_like(p)
    dA = np.zeros(before.shape[:-3] + before.shape[-2:], p.dtype)
    dB, dC = (np.zeros((*p.shape[:-1], ops.A.shape[-1]), p.dtype) for _ in range(2))
    dstates = []
    for k, (begin, end) in enumerate(_sequences(cu_seqlens, p.shape[-2])):
        r = _start(grad_state, k, cu_seqlens, dA.shape, 2, p.dtype).copy()
        for i in reversed(range(begin, end)):
            e, h = _decay(ops, i), _next(ops, before[..., i, :, :], i)
            r = r + ops.C[..., i, None, :] * c[..., i, :, None]
            dB[..., i, :] = (r * ops.u[..., i, :, None]).sum(-2)
            dC[..., i, :] = (h * c[..., i, :, None]).sum(-2)
            du[..., i, :] = (r * ops.B[..., i, None, :]).sum(-1)
            q = r * e * before[..., i, :, :]
            dA += ops.dt[..., i, :, None] * q
            ddt[..., i, :] = (ops.A * q).sum(-1)
            r = e * r
        dstates.append(r)
    ddt = (ddt + du * ops.x) * (_sigmoid(ops.raw) if softplus else 1)
    dx, ddt, dB = (_exists(y, key_lengths) for y in (du * ops.dt, ddt, dB))
    dx = dx + (0 if D is None else ops.D[..., None, :] * c)
    grads = tuple(
        _sum_to(dy, np.asarray(y))
        for dy, y in zip((dx, ddt, dA, dB, dC), (x, dt, A, B, C), strict=True)
    )
    grads += () if D is None else (_sum_to((c * ops.x).sum(-2), np.asarray(D)),)
    grads += () if dz is None else (_sum_to(dz, np.asarray(z)),)
    grads += () if dt_bias is None else (_sum_to(ddt.sum(-2), np.asarray(dt_bias)),)
    if initial_state is None and grad_state is None:
        return grads
    start = None if initial_state is None else np.asarray(initial_state)
    return *grads, _gradient_of_start(dstates, start, cu_seqlens, -3)


selective_scan_step = _states.step_of(selective_scan, "x dt B C z")


def _array(state):
    """The array of a `linattn.State`, or the array that stands for one."""
    return getattr(state, "s", state)


class _Operands:
    """The operands in float64 or wider, dt as it is used; u, dt and B are 0 past the last key."""

    def __init__(self, x, dt, A, B, C, D, z, dt_bias, softplus, key_lengths, *others):
        x, dt, self.A, B, self.C, self.D, self.z, dt_bias, *_ = _wide(
            x, dt, A, B, C, D, z, dt_bias, *others
        )
        self.raw = dt if dt_bias is None else dt + dt_bias[..., None, :]
        dt = _softplus(self.raw) if softplus else self.raw
        self.x = x
        self.u, self.dt, self.B = (_exists(y, key_lengths) for y in (dt * x, dt, B))


def _read(ops, start, cu_seqlens):
    """The outputs before the gate, the last states, and the state before each token."""
    n, m = ops.u.shape[-2:]
    f = ops.A.shape[-1]
    z, D = (() if y is None else (y,) for y in (ops.z, ops.D))
    lead = np.broadcast_shapes(
        *(y.shape[:-2] for y in (ops.u, ops.A, ops.B, ops.C, *z)), *(y.shape[:-1] for y in D),
        _lead(start, cu_seqlens, 2),
    )  # fmt: skip
    dtype = np.result_type(ops.u, ops.A, ops.B, ops.C, *([] if start is None else [start]))
    p, before = np.empty((*lead, n, m), dtype), np.empty((*lead, n, m, f), dtype)
    states = []
    for r, (begin, end) in enumerate(_sequences(cu_seqlens, n)):
        s = _start(start, r, cu_seqlens, (*lead, m, f), 2, dtype)
        for i in range(begin, end):
            before[..., i, :, :] = s
            s = _next(ops, s, i)
            p[..., i, :] = (ops.C[..., i, None, :] * s).sum(-1)
        states.append(s)
    return p if ops.D is None else p + ops.D[..., None, :] * ops.x, states, before


def _decay(ops, i):
    return np.exp(ops.dt[..., i, :, None] * ops.A)


def _next(ops, s, i):
    """The state after token i."""
    return _decay(ops, i) * s + ops.u[..., i, :, None] * ops.B[..., i, None, :]


def _wide(*operands):
    """The operands in one dtype, float64 at least; None stays."""
    arrays = [None if x is None else np.asarray(x) for x in operands]
    dtype = np.result_type(np.float64, *(x for x in arrays if x is not None))
    return tuple(None if x is None else x.astype(dtype) for x in arrays)


def _tokens(begin, end, reverse):
    return reversed(range(begin, end)) if reverse else range(begin, end)


def _lead(state, cu_seqlens, rank):
    """Leading axes of a state, which has `rank` of its own."""
    return () if state is None else np.shape(state)[: -rank - (cu_seqlens is not None)]


def _start(state, r, cu_seqlens, shape, rank, dtype):
    """The state that sequence r begins with, zeros where none is given."""
    if state is None:
        return np.zeros(shape, dtype)
    state = np.asarray(state)
    if cu_seqlens is not None:
        state = state[(..., r, *(slice(None),) * rank)]
    return np.broadcast_to(state.astype(dtype), shape)


def _stacked(states, cu_seqlens, axis):
    return states[0] if cu_seqlens is None else np.stack(states, axis)


def _gradient_of_start(dstates, start, cu_seqlens, axis):
    dstate = _stacked(dstates, cu_seqlens, axis)
    return dstate if start is None else _sum_to(dstate, start)
