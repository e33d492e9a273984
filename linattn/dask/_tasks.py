"""The tasks that workers run: pure functions, which pickle finds by name."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from .._blocks import block_scan, effects
from .._call.recurrence import RECURRENCES
from .._core import gradient_sums
from .._core.gufuncs import quiet
from .._states.state_arrays import State


def element(name: str, options: Any, key_lengths: Any, *operands: Any) -> Any:
    return block_scan.element(name, operands, key_lengths, **options)


def element_over_all(options: Any, key_lengths: Any, k: Any, v: Any) -> Any:
    return block_scan.element("causal", (k, k, v), key_lengths, **options)


def whole(*elements: Any) -> Any:
    """The element of consecutive blocks."""
    return reduce(effects.compose, elements)


def states(found: Any, i: int, *elements: Any) -> list[Any]:
    """The states before each of the blocks and after the last, from state ``found[i]``."""
    after = [found[i]]
    for block in elements:
        after.append(block.after(after[-1]))
    return after


def forward(
    name: str, cu_seqlens: Any, end: bool, options: Any, key_lengths: Any, states: Any, i: int,
    *operands: Any,
) -> Any:  # fmt: skip
    return RECURRENCES[name].forward(
        operands, key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=states[i],
        return_state=end, **options,
    )  # fmt: skip


def backward(
    name: str, cu_seqlens: Any, dtype: Any, options: Any, grad: Any, key_lengths: Any,
    states: Any, i: int, grad_states: Any, j: int, *operands: Any,
) -> Any:  # fmt: skip
    """The gradients of the operands, None for those left out, and of the state before."""
    r, state = RECURRENCES[name], states[i]
    *arrays, grad = _at_least(dtype, *operands, grad)
    if state is None:
        sequences = None if cu_seqlens is None else len(cu_seqlens) - 1
        state = block_scan.empty_state(r, tuple(arrays), sequences, **options)
    *grads, start = r.backward(
        tuple(arrays), grad, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        initial_state=state, grad_state=grad_states[j], **options,
    )  # fmt: skip
    found = iter(grads)
    return *(None if x is None else next(found) for x in arrays), start


def _at_least(dtype: Any, *arrays: Any) -> list[Any]:
    """The arrays, 16-bit ones in float32 if that is ``dtype``: so their gradients are too."""
    if dtype != np.float32:
        return list(arrays)
    return [x if x is None or x.dtype.itemsize > 2 else np.asarray(x, dtype) for x in arrays]


def total(x: Any, axis: Any, keepdims: bool) -> Any:
    """The sum of one chunk in float64, as `gradient_sums.summed` adds it up."""
    shape = tuple(1 if i in axis else size for i, size in enumerate(x.shape))
    return gradient_sums.summed(x, shape, np.result_type(x.dtype, np.float64))


def rounded(x: Any, dtype: Any) -> Any:
    return gradient_sums.summed(x, x.shape, dtype)


def turned(block: Any, result: Any, states: Any, i: int) -> Any:
    """The element of a block's gradient, from the block's own, the gradients of a run, and the
    state before it."""
    return block.turned(result[-1], states[i])


def read(dtype: Any, options: Any, q: Any, state: Any) -> Any:
    return block_scan.read(q, state, **options).astype(dtype, copy=False)


def read_backward(dtype: Any, options: Any, q: Any, state: Any, grad: Any) -> Any:
    q, grad = _at_least(dtype, q, grad)
    return block_scan.read_backward(q, state, grad, **options)


def sums_backward(dtype: Any, options: Any, k: Any, v: Any, grad: Any, key_lengths: Any) -> Any:
    k, v = _at_least(dtype, k, v)
    return block_scan.sums_backward(k, v, grad, key_lengths, **options)


def clip(begin: int, size: int, lengths: Any) -> Any:
    """The number of a block's tokens that have keys."""
    return np.clip(np.asarray(lengths) - begin, 0, size)


def state(*fields: Any) -> list[State]:
    """A list of the one state with these fields."""
    return [State(*fields)]


@quiet
def add(x: Any, y: Any) -> Any:
    if isinstance(x, State):
        return State(*(None if a is None else a + b for a, b in zip(x, y, strict=True)))
    return x + y
