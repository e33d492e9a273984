"""Checks of arguments.

A check returns what to pass on to the gufunc, or raises a `ValueError` or `TypeError` that names
the function, the argument, what it was and what was expected.  Nothing has been written by then.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._linattn import operators, overlaps_itself
from .dtypes import FAST, real_dtype, result_dtype, state_dtype

if TYPE_CHECKING:
    from .._types import Array, Shape

_LARGEST = float(np.finfo(np.float32).max)


def operand(
    function: str, name: str, x: Any, axes: int = 2, *, complex_too: bool = False
) -> Any:  # fmt: skip
    """``x`` as an array of real numbers, or complex ones, with at least ``axes`` axes."""
    if type(x) is not np.ndarray:
        if x is None:
            raise TypeError(f"{function}: {name} is None; expected an array")
        refuse_masked(function, name, x, lengths=has(function, "key_lengths"))
        _refuse_graph(function, name, x)
        if isinstance(x, np.ndarray) or not _takes_gufuncs(x):
            x = array(function, name, x)  # but not dask arrays and the like
    dtype = x.dtype
    if dtype not in FAST and not (
        (dtype.kind in "biuf" and dtype.itemsize <= 8)
        or (complex_too and dtype.kind == "c" and dtype.itemsize <= 16)
        or dtype.name == "bfloat16"
    ):
        more = "complex64, complex128, or a" if complex_too else "or a real"
        raise TypeError(
            f"{function}: {name} has dtype {dtype}; expected float16, bfloat16, float32, "
            f"float64, {more} dtype that casts to them"
        )
    if x.ndim < axes:
        raise ValueError(
            f"{function}: {name} has shape {x.shape}; expected at least {axes} "
            f"{'axis, (..., d)' if axes == 1 else 'axes, (..., n, d)'}"
        )
    return x


def shape_alone(x: Any, dtype: Any = np.float32) -> Any:
    """An array of x's shape that takes no memory, for checks of other libraries' arrays."""
    return None if x is None else np.broadcast_to(np.zeros((), dtype), tuple(x.shape))


def wrong_shape(function: str, name: str, x: Any, expected: object) -> ValueError:
    """The error for an array, or a tensor, of another shape than the one expected."""
    return ValueError(f"{function}: {name} has shape {tuple(x.shape)}; expected {expected}")


def refuse_masked(function: str, name: str, x: Any, *, lengths: bool = False) -> None:
    if isinstance(x, np.ma.MaskedArray):
        way = "fill it first, or use key_lengths" if lengths else "fill it first"
        raise TypeError(
            f"{function}: {name} is a masked array, whose mask would be ignored; "
            f"expected a plain array ({way})"
        )


def has(function: str, what: Literal["key_lengths", "normalizer"]) -> bool:
    """Whether an operator of that name has ``key_lengths``, or a ``normalizer``."""
    return function in operators and operators[function][what]


def _refuse_graph(function: str, name: str, x: Any) -> None:
    if getattr(x, "requires_grad", False):
        raise TypeError(
            f"{function}: {name} requires grad, which NumPy arrays do not support; use "
            f"linattn.torch.{function.removesuffix('_backward')}, or {name}.detach()"
        )


def array(function: str, name: str, x: Any) -> Any:
    """``x`` as an array of NumPy."""
    try:
        return np.asarray(x)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{function}: {name} is not an array ({error})") from None
    except (TypeError, RuntimeError) as error:  # a bfloat16 tensor, or one on another device
        way = "linattn.torch" if type(x).__module__.startswith("torch") else "an array of it"
        kind = type(x).__name__
        raise TypeError(
            f"{function}: {name} is a {kind} that NumPy cannot read ({error}); use {way}"
        ) from None


def plain_array(function: str, name: str, x: Any) -> None:
    """Raise an error unless x, which may be written to, is an array of NumPy without a mask."""
    if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{function}: {name} is a {type(x).__name__}; expected a NumPy array")


def _takes_gufuncs(x: Any) -> bool:
    """Whether x is an array of a library that overrides NumPy's functions.

    Tables (pandas, xarray) override ufuncs as well, but do not support gufuncs.
    """
    return (
        hasattr(x, "__array_ufunc__")
        and hasattr(x, "__array_function__")
        and isinstance(getattr(x, "dtype", None), np.dtype)
    )


def broadcast(function: str, name: str, x: Any, shape: Shape) -> Any:
    """``x``, which must broadcast to the shape of the result."""
    if not broadcasts_to(x.shape, shape):
        raise wrong_shape(function, name, x, f"{shape}, the result's")
    return x


def cotangent(
    function: str, g: Any, expected: Shape, *, core: int = 2, complex_too: bool = False
) -> Any:
    """``grad_out``, which must broadcast to the shape of the output, in all but its core axes."""
    g = operand(function, "grad_out", g, complex_too=complex_too)
    if g.shape != expected:
        if g.shape[-core:] == expected[-core:] and broadcasts_to(g.shape, expected):
            return g
        raise wrong_shape(function, "grad_out", g, f"{expected}, the output's")
    return g


def integer(function: str, name: str, x: Any) -> int:
    """``x`` as an integer of at least 1."""
    try:
        if isinstance(x, bool):
            raise TypeError
        value = operator.index(x)
    except TypeError:
        raise TypeError(f"{function}: {name} is {x!r}; expected an integer") from None
    if value < 1:
        raise ValueError(f"{function}: {name} is {value}; expected at least 1")
    return value


def flag(function: str, name: str, x: Any) -> bool:
    """``x``, which must be a bool."""
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{function}: {name} is {x!r}; expected True or False")
    return bool(x)


def choice(function: str, name: str, x: Any, known: Iterable[str]) -> str:
    """``x``, which must be one of these names."""
    known = tuple(known)
    if not isinstance(x, str) or x not in known:
        error = ValueError if isinstance(x, str) else TypeError
        raise error(f"{function}: {name} is {x!r}; expected one of {', '.join(known)}")
    return x


def no_string(function: str, return_state: Any, where: str = "") -> None:
    """Refuse a string for ``return_state``, which is True or False here."""
    if type(return_state) is str:
        raise ValueError(
            f"{function}: return_state is {return_state!r}; expected True or False{where}"
        )


def real(function: str, name: str, x: Any) -> float:
    """``x`` as a float, possibly infinite or NaN."""
    try:
        if not isinstance(x, (int, float)) and (
            isinstance(x, (str, bytes, bytearray)) or np.asarray(x).dtype.kind in "cSUMm"
        ):
            raise TypeError
        return float(x)
    except (TypeError, ValueError, RuntimeError):  # the last by a tensor that has a gradient
        raise TypeError(f"{function}: {name} is {x!r}; expected a real number") from None
    except OverflowError:  # it may have too many digits to print
        raise ValueError(
            f"{function}: {name} is too large for a float; expected a finite number"
        ) from None


def number(function: str, name: str, x: Any, *operands: Any) -> float:
    """``x`` as a float, finite in the dtype of the computation if operands are given."""
    if type(x) is not float:
        x = real(function, name, x)
    if not math.isfinite(x):
        raise ValueError(f"{function}: {name} is {x}; expected a finite number")
    if abs(x) > _LARGEST and operands:
        dtype = state_dtype(*operands)
        if dtype == np.float32:
            raise ValueError(
                f"{function}: {name} is {x}; expected a number that is finite in {dtype}, the "
                "dtype of the computation"
            )
    return x


def positive(function: str, name: str, x: Any, *operands: Any, zero: bool = False) -> float:
    """``x`` as a finite number above 0, or at least 0 if ``zero``."""
    x = number(function, name, x, *operands)
    if x < 0 or (x == 0 and not zero):
        raise ValueError(
            f"{function}: {name} is {x}; expected a {'number >= 0' if zero else 'positive number'}"
        )
    return x


def numbers(
    function: str, operands: tuple[Any, ...], scale: Any, eps: Any, normalize: bool
) -> tuple[Any, ...]:
    """``scale`` and, with a normaliser, ``eps``."""
    plain = not any([type(x) is not np.ndarray for x in operands])
    if plain and is_plain_number(scale) and is_plain_number(eps) and eps >= 0:
        return (scale, eps) if normalize else (scale,)
    scale = number(function, "scale", scale, *operands)
    eps = positive(function, "eps", eps, *operands, zero=True)
    return _weak_numbers((scale, eps) if normalize else (scale,), operands)


def flags(
    function: str, names: Sequence[str], values: Mapping[str, Any], operands: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Options that are True or False, or activations, as the numbers 1 and 0 of kernels."""
    checked = tuple([switch(function, name, values[name]) for name in names])
    return _weak_numbers(checked, operands)


def switch(function: str, name: str, x: Any) -> float:
    """An option that is True or False, or an activation, as kernels take it."""
    return silu(function, x) if name == "activation" else float(flag(function, name, x))


def plain_switch(name: str, x: Any) -> float | None:
    """The same of Python's own values; None for others."""
    if name == "activation":
        return 0.0 if x is None else 1.0 if type(x) is str and x == "silu" else None
    return float(x) if type(x) is bool else None


def silu(function: str, x: Any) -> float:
    """``activation`` as the kernels take it: 1.0 for silu, 0.0 for none."""
    if x is None or (isinstance(x, str) and x == "silu"):
        return float(x is not None)
    error = ValueError if isinstance(x, str) else TypeError
    raise error(f"{function}: activation is {x!r}; expected None or 'silu'")


def _weak_numbers(values: tuple[float, ...], operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers that change the dtype of no call."""
    if all([type(x) is np.ndarray for x in operands]):
        return values
    # Array libraries make float64 arrays of Python floats, and all would follow.
    cast = real_dtype(state_dtype(*operands)).type
    with np.errstate(all="ignore"):
        return tuple(cast(x) for x in values)


def is_plain_number(x: Any) -> bool:
    """Whether x is a float that is finite in every dtype."""
    return type(x) is float and -_LARGEST <= x <= _LARGEST


def out(function: str, x: Any, expected: Shape, *operands: Any) -> Any:
    """Check an array to write into: it must have the right shape and dtype and be writeable."""
    plain_array(function, "out", x)
    dtype = result_dtype(*operands)
    if x.dtype != dtype:
        raise TypeError(f"{function}: out has dtype {x.dtype}; expected {dtype}")
    if x.shape != expected:
        raise wrong_shape(function, "out", x, expected)
    writeable(function, "out", x)
    return x


def integers(function: str, name: str, x: Any) -> Array:
    """``x``, which must hold integers, as an array of intp."""
    refuse_masked(function, name, x)
    given, x = x, array(function, name, x)
    if x.dtype.kind not in "iu":
        if not holds_only(given, int):
            raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected integers")
        limits = np.iinfo(np.intp)
        return np.asarray(np.clip(np.asarray(given, object), limits.min, limits.max), np.intp)
    if x.dtype.itemsize == 8 and x.dtype.kind == "u":  # large ones would become negative
        x = np.minimum(x, np.iinfo(np.intp).max)
    return x.astype(np.intp, copy=False)


def in_range(function: str, name: str, x: Array, most: int, why: str) -> None:
    """Check an array of intp: its numbers must be from 0 to ``most``, which is ``why``."""
    if x.size and np.maximum.reduce(x.view(np.uintp), None) > most:  # or negative
        expected = f"0 to {most}" if most >= 0 else "none"
        raise ValueError(
            f"{function}: {name} has values from {x.min()} to {x.max()}; expected {expected}, {why}"
        )


def holds_only(x: Any, kind: type) -> bool:
    """Whether x is of that type of Python's, or lists that hold nothing else.

    NumPy makes floats of empty lists, and floats or objects of large integers.
    """
    return isinstance(x, (kind, list, tuple)) and all(
        type(y) is kind for y in np.asarray(x, object).flat
    )


def writeable(function: str, name: str, array: np.ndarray) -> None:
    """Check an array to write into: it must be writeable, without overlapping elements."""
    if not array.flags.writeable:
        raise ValueError(f"{function}: {name} is read-only; expected a writeable array")
    if not array.flags.c_contiguous and overlaps_itself(array):
        raise ValueError(
            f"{function}: {name} repeats its memory (shape {array.shape}, strides "
            f"{array.strides}); expected elements that do not overlap"
        )


def broadcasts_to(shape: Shape, target: Shape) -> bool:
    """Whether an array of ``shape`` broadcasts to ``target`` exactly."""
    if shape == target:
        return True
    extra = len(target) - len(shape)
    return extra >= 0 and all(a in (1, b) for a, b in zip(shape, target[extra:], strict=True))
