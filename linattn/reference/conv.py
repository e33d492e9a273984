# mypy: ignore-errors
"""NumPy twins of the short convolution and of decays: see `linattn.reference.linear`."""

from functools import partial
from itertools import pairwise

import numpy as np

from . import linear
from . import states as _states
from .maps import _softplus
from .maps import _softplus_derivative as _sigmoid

_sum_to = partial(linear._sum_to, core=0)  # over any axes


@_states.of_sequence
def causal_conv1d(
    x, weight, bias=None, *, activation=None, cu_seqlens=None, initial_state=None,
    return_state=False,
):  # fmt: skip
    """``o_t = bias + sum_{j < w} weight[:, w-1-j] x_{t-j}``, and silu of it.

    Parameters
    ----------
    x : array_like, (..., n, c)
    weight : array_like, (..., c, w)
    bias : array_like, (..., c)
    initial_state : array_like, (..., c, w - 1), or (..., r, c, w - 1) with `cu_seqlens`

    Returns
    -------
    o : ndarray, (..., n, c)
        And the last w - 1 inputs with `return_state`.
    """
    x, weight, bias, start = _operands(x, weight, bias, initial_state)
    o, states = [], []
    for r, (begin, end) in enumerate(_sequences(cu_seqlens, x.shape[-2])):
        inputs = _inputs(x[..., begin:end, :], weight, bias, _of(start, r, cu_seqlens))
        o.append(_sums(inputs, weight, bias)[0])
        states.append(inputs[..., end - begin :, :].swapaxes(-1, -2))
    o = np.concatenate(o, -2) if o else x
    o = o * _sigmoid(o) if activation == "silu" else o
    state = states[0] if cu_seqlens is None else np.stack(states, -3) if states else None
    return (o, state) if return_state else o


@_states.of_gradients
def causal_conv1d_backward(
    x, weight, grad_out, bias=None, *, activation=None, cu_seqlens=None, initial_state=None,
    grad_state=None,
):  # fmt: skip
    """Gradients of ``sum(grad_out o) + sum(grad_state final state)``.

    With p the sums before the activation and gp = grad_out silu'(p): ``dx_t = sum_j
    weight[:, w-1-j] gp_{t+j}``, ``dweight[:, w-1-j] = sum_t gp_t x_{t-j}``, ``dbias = sum gp``.

    Returns
    -------
    dx, dweight, dbias : ndarray
        Summed to the shapes of the operands; dbias only where there is a bias.
    dstate : ndarray
        Only where `initial_state` or `grad_state` is given.
    """
    has_bias = bias is not None
    x, weight, bias, start = _operands(x, weight, bias, initial_state)
    grad = np.asarray(grad_out)
    lead = np.broadcast_shapes(x.shape[:-2], weight.shape[:-2], bias.shape[:-1])
    n, c, w = *x.shape[-2:], weight.shape[-1]
    dtype = np.result_type(x, weight, grad)
    dx, dweight, dbias = (np.zeros((*lead, *s), dtype) for s in ((n, c), (c, w), (c,)))
    dstates = []
    for r, (begin, end) in enumerate(_sequences(cu_seqlens, n)):
        inputs = _inputs(x[..., begin:end, :], weight, bias, _of(start, r, cu_seqlens))
        p, windows = _sums(inputs, weight, bias)
        g = grad[..., begin:end, :] * (_slope(p) if activation == "silu" else 1)
        dinputs = np.zeros((*lead, end - begin + w - 1, c), dtype)
        for k in range(w):
            dinputs[..., k : k + end - begin, :] += weight[..., None, :, k] * g
            dweight[..., k] += (g * windows[k]).sum(-2)
        dbias += g.sum(-2)
        if grad_state is not None:
            last = _of(np.asarray(grad_state), r, cu_seqlens)
            dinputs[..., end - begin :, :] += last.swapaxes(-1, -2)
        dx[..., begin:end, :] = dinputs[..., w - 1 :, :]
        dstates.append(dinputs[..., : w - 1, :].swapaxes(-1, -2))
    grads = _sum_to(dx, x), _sum_to(dweight, weight)
    grads = (*grads, _sum_to(dbias, bias)) if has_bias else grads
    if initial_state is None and grad_state is None:
        return grads
    dstate = dstates[0] if cu_seqlens is None else np.stack(dstates, -3)
    return *grads, dstate if initial_state is None else _sum_to(dstate, start)


@_states.of_step
def causal_conv1d_step(x, weight, state, bias=None, *, activation=None):
    """One token: ``x (..., c)``, ``state (..., c, w - 1)``."""
    o, state = causal_conv1d(
        np.asarray(x)[..., None, :], weight, None if bias is None else np.asarray(bias),
        activation=activation, initial_state=state, return_state=True,
    )  # fmt: skip
    return o[..., 0, :], state


def log_decay(x, A_log, dt_bias, *, lower_bound=None):
    """``-exp(A_log) softplus(x + dt_bias)``, or ``lower_bound sigmoid(exp(A_log) (x + dt_bias))``.

    Complex operands differentiate it.
    """
    x, A_log, dt_bias = map(np.asarray, (x, A_log, dt_bias))
    if lower_bound is not None:
        return lower_bound * _sigmoid(np.exp(A_log) * (x + dt_bias))
    return -np.exp(A_log) * _softplus(x + dt_bias)


def log_decay_backward(x, A_log, dt_bias, grad, *, lower_bound=None):
    """Gradients of ``sum(grad log_decay(x, A_log, dt_bias))``, summed to the operands' shapes."""
    x, A_log, dt_bias = map(np.asarray, (x, A_log, dt_bias))
    z, rate = x + dt_bias, np.exp(A_log)
    if lower_bound is None:
        dz, dA = -rate * _sigmoid(z), log_decay(x, A_log, dt_bias)
    else:
        slope = lower_bound * _sigmoid(rate * z) * _sigmoid(-rate * z)
        dz, dA = slope * rate, slope * rate * z
    dz, dA = grad * dz, grad * dA
    return _sum_to(dz, x), _sum_to(dA, A_log), _sum_to(dz, dt_bias)


def _operands(x, weight, bias, state):
    x, weight = (np.asarray(y) for y in (x, weight))
    bias = np.zeros(x.shape[-1]) if bias is None else np.asarray(bias)
    given = [x, weight, bias, *(() if state is None else (np.asarray(state),))]
    wide = [y.astype(np.result_type(np.float64, *given)) for y in given]
    return *wide[:3], wide[3] if len(wide) > 3 else None


def _sequences(cu_seqlens, n):
    bounds = [0, n] if cu_seqlens is None else list(cu_seqlens)
    return list(pairwise(bounds))


def _of(state, r, cu_seqlens):
    """The state of sequence r."""
    return state if state is None or cu_seqlens is None else state[..., r, :, :]


def _inputs(x, weight, bias, start):
    """The tokens after the w - 1 before them."""
    w = weight.shape[-1]
    start = np.zeros((x.shape[-1], w - 1), x.dtype) if start is None else start
    start = start.swapaxes(-1, -2)
    lead = np.broadcast_shapes(*(y.shape[:-2] for y in (x, start, weight)), bias.shape[:-1])
    parts = (np.broadcast_to(y, (*lead, *y.shape[-2:])) for y in (start, x))
    return np.concatenate(list(parts), -2)


def _sums(inputs, weight, bias):
    """p, and the rows that each tap multiplies."""
    w = weight.shape[-1]
    n = inputs.shape[-2] - (w - 1)
    windows = [inputs[..., k : k + n, :] for k in range(w)]
    p = bias[..., None, :] + sum(weight[..., None, :, k] * windows[k] for k in range(w))
    return p, windows


def _slope(p):
    """The derivative of p sigmoid(p)."""
    return _sigmoid(p) * (1 + p * _sigmoid(-p))
