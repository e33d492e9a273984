"""``fla.modules.layernorm``: norms, with a residual, and with a projection of the result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ._norms import layer_norm, layer_norm_linear

__all__ = [
    "GroupNorm", "GroupNormLinear", "LayerNorm", "LayerNormLinear", "RMSNorm", "RMSNormLinear",
    "group_norm", "group_norm_linear", "layer_norm", "layer_norm_linear", "rms_norm",
    "rms_norm_linear",
]  # fmt: skip

group_norm, group_norm_linear = layer_norm, layer_norm_linear


def rms_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None = None,
    eps: float = 1e-5, prenorm: bool = False, residual_in_fp32: bool = False,
) -> Any:  # fmt: skip
    """x + residual over its root mean square, and with ``prenorm`` also that sum."""
    return layer_norm(x, weight, bias, residual, eps, prenorm, residual_in_fp32, True)


def rms_norm_linear(
    x: Tensor, norm_weight: Tensor | None, norm_bias: Tensor | None, linear_weight: Tensor,
    linear_bias: Tensor | None, residual: Tensor | None = None, eps: float = 1e-5,
    prenorm: bool = False, residual_in_fp32: bool = False,
) -> Any:  # fmt: skip
    """`rms_norm`, and a projection of the result."""
    return layer_norm_linear(
        x, norm_weight, norm_bias, linear_weight, linear_bias, residual, eps, prenorm,
        residual_in_fp32, True,
    )  # fmt: skip


class Affine(nn.Module):
    """The weight and the bias of a norm, if it has them."""

    is_rms_norm = False
    num_groups = 1
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self, hidden_size: int, elementwise_affine: bool = True, bias: bool = False,
        eps: float = 1e-5, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.hidden_size, self.elementwise_affine, self.eps = hidden_size, elementwise_affine, eps
        for name, there in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            values = torch.empty(hidden_size, device=device, dtype=dtype) if there else None
            self.register_parameter(name, None if values is None else nn.Parameter(values))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}"


class _Norm(Affine):
    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Any:  # fmt: skip
        return layer_norm(
            x, self.weight, self.bias, residual, self.eps, prenorm, residual_in_fp32,
            self.is_rms_norm, self.num_groups,
        )  # fmt: skip


class _NormLinear(Affine):
    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None,
        prenorm: bool = False, residual_in_fp32: bool = False,
    ) -> Any:  # fmt: skip
        return layer_norm_linear(
            x, self.weight, self.bias, weight, bias, residual, self.eps, prenorm,
            residual_in_fp32, self.is_rms_norm, self.num_groups,
        )  # fmt: skip


class _Grouped(Affine):
    def __init__(
        self, num_groups: int, hidden_size: int, elementwise_affine: bool = True,
        bias: bool = False, eps: float = 1e-5, is_rms_norm: bool = False, device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        if hidden_size % num_groups:
            raise ValueError(
                f"{type(self).__name__}: hidden_size is {hidden_size}; expected a multiple of "
                f"num_groups, {num_groups}"
            )
        super().__init__(hidden_size, elementwise_affine, bias, eps, device, dtype)
        self.num_groups, self.is_rms_norm = num_groups, is_rms_norm


class LayerNorm(_Norm):
    """The layer norm of x + residual; ``prenorm`` also returns that sum."""


class RMSNorm(_Norm):
    """x + residual over its root mean square; ``prenorm`` also returns that sum."""

    is_rms_norm = True


class GroupNorm(_Grouped, _Norm):
    """The same over groups of the channels of each token, of either kind."""


class LayerNormLinear(_NormLinear):
    """`LayerNorm`, and a projection of the result by a weight and a bias that are given."""


class RMSNormLinear(_NormLinear):
    """`RMSNorm`, and a projection of the result by a weight and a bias that are given."""

    is_rms_norm = True


class GroupNormLinear(_Grouped, _NormLinear):
    """`GroupNorm`, and a projection of the result by a weight and a bias that are given."""
