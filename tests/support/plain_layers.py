"""The layers of linattn.torch.nn from their equations, token by token, in plain PyTorch.

Each function has a layer's own parameters, so that gradients can be compared as well.
"""

import torch
from torch.nn import functional

from linattn.torch import nn


def heads(x, count):
    """(batch, n, count d) as (batch, count, n, d)."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(o):
    return o.transpose(1, 2).flatten(2)


def repeated(x, count):
    """Repeat each head for the `count` heads of queries that share it."""
    return x.repeat_interleave(count // x.shape[1], dim=1)


def dpfp(x, nu, eps=1e-6):
    r = torch.cat([x, -x], -1).relu()
    y = torch.cat([r * r.roll(i, -1) for i in range(1, nu + 1)], -1)
    return y / (y.sum(-1, keepdim=True) + eps)


def positive(x, omega, hyperbolic):
    x = x / x.shape[-1] ** 0.25
    u, h = x @ omega, (x * x).sum(-1, keepdim=True) / 2
    if hyperbolic:
        u = torch.cat([u, -u], -1)
    return torch.exp(u - h) / u.shape[-1] ** 0.5


def feedforward(x, weights):
    for i, (w, *gates) in enumerate(weights):
        y = x @ w
        if i == len(weights) - 1:
            y = functional.softplus(y)
        for gate in gates:
            x = x @ gate
        x = y * torch.sigmoid(x) if gates else y
    return x


def feature_map(layer):
    if isinstance(layer, nn.PerformerAttention):
        return lambda x: positive(x, layer.omega, "hyperbolic=True" in layer.feature_map.text)
    if isinstance(layer, nn.FeedforwardKernelAttention):
        return lambda x: feedforward(x, list(layer.feature_map.weights))
    if isinstance(layer.feature_map, str):
        return {
            "elu": lambda x: functional.elu(x) + 1,
            "relu": torch.relu,
            "softplus": functional.softplus,
        }[layer.feature_map]
    return lambda x: dpfp(x, 1)


def qkv(layer, x):
    kv = getattr(layer, "num_kv_heads", layer.num_heads)
    q = heads(layer.q_proj(x), layer.num_heads)
    k, v = heads(layer.k_proj(x), kv), heads(layer.v_proj(x), kv)
    return q, repeated(k, layer.num_heads), repeated(v, layer.num_heads)


def linear(layer, x):
    """Katharopoulos et al. 2020, eq. 4, as a matrix of weights."""
    q, k, v = qkv(layer, x)
    phi = feature_map(layer)
    weights = layer.scale * phi(q) @ phi(k).mT
    if layer.causal:
        weights = weights.tril()
    if layer.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + layer.eps)
    return layer.out_proj(joined(weights @ v))


def softmax(layer, x):
    q, k, v = qkv(layer, x)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if layer.causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return layer.out_proj(joined(scores.softmax(-1) @ v))


def linformer(layer, x):
    q, k, v = qkv(layer, x)
    E = layer.E[..., : x.shape[1], :]
    F = E if layer.F is None else layer.F[..., : x.shape[1], :]
    scores = q @ (E.mT @ k).mT / q.shape[-1] ** 0.5
    return layer.out_proj(joined(scores.softmax(-1) @ (F.mT @ v)))


def scan(q, k, v, g, beta, scale=1.0):
    """Yang et al. 2025, eq. 10; without beta, tokens are added to the memory."""
    s = torch.zeros(*v.shape[:2], k.shape[-1], v.shape[-1], dtype=v.dtype)
    o = []
    for i in range(v.shape[2]):
        k_i, v_i = k[:, :, i, :, None], v[:, :, i, None]
        s = s * torch.exp(g[:, i, :, None, None])
        written = v_i if beta is None else beta[:, i, :, None, None] * (v_i - k_i.mT @ s)
        s = s + k_i * written
        o.append(scale * q[:, :, i, None] @ s)
    return torch.cat(o, 2)


def fast_weights(layer, x):
    q, k, v = qkv(layer, x)
    beta = torch.sigmoid(layer.beta_proj(x))
    o = scan(dpfp(q, layer.nu), dpfp(k, layer.nu), v, torch.zeros_like(beta), beta)
    return layer.out_proj(joined(o))


def convolved(conv, x):
    w = conv.weight.flatten(1)
    padded = functional.pad(x.mT, (conv.size - 1, 0))
    y = functional.conv1d(padded, w[:, None], conv.bias, groups=conv.channels)
    return functional.silu(y).mT


def root_mean_square(x, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def gated_delta_net(layer, x):
    widths = [y * layer.num_heads for y in (layer.head_dim, layer.head_dim)]
    q, k, v = convolved(layer.conv, layer.qkv_proj(x)).split(
        [*widths, layer.num_v_heads * layer.head_v_dim], -1
    )
    q, k = (repeated(heads(y, layer.num_heads), layer.num_v_heads) for y in (q, k))
    q, k = (y / torch.sqrt((y * y).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    beta = torch.sigmoid(layer.beta_proj(x)) * (1 + layer.allow_neg_eigval)
    g = -layer.A_log.exp() * functional.softplus(layer.decay_proj(x) + layer.dt_bias)
    o = scan(q, k, heads(v, layer.num_v_heads), g, beta, layer.head_dim**-0.5)
    o = root_mean_square(o, layer.norm.eps) * layer.norm.weight
    return layer.out_proj(joined(o) * functional.silu(layer.gate_proj(x)))


def gated_attention(layer, x):
    width = layer.num_heads * layer.head_dim
    narrow = layer.num_groups * layer.state_dim
    v, k, q = convolved(layer.conv, layer.vkq_proj(x)).split([width, narrow, narrow], -1)
    q, k = (repeated(heads(y, layer.num_groups), layer.num_heads) for y in (q, k))
    v = heads(v, layer.num_heads)
    dt = functional.softplus(layer.decay_proj(x) + layer.dt_bias)
    o = scan(q, k, dt.mT[..., None] * v, -layer.A_log.exp() * dt, None)
    o = joined(o + layer.D[:, None, None] * v) * functional.silu(layer.gate_proj(x))
    by_group = root_mean_square(o.unflatten(-1, (layer.num_groups, -1)), layer.norm.eps)
    return layer.out_proj(by_group.flatten(-2) * layer.norm.weight)


def mamba(layer, x):
    """Gu and Dao 2023, algorithm 2."""
    u, z = layer.in_proj(x).chunk(2, -1)
    u = convolved(layer.conv1d, u)
    r, B, C = layer.x_proj(u).split([layer.dt_rank, layer.state_dim, layer.state_dim], -1)
    dt, A = functional.softplus(layer.dt_proj(r)), -layer.A_log.exp()
    h, o = torch.zeros(len(x), *A.shape, dtype=x.dtype), []
    for i in range(x.shape[1]):
        h = torch.exp(dt[:, i, :, None] * A) * h + (dt * u)[:, i, :, None] * B[:, i, None]
        o.append((h * C[:, i, None]).sum(-1) + layer.D * u[:, i])
    return layer.out_proj(torch.stack(o, 1) * functional.silu(z))


PLAIN = {
    nn.LinearAttention: linear, nn.PerformerAttention: linear,
    nn.FeedforwardKernelAttention: linear, nn.FastWeightAttention: fast_weights,
    nn.GatedDeltaNet: gated_delta_net, nn.GatedAttention: gated_attention,
    nn.LinformerAttention: linformer, nn.Mamba: mamba, nn.SoftmaxAttention: softmax,
}  # fmt: skip


def plain(layer, x):
    """The layer's output, without dropout."""
    return PLAIN[type(layer)](layer, x)
