"""Recurrences in blocks: a scan finds the state before each block, which then runs from it.

The scan goes by groups of blocks, as a task takes longer than putting a group's states together.
A state is named by a task, which returns several, and its place among them.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from .._blocks import block_scan
from .._call.recurrence import Recurrence
from .._states.state_arrays import State
from . import _tasks
from ._aligned import Call, summed

GROUP = 16  #: blocks whose states one task finds


def forward(
    r: Recurrence, operands: tuple[Any, ...], *, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """`Recurrence.forward` in blocks."""
    call = Call(r, "forward", operands, options, key_lengths, cu_seqlens, initial_state)
    run, run_last = (
        partial(_tasks.forward, call.r.name, call.cu_seqlens, end, call.options)
        for end in (False, True)
    )
    add, start = call.graph.add, call.state(0)
    parts, ends = {}, {}
    for at in call.positions():
        states = _states(call, start(at), _elements(call, at, len(call.order) - 1))
        for j, state in zip(call.order, states, strict=True):
            args = call.key_lengths(at, j), *state, *call.operands(at, j)
            if j != call.order[-1] or not return_state:
                parts[(*at, j)] = add(run, *args)
                continue
            result = add(run_last, *args)
            parts[(*at, j)] = add(itemgetter(0), result)
            ends[at] = add(itemgetter(1), result)
    fields = call.fields(ends) if return_state else []
    o = call.array("o", parts, (call.tokens, call.shape[-1:]), call.dtype)
    return (o, call.as_state(fields)) if return_state else o


def backward(
    r: Recurrence, operands: tuple[Any, ...], grad_out: Any, *, key_lengths: Any = None,
    cu_seqlens: Any = None, initial_state: State | None = None, grad_state: State | None = None,
    **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """`Recurrence.backward` in blocks."""
    call = Call(r, "backward", operands, options, key_lengths, cu_seqlens,
                initial_state, grad_state, grad_out)  # fmt: skip
    add, start, last = call.graph.add, call.state(0), call.state(1)
    parts: list[dict[Any, Any]] = [{} for _ in call.arrays]
    starts = {}
    for at in call.positions():
        elements = _elements(call, at, len(call.order))
        states = _states(call, start(at), elements[:-1])
        grads = _end_gradients(call, at, states, elements, last(at))
        for j, state, grad in zip(call.order, states, grads, strict=True):
            result = _gradients(call, at, j, state, grad)
            for i, x in enumerate(call.arrays):
                if x is not None:
                    parts[i][(*at, j)] = add(itemgetter(i), result)
            if j == call.order[0]:
                starts[at] = add(itemgetter(len(parts)), result)
    with_state = initial_state is not None or grad_state is not None
    fields = call.fields(starts) if with_state else []
    first = call.gradients(parts)
    if not with_state:
        return first
    state = call.as_state(fields)
    if initial_state is not None:
        state = State(*(
            None if x is None else summed(x, np.shape(y), x.dtype)
            for x, y in zip(state, initial_state, strict=True)
        ))  # fmt: skip
    return *first, state


def _elements(call: Call, at: tuple[int, ...], count: int) -> list[Any]:
    """The effects of the first blocks on the state, in the order of the scan."""
    element = partial(_tasks.element, call.r.name, call.options)
    return [
        call.graph.add(element, call.key_lengths(at, j), *call.operands(at, j))
        for j in call.order[:count]
    ]


def _states(call: Call, start: Any, elements: list[Any]) -> list[Any]:
    """The states: `start`, and one after each element."""
    add, wholes, states = call.graph.add, [], [start]
    for i in range(0, len(elements) - GROUP + 1, GROUP):
        wholes.append(add(_tasks.whole, *elements[i : i + GROUP]))
    if wholes:
        states = _states(call, start, wholes)
    found = []
    for i, state in enumerate(states):
        group = elements[i * GROUP : (i + 1) * GROUP - 1]
        key = add(_tasks.states, *state, *group)
        found += [(key, j) for j in range(len(group) + 1)]
    return found


def _end_gradients(
    call: Call, at: tuple[int, ...], states: list[Any], elements: list[Any], last: Any
) -> list[Any]:
    """The gradients with respect to the states after the blocks."""
    add, backwards = call.graph.add, range(len(states) - 1, 0, -1)
    if block_scan.gradient_is_sum(call.r, **call.options):
        total = partial(block_scan.gradient_sum, **call.options)
        turned = [
            add(total, call.block(0, at, call.order[i]), call.grad_out(at, call.order[i]))
            for i in backwards
        ]
    else:
        turned = [
            add(
                _tasks.turned, elements[i],
                _gradients(call, at, call.order[i], states[i], call.nothing()), *states[i],
            )
            for i in backwards
        ]  # fmt: skip
    return _states(call, last, turned)[::-1]


def _gradients(call: Call, at: tuple[int, ...], j: int, state: Any, grad: Any) -> Any:
    """The gradients of block j, from the state before it and the gradient of the one after it."""
    run = partial(_tasks.backward, call.r.name, call.cu_seqlens, call.part_dtype, call.options)
    return call.graph.add(
        run, call.grad_out(at, j), call.key_lengths(at, j), *state, *grad, *call.operands(at, j)
    )
