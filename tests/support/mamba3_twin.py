"""Mamba-3 by its definition, token after token, in the dtype of its operands."""

import math

import torch


def turned(x, angles, pairwise):
    """x (..., N) with pairs of channels rotated by angles (..., S), as complex numbers."""
    n, count = x.shape[-1], angles.shape[-1]
    first = range(0, 2 * count, 2) if pairwise else range(count)
    step = 1 if pairwise else n // 2
    columns = list(x.unbind(-1))
    for i, at in enumerate(first):
        a, b = columns[at], columns[at + step]
        cos, sin = angles[..., i].cos(), angles[..., i].sin()
        columns[at], columns[at + step] = a * cos - b * sin, b * cos + a * sin
    return torch.stack(columns, -1)


def recurrence(q, k, v, g, dt, trap, rates, D=None, start=None, pairwise=True):
    """y (B, T, R, H, P) of q, k (B, T, R, H, N), v (B, T, R, H, P), rates (B, T, H, S).

    g, dt and trap are (B, T, H).  Also the states: angles (B, H, S), s (B, H, P, N), the last
    rotated key (B, R, H, N) and value (B, R, H, P).
    """
    batch, n, _, heads, width = k.shape
    if start is None:
        start = (
            q.new_zeros(batch, heads, rates.shape[-1]),
            q.new_zeros(batch, heads, v.shape[-1], width),
            torch.zeros_like(k[:, 0]), torch.zeros_like(v[:, 0]),
        )  # fmt: skip
    theta, s, before_k, before_v = start
    mix, out = torch.sigmoid(trap), []
    for t in range(n):
        theta = theta + math.pi * dt[:, t, :, None] * torch.tanh(rates[:, t])
        query, key = (turned(x[:, t], theta[:, None], pairwise) for x in (q, k))
        late = ((1 - mix[:, t]) * dt[:, t])[..., None, None]
        now = (mix[:, t] * dt[:, t])[..., None, None]
        s = s + late * torch.einsum("brhp,brhn->bhpn", before_v, before_k)
        s = g[:, t].exp()[..., None, None] * s
        s = s + now * torch.einsum("brhp,brhn->bhpn", v[:, t], key)
        y = torch.einsum("bhpn,brhn->brhp", s, query)
        out.append(y if D is None else y + D[:, None] * v[:, t])
        before_k, before_v = key, v[:, t]
    return torch.stack(out, 1), (theta, s, before_k, before_v)


def heads(x, bias, axis):
    """Queries or keys of groups (..., G, N) as those of heads, plus the bias of each head."""
    return x.repeat_interleave(bias.shape[0] // x.shape[axis], axis) + bias.transpose(0, 1)


def siso(Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None, states=None):
    """What ``mamba3_siso_combined`` returns with its final states."""
    q, k = (heads(x[:, :, None], b[:, None], 3) for x, b in ((Q, Q_bias), (K, K_bias)))
    if states is not None:
        states = (*states[:2], states[2][:, None], states[3][:, None])
    tokens = (x.mT for x in (ADT, DT, Trap))
    y, (theta, s, k, v) = recurrence(q, k, V[:, :, None], *tokens, Angles, D, states)
    y = y[:, :, 0]
    return (y if Z is None else y * torch.nn.functional.silu(Z)), theta, s, k[:, 0], v[:, 0]


def mimo(
    Q, K, V, ADT, DT, Trap, Q_bias, K_bias, MIMO_V, MIMO_Z, MIMO_Out, Angles, D=None, Z=None,
    norm=None,
):  # fmt: skip
    """What ``mamba3_mimo`` returns with its final states; ``norm`` is (weight (H, P), eps)."""
    q, k = (heads(x, b, 3) for x, b in ((Q, Q_bias), (K, K_bias)))
    tokens, v = (x.mT for x in (ADT, DT, Trap)), V[:, :, None] * MIMO_V.transpose(0, 1)
    y, (theta, s, k, _) = recurrence(q, k, v, *tokens, Angles, D, None, False)
    if norm is not None:
        y = y / (y.square().mean(-1, keepdim=True) + norm[1]).sqrt() * norm[0]
    if Z is not None:
        z = Z[:, :, None] if MIMO_Z is None else Z[:, :, None] * MIMO_Z.transpose(0, 1)
        y = y * z * torch.sigmoid(z)
    if MIMO_Out is not None:
        y = torch.einsum("btrhp,hrp->bthp", y, MIMO_Out)
    return y, theta, s, k, V[:, -1]
