"""The table of layers, one row per layer with its constructor, and helpers of their tests."""

import functools

import pytest
import torch
from bounds import close, roundings

from linattn.torch import nn

BATCH, N, E = 3, 11, 12


def row(name, layer, *arguments, **options):
    return pytest.param(functools.partial(layer, E, *arguments, **options), id=name)


CAUSAL = [
    row("linear", nn.LinearAttention, 4),
    row("linear-plain", nn.LinearAttention, 2, feature_map="relu", normalize=False, scale=0.3),
    row("linear-groups", nn.LinearAttention, 4, num_kv_heads=2, feature_map="dpfp", bias=False),
    row("performer", nn.PerformerAttention, 2, 7, eps=0.0),
    row("performer-hyperbolic", nn.PerformerAttention, 2, hyperbolic=True, eps=0.0),
    row("glu", nn.FeedforwardKernelAttention, 3, kind="glu"),
    row("aoglu", nn.FeedforwardKernelAttention, 3, kind="aoglu", depth=2, rank=2),
    row("fast-weights", nn.FastWeightAttention, 2, nu=2),
    row("gated-delta-net", nn.GatedDeltaNet, 2),
    row("gated-delta-net-groups", nn.GatedDeltaNet, 2, num_v_heads=4, head_dim=3, head_v_dim=5,
        conv_size=3, allow_neg_eigval=True, bias=True),
    row("gated", nn.GatedAttention, 4, state_dim=5),
    row("gated-groups", nn.GatedAttention, 4, state_dim=5, num_groups=2, expand=1, bias=True),
    row("mamba", nn.Mamba, state_dim=5),
    row("mamba-biases", nn.Mamba, state_dim=3, expand=1, dt_rank=4, conv_size=3, conv_bias=False,
        bias=True),
    row("softmax", nn.SoftmaxAttention, 4),
    row("softmax-groups", nn.SoftmaxAttention, 4, num_kv_heads=2),
]  # fmt: skip
OTHERS = [
    row("linear-both-ways", nn.LinearAttention, 2, causal=False, feature_map="softplus"),
    row("performer-both-ways", nn.PerformerAttention, 2, causal=False, eps=0.0),
    row("linear-oglu-both-ways", nn.FeedforwardKernelAttention, 3, kind="oglu", causal=False),
    row("softmax-both-ways", nn.SoftmaxAttention, 2, causal=False),
    *(row(f"linformer-{sharing}", nn.LinformerAttention, 2, 16, 5, sharing=sharing)
      for sharing in nn.LinformerAttention.sharings),
]  # fmt: skip
EACH_CAUSAL = pytest.mark.parametrize("new", CAUSAL)
EACH_OTHER = pytest.mark.parametrize("new", OTHERS)
EACH = pytest.mark.parametrize("new", [*CAUSAL, *OTHERS])
#: One layer of each kind.
ONE_OF_EACH = {
    "linear", "performer", "aoglu", "fast-weights", "gated-delta-net", "gated", "mamba", "softmax",
}  # fmt: skip
RECURRENT_KINDS = [x for x in CAUSAL if x.id in ONE_OF_EACH]
KINDS = [*RECURRENT_KINDS, *(x for x in OTHERS if x.id in ("linear-both-ways", "linformer-heads"))]
#: True for padding: none, in front, at the end.
MASK = torch.tensor([[0] * N, [1] * 4 + [0] * (N - 4), [0] * 2 + [1] * (N - 2)], dtype=torch.bool)


def made(new, dtype=torch.float64, **options):
    """A layer whose parameters, biases included, all affect the output."""
    layer = new(dtype=dtype, **options)
    with torch.no_grad():
        for x in layer.parameters():
            x += 0.2 * torch.randn_like(x)
    return layer


def tokens(batch=BATCH, n=N, dtype=torch.float64):
    return torch.randn(batch, n, E, dtype=dtype)


def within(actual, expected, count=200):
    """Allow some roundings of the largest entry: products of E, sums of N, and E again."""
    assert actual.dtype is expected.dtype
    expected = expected.detach().numpy()
    close(actual.detach().numpy(), expected, atol=roundings(count, expected))


def by_steps(layer, x, state):
    outputs = []
    for i in range(x.shape[1]):
        y, state = layer.step(x[:, i], state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)
