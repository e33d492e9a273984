"""One token of the short convolution on a tensor of its last inputs, which it moves on in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._core.gufuncs import internal_ufuncs
from .direct import update
from .operator import OPERATORS

#: By whether there is a bias.
_GUFUNCS = {given: f"_causal_conv1d{'_bias' * given}_step" for given in (False, True)}
_SILU = {None: 0.0, "silu": 1.0}


def step(
    operands: tuple[Any, ...], state: Any, *, in_place: Any = False, state_indices: Any = None,
    activation: Any = None,
) -> Any:  # fmt: skip
    """The operator's step, in one call as well if it updates its state."""
    if in_place is True or state_indices is not None:
        x, weight, bias = operands
        o = NotImplemented
        if _inputs_beside(state, weight) == 0:
            o = _updated(x, state, weight, bias, activation, state_indices)
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
    if _inputs_beside(state, weight) < 0 or state.ndim != 3:
        return NotImplemented
    return _updated(x, state, weight, bias, activation, rows)


def _updated(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: Any, rows: Any
) -> Any:
    """The same with a state that has all inputs that the filters reach; else C notices."""
    silu = _SILU.get(activation) if isinstance(activation, str | None) else None
    if silu is None:
        return NotImplemented
    inputs = (x, weight, silu) if bias is None else (x, weight, bias, silu)
    return update(internal_ufuncs[_GUFUNCS[bias is not None]], inputs, (state,), rows)


def _inputs_beside(state: Any, weight: Any) -> int:
    """How many inputs the state has that the filters do not reach; negative if it lacks some."""
    if not isinstance(state, Tensor) or not isinstance(weight, Tensor):
        return -1
    if weight.ndim != 2 or state.ndim < 2:
        return -1
    return state.shape[-1] - weight.shape[1] + 1
