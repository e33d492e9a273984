# mypy: ignore-errors
"""NumPy twin of the delta rule with momentum, token by token: see `linattn.reference.linear`.

The state's s and z (..., d, m) are the memory S and its momentum M.
"""

import numpy as np

from . import states as _states
from .gated_attention import _gradient_of_gate, _kept
from .linear import State, _exists, _matvec, _outer, _sum_to, _tokens, _vecmat, _wide


@_states.of_sequence
def momentum_delta(
    q, k, v, p, g, mu, beta, eta, *, scale=1.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, return_state=False,
):  # fmt: skip
    """The delta rule whose errors drive a momentum, which drives the memory.

    ``M_i = exp(mu_i) M_{i-1} - eta_i k_i (v_i - S_{i-1}^T p_i)^T``,
    ``S_i = exp(g_i) S_{i-1} - beta_i M_i``, ``o_i = scale S_i^T q_i``.  fla, momentum_delta_rule.

    Parameters
    ----------
    q, k, p : array_like, (..., n, d)
    v : array_like, (..., n, m)
    g, mu, beta, eta : array_like, (..., n)

    Returns
    -------
    o : ndarray, (..., n, m)
        And the final State with `return_state`: s is S, z is M.
    """
    *operands, initial_state = _wide(q, k, v, p, g, mu, beta, eta, state=initial_state)
    q, k, v, p, g, mu, beta, eta = _operands(operands, key_lengths)
    s, z = _start(operands, initial_state, cu_seqlens)
    o = np.empty((*s.shape[:-3], q.shape[-2], v.shape[-1]), s.dtype)
    for r, i in _tokens(cu_seqlens, q.shape[-2]):
        x = s[..., r, :, :]
        error = v[..., i, :] - _vecmat(p[..., i, :], x)
        write = _outer(eta[..., i, :] * k[..., i, :], error)
        z[..., r, :, :] = _kept(mu[..., i, :], z[..., r, :, :]) - write
        s[..., r, :, :] = _kept(g[..., i, :], x) - beta[..., i, :, None] * z[..., r, :, :]
        o[..., i, :] = scale * _vecmat(q[..., i, :], s[..., r, :, :])
    return (o, _finish(s, z, cu_seqlens)) if return_state else o


@_states.of_gradients
def momentum_delta_backward(
    q, k, v, p, g, mu, beta, eta, grad_out, *, scale=1.0,
    key_lengths=None, cu_seqlens=None, initial_state=None, grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out * momentum_delta(...)) + sum(grad_state * final state)``.

    With R and N the gradients of S_i and M_i, ``e_i = v_i - S_{i-1}^T p_i``, from the last token
    on (h: grad_out): ``dq_i = scale S_i h_i``, ``R += scale q_i h_i^T``, ``dbeta_i = -<R, M_i>``,
    ``N -= beta_i R``, ``dk_i = -eta_i N e_i``, ``deta_i = -k_i.(N e_i)``,
    ``dv_i = -eta_i N^T k_i``, ``dp_i = -S_{i-1} dv_i``, ``dg_i = exp(g_i) <R, S_{i-1}>``,
    ``dmu_i = exp(mu_i) <N, M_{i-1}>``, ``R <- exp(g_i) R - p_i dv_i^T``, ``N <- exp(mu_i) N``.

    Returns
    -------
    dq, dk, dv, dp, dg, dmu, dbeta, deta : ndarray
        Summed to the shapes of the operands.
    State
        Gradient of the initial state; only where `initial_state` or `grad_state` is given.
    """
    *operands, h, initial_state, grad_state = _wide(
        q, k, v, p, g, mu, beta, eta, grad_out, state=initial_state, grad_state=grad_state
    )
    q, k, v, p, g, mu, beta, eta = _operands(operands, key_lengths)
    s, z = _start((*operands, h), initial_state, cu_seqlens)
    ds, dz = _start((*operands, h, s[..., 0, :, :]), grad_state, cu_seqlens)
    lead, n = s.shape[:-3], q.shape[-2]
    grads = [np.zeros((*lead, n, x.shape[-1]), s.dtype) for x in (q, k, v, p, g, mu, beta, eta)]
    dq, dk, dv, dp, dg, dmu, dbeta, deta = grads
    before = []  # S and M before every token, its error, and M after it
    for r, i in _tokens(cu_seqlens, n):
        x, m = s[..., r, :, :].copy(), z[..., r, :, :].copy()
        error = v[..., i, :] - _vecmat(p[..., i, :], x)
        z[..., r, :, :] = _kept(mu[..., i, :], m) - _outer(eta[..., i, :] * k[..., i, :], error)
        before.append((x, m, error, z[..., r, :, :].copy()))
        s[..., r, :, :] = _kept(g[..., i, :], x) - beta[..., i, :, None] * z[..., r, :, :]
        dq[..., i, :] = scale * _matvec(s[..., r, :, :], h[..., i, :])
    for r, i in reversed(list(_tokens(cu_seqlens, n))):
        x, m, error, after = before.pop()
        big_r = ds[..., r, :, :] + _outer(scale * q[..., i, :], h[..., i, :])
        dbeta[..., i, 0] = -(big_r * after).sum((-2, -1))
        big_n = dz[..., r, :, :] - beta[..., i, :, None] * big_r
        write = _matvec(big_n, error)
        dk[..., i, :], deta[..., i, 0] = -eta[..., i, :] * write, -(k[..., i, :] * write).sum(-1)
        dv[..., i, :] = -eta[..., i, :] * _vecmat(k[..., i, :], big_n)
        dp[..., i, :] = -_matvec(x, dv[..., i, :])
        dz[..., r, :, :] = _kept(mu[..., i, :], big_n)
        big_r = _kept(g[..., i, :], big_r)
        ds[..., r, :, :] = big_r - _outer(p[..., i, :], dv[..., i, :])
        dg[..., i, :] = _gradient_of_gate(g[..., i, :], x, big_r).sum(-1, keepdims=True)
        dmu[..., i, :] = _gradient_of_gate(mu[..., i, :], m, dz[..., r, :, :]).sum(
            -1, keepdims=True
        )
    grads[1:] = (_exists(x, key_lengths) for x in grads[1:])
    result = (
        *map(_sum_to, grads[:4], operands[:4]),
        *(_sum_to(x[..., 0], y, 1) for x, y in zip(grads[4:], operands[4:], strict=True)),
    )
    if initial_state is None and grad_state is None:
        return result
    dstate = _finish(ds, dz, cu_seqlens)
    if initial_state is not None:
        core = 2 if cu_seqlens is None else 3
        dstate = State(
            *(_sum_to(x, y, core) for x, y in zip(dstate[:2], initial_state, strict=False))
        )
    return *result, dstate


momentum_delta_step = _states.step_of(momentum_delta, "q k v p", numbers="g mu beta eta")


def _operands(operands, key_lengths):
    """The operands, gates as their exponentials with an axis of one channel, as if no token past
    `key_lengths` did anything."""
    q, *rest = (x if i < 4 else x[..., None] for i, x in enumerate(operands))
    k, v, p, g, mu, beta, eta = (_exists(x, key_lengths) for x in rest)
    return q, k, v, p, np.exp(g), np.exp(mu), beta, eta


def _start(operands, state, cu_seqlens):
    """New S and M (..., r, d, m): zeros, or copies of those of `state`; r = 1 if unpacked."""
    r = 1 if cu_seqlens is None else len(cu_seqlens) - 1
    tokens, others = operands[:4], operands[4:8]
    leads = [x.shape[:-2] for x in (*tokens, *operands[8:])] + [x.shape[:-1] for x in others]
    shape = r, tokens[1].shape[-1], tokens[2].shape[-1]
    fields = [np.zeros(shape)] * 2 if state is None else list(state[:2])
    if state is not None and cu_seqlens is None:
        fields = [x[..., None, :, :] for x in fields]
    lead = np.broadcast_shapes(*leads, *(x.shape[:-3] for x in fields))
    dtype = operands[0].dtype
    return (np.broadcast_to(x, (*lead, *shape)).astype(dtype) for x in fields)


def _finish(s, z, cu_seqlens):
    return State(s, z) if cu_seqlens is not None else State(s[..., 0, :, :], z[..., 0, :, :])
