"""Recurrences of dask arrays: calls in blocks, whose results become arrays again.

All tasks of a call are added before the first array is made of their results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._call.recurrence import Recurrence
from .._states.state_arrays import State
from ._aligned import Call, summed


def forward(
    r: Recurrence, operands: tuple[Any, ...], *, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, out: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """`Recurrence.forward` in blocks."""
    if out is not None:
        raise TypeError(f"{r.name}: out is given; expected None with dask arrays, which are lazy")
    call = Call(r, "forward", operands, options, key_lengths, cu_seqlens,
                initial_state=initial_state)  # fmt: skip
    if r.cross:
        return call.output(call.blocks(call.outputs_over_all()))
    o, with_end = call.outputs(call.states["initial_state"])
    if not return_state:
        return call.output(call.blocks(o))
    last = call.order[-1]
    first, end = call.part(with_end, 0), call.part(with_end, 1)
    parts = call.blocks(lambda at: first(at) if at[-1] == last else o(at))
    fields = call.fields(end, last)
    return call.output(parts), call.as_state(fields)


def backward(
    r: Recurrence, operands: tuple[Any, ...], grad_out: Any, *, key_lengths: Any = None,
    cu_seqlens: Any = None, initial_state: State | None = None, grad_state: State | None = None,
    **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """`Recurrence.backward` in blocks."""
    call = Call(r, "backward", operands, options, key_lengths, cu_seqlens, grad_out,
                initial_state=initial_state, grad_state=grad_state)  # fmt: skip
    if r.cross:
        return call.summed_gradients(call.gradient_blocks(call.gradients_over_all()))
    result = call.gradients(call.states["initial_state"], call.states["grad_state"])
    parts = call.gradient_blocks([call.part(result, i) for i in range(len(operands))])
    if initial_state is None and grad_state is None:
        return call.summed_gradients(parts)
    fields = call.fields(call.part(result, len(operands)), call.order[0])
    state = call.as_state(fields)
    if initial_state is not None:
        state = State(*(
            None if x is None else summed(x, np.shape(y), x.dtype)
            for x, y in zip(state, initial_state, strict=True)
        ))  # fmt: skip
    return *call.summed_gradients(parts), state
