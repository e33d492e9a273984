"""The gated MLP of mamba_ssm's language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["GatedMLP"]


class GatedMLP(nn.Module):
    """``fc2(y activation(gate))`` with ``[y, gate] = fc1(x)``.

    Parameters
    ----------
    in_features : int
        The width of a token.
    hidden_features : int, optional
        The width of y, rounded up to a multiple of multiple_of; 8 / 3 in_features by default.
    out_features : int, optional
        The width of the result; in_features by default.
    activation : callable
        Of the gate.
    bias : bool
        Whether the projections have a bias.
    multiple_of : int
        See hidden_features.
    device, dtype
        Of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Callable[[Tensor], Tensor] = F.silu,
        bias: bool = False,
        multiple_of: int = 128,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        hidden = int(8 * in_features / 3) if hidden_features is None else hidden_features
        hidden = -(-hidden // multiple_of) * multiple_of
        out_features = in_features if out_features is None else out_features
        self.fc1 = nn.Linear(in_features, 2 * hidden, bias=bias, **factory)
        self.activation = activation
        self.fc2 = nn.Linear(hidden, out_features, bias=bias, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """The result for tokens (..., in_features)."""
        y, gate = self.fc1(x).chunk(2, -1)
        return self.fc2(y * self.activation(gate))
