"""``fla.modules.fused_norm_gate``: norms with a gate, and with a projection of the result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _norms
from ._layernorm import Affine

__all__ = [
    "FusedLayerNormGated", "FusedLayerNormGatedLinear", "FusedLayerNormSwishGate",
    "FusedLayerNormSwishGateLinear", "FusedRMSNormGated", "FusedRMSNormGatedLinear",
    "FusedRMSNormSwishGate", "FusedRMSNormSwishGateLinear", "layer_norm_gated",
    "layer_norm_swish_gate_linear", "rms_norm_gated", "rms_norm_swish_gate_linear",
]  # fmt: skip

_ACTIVATIONS = ("swish", "silu", "sigmoid")
Optional = Tensor | None


def layer_norm_gated(
    x: Tensor, g: Tensor, weight: Optional, bias: Optional, activation: str = "swish",
    residual: Optional = None, prenorm: bool = False, residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Any:  # fmt: skip
    """The layer norm of x + residual times activation(g); ``prenorm`` also returns that sum."""
    return _norms.layer_norm_gated(
        x, g, weight, bias, activation, residual, eps, prenorm, residual_in_fp32
    )


def rms_norm_gated(
    x: Tensor, g: Tensor, weight: Optional, bias: Optional, activation: str = "swish",
    residual: Optional = None, prenorm: bool = False, residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Any:  # fmt: skip
    """The same with x + residual over its root mean square."""
    return _norms.layer_norm_gated(
        x, g, weight, bias, activation, residual, eps, prenorm, residual_in_fp32, True
    )


def layer_norm_swish_gate_linear(
    x: Tensor, g: Tensor, norm_weight: Optional, norm_bias: Optional, linear_weight: Tensor,
    linear_bias: Optional, residual: Optional = None, prenorm: bool = False,
    residual_in_fp32: bool = False, eps: float = 1e-6,
) -> Any:  # fmt: skip
    """`layer_norm_gated`, and a projection of the result."""
    return _norms.layer_norm_gated_linear(
        x, g, norm_weight, norm_bias, linear_weight, linear_bias, residual, eps, prenorm,
        residual_in_fp32,
    )  # fmt: skip


def rms_norm_swish_gate_linear(
    x: Tensor, g: Tensor, norm_weight: Optional, norm_bias: Optional, linear_weight: Tensor,
    linear_bias: Optional, residual: Optional = None, prenorm: bool = False,
    residual_in_fp32: bool = False, eps: float = 1e-6,
) -> Any:  # fmt: skip
    """`rms_norm_gated`, and a projection of the result."""
    return _norms.layer_norm_gated_linear(
        x, g, norm_weight, norm_bias, linear_weight, linear_bias, residual, eps, prenorm,
        residual_in_fp32, True,
    )  # fmt: skip


class _Gated(Affine):
    activation: str

    def forward(
        self, x: Tensor, g: Tensor, residual: Optional = None, prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Any:  # fmt: skip
        return _norms.layer_norm_gated(
            x, g, self.weight, self.bias, self.activation, residual, self.eps, prenorm,
            residual_in_fp32, self.is_rms_norm,
        )  # fmt: skip

    def choose(self, activation: str) -> None:
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"{type(self).__name__}: activation is {activation!r}; expected one of "
                f"{_ACTIVATIONS}"
            )
        self.activation = activation

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"


class FusedLayerNormGated(_Gated):
    """The layer norm of x + residual times activation(g); ``prenorm`` also returns that sum."""

    def __init__(
        self, hidden_size: int, elementwise_affine: bool = True, bias: bool = False,
        activation: str = "swish", eps: float = 1e-5, device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, bias, eps, device, dtype)
        self.choose(activation)


class FusedRMSNormGated(_Gated):
    """The same with x + residual over its root mean square."""

    is_rms_norm = True

    def __init__(
        self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5,
        activation: str = "swish", device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, False, eps, device, dtype)
        self.choose(activation)


class FusedLayerNormSwishGate(FusedLayerNormGated):
    """`FusedLayerNormGated` with a gate swish(g)."""

    def __init__(
        self, hidden_size: int, elementwise_affine: bool = True, bias: bool = False,
        eps: float = 1e-5, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, bias, "swish", eps, device, dtype)


class FusedRMSNormSwishGate(FusedRMSNormGated):
    """`FusedRMSNormGated` with a gate swish(g)."""

    def __init__(
        self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5,
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, eps, "swish", device, dtype)


class _GatedLinear(Affine):
    def __init__(
        self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5,
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, elementwise_affine, False, eps, device, dtype)

    def forward(
        self, x: Tensor, g: Tensor, weight: Optional = None, bias: Optional = None,
        residual: Optional = None, prenorm: bool = False, residual_in_fp32: bool = False,
    ) -> Any:  # fmt: skip
        if weight is None:
            raise ValueError(f"{type(self).__name__}: weight is None; expected the projection's")
        return _norms.layer_norm_gated_linear(
            x, g, self.weight, self.bias, weight, bias, residual, self.eps, prenorm,
            residual_in_fp32, self.is_rms_norm,
        )  # fmt: skip


class FusedLayerNormGatedLinear(_GatedLinear):
    """`FusedLayerNormSwishGate`, and a projection by a weight and a bias that are given."""


class FusedRMSNormGatedLinear(_GatedLinear):
    """`FusedRMSNormSwishGate`, and a projection by a weight and a bias that are given."""

    is_rms_norm = True


class FusedLayerNormSwishGateLinear(FusedLayerNormGatedLinear):
    """The same by another name."""


class FusedRMSNormSwishGateLinear(FusedRMSNormGatedLinear):
    """The same by another name."""
