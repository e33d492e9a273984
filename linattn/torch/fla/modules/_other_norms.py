"""``fla.modules.layernorm_gated``, the norms of Mamba-2, and ``fla.modules.l2norm``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ._layernorm import Affine
from ._norms import l2_norm, layer_norm_gated_mamba

__all__ = [
    "L2Norm", "LayerNormGated", "RMSNormGated", "l2_norm", "l2norm", "layernorm_fn", "rmsnorm_fn",
]  # fmt: skip

layernorm_fn, l2norm = layer_norm_gated_mamba, l2_norm


def rmsnorm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None = None, eps: float = 1e-6,
    group_size: int | None = None, norm_before_gate: bool = True,
) -> Tensor:  # fmt: skip
    """x over its root mean square, with a gate silu(z) after or before that."""
    return layer_norm_gated_mamba(x, weight, bias, z, eps, group_size, norm_before_gate, True)


class LayerNormGated(Affine):
    """The layer norm of groups of channels, with a gate silu(z) after or before it."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None,
        norm_before_gate: bool = True, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, True, not self.is_rms_norm, eps, device, dtype)
        self.group_size, self.norm_before_gate = group_size, norm_before_gate

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        assert self.weight is not None
        return layer_norm_gated_mamba(
            x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate,
            self.is_rms_norm,
        )  # fmt: skip


class RMSNormGated(LayerNormGated):
    """The same over root mean squares."""

    is_rms_norm = True

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None,
        norm_before_gate: bool = False, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, eps, group_size, norm_before_gate, device, dtype)


class L2Norm(nn.Module):
    """x over its length."""

    def __init__(self, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.eps, self.output_dtype = eps, output_dtype

    def forward(self, x: Tensor) -> Tensor:
        return l2_norm(x, self.eps, self.output_dtype)
