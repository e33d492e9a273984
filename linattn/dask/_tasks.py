"""The tasks that workers run: pure functions, which pickle finds by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from .._blocks import effects
from .._blocks.block_scan import Settings
from .._core import gradient_sums
from .._core.gufuncs import quiet
from .._states.state_arrays import State


def run(
    function: Callable[..., Any], call: Settings, operands: list[Any], key_lengths: Any,
    *values: Any,
) -> Any:  # fmt: skip
    """A function of `_blocks.block_scan`; dask makes lists of operands."""
    return function(call, tuple(operands), key_lengths, *values)


def whole(*elements: Any) -> Any:
    """The element of consecutive blocks."""
    return reduce(effects.compose, elements)


def states(first: Any, *elements: Any) -> list[Any]:
    """The states before each of the blocks and after the last, from the first."""
    after = [first]
    for block in elements:
        after.append(block.after(after[-1]))
    return after


def total(x: Any, axis: Any, keepdims: bool) -> Any:
    """The sum of one chunk in float64, as `gradient_sums.summed` adds it up."""
    shape = tuple(1 if i in axis else size for i, size in enumerate(x.shape))
    return gradient_sums.summed(x, shape, np.result_type(x.dtype, np.float64))


def rounded(x: Any, dtype: Any) -> Any:
    return gradient_sums.summed(x, x.shape, dtype)


def clip(begin: int, size: int, lengths: Any) -> Any:
    """The number of a block's tokens that have keys."""
    return np.clip(np.asarray(lengths) - begin, 0, size)


@quiet
def add(x: Any, y: Any) -> Any:
    if isinstance(x, State):
        return State(*(None if a is None else a + b for a, b in zip(x, y, strict=True)))
    return x + y
