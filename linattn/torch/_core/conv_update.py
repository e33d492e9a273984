"""One token of the short convolution on a tensor of its last inputs, which it moves on in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...operators.conv import CONVOLUTION
from .direct import direct


def moved_on(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None,
    rows: Tensor | None = None,
) -> Any:  # fmt: skip
    """The output of a token x (batch, c), in one call; the state (batch, c, inputs) holds w - 1
    inputs or more.

    ``rows`` are those of the state that belong to the batch.  NotImplemented, with nothing written,
    if PyTorch has to see the call, if tensors need a conversion, or if anything is wrong with it.
    """
    if torch.compiler.is_compiling() or not _holds_all(state, weight):
        return NotImplemented
    given = {"state": state} if rows is None else {"state": state, "rows": rows}
    result = direct(CONVOLUTION.update, (x, weight, bias), given, {"activation": activation})
    return result if result is NotImplemented else result[0]


def _holds_all(state: Any, weight: Any) -> bool:
    """Whether the state has all inputs that the filters reach; what else is wrong, C notices."""
    if not isinstance(state, Tensor) or not isinstance(weight, Tensor):
        return False
    return weight.ndim == 2 and state.ndim == 3 and state.shape[2] >= weight.shape[1] - 1
