"""States of which every field has a shape of its own: those of `wkv` and `mlstm`."""

from __future__ import annotations

from .._core import gradient_sums
from .state_arrays import State


def summed(grads: State, state: State | None) -> State:
    """The gradient of a state in the shape that it came in."""
    if state is None:
        return grads
    return State(*(
        g if x is None else gradient_sums.summed(g, x.shape, x.dtype)
        for g, x in zip(grads, state, strict=True)
    ))  # fmt: skip
