"""Checks of operands that the stand-ins share."""

from __future__ import annotations

from typing import Any

import torch

from ..fla._layout import check_shape, check_tensor


def check_given(name: str, shape: tuple[int, ...], letters: str, **operands: Any) -> None:
    """Raise an error unless the operands that are given, not None, have this shape."""
    for argument, x in operands.items():
        if x is not None:
            check_shape(name, argument, x, shape, letters)


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
