"""Normalisations: what fla's autograd functions of its normalising kernels compute.

Each function has the arguments of the ``forward`` that it stands for, without ``ctx``.  As the
kernels do, they compute in float32 and round once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...._core.checks import wrong_shape
from ._activations import gate, wide

Optional = Tensor | None


def layer_norm(
    x: Tensor, weight: Optional, bias: Optional, residual: Optional = None, eps: float = 1e-5,
    prenorm: bool = False, residual_in_fp32: bool = False, is_rms_norm: bool = False,
    num_groups: int = 1,
) -> Any:  # fmt: skip
    if x.shape[-1] % num_groups:
        raise ValueError(
            f"layer_norm: x has {x.shape[-1]} channels; expected a multiple of {num_groups}, the "
            "number of groups"
        )
    total, handed_on = _sum(x, residual, residual_in_fp32)
    y = normalized(total, weight, bias, eps, is_rms_norm, num_groups).to(x.dtype)
    return (y, handed_on) if prenorm else y


def layer_norm_linear(
    x: Tensor, norm_weight: Optional, norm_bias: Optional, linear_weight: Tensor,
    linear_bias: Optional, residual: Optional = None, eps: float = 1e-5, prenorm: bool = False,
    residual_in_fp32: bool = False, is_rms_norm: bool = False, num_groups: int = 1,
) -> Any:  # fmt: skip
    y, handed_on = layer_norm(
        x, norm_weight, norm_bias, residual, eps, True, residual_in_fp32, is_rms_norm, num_groups
    )
    out = linear(y, linear_weight, linear_bias)
    return (out, handed_on) if prenorm else out


def layer_norm_gated(
    x: Tensor, g: Tensor, weight: Optional, bias: Optional, activation: str,
    residual: Optional = None, eps: float = 1e-6, prenorm: bool = False,
    residual_in_fp32: bool = False, is_rms_norm: bool = False,
) -> Any:  # fmt: skip
    total, handed_on = _sum(x, residual, residual_in_fp32)
    y = normalized(total, weight, bias, eps, is_rms_norm) * gate(activation, wide(g)).view_as(x)
    return (y.to(x.dtype), handed_on) if prenorm else y.to(x.dtype)


def layer_norm_gated_linear(
    x: Tensor, g: Tensor, norm_weight: Optional, norm_bias: Optional, linear_weight: Tensor,
    linear_bias: Optional, residual: Optional = None, eps: float = 1e-6, prenorm: bool = False,
    residual_in_fp32: bool = False, is_rms_norm: bool = False,
) -> Any:  # fmt: skip
    y, handed_on = layer_norm_gated(
        x, g, norm_weight, norm_bias, "swish", residual, eps, True, residual_in_fp32, is_rms_norm
    )
    out = linear(y, linear_weight, linear_bias)
    return (out, handed_on) if prenorm else out


def l2_norm(x: Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> Tensor:
    total = wide(x)
    y = total * (total.square().sum(-1, keepdim=True) + eps).rsqrt()
    return y.to(output_dtype or x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Optional) -> Tensor:
    """x W^T + b in the dtype of x; autocast chooses its own."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _sum(x: Tensor, residual: Optional, in_fp32: bool) -> tuple[Tensor, Tensor]:
    """x + residual, wide and as it is handed on to the next layer."""
    if residual is None:
        return wide(x), x.float() if in_fp32 else x
    if residual.shape != x.shape:
        raise wrong_shape("layer_norm", "residual", residual, f"{tuple(x.shape)}, that of x")
    total = wide(x) + wide(residual)
    return total, total.to(residual.dtype)


def normalized(
    x: Tensor, weight: Optional, bias: Optional, eps: float, is_rms: bool, groups: int = 1
) -> Tensor:
    """The norm of so many groups of channels, in the dtype of x, with a weight and a bias."""
    x = x.unflatten(-1, (groups, -1))
    norm = F.rms_norm if is_rms else F.layer_norm
    y = norm(x, x.shape[-1:], eps=eps).flatten(-2)
    y = y if weight is None else y * weight.to(y.dtype)
    return y if bias is None else y + bias.to(y.dtype)
