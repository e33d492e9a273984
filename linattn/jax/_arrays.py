"""Operands as arrays of JAX: their dtypes, their leading axes, and sums over broadcast axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._core.dtypes import is_weak, work_dtype
from .._core.gradient_sums import repeats
from .._types import Shape


def like(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def is_complex(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def checked(function: str, name: str, x: Any, *, complex_too: bool = False) -> Any:
    """x as an array.  Complex numbers are refused where a cast would make them real."""
    x = jnp.asarray(x)
    if is_complex(x.dtype) and not complex_too:
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected real numbers")
    return x


def promoted(
    name: str, operands: dict[str, Any], wide: Sequence[str] = (), *, complex_too: bool = False
) -> list[Any]:  # fmt: skip
    """The operands as arrays of one floating dtype; those named in `wide` as states are held."""
    arrays = {
        key: checked(name, key, x, complex_too=complex_too)
        for key, x in operands.items()
        if x is not None
    }
    for key, x in arrays.items():
        if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1:
            raise TypeError(f"{name}: {key} has dtype {x.dtype}; expected 16 bits or more")
    weak = [key for key, x in operands.items() if is_weak(x, (int, float, complex))]
    typed = [x for key, x in arrays.items() if key not in wide and key not in weak]
    dtype = jnp.result_type(*typed)
    if not jnp.issubdtype(dtype, jnp.inexact):
        dtype = jnp.result_type(float)
    if any(is_complex(x.dtype) for x in arrays.values()):
        dtype = jnp.result_type(dtype, jnp.complex64)
    return [
        None if x is None
        else arrays[key].astype(work_dtype(dtype) if key in wide else dtype)
        for key, x in operands.items()
    ]  # fmt: skip


def with_lead(x: Any, rank: int, lead: int) -> Any:
    """x with `lead` leading axes before its own, of which there are `rank`."""
    missing = lead - (x.ndim - rank)
    return x.reshape((1,) * missing + x.shape) if missing else x


def aligned(*arrays: Any) -> tuple[Any, ...]:
    """All with as many axes, which JAX can be told to require; Python's numbers stay."""
    axes = max(jnp.ndim(x) for x in arrays)
    return tuple(x if isinstance(x, (int, float)) else with_lead(x, 0, axes) for x in arrays)


def summed(x: Any, shape: Shape, dtype: Any) -> Any:
    """A gradient in its operand's shape: summed over what was broadcast, then rounded."""
    for axis in repeats(x.shape, shape):
        x = total(x, axis)
    if x.shape != shape:
        x = x.reshape(shape)
    return x if x.dtype == dtype else x.astype(dtype)


def total(x: Any, axis: int) -> Any:
    """The sum along an axis, which stays: in pairs, with ``log2(count)`` roundings at most."""
    n = x.shape[axis]
    if not isinstance(n, int) or n == 0:  # a symbol, as in exports
        return x.sum(axis, keepdims=True)
    while n > 1:
        half = (n + 1) // 2
        first, rest = (jax.lax.slice_in_dim(x, *ends, axis=axis) for ends in ((0, half), (half, n)))
        if n % 2:
            middle = jax.lax.slice_in_dim(first, half - 1, half, axis=axis)
            first = jax.lax.slice_in_dim(first, 0, half - 1, axis=axis)
            x = jnp.concatenate([first + rest, middle], axis)
        else:
            x = first + rest
        n = half
    return x
