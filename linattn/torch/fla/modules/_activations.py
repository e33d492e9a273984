"""Activations and gated linear units.

fla's autograd functions of these are bound to names and kept in models, so that the functions that
they call are replaced, ``NAME_fwd`` and ``NAME_bwd``.  They compute in float32 and round once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# PyTorch's own derivatives: a pass over memory each, where autograd and formulas take several.
gelu_backward, sigmoid_backward, silu_backward = (
    torch.ops.aten.gelu_backward, torch.ops.aten.sigmoid_backward, torch.ops.aten.silu_backward,
)  # fmt: skip


def wide(x: Tensor) -> Tensor:
    """x in float32, or float64 where it is that."""
    return x if x.dtype is torch.float64 else x.float()


def gate(activation: str, x: Tensor) -> Tensor:
    """swish(x) or sigmoid(x), by name; other names are no gate, as in fla's kernels."""
    if activation in ("swish", "silu"):
        return F.silu(x)
    return x.sigmoid() if activation == "sigmoid" else torch.ones_like(x)


# --- of one operand ----------------------------------------------------------------------------


def sigmoid_fwd(x: Tensor, output_contiguous: bool = False) -> Tensor:
    return x.sigmoid()


def sigmoid_bwd(x: Tensor, dy: Tensor, output_contiguous: bool = False) -> Tensor:
    return sigmoid_backward(wide(dy), wide(x).sigmoid()).to(x.dtype)


def logsigmoid_fwd(x: Tensor, temperature: float = 1.0, output_contiguous: bool = False) -> Tensor:
    return (F.logsigmoid(wide(x)) / temperature).to(x.dtype)


def logsigmoid_bwd(
    x: Tensor, dy: Tensor, temperature: float = 1.0, output_contiguous: bool = False
) -> Tensor:
    return (wide(dy) * (-wide(x)).sigmoid() / temperature).to(x.dtype)


def swish_fwd(x: Tensor, output_contiguous: bool = False) -> Tensor:
    return F.silu(x)


def swish_bwd(x: Tensor, dy: Tensor, output_contiguous: bool = False) -> Tensor:
    return silu_backward(dy.to(x.dtype), x)


def sqrelu_fwd(x: Tensor) -> Tensor:
    return wide(x).relu().square().to(x.dtype)


def sqrelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    return (2 * wide(g) * wide(x).relu()).to(x.dtype)


def gelu_fwd(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    return gelu_backward(g.to(x.dtype), x, approximate="tanh")


def bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(bias + y, approximate="tanh").to(y.dtype)


def bias_gelu_bwd(g: Tensor, y: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    dy = gelu_bwd(g, bias + y)
    return dy.to(y.dtype), dy.sum(0, dtype=bias.dtype)


# --- gated linear units: a(x) y ----------------------------------------------------------------

Gradients = tuple[Tensor, ...]


def swiglu_fwd(x: Tensor, y: Tensor, output_contiguous: bool = False) -> Tensor:
    return _glu(F.silu(wide(x)), y)


def swiglu_fwdbwd(
    x: Tensor, y: Tensor, g: Tensor, use_weight: bool = False, output_contiguous: bool = False
) -> Gradients:
    a = wide(x)
    dx = silu_backward(wide(g) * wide(y), a)
    return _glu_gradients(dx, F.silu(a), x, y, g, use_weight)


def swiglu_linear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(swiglu_fwd(x, y), weight, bias)


def sigmoidglu_fwd(x: Tensor, y: Tensor, output_contiguous: bool = False) -> Tensor:
    return _glu(wide(x).sigmoid(), y)


def sigmoidglu_fwdbwd(
    x: Tensor, y: Tensor, g: Tensor, use_weight: bool = False, output_contiguous: bool = False
) -> Gradients:
    s = wide(x).sigmoid()
    dx = sigmoid_backward(wide(g) * wide(y), s)
    return _glu_gradients(dx, s, x, y, g, use_weight)


def powglu_fwd(x: Tensor, y: Tensor, power: float = 3.0, output_contiguous: bool = False) -> Tensor:
    return _glu(_power(wide(x), power), y)


def powglu_fwdbwd(
    x: Tensor, y: Tensor, g: Tensor, power: float = 3.0, use_weight: bool = False,
    output_contiguous: bool = False,
) -> Gradients:  # fmt: skip
    with torch.enable_grad():
        a = wide(x).detach().requires_grad_()
        value = _power(a, power)
    (dx,) = torch.autograd.grad(value, a, wide(g) * wide(y))
    return _glu_gradients(dx, value.detach(), x, y, g, use_weight)


def powglu_linear(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, power: float = 3.0
) -> Tensor:  # fmt: skip
    return F.linear(powglu_fwd(x, y, power), weight, bias)


def _glu(a: Tensor, y: Tensor) -> Tensor:
    if a.shape != y.shape:
        raise ValueError(f"glu: y has shape {tuple(y.shape)}; expected {tuple(a.shape)}, that of x")
    return (a * wide(y)).to(y.dtype)


def _glu_gradients(
    dx: Tensor, a: Tensor, x: Tensor, y: Tensor, g: Tensor, use_weight: bool
) -> Gradients:
    """Of a(x) y with respect to x and y; with ``use_weight`` also its value."""
    gradients = dx.to(x.dtype), (wide(g) * a).to(y.dtype)
    return (*gradients, _glu(a, y)) if use_weight else gradients


def _power(x: Tensor, power: float) -> Tensor:
    """x^(power / (sqrt(x) + 1)) sigmoid(x) where x is positive, and x sigmoid(x) elsewhere."""
    positive = x > 0
    base = torch.where(positive, x, 1)
    raised = base ** (power / (base.sqrt() + 1))
    return torch.where(positive, raised, x) * x.sigmoid()


# --- as fla's layers call them, differentiated by autograd --------------------------------------


def sigmoidglu_linear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(sigmoidglu_fwd(x, y), weight, bias)


def elu_p1(x: Tensor) -> Tensor:
    """elu(x) + 1, which is e^x below 0."""
    return torch.where(x >= 0, x + 1, x.clamp(max=0).exp())


ACT2FN = {
    "relu": F.relu, "sigmoid": sigmoid_fwd, "logsigmoid": logsigmoid_fwd, "silu": swish_fwd,
    "swish": swish_fwd, "sqrelu": sqrelu_fwd, "gelu": gelu_fwd, "bias_gelu": bias_gelu,
}  # fmt: skip
#: The names of fla.modules.activations.
PUBLIC = {
    "ACT2FN": ACT2FN, "bias_gelu_impl": bias_gelu, "elu_p1": elu_p1, "fast_gelu_impl": gelu_fwd,
    "logsigmoid": logsigmoid_fwd, "powglu": powglu_fwd, "powglu_linear": powglu_linear,
    "sigmoid": sigmoid_fwd, "sigmoidglu": sigmoidglu_fwd, "sigmoidglu_linear": sigmoidglu_linear,
    "sqrelu": sqrelu_fwd, "swiglu": swiglu_fwd, "swiglu_linear": swiglu_linear, "swish": swish_fwd,
}  # fmt: skip
