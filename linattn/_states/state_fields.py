"""States of which every field has a shape of its own: those of `wkv` and `mlstm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import gradient_sums
from . import state_arrays
from .state_arrays import State

if TYPE_CHECKING:
    from .._types import DType, Shape


def read(
    function: str,
    name: str,
    state: Any,
    batch: Shape,
    cores: tuple[Shape | None, ...],
    dtype: DType,
) -> State:
    """The fields, checked: arrays (..., *core) whose other axes broadcast to ``batch``.

    A core of None stands for a field that has to be None.
    """
    given = state_arrays.fields(function, name, state, "linattn.State(s, z, log_scale)")
    for field, x, core in zip(State._fields, given, cores, strict=True):
        if core is not None:
            state_arrays.checked_field(function, f"{name}.{field}", x, batch, core, dtype)
        elif x is not None:
            raise ValueError(
                f"{function}: {name}.{field} is given; expected None, as normalize is False"
            )
    return state if isinstance(state, State) else State(*given)


def own(function: str, state: State, batch: Shape, ranks: tuple[int, ...], in_place: bool) -> State:
    """Arrays that the state after a step is written into: its own ones, or copies."""
    if in_place:
        state_arrays.own(function, state, batch, ranks)
        return state
    return State(*(
        x if x is None else np.array(np.broadcast_to(x, (*batch, *x.shape[x.ndim - rank :])))
        for x, rank in zip(state, ranks, strict=True)
    ))  # fmt: skip


def summed(grads: State, state: State | None) -> State:
    """The gradient of a state in the shape that it came in."""
    if state is None:
        return grads
    return State(*(
        g if x is None else gradient_sums.summed(g, x.shape, x.dtype)
        for g, x in zip(grads, state, strict=True)
    ))  # fmt: skip
