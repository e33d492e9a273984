"""``fla.modules.mlp``: the gated MLP of fla's models."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ._activations import powglu_fwd, swiglu_fwd

__all__ = ["GatedMLP"]


class GatedMLP(nn.Module):
    """``down_proj(swish(gate_proj(x)) up_proj(x))``.

    Without ``intermediate_size`` the projections' width is 2/3 hidden_ratio hidden_size, rounded
    up to a multiple of 256; hidden_ratio is 4 by default.  ``hidden_act`` is ``"swish"`` or
    ``"powlu"``, and ``fuse_swiglu`` is ignored.
    """

    def __init__(
        self, hidden_size: int, hidden_ratio: int | None = None,
        intermediate_size: int | None = None, hidden_act: str = "swish", fuse_swiglu: bool = True,
        powglu_power: float = 3.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if hidden_act not in ("swish", "powlu"):
            raise ValueError(f"GatedMLP: hidden_act is {hidden_act!r}; expected 'swish' or 'powlu'")
        self.hidden_size, self.hidden_act, self.powglu_power = hidden_size, hidden_act, powglu_power
        self.hidden_ratio = 4 if hidden_ratio is None else hidden_ratio
        width = intermediate_size
        if width is None:
            width = -(-int(hidden_size * self.hidden_ratio * 2 / 3) // 256) * 256
        self.intermediate_size, self.fuse_swiglu = width, fuse_swiglu
        self.gate_proj = nn.Linear(hidden_size, width, bias=False)
        self.up_proj = nn.Linear(hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, hidden_size, bias=False)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        gate, y = self.gate_proj(x), self.up_proj(x)
        if self.hidden_act == "swish":
            return self.down_proj(swiglu_fwd(gate, y))
        return self.down_proj(powglu_fwd(gate, y, self.powglu_power))
