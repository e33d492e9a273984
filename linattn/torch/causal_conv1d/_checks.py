"""Checks of operands that the stand-ins share."""

from __future__ import annotations

from typing import Any

import torch

from ..fla._layout import check_tensor


def check_channels_first(name: str, argument: str, x: Any) -> torch.Size:
    """The shape of x, which is (batch, dim, seqlen); raise an error if it is not."""
    check_tensor(name, argument, x)
    if x.ndim != 3:
        raise ValueError(
            f"{name}: {argument} has shape {tuple(x.shape)}; expected three axes, "
            "(batch, dim, seqlen)"
        )
    shape: torch.Size = x.shape
    return shape
