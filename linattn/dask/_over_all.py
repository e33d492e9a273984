"""Queries that see all keys, in blocks: sums over the keys, which each query reads."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

from .._blocks import effects
from .._call.recurrence import Recurrence
from . import _tasks
from ._aligned import Call


def forward(
    r: Recurrence, operands: tuple[Any, ...], *, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: Any = None, return_state: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """`Recurrence.forward` of a recurrence over all keys; it has no states."""
    call = Call(r, "forward", operands, options, key_lengths)
    read = partial(_tasks.read, call.dtype, options)
    parts = {}
    for at in call.positions():
        state = _total(call, at)
        for j in range(len(call.tokens)):
            parts[(*at, j)] = call.graph.add(read, call.block(0, at, j), state)
    return call.array("o", parts, (call.tokens, call.shape[-1:]), call.dtype)


def backward(
    r: Recurrence, operands: tuple[Any, ...], grad_out: Any, *, key_lengths: Any = None,
    cu_seqlens: Any = None, initial_state: Any = None, grad_state: Any = None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """`Recurrence.backward` of a recurrence over all keys."""
    call = Call(r, "backward", operands, options, key_lengths, grad_out=grad_out)
    add = call.graph.add
    of_queries = partial(_tasks.read_backward, call.part_dtype, options)
    of_keys = partial(_tasks.sums_backward, call.part_dtype, options)
    parts: list[dict[Any, Any]] = [{}, {}, {}]
    for at in call.positions():
        state = _total(call, at)
        results = [
            add(of_queries, call.block(0, at, j), state, call.grad_out(at, j))
            for j in range(len(call.tokens))
        ]
        for j, result in enumerate(results):
            parts[0][(*at, j)] = add(itemgetter(0), result)
        sums = [add(itemgetter(1), x) for x in results]
        grad = call.graph.reduce(sums, _tasks.add)
        for j in range(len(call.keys)):
            k, v = (call.block(i, at, j) for i in (1, 2))
            result = add(of_keys, k, v, grad, call.key_lengths(at, j))
            for i in (0, 1):
                parts[1 + i][(*at, j)] = add(itemgetter(i), result)
    return call.gradients(parts)


def _total(call: Call, at: tuple[int, ...]) -> Any:
    """The sums over all keys."""
    element = partial(_tasks.element_over_all, call.options)
    sums = [
        call.graph.add(element, call.key_lengths(at, j), *(call.block(i, at, j) for i in (1, 2)))
        for j in range(len(call.keys))
    ]
    return call.graph.add(effects.after, None, call.graph.reduce(sums, effects.compose))
