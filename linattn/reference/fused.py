# mypy: ignore-errors
"""NumPy twins of a token between the projections of a layer: see `linattn.reference.linear`."""

import numpy as np

from .._states.state_arrays import State
from . import states as _states
from .conv import causal_conv1d_step, log_decay
from .gated_attention import gated_step
from .gated_rules import gated_delta_step
from .maps import _softplus
from .maps import _softplus_derivative as _sigmoid


@_states.of_step
def fused_gated_delta_step(
    x, a, b, state, *, A_log, dt_bias, lower_bound=None, beta_scale=1.0, weight=None, bias=None,
    activation="silu", z=None, norm_weight=None, norm_eps=1e-6, norm_activation="silu",
    feature_map="l2norm", scale=1.0,
):  # fmt: skip
    """The convolution, `gated_delta_step` and the norm of each head, one after another.

    Parameters
    ----------
    x : array_like, (..., 2 h d + n m)
    a : array_like, (..., n) or (..., n, d)
    b : array_like, (..., n)
    state : (conv, s), (..., c, w - 1) or None, and (..., n, d, m)
    A_log, dt_bias : array_like, (n,), and (n,) or (n, d)
    z : array_like, (..., n m)

    Returns
    -------
    o : ndarray, (..., n m)
    (conv, s)
    """
    conv, s = state
    n, d, m = s.shape[-3:]
    y, conv = _convolved(x, weight, conv, bias, activation)
    keys = (y.shape[-1] - n * m) // 2
    q, k = (_heads(y[..., i * keys : (i + 1) * keys], d, n) for i in range(2))
    v = _heads(y[..., 2 * keys :], m, n)
    a, b, A_log, dt_bias = map(np.asarray, (a, b, A_log, dt_bias))
    if a.ndim > b.ndim:
        A_log, dt_bias = A_log[:, None], dt_bias.reshape(n, -1)
    g = log_decay(a, A_log, dt_bias, lower_bound=lower_bound)
    o, state = gated_delta_step(
        q, k, v, g, beta_scale * _sigmoid(b), State(s), feature_map=feature_map, scale=scale
    )
    o = _normed(o, 1, norm_weight, norm_eps) * _gate(z, o, norm_activation)
    return o.reshape(*o.shape[:-2], n * m), (conv, state.s)


@_states.of_step
def fused_gated_step(
    x, dt, state, *, A_log, dt_bias, D=None, time_step_limit=(0.0, np.inf), weight=None,
    bias=None, activation="silu", z=None, norm_weight=None, norm_eps=1e-5, norm_groups=1,
    scale=1.0,
):  # fmt: skip
    """The convolution, `gated_step` and the norm of each group of heads, one after another.

    Parameters
    ----------
    x : array_like, (..., n m + 2 h d)
    dt : array_like, (..., n)
    state : (conv, s), (..., c, w - 1) or None, and (..., n, d, m)
    A_log, dt_bias, D : array_like, (n,)
    z : array_like, (..., n m)

    Returns
    -------
    o : ndarray, (..., n m)
    (conv, s)
    """
    conv, s = state
    n, d, m = s.shape[-3:]
    y, conv = _convolved(x, weight, conv, bias, activation)
    keys = (y.shape[-1] - n * m) // 2
    v = _heads(y[..., : n * m], m, n)
    k, q = (_heads(y[..., n * m + i * keys : n * m + (i + 1) * keys], d, n) for i in range(2))
    t = np.clip(_softplus(np.asarray(dt) + np.asarray(dt_bias)), *time_step_limit)
    g = -np.exp(np.asarray(A_log)) * t
    o, state = gated_step(q, k, t[..., None] * v, g, State(s), scale=scale)
    if D is not None:
        o = o + np.asarray(D)[:, None] * v
    o = _normed(o * _gate(z, o, "silu"), n // norm_groups, norm_weight, norm_eps)
    return o.reshape(*o.shape[:-2], n * m), (conv, state.s)


def _convolved(x, weight, conv, bias, activation):
    x = np.asarray(x)
    if weight is None:
        return x.astype(np.result_type(x, np.float64)), None
    return causal_conv1d_step(x, weight, conv, bias, activation=activation)


def _heads(x, width, heads):
    """(..., h width) as (..., heads, width): each head serves as many as there are more."""
    x = x.reshape(*x.shape[:-1], -1, width)
    return np.repeat(x, heads // x.shape[-2], -2)


def _gate(z, o, activation):
    if z is None:
        return 1.0
    z = np.asarray(z).astype(np.float64)
    y = _sigmoid(z) * (z if activation == "silu" else 1)
    return y.reshape(*z.shape[:-1], *o.shape[-2:])


def _normed(o, group, weight, eps):
    """o (..., n, m) divided by the root mean square of each ``group`` heads, times the weights."""
    if weight is None:
        return o
    by_group = o.reshape(*o.shape[:-2], -1, group * o.shape[-1])
    rms = np.sqrt((by_group**2).mean(-1, keepdims=True) + eps)
    normed = (by_group / rms).reshape(o.shape)
    return normed * np.asarray(weight).astype(np.float64).reshape(-1, o.shape[-1])
