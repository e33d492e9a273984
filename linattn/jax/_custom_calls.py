"""Operators, and feature maps that are objects, as custom calls of XLA.

If XLA does not accept the handler, they are callbacks.  These are slower, and can deadlock on
several devices, where they are refused.
"""

from __future__ import annotations

import atexit
import secrets
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import jax
import numpy as np

from .._core.dtypes import real_dtype, work_dtype
from .._core.gufuncs import internal_ufuncs, run, ufuncs
from .._linattn import xla_finish, xla_handler
from ..feature_maps import FeatureMap
from ._platform import on_cpu

#: Methods of maps, by the number that XLA knows them by.  Exported programs keep these numbers, so
#: no two processes use the same ones.
_FUNCTIONS: dict[int, Callable[..., Any]] = {}


def _called(
    number: int, arguments: tuple[memoryview, ...], results: tuple[memoryview, ...]
) -> str | None:
    """Runs a function of `_FUNCTIONS` for the handler; returns None or an error message."""
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
    except BaseException as error:  # XLA raises it where the result is awaited
        return f"linattn: {type(error).__name__}: {error}"
    return None


def _register() -> bool:
    """Whether XLA accepts the handler."""
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


#: Whether calls go to C without Python: False if JAX refused the handler.
IN_C = _register()


def call(
    name: str, arrays: Sequence[Any], numbers: Sequence[float], at: int, outputs: Sequence[Any]
) -> Any:
    """Calls the gufunc of that name; arrays have all leading axes, some of length 1.

    Its numbers go before the array ``at``; ``outputs`` are shapes with dtypes.
    """

    def host(*given: Any) -> Any:
        scalars = [real_dtype(work_dtype(given[0].dtype)).type(x) for x in numbers]
        gufunc = ufuncs[name] if name in ufuncs else internal_ufuncs[name]
        arrays = *given[:at], *scalars, *map(_wide, given[at:])
        found = run(gufunc, arrays, dtype=given[0].dtype)
        return tuple(np.asarray(x, like.dtype) for x, like in zip(found, outputs, strict=True))

    return _custom_call(
        tuple(outputs), arrays, "expand_dims", host,
        operator=name, numbers=np.asarray(numbers, np.float64),
    )  # fmt: skip


def _wide(x: Any) -> Any:
    """Indices of 32 bits as the handler reads them (src/ext/xla.c): the least stays the least."""
    least = np.intp(np.iinfo(np.intp).min)
    return np.where(x == np.iinfo(np.int32).min, least, x) if x.dtype == np.int32 else x


def call_method(
    phi: FeatureMap, method: str, output: Any, arrays: Sequence[Any], vmap_method: str
) -> Any:
    """A method of a map on arrays of float32 or float64."""
    function = getattr(phi, method)
    return _custom_call(
        output, arrays, vmap_method, lambda *x: np.asarray(function(*x), output.dtype),
        function=np.int64(_number(phi, method)),
    )  # fmt: skip


def _custom_call(
    outputs: Any, arrays: Sequence[Any], vmap_method: str, host: Callable[..., Any],
    **attributes: Any,
) -> Any:  # fmt: skip
    """Calls the handler with these attributes or, if XLA did not accept it, ``host``."""
    if IN_C:
        target = jax.ffi.ffi_call("linattn", outputs, vmap_method=vmap_method)
        return target(on_cpu(arrays[0]), *arrays[1:], **attributes)
    devices = jax.local_device_count(backend="cpu")
    if devices > 1:
        raise RuntimeError(
            f"linattn.jax: this JAX takes no C functions of linattn, and has {devices} devices on "
            "CPUs, on which its callbacks may wait for one another for ever; expected one device, "
            "or another version of JAX or linattn"
        )
    return jax.pure_callback(
        lambda *x: host(*map(np.asarray, x)), outputs, *arrays, vmap_method=vmap_method
    )


@cache
def _number(phi: FeatureMap, method: str) -> int:
    if not _FUNCTIONS:
        atexit.register(_finish)
    number = secrets.randbits(63)
    _FUNCTIONS[number] = getattr(phi, method)
    return number


def _finish() -> None:
    """Waits for XLA's threads to leave Python before the interpreter ends."""
    with suppress(Exception):  # already raised where the result was awaited
        jax.block_until_ready(jax.live_arrays())
    while xla_finish():
        time.sleep(0.001)
