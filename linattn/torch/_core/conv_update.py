"""One token of the short convolution on a tensor of its last inputs, which it moves on in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._core import checks
from .direct import update
from .operator import OPERATORS

#: By whether there is a bias.
_GUFUNCS = {given: f"_causal_conv1d{'_bias' * given}_step" for given in (False, True)}


def step(
    operands: tuple[Any, ...], state: Any, *, in_place: Any = False, state_indices: Any = None,
    activation: Any = None,
) -> Any:  # fmt: skip
    """The operator's step, in one call as well if it updates its state."""
    x, weight, bias = operands
    if (in_place is True or state_indices is not None) and _fit(state, weight):
        o = moved_on(x, state, weight, bias, activation, state_indices)
        if o is not NotImplemented:
            return o, state
    return OPERATORS["causal_conv1d"].step(
        operands, state, in_place=in_place, state_indices=state_indices, activation=activation
    )


def moved_on(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None,
    rows: Tensor | None = None,
) -> Any:  # fmt: skip
    """The output of a token x (batch, c), in one call; the state (batch, c, inputs) holds w - 1
    inputs or more.

    ``rows`` are those of the state that belong to the batch.  NotImplemented, with nothing written,
    if PyTorch has to see the call, if tensors need a conversion, or if anything is wrong with it.
    """
    silu = checks.plain_switch("activation", activation)
    if silu is None:
        return NotImplemented
    inputs = (x, weight, silu) if bias is None else (x, weight, bias, silu)
    return update(_GUFUNCS[bias is not None], inputs, (state,), rows)


def _fit(state: Any, weight: Any) -> bool:
    """Whether the state has as many inputs as the filters reach; what else is wrong, C notices."""
    try:
        return bool(state.size(-1) == weight.size(-1) - 1)
    except (AttributeError, IndexError, TypeError):
        return False
