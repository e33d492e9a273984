"""One token of the short convolution on a tensor of its last inputs, which it moves on in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._core.gufuncs import internal_ufuncs
from .direct import update

#: By whether there is a bias.
_GUFUNCS = {given: f"_causal_conv1d{'_bias' * given}_step" for given in (False, True)}
_SILU = {None: 0.0, "silu": 1.0}


def moved_on(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None,
    rows: Tensor | None = None,
) -> Any:  # fmt: skip
    """The output of a token x (batch, c), in one call; the state (batch, c, inputs) holds w - 1
    inputs or more.

    ``rows`` are those of the state that belong to the batch.  NotImplemented, with nothing written,
    if PyTorch has to see the call, if tensors need a conversion, or if anything is wrong with it.
    """
    silu = _SILU.get(activation)
    if silu is None or not _holds_all(state, weight):
        return NotImplemented
    inputs = (x, weight, silu) if bias is None else (x, weight, bias, silu)
    return update(internal_ufuncs[_GUFUNCS[bias is not None]], inputs, (state,), rows)


def _holds_all(state: Any, weight: Any) -> bool:
    """Whether the state has all inputs that the filters reach; what else is wrong, C notices."""
    if not isinstance(state, Tensor) or not isinstance(weight, Tensor):
        return False
    return weight.ndim == 2 and state.ndim == 3 and state.shape[2] >= weight.shape[1] - 1
