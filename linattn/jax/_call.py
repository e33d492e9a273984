"""Operators as custom calls of XLA, or, where this build has no handler for it, as callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._gradients import run
from .._gufuncs import row_ufuncs, ufuncs
from .._linattn import xla_handler

_HANDLER = xla_handler()
if _HANDLER is not None:
    jax.ffi.register_ffi_target("linattn", _HANDLER, platform="cpu")

#: Whether calls go to C without Python.
IN_C = _HANDLER is not None


def call(
    name: str, arrays: Sequence[Any], numbers: Sequence[float], at: int, outputs: Sequence[Any]
) -> Any:
    """The gufunc of that name on arrays that have all leading axes, of length 1 or more.

    Its numbers stand before the array ``at``; outputs are shapes with dtypes.
    """
    if IN_C:
        return jax.ffi.ffi_call("linattn", tuple(outputs), vmap_method="expand_dims")(
            *arrays, operator=name, numbers=np.asarray(numbers, np.float64)
        )

    def host(*operands: Any) -> Any:
        given = [np.asarray(x) for x in operands]
        scalars = [work_dtype(given[0].dtype).type(x) for x in numbers]
        gufunc = ufuncs[name] if name in ufuncs else row_ufuncs[name]
        found = run(gufunc, (*given[:at], *scalars, *given[at:]), given[0].dtype)
        return tuple(np.asarray(x, like.dtype) for x, like in zip(found, outputs, strict=True))

    return jax.pure_callback(host, tuple(outputs), *arrays, vmap_method="expand_dims")


def like(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def work_dtype(dtype: Any) -> Any:
    """What is computed in, and what states hold: float32 for 16-bit tokens."""
    dtype = jnp.dtype(dtype)
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def with_lead(x: Any, rank: int, lead: int) -> Any:
    """x with so many leading axes."""
    return x.reshape((1,) * (lead - (x.ndim - rank)) + x.shape)


def gradient(lead: Sequence[int], x: Any, given: Any) -> jax.ShapeDtypeStruct:
    """What a gufunc gives as the gradient of x, which is `given` with all leading axes.

    What is to be summed is not rounded to 16 bits before.
    """
    shape = (*lead, *x.shape[len(lead) :])
    return like(shape, x.dtype if shape == given.shape else work_dtype(x.dtype))


def summed(x: Any, shape: Sequence[int], dtype: Any) -> Any:
    """A gradient in its operand's shape: summed over what was broadcast, then rounded."""
    extra = x.ndim - len(shape)
    for i, size in enumerate(x.shape):
        if i < extra or (shape[i - extra] == 1 and size != 1):
            x = total(x, i)
    return x.reshape(shape).astype(dtype)


def total(x: Any, axis: int) -> Any:
    """The sum along an axis, which stays: in pairs, ``log2(count)`` roundings deep."""
    n = x.shape[axis]
    if not isinstance(n, int) or n == 0:  # a symbol, as exports have them
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


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def spread(x: Any, shape: Sequence[int]) -> Any:
    """x broadcast to that shape; its gradient is summed as `total` sums."""
    return jnp.broadcast_to(x, shape)


@spread.defjvp
def _spread_tangent(shape: Sequence[int], primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    t = with_lead(t, 0, len(shape))
    for axis, size in enumerate(shape):
        if t.shape[axis] != size:
            t = _copies(t, axis, size)
    return jnp.broadcast_to(x, shape), t


def _copies(x: Any, axis: int, n: int) -> Any:
    """n times x, of length 1 along the axis: `total` backwards, so that it is its transpose."""
    if not isinstance(n, int) or n < 2:
        return jnp.broadcast_to(x, (*x.shape[:axis], n, *x.shape[axis + 1 :]))
    half = (n + 1) // 2
    x = _copies(x, axis, half)
    return jnp.concatenate([x, jax.lax.slice_in_dim(x, 0, n - half, axis=axis)], axis)


def real(function: str, name: str, x: Any) -> Any:
    """x as an array; complex numbers, whose imaginary part a cast would drop, are refused."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected real numbers")
    return x


def promoted(name: str, operands: dict[str, Any], wide: Sequence[str] = ()) -> list[Any]:
    """The operands as arrays of one floating dtype, those that are wide in what is computed in."""
    arrays = {key: real(name, key, x) for key, x in operands.items() if x is not None}
    for key, x in arrays.items():
        if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1:
            raise TypeError(f"{name}: {key} has dtype {x.dtype}; expected 16 bits or more")
    weak = [key for key, x in operands.items() if isinstance(x, (int, float))]
    typed = [x for key, x in arrays.items() if key not in wide and key not in weak]
    dtype = jnp.result_type(*typed)
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    return [
        None if x is None
        else arrays[key].astype(work_dtype(dtype) if key in wide else dtype)
        for key, x in operands.items()
    ]  # fmt: skip
