"""fla's fused modules with `patch_fla`, against their equations in float64."""

import fla.modules as m
import pytest
import torch
import torch.nn.functional as F
from fla.modules import activations as act
from fla.modules.fused_cross_entropy import cross_entropy_loss
from fla.modules.layernorm import group_norm, layer_norm, rms_norm, rms_norm_linear
from fla.modules.layernorm_gated import layernorm_fn, rmsnorm_fn
from fla.modules.rotary import rotary_embedding
from fla.modules.token_shift import token_shift

pytestmark = pytest.mark.usefixtures("fla_patched")


def _random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y, W, B = _random(2, 5, 12), _random(2, 5, 12, seed=1), _random(12, seed=2), _random(12, seed=3)
LINEAR = _random(7, 12, seed=4)
ANGLES = _random(9, 4, seed=5)


def _rms(x, eps=1e-5):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def _power(x, p=3.0):
    positive = x.clamp(min=1e-9)
    return torch.where(x > 0, positive ** (p / (positive.sqrt() + 1)), x) * x.sigmoid()


def _turned(x):
    x = x.unflatten(-1, (3, 4))[..., :4]
    x = torch.cat([x, x.flip(-1)], -1)  # 3 heads of 8
    c, s = (f(ANGLES[2:7]).unsqueeze(1) for f in (torch.cos, torch.sin))
    a, b = x.chunk(2, -1)
    return x, torch.cat([a * c - b * s, a * s + b * c], -1)


def _rotary(x):
    x, _ = _turned(x)
    return rotary_embedding(x, ANGLES.cos().to(x), ANGLES.sin().to(x), seqlen_offsets=2)


CASES = {
    "layer_norm": (lambda x, y, w, b: layer_norm(x, w, b, residual=y),
                   lambda x, y, w, b: F.layer_norm(x + y, (12,), w, b)),
    "rms_norm": (lambda x, y, w, b: rms_norm(x, w, b), lambda x, y, w, b: _rms(x) * w + b),
    "prenorm": (lambda x, y, w, b: torch.cat(rms_norm(x, w, None, residual=y, prenorm=True)),
                lambda x, y, w, b: torch.cat([_rms(x + y) * w, x + y])),
    "group_norm": (lambda x, y, w, b: group_norm(x, w, b, num_groups=3),
                   lambda x, y, w, b: F.group_norm(x.flatten(0, 1), 3, w, b).view(x.shape)),
    "rms_norm_linear": (lambda x, y, w, b: rms_norm_linear(x, w, None, LINEAR.to(x), None),
                        lambda x, y, w, b: (_rms(x) * w) @ LINEAR.T),
    "rms_norm_gated": (lambda x, y, w, b: m.fused_norm_gate.rms_norm_gated(x, y, w, b, eps=1e-5),
                       lambda x, y, w, b: (_rms(x) * w + b) * F.silu(y)),
    "layer_norm_gated": (
        lambda x, y, w, b: m.fused_norm_gate.layer_norm_gated(x, y, w, b, "sigmoid", eps=1e-5),
        lambda x, y, w, b: F.layer_norm(x, (12,), w, b) * y.sigmoid(),
    ),
    "rms_norm_swish_gate_linear": (
        lambda x, y, w, b: m.fused_norm_gate.rms_norm_swish_gate_linear(
            x, y, w, None, LINEAR.to(x), None, eps=1e-5,
        ),
        lambda x, y, w, b: (_rms(x) * w * F.silu(y)) @ LINEAR.T,
    ),
    "mamba_gate_before": (
        lambda x, y, w, b: rmsnorm_fn(x, w, None, y, 1e-5, group_size=4, norm_before_gate=False),
        lambda x, y, w, b: _rms((x * F.silu(y)).unflatten(-1, (3, 4))).flatten(-2) * w,
    ),
    "mamba_gate_after": (lambda x, y, w, b: layernorm_fn(x, w, b, y, 1e-5),
                         lambda x, y, w, b: F.layer_norm(x, (12,), w, b) * F.silu(y)),
    "l2_norm": (lambda x, y, w, b: m.l2norm.l2_norm(x),
                lambda x, y, w, b: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()),
    "sigmoid": (lambda x, y, w, b: act.sigmoid(x), lambda x, y, w, b: x.sigmoid()),
    "swish": (lambda x, y, w, b: act.ACT2FN["silu"](x), lambda x, y, w, b: F.silu(x)),
    "logsigmoid": (
        lambda x, y, w, b: act.logsigmoid(x, 2.0),
        lambda x, y, w, b: F.logsigmoid(x) / 2,
    ),
    "sqrelu": (lambda x, y, w, b: act.sqrelu(x), lambda x, y, w, b: x.relu() ** 2),
    "gelu": (lambda x, y, w, b: act.fast_gelu_impl(x),
             lambda x, y, w, b: F.gelu(x, approximate="tanh")),
    "bias_gelu": (lambda x, y, w, b: act.ACT2FN["bias_gelu"](x[0], b),
                  lambda x, y, w, b: F.gelu(x[0] + b, approximate="tanh")),
    "swiglu": (lambda x, y, w, b: act.swiglu(x, y), lambda x, y, w, b: F.silu(x) * y),
    "sigmoidglu": (lambda x, y, w, b: act.sigmoidglu(x, y), lambda x, y, w, b: x.sigmoid() * y),
    "powglu": (lambda x, y, w, b: act.powglu(x, y), lambda x, y, w, b: _power(x) * y),
    "powglu_linear": (lambda x, y, w, b: act.powglu_linear(x, y, LINEAR.to(x), None),
                      lambda x, y, w, b: (_power(x) * y) @ LINEAR.T),
    "sigmoidglu_linear": (lambda x, y, w, b: act.sigmoidglu_linear(x, y, LINEAR.to(x), None),
                          lambda x, y, w, b: (x.sigmoid() * y) @ LINEAR.T),
    "swiglu_linear": (lambda x, y, w, b: act.swiglu_linear(x, y, LINEAR.to(x), None),
                      lambda x, y, w, b: (F.silu(x) * y) @ LINEAR.T),
    "token_shift": (lambda x, y, w, b: token_shift(x, cache=y[:, 0]),
                    lambda x, y, w, b: torch.cat([y[:, :1], x[:, :-1]], 1) - x),
    "token_shift_packed": (
        lambda x, y, w, b: token_shift(x.flatten(0, 1)[None], torch.tensor([0, 3, 3, 10])),
        lambda x, y, w, b: torch.cat(
            [F.pad(part, (0, 0, 1, -1)) - part for part in x.flatten(0, 1).split([3, 7])]
        )[None]
    ),
    "rotary": (lambda x, y, w, b: _rotary(x), lambda x, y, w, b: _turned(x)[1]),
    "causal_conv1d": (
        lambda x, y, w, b: m.conv.causal_conv1d(x, torch.stack([w, b], 1), activation="silu",
                                                residual=y)[0],
        lambda x, y, w, b: F.silu(F.pad(x, (0, 0, 1, -1)) * w + x * b) + y,
    ),
    "cross_entropy": (
        lambda x, y, w, b: cross_entropy_loss(x.flatten(0, 1), TARGET, 0.1, 1.5, 1e-2, 4.0,
                                              ignore_index=3)[0],
        lambda x, y, w, b: _cross_entropy(x.flatten(0, 1)),
    ),
    "linear_cross_entropy": (
        lambda x, y, w, b: m.FusedLinearCrossEntropyLoss(
            ignore_index=3, use_l2warp=True, l2_penalty_factor=0.3,
        )(x, TARGET7, LINEAR.to(x)),
        lambda x, y, w, b: _warped(x.flatten(0, 1) @ LINEAR.T),
    ),
    "kl_div": (
        lambda x, y, w, b: m.FusedKLDivLoss()(x.flatten(0, 1), Y.flatten(0, 1).to(x), LINEAR.to(x),
                                              LINEAR.to(x)),
        lambda x, y, w, b: F.kl_div((x.flatten(0, 1) @ LINEAR.T).log_softmax(-1),
                                    (Y.flatten(0, 1) @ LINEAR.T).log_softmax(-1),
                                    reduction="batchmean", log_target=True),
    )
}  # fmt: skip
TARGET = torch.tensor([0, 3, 5, 11, 3, 7, 1, 2, 9, 4])
TARGET7 = TARGET % 7


def _cross_entropy(x):
    x = 4 * (1.5 * x / 4).tanh()
    loss = F.cross_entropy(x, TARGET, label_smoothing=0.1, ignore_index=3, reduction="none")
    return loss + (TARGET != 3) * 1e-2 * x.logsumexp(-1) ** 2


def _warped(logits):
    loss = F.cross_entropy(logits, TARGET7, ignore_index=3)
    penalty = 0.5 * 0.3 / len(logits) * logits.amax(-1).square().sum()
    return loss + (penalty - penalty.detach())


def _results(function, dtype):
    """The value, and its gradients with respect to x, y, the weight and the bias."""
    operands = [t.to(dtype, copy=True).requires_grad_() for t in (X, Y, W, B)]
    value = function(*operands)
    cotangent = _random(*value.shape, seed=9).to(value.dtype)
    grads = torch.autograd.grad(value, operands, cotangent, allow_unused=True)
    return [value.detach(), *grads]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, dtype):
    """In bfloat16 the operands, and what is between the parts of a function, are rounded."""
    ours, theirs = CASES[name]
    u = torch.finfo(dtype).eps
    if name == "cross_entropy" or "kl_div" in name or "linear_cross" in name:
        u = max(u, torch.finfo(torch.float32).eps)  # losses are float32
    for a, b in zip(_results(ours, dtype), _results(theirs, torch.float64), strict=True):
        if b is None:
            assert a is None
            continue
        # some forty roundings of the largest element at most
        torch.testing.assert_close(a.double(), b, rtol=0, atol=40 * u * b.abs().max().item())


def test_the_loss_as_a_module():
    x = X.flatten(0, 1).float()
    expected = F.cross_entropy(x, TARGET, ignore_index=3)
    for reduction, scale in (("mean", 1), ("sum", int((TARGET != 3).sum()))):
        loss = m.FusedCrossEntropyLoss(ignore_index=3, reduction=reduction)(x, TARGET)
        torch.testing.assert_close(loss, expected * scale)
    _, z_loss = m.FusedCrossEntropyLoss(lse_square_scale=1e-2, return_z_loss=True)(x, TARGET)
    torch.testing.assert_close(z_loss, 1e-2 * x.logsumexp(-1).square().mean())


def test_rotary_positions():
    """Of packed sequences, and of an offset for each sequence."""
    x, angles = X.unflatten(-1, (3, 4)).contiguous(), ANGLES[:, :2]
    c, s = angles.cos(), angles.sin()
    one = rotary_embedding(x.view(1, 10, 3, 4), c, s, cu_seqlens=torch.tensor([0, 4, 10]))
    parts = [rotary_embedding(p, c, s) for p in x.view(1, 10, 3, 4).split([4, 6], 1)]
    assert torch.equal(one, torch.cat(parts, 1))
    offsets = rotary_embedding(x, c, s, seqlen_offsets=torch.tensor([1, 3]))
    parts = [rotary_embedding(x[i : i + 1], c, s, seqlen_offsets=n) for i, n in ((0, 1), (1, 3))]
    assert torch.equal(offsets, torch.cat(parts))
    turned = rotary_embedding(x, c, s, interleaved=True)
    pairs = torch.view_as_complex(x.unflatten(-1, (2, 2)))
    expected = pairs * torch.polar(torch.ones_like(c), angles)[:5].unsqueeze(1)
    torch.testing.assert_close(turned, torch.view_as_real(expected).flatten(-2))
    with pytest.raises(ValueError, match="at position 9; expected less than 9"):
        rotary_embedding(x, c, s, seqlen_offsets=5)


def test_models_under_autocast():
    layer = m.GatedMLP(12, intermediate_size=8)
    with torch.autocast("cpu", torch.bfloat16):
        layer(X.float()).float().square().mean().backward()
    assert all(x.grad.isfinite().all() and x.grad.abs().sum() for x in layer.parameters())
