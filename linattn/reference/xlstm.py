# mypy: ignore-errors
"""NumPy twin of mLSTM, token by token: see `linattn.reference.linear`."""

import numpy as np

from . import states as _states
from .linear import State, _exists, _outer, _sum_to, _tokens, _vecmat, _wide


@_states.of_sequence
def mlstm(
    q, k, v, i, f, *, scale=None, normalize=True, eps=0.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, return_state=False,
):  # fmt: skip
    """mLSTM.

    With the running maximum ``m_t = max(log sigma(f_t) + m_{t-1}, i_t)``, which begins at 0:
    ``s_t = e^(log sigma(f_t) + m_{t-1} - m_t) s_{t-1} + e^(i_t - m_t) k_t v_t^T``, z alike,
    ``o_t = scale s_t^T q_t / (max(|scale z_t.q_t|, e^-m_t) + eps)``; without the normaliser
    ``o_t = scale e^m_t s_t^T q_t``.

    Parameters
    ----------
    q, k : array_like, (..., n, d)
    v : array_like, (..., n, m)
    i, f : array_like, (..., n)
    scale : float, optional
        1 / sqrt(d) by default.

    Returns
    -------
    o : ndarray, (..., n, m)
        And the final State, whose log_scale (...) is m, with `return_state`.
    """
    x = _Operands(q, k, v, i, f, scale, key_lengths, cu_seqlens, initial_state)
    o = np.empty((*x.s.shape[:-3], q.shape[-2], v.shape[-1]), x.s.dtype)
    for r, t in _tokens(cu_seqlens, q.shape[-2]):
        x.write(r, t)
        num, nq = x.read(r, t)
        floor = np.exp(-x.m[..., r])
        den = _denominator(nq, floor, eps) if normalize else floor
        o[..., t, :] = num / den[..., None]
    return (o, x.state(normalize)) if return_state else o


@_states.of_gradients
def mlstm_backward(
    q, k, v, i, f, grad_out, *, scale=None, normalize=True, eps=0.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * mlstm(q, k, v, i, f)) + sum(grad_state * final state)``.

    As the chain rule has it, token by token from the last one, through m as well: with the
    cotangents c of the numerator and b of z.q, ``R += q c^T``, ``y += b q``, ``dv = w R^T k``,
    ``dk = w (R v + y)``, w = e^(i - m), ``R <- e^g R`` and the like.

    Returns
    -------
    dq, dk, dv, di, df : ndarray
        Summed to the operands' shapes.
    dstate : State
        Only where `initial_state` or `grad_state` is given.
    """
    x = _Operands(q, k, v, i, f, scale, key_lengths, cu_seqlens, initial_state, grad_out)
    before = {}
    for r, t in _tokens(cu_seqlens, q.shape[-2]):
        before[t] = r, [y[..., r, *(slice(None),) * n].copy() for y, n in zip(
            (x.s, x.z, x.m), (2, 1, 0), strict=True)]  # fmt: skip
        x.write(r, t)
    ds, dz, dm = x.gradients(grad_state)
    grads = [np.zeros((*x.s.shape[:-3], *y.shape[-rank:])) for y, rank in zip(
        (x.q, x.k, x.v, x.i, x.f), (2, 2, 2, 1, 1), strict=True)]  # fmt: skip
    dq, dk, dv, di, df = grads
    g = np.asarray(grad_out, x.s.dtype)
    for t in sorted(before, reverse=True):
        r, (s, z, m) = before[t]
        x.s[..., r, :, :], x.z[..., r, :], x.m[..., r] = s, z, m
        log_f, kept, gate, w = x.write(r, t)
        num, nq = x.read(r, t)
        floor, qt = np.exp(-x.m[..., r]), x.scale * x.q[..., t, :]
        den = _denominator(nq, floor, eps) if normalize else floor
        c = g[..., t, :] / den[..., None]
        dden = -(c * num).sum(-1) / den
        b = np.where(np.abs(nq) >= floor, np.sign(nq) * dden, 0) if normalize else 0 * nq
        dfloor = np.where(np.abs(nq) >= floor, 0, dden) if normalize else dden
        dm[..., r] -= floor * dfloor
        dq[..., t, :] = x.scale * (
            (x.s[..., r, :, :] @ c[..., None])[..., 0] + b[..., None] * x.z[..., r, :]
        )
        ds[..., r, :, :] += _outer(qt, c)
        dz[..., r, :] += b[..., None] * qt
        kt, vt = x.k[..., t, :], x.v[..., t, :]
        dv[..., t, :] = w[..., None] * _vecmat(kt, ds[..., r, :, :])
        seen = (ds[..., r, :, :] @ vt[..., None])[..., 0] + dz[..., r, :]
        dk[..., t, :] = w[..., None] * seen
        dw = w * (kt * seen).sum(-1)
        dgate = gate * ((ds[..., r, :, :] * s).sum((-1, -2)) + (dz[..., r, :] * z).sum(-1))
        to_m = dm[..., r] - dw - dgate  # of m_t
        has = x.has(t)
        di[..., t] = np.where(has, dw + np.where(kept, 0, to_m), 0)
        past = np.where(kept | ~has, to_m, 0) + dgate  # of log sigma(f_t) + m_{t-1}
        df[..., t] = np.where(has, past * (1 - np.exp(log_f)), 0)
        dm[..., r] = past
        ds[..., r, :, :] *= gate[..., None, None]
        dz[..., r, :] *= gate[..., None]
    sums = tuple(
        _sum_to(dx, np.asarray(y), rank)
        for dx, y, rank in zip(grads, (q, k, v, i, f), (2, 2, 2, 1, 1), strict=True)
    )
    if initial_state is None and grad_state is None:
        return sums
    x.s, x.z, x.m = ds, dz, dm
    dstate = x.state(normalize)
    if initial_state is not None:
        ranks = np.array([2, 1, 0]) + (cu_seqlens is not None)
        dstate = State(*(
            y if y is None else _sum_to(y, np.asarray(z), rank)
            for y, z, rank in zip(dstate, initial_state, ranks, strict=True)
        ))  # fmt: skip
    return *sums, dstate


mlstm_step = _states.step_of(mlstm, "q k v", numbers="i f")


def _denominator(nq, floor, eps):
    """The larger one; 0, where floor vanishes and z.q is 0, leaves a numerator of 0 as it is."""
    den = np.maximum(np.abs(nq), floor) + eps
    return np.maximum(den, np.finfo(np.float64).tiny)


class _Operands:
    """The operands in float64 or wider, and the state s (..., r, d, m), z, m so far."""

    def __init__(self, q, k, v, i, f, scale, key_lengths, cu_seqlens, state, *others):
        self.q, k, v, self.i, self.f, *_, start = _wide(q, k, v, i, f, *others, state=state)
        written = (self.i != -np.inf)[..., None]
        self.k, self.v = (np.where(written, _exists(x, key_lengths), 0) for x in (k, v))
        self.scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
        self.lengths, self.packed = key_lengths, cu_seqlens is not None
        self.r = len(cu_seqlens) - 1 if self.packed else 1
        fields = self.fields(start)
        self.lead = np.broadcast_shapes(
            *(x.shape[:-2] for x in (self.q, k, v, *others)), self.i.shape[:-1],
            self.f.shape[:-1], fields[2].shape[:-1],
        )  # fmt: skip
        self.s, self.z, self.m = self.spread(fields)

    def fields(self, state):
        """s, z and m with an axis r; zeros for what is None."""
        d, m = self.q.shape[-1], self.v.shape[-1]
        s, z, top = (None, None, None) if state is None else state
        s = np.zeros((self.r, d, m)) if s is None else s if self.packed else s[..., None, :, :]
        z = np.zeros((self.r, d)) if z is None else z if self.packed else z[..., None, :]
        top = np.zeros(self.r) if top is None else top if self.packed else top[..., None]
        return s, z, top

    def spread(self, fields):
        """Arrays of their own, with all leading axes."""
        cores = (2, 1, 0)
        return [
            np.broadcast_to(x, (*self.lead, *x.shape[x.ndim - core - 1 :])).astype(self.q.dtype)
            for x, core in zip(fields, cores, strict=True)
        ]

    def gradients(self, grad_state):
        """Those of the last state."""
        if grad_state is None:
            return [np.zeros_like(x) for x in (self.s, self.z, self.m)]
        return self.spread(self.fields(grad_state))

    def has(self, t):
        return np.asarray(True if self.lengths is None else t < np.asarray(self.lengths))

    def write(self, r, t):
        """The state after token t; log sigma(f), whether m decayed, and both weights."""
        log_f = -np.logaddexp(0, -np.where(self.has(t), self.f[..., t], np.inf))
        i = np.where(self.has(t), self.i[..., t], -np.inf)
        past = np.where(log_f == -np.inf, log_f, log_f + self.m[..., r])
        kept = ~(i > past)
        m = np.where(kept, past, i)
        gate = np.where(kept, np.where(log_f == -np.inf, 0, 1), np.exp(np.minimum(past - i, 0)))
        w = np.where(i == m, 1, np.exp(i - m)) * np.where(i == -np.inf, 0, 1)
        w = np.where(i == -np.inf, 0, w)
        kt, vt = self.k[..., t, :], self.v[..., t, :]
        s, z = self.s[..., r, :, :], self.z[..., r, :]
        reset = gate == 0
        s = np.where(reset[..., None, None], 0, gate[..., None, None] * s)
        z = np.where(reset[..., None], 0, gate[..., None] * z)
        self.s[..., r, :, :] = s + w[..., None, None] * _outer(kt, vt)
        self.z[..., r, :] = z + w[..., None] * kt
        self.m[..., r] = m
        full = self.m[..., r].shape
        return (*(np.broadcast_to(x, full) for x in (log_f, kept, gate, w)),)

    def read(self, r, t):
        """The numerator and z.q, both times scale."""
        qt = self.scale * self.q[..., t, :]
        return _vecmat(qt, self.s[..., r, :, :]), (qt * self.z[..., r, :]).sum(-1)

    def state(self, normalize):
        s, z, m = self.s, self.z, self.m
        if not self.packed:
            s, z, m = s[..., 0, :, :], z[..., 0, :], m[..., 0]
        return State(s, z if normalize else None, m)
