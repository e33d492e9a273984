"""The NumPy package's checks of what is known when a call is traced: of shapes and dtypes always,
of values where there are any."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _check
from .._types import DType, Shape
from ._call import work_dtype


def stand_in(x: Any) -> Any:
    """An array of x's shape, and of what x is computed in, that takes no memory; numbers stay."""
    if isinstance(x, (int, float)):
        return x
    return np.broadcast_to(np.zeros((), work_dtype(x.dtype)), x.shape)


def key_lengths(function: str, x: Any, limit: int, batch: Shape) -> Any:
    """``key_lengths`` as `_check.key_lengths` has them."""
    _check.key_lengths(function, _there(x, np.zeros), limit, batch)
    return jnp.asarray(x, jnp.int32)


def cu_seqlens(function: str, x: Any, n: int) -> Any:
    """``cu_seqlens`` as `_check.cu_seqlens` has them."""

    def whole(shape: Shape, dtype: DType) -> Any:
        bounds = np.zeros(shape, np.result_type(dtype, np.int64))
        if len(shape) == 1:
            bounds[-1:] = n
        return bounds

    _check.cu_seqlens(function, _there(x, whole), n)
    return jnp.asarray(x, jnp.int32)


def state(
    function: str, name: str, x: Any, lead: Shape, core: Shape, dtype: DType, normalize: bool
) -> tuple[Any, ...]:
    """The fields of a state as arrays of ``dtype``, as `_check.state` has them but for theirs."""
    shapes = x
    if isinstance(x, tuple):
        shapes = tuple(
            None if y is None else np.broadcast_to(dtype.type(0), np.shape(y)) for y in x
        )
    _check.state(function, name, shapes, lead, core, dtype, normalize)
    s, z, *_ = x
    return tuple(jnp.asarray(y, dtype) for y in (s, z) if y is not None)


def inputs(
    function: str, name: str, x: Any, lead: Shape, core: tuple[int, ...], dtype: DType
) -> Any:
    """The state of a convolution as `_check.inputs` has it, but for its dtype."""
    there = x if x is None else np.broadcast_to(dtype.type(0), np.shape(x))
    _check.inputs(function, name, there, lead, core, dtype)
    return jnp.asarray(x, dtype)


def _there(x: Any, instead: Any) -> Any:
    """x as NumPy has it, or what ``instead`` makes of its shape and dtype where it is traced."""
    return instead(x.shape, x.dtype) if isinstance(x, jax.core.Tracer) else np.asarray(x)
