"""The table of docs/howto/models.md: each row against a loop over the model's equations.

Loops hold the state as (key, value), a token at a time, in float64; what a model computes of its
inputs before the recurrence (a gate of its logits, unit keys) is computed here as the model does.
"""

import numpy as np
import pytest
from bounds import close

import linattn

B, H, N, D, M = 2, 3, 37, 8, 12


def rng():
    return np.random.default_rng(7)


def tokens(*widths, lead=(B, H)):
    r = rng()
    return [r.standard_normal((*lead, N, w) if w else (*lead, N)) for w in widths]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def recur(update, read, lead=(B, H)):
    """o_t = read(s_{t-1}, s_t, t), s_t = update(s_{t-1}, t), s (d, m) of every head."""
    s = np.zeros((*lead, D, M))
    o = []
    for t in range(N):
        after = update(s, t)
        o.append(read(s, after, t))
        s = after
    return np.stack(o, -2)


def outer(k, v):
    return k[..., :, None] * v[..., None, :]


def dot(q, s):
    return np.einsum("...d,...dm->...m", q, s)


def same(actual, expected):
    """Some roundings of the largest entry, in a recurrence of 37 tokens that does not grow."""
    close(actual, expected, atol=100 * np.finfo(float).eps * abs(expected).max())


def gated_loop(q, k, v, decay):
    """S_t = decay_t S_{t-1} + k_t v_t, o_t = q_t S_t."""
    return recur(
        lambda s, t: decay[..., t, :, None] * s + outer(k[..., t, :], v[..., t, :]),
        lambda _, s, t: dot(q[..., t, :], s),
    )


def test_mamba_2():
    """h_t = exp(dt A) h_{t-1} + dt B_t x_t, y_t = C_t h_t + skip x_t, A < 0; B, C for all heads."""
    C, K = tokens(D, D, lead=(B, 1))
    x, logits = tokens(M, 0)
    A_log, dt_bias, skip = rng().uniform(0, 1, (3, H))
    dt = softplus(logits + dt_bias[:, None])[..., None]
    expected = gated_loop(C, K, dt * x, np.exp(-dt * np.exp(A_log)[:, None, None]))
    expected += skip[:, None, None] * x
    g = linattn.log_decay(logits, A_log[:, None], dt_bias[:, None])
    same(linattn.ssd(C, K, x, g, dt[..., 0], D=np.repeat(skip[:, None], M, 1)), expected)


def test_retnet():
    """s_n = gamma s_{n-1} + k_n v_n, gamma_h = 1 - 2^(-5 - h)."""
    q, k, v = tokens(D, D, M)
    gamma = np.broadcast_to(1 - 2.0 ** (-5 - np.arange(H))[:, None], (B, H, N))
    expected = gated_loop(q / np.sqrt(D), k, v, gamma[..., None])
    same(linattn.gated(q, k, v, np.log(gamma), scale=D**-0.5), expected)


def test_lightning_attention():
    """kv_t = exp(-slope_h) kv_{t-1} + k_t v_t, o_t = q_t kv_t."""
    q, k, v = tokens(D, D, M)
    slope = np.broadcast_to(2.0 ** (-8 * np.arange(1, H + 1) / H)[:, None], (H, N))
    same(linattn.gated(q, k, v, -slope), gated_loop(q, k, v, np.exp(-slope)[..., None]))


def test_gla():
    """S_t = Diag(alpha_t) S_{t-1} + k_t v_t, alpha_t = sigmoid(x)^(1/16) a key channel."""
    q, k, v, x = tokens(D, D, M, D)
    expected = gated_loop(q / np.sqrt(D), k, v, sigmoid(x) ** (1 / 16))
    same(linattn.gated(q, k, v, -softplus(-x) / 16, scale=D**-0.5), expected)


def test_rwkv_6():
    """y_t = r_t (diag(u) k_t v_t + S_t), S_{t+1} = diag(w_t) S_t + k_t v_t, w = exp(-exp(x))."""
    r, k, v, x = tokens(D, D, M, D)
    u = rng().standard_normal((H, D))
    w = np.exp(-np.exp(x))
    expected = recur(
        lambda s, t: w[..., t, :, None] * s + outer(k[..., t, :], v[..., t, :]),
        lambda s, _, t: dot(r[..., t, :], s + outer(u * k[..., t, :], v[..., t, :])),
    )
    same(linattn.gated(r, k, v, -np.exp(x), bonus=u), expected)


def test_rwkv_7():
    """S_t = S_{t-1} (diag(w_t) - kappa^T (a o kappa)) + v^T k, rows of S being values."""
    r, k, v, x, kappa, logits = tokens(D, D, M, D, D, D)
    kappa, a = unit(kappa), sigmoid(logits)
    w = np.exp(-0.606531 * sigmoid(x))

    def update(s, t):  # s is S transposed
        read = dot(kappa[..., t, :], s)
        return (
            w[..., t, :, None] * s
            - outer(a[..., t, :] * kappa[..., t, :], read)
            + outer(k[..., t, :], v[..., t, :])
        )

    expected = recur(update, lambda _, s, t: dot(r[..., t, :], s))
    g = -0.606531 * sigmoid(x)
    same(linattn.dplr(r, k, v, -kappa, a * kappa, g), expected)


def gated_delta_loop(q, k, v, decay, beta, erase=None, write=None):
    """S = decay S, then v' = beta (v - S e), S += k v', o = S q."""
    e = k if erase is None else erase
    w = beta[..., None] if write is None else write

    def update(s, t):
        s = decay[..., t, :, None] * s
        error = v[..., t, :] - dot(e[..., t, :], s)
        return s + outer(k[..., t, :], w[..., t, :] * error)

    return recur(update, lambda _, s, t: dot(q[..., t, :], s))


def test_qwen3_next():
    """Unit queries and keys, g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)."""
    q, k, v, a, b = tokens(D, D, M, 0, 0)
    A_log, dt_bias = rng().uniform(0, 1, (2, H))
    g = -np.exp(A_log)[:, None] * softplus(a + dt_bias[:, None])
    decay = np.exp(g)[..., None]
    expected = gated_delta_loop(unit(q) / np.sqrt(D), unit(k), v, decay, sigmoid(b))
    g = linattn.log_decay(a, A_log[:, None], dt_bias[:, None])
    o = linattn.gated_delta(q, k, v, g, sigmoid(b), feature_map="l2norm", scale=D**-0.5)
    same(o, expected)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_kimi_linear(lower_bound):
    """A gate a key channel: -exp(A_log) softplus(x + bias), or bounded below."""
    q, k, v, x, b = tokens(D, D, M, D, 0)
    A_log, bias = rng().uniform(0, 1, (H, 1, 1)), rng().standard_normal((H, 1, D))
    g = -np.exp(A_log) * softplus(x + bias)
    if lower_bound is not None:
        g = lower_bound * sigmoid(np.exp(A_log) * (x + bias))
    expected = gated_delta_loop(unit(q) / np.sqrt(D), unit(k), v, np.exp(g), sigmoid(b))
    g = linattn.log_decay(x, A_log, bias, lower_bound=lower_bound)
    o = linattn.gated_delta(q, k, v, g, sigmoid(b), feature_map="l2norm", scale=D**-0.5)
    same(o, expected)


def test_comba():
    """What is erased is read at p = b k, b a number a head below 1."""
    q, k, v, a, b = tokens(D, D, M, 0, 0)
    q, k = unit(q), unit(k)
    feedback = rng().uniform(0.5, 1, (H, 1, 1))
    g = -softplus(a)
    decay = np.exp(g)[..., None]
    expected = gated_delta_loop(q, k, v, decay, sigmoid(b), feedback * k)
    same(linattn.gated_delta(q, k, v, g, sigmoid(b), erase=feedback * k), expected)


def test_momentum_delta_net():
    """M_t = mu M_{t-1} - eta k (v - alpha p S_{t-1}), S_t = alpha S_{t-1} - beta M_t."""
    q, k, p, v, a, x, b, c = tokens(D, D, D, M, 0, 0, 0, 0)
    q, k, p, g, mu = unit(q), unit(k), unit(p), -softplus(a), -softplus(x)
    beta, eta = sigmoid(b), sigmoid(c)
    momentum = np.zeros((B, H, D, M))

    def update(s, t):
        nonlocal momentum
        alpha = np.exp(g[..., t])[..., None]
        error = v[..., t, :] - dot(alpha * p[..., t, :], s)
        write = eta[..., t, None, None] * outer(k[..., t, :], error)
        momentum = np.exp(mu[..., t])[..., None, None] * momentum - write
        return alpha[..., None] * s - beta[..., t, None, None] * momentum

    expected = recur(update, lambda _, s, t: dot(q[..., t, :], s))
    p = np.exp(g)[..., None] * p
    same(linattn.momentum_delta(q, k, v, p, g, mu, beta, eta), expected)


def test_gdn_2():
    """Erased by e = b o k, b a number a key channel; written by a number a value channel."""
    q, k, v, x, b, w = tokens(D, D, M, D, D, M)
    q, k, g = unit(q), unit(k), -softplus(x)
    e, w = sigmoid(b) * k, sigmoid(w)
    expected = gated_delta_loop(q, k, v, np.exp(g), None, e, w)
    same(linattn.gated_delta(q, k, v, g, w, erase=e), expected)
