"""The NumPy package's checks, on traced arrays: shapes and dtypes always, values if known."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._core.checks import array
from .._core.dtypes import is_weak, work_dtype
from .._states import state_arrays
from .._states.state_arrays import State
from .._types import Cores, DType, Shape
from ._arrays import checked, is_complex


def sizes(shape: Sequence[Any]) -> Shape:
    """A shape in numbers; a symbolic size, as in exports, becomes one that only equals itself."""
    return tuple(size if isinstance(size, int) else 2 + hash(size) % 4096 for size in shape)


def stand_in(x: Any) -> Any:
    """An array of x's shape, in the dtype of the computation, without memory.

    Python's numbers and None stay as they are.
    """
    if x is None or is_weak(x):
        return x
    return np.broadcast_to(np.zeros((), work_dtype(x.dtype)), sizes(x.shape))


def key_lengths(function: str, x: Any, limit: Any, batch: Shape) -> Any:
    """``key_lengths``, as `state_arrays.checked_lengths` checks them."""
    most = limit if isinstance(limit, int) else sys.maxsize
    state_arrays.checked_lengths(
        function, _there(function, "key_lengths", x, np.zeros), most, batch
    )
    return jnp.asarray(x, jnp.int32)


def cu_seqlens(function: str, x: Any, n: Any) -> Any:
    """``cu_seqlens``, as `state_arrays.checked_bounds` checks them; [0, n] for None."""
    if x is None:
        return jnp.asarray([0, n], jnp.int32)
    known = isinstance(n, int)

    def whole(shape: Shape, dtype: DType) -> Any:
        bounds = np.zeros(shape, np.result_type(dtype, np.int64))
        if len(shape) == 1 and known:
            bounds[-1:] = n
        return bounds

    bounds = _there(function, "cu_seqlens", x, whole)
    state_arrays.checked_bounds(
        function, bounds, n if known else bounds.flat[-1] if bounds.size else 0
    )
    return jnp.asarray(x, jnp.int32)


def state(
    function: str, name: str, x: Any, cores: Cores, lead: Sequence[Any], dtype: DType,
    *, one_array: bool = False, holder: type[Any] = State,
) -> tuple[Any, ...]:  # fmt: skip
    """The arrays of a state, converted to ``dtype``, as `state_arrays.checked` checks them."""

    def converted(name: str, y: Any) -> Any:
        if y is None:
            return None
        return checked(function, name, y, complex_too=is_complex(dtype)).astype(dtype)

    given = x
    arrays: tuple[Any, ...] = ()
    if one_array:
        arrays = (converted(name, x),)
        given = stand_in(arrays[0])
    elif isinstance(x, tuple):
        pairs = zip(holder._fields, x, strict=False)
        arrays = tuple(converted(f"{name}.{field}", y) for field, y in pairs)
        given = tuple(map(stand_in, arrays))
    known = {field: sizes(core) for field, core in cores.items()}
    state_arrays.checked(
        function, name, given, known, sizes(lead), dtype, one_array=one_array, holder=holder
    )
    return tuple(y for y in arrays if y is not None)


def _there(function: str, name: str, x: Any, instead: Any) -> Any:
    """x as an array of NumPy or, if it is traced, ``instead(shape, dtype)``."""
    if any(isinstance(y, jax.core.Tracer) for y in jax.tree.leaves(x)):  # x, or an item
        x = jnp.asarray(x)
        return instead(sizes(x.shape), x.dtype)
    return array(function, name, x)
