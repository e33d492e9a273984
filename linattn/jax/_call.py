"""Operators, and feature maps that are objects, as custom calls of XLA.

Where XLA does not take the handler they are callbacks, which are slower, and may wait for one
another for ever where there are several devices: there they are refused.
"""

from __future__ import annotations

import atexit
import secrets
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._gufuncs import internal_ufuncs, run, ufuncs
from .._linattn import xla_finish, xla_handler
from ..feature_maps import FeatureMap

#: Methods of maps by what XLA calls them: numbers that no other process has, as a program that is
#: exported keeps them.
_FUNCTIONS: dict[int, Callable[..., Any]] = {}


def _called(
    number: int, arguments: tuple[memoryview, ...], results: tuple[memoryview, ...]
) -> str | None:
    """Runs a function of `_FUNCTIONS` for the handler; None, or what is wrong."""
    function = _FUNCTIONS.get(number)
    if function is None:
        return "linattn: the feature map is an object of the process that exported this"
    try:
        (result,) = map(np.asarray, results)
        found = np.asarray(function(*map(np.asarray, arguments)))
        if np.iscomplexobj(found):
            raise TypeError(f"{function} returned {found.dtype}; expected real numbers")
        if found.shape != result.shape:
            raise ValueError(f"{function} returned {found.shape}; expected {result.shape}")
        result[...] = found
    except BaseException as error:  # XLA raises it again where the result is waited for
        return f"linattn: {type(error).__name__}: {error}"
    return None


def _register() -> bool:
    """Whether XLA takes the handler."""
    try:
        jax.ffi.register_ffi_target("linattn", xla_handler(_called), platform="cpu")
    except Exception as error:
        warnings.warn(
            f"linattn.jax: this JAX takes no C functions of linattn ({error}); calls go through "
            "jax.pure_callback, which is slower and for one device alone",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
        return False
    return True


#: Whether calls go to C without Python, as they do unless JAX refuses the handler.
IN_C = _register()


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

    def host(*given: Any) -> Any:
        scalars = [work_dtype(given[0].dtype).type(x) for x in numbers]
        gufunc = ufuncs[name] if name in ufuncs else internal_ufuncs[name]
        found = run(gufunc, (*given[:at], *scalars, *given[at:]), dtype=given[0].dtype)
        return tuple(np.asarray(x, like.dtype) for x, like in zip(found, outputs, strict=True))

    return _call_back(host, tuple(outputs), arrays, "expand_dims")


def call_method(
    phi: FeatureMap, method: str, output: Any, arrays: Sequence[Any], vmap_method: str
) -> Any:
    """A method of a map on arrays of float32 or float64."""
    if IN_C:
        return jax.ffi.ffi_call("linattn", output, vmap_method=vmap_method)(
            *arrays, function=np.int64(_number(phi, method))
        )
    function = getattr(phi, method)
    return _call_back(
        lambda *x: np.asarray(function(*x), output.dtype), output, arrays, vmap_method
    )


@cache
def _number(phi: FeatureMap, method: str) -> int:
    if not _FUNCTIONS:
        atexit.register(_finish)
    number = secrets.randbits(63)
    _FUNCTIONS[number] = getattr(phi, method)
    return number


def _finish() -> None:
    """Waits for XLA's threads to leave Python, as they may not be there where it ends."""
    with suppress(Exception):  # who waited for the result has seen it
        jax.block_until_ready(jax.live_arrays())
    while xla_finish():
        time.sleep(0.001)


def _call_back(function: Any, outputs: Any, arrays: Sequence[Any], vmap_method: str) -> Any:
    devices = jax.local_device_count(backend="cpu")
    if devices > 1:
        raise RuntimeError(
            f"linattn.jax: this JAX takes no C functions of linattn, and has {devices} devices on "
            "CPUs, on which its callbacks may wait for one another for ever; expected one device, "
            "or another version of JAX or linattn"
        )
    return jax.pure_callback(
        lambda *x: function(*map(np.asarray, x)), outputs, *arrays, vmap_method=vmap_method
    )


def like(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def work_dtype(dtype: Any) -> Any:
    """What is computed in, and what states hold: float32 for 16-bit tokens."""
    dtype = jnp.dtype(dtype)
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def with_lead(x: Any, rank: int, lead: int) -> Any:
    """x with so many leading axes."""
    return x.reshape((1,) * (lead - (x.ndim - rank)) + x.shape)


def aligned(*arrays: Any) -> tuple[Any, ...]:
    """All with as many axes, which JAX may be told to ask for; Python's numbers stay."""
    axes = max(jnp.ndim(x) for x in arrays)
    return tuple(x if isinstance(x, (int, float)) else with_lead(x, 0, axes) for x in arrays)


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
