"""Every shape and dtype message of the package.

A check returns what the gufunc is to be called with, or raises a `ValueError` or
`TypeError` that names the function, the argument, what it was and what was expected.
Nothing has been written by then.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._dtypes import FAST
from ._dtypes import result_dtype as result_dtype
from ._dtypes import state_dtype as state_dtype
from ._linattn import overlaps_itself

if TYPE_CHECKING:
    from ._gufuncs import Key
    from ._types import Array, DType, Shape

_LARGEST = float(np.finfo(np.float32).max)


def operand(function: str, name: str, x: Any, axes: int = 2) -> Any:
    """``x`` as an array of real numbers with at least so many axes."""
    if type(x) is not np.ndarray:
        refuse_masked(function, name, x)
        _refuse_graph(function, name, x)
        if isinstance(x, np.ndarray) or not _takes_gufuncs(x):
            x = _as_array(function, name, x)  # subclasses, lists, tensors; dask and its like stay
    dtype = x.dtype
    if dtype not in FAST and not (
        (dtype.kind in "biuf" and dtype.itemsize <= 8) or dtype.name == "bfloat16"
    ):
        raise TypeError(
            f"{function}: {name} has dtype {dtype}; expected float16, bfloat16, float32, "
            "float64, or a real dtype that casts to them"
        )
    if x.ndim < axes:
        raise ValueError(
            f"{function}: {name} has shape {x.shape}; expected at least {axes} "
            f"{'axis, (..., d)' if axes == 1 else 'axes, (..., n, d)'}"
        )
    return x


def shape_alone(x: Any, dtype: Any = np.float32) -> Any:
    """An array of the shape of x, of no memory, for checks of what is no array; None for None."""
    return None if x is None else np.broadcast_to(np.zeros((), dtype), tuple(x.shape))


def refuse_masked(function: str, name: str, x: Any) -> None:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{function}: {name} is a masked array, whose mask would be ignored; "
            "expected a plain array (fill it first, or use key_lengths)"
        )


def _refuse_graph(function: str, name: str, x: Any) -> None:
    if getattr(x, "requires_grad", False):
        raise TypeError(
            f"{function}: {name} requires grad, which an array cannot; use "
            f"linattn.torch.{function.removesuffix('_backward')}, or {name}.detach()"
        )


def _as_array(function: str, name: str, x: Any) -> Any:
    try:
        return np.asarray(x)
    except ValueError as error:  # rows of other lengths
        raise ValueError(f"{function}: {name} is no array ({error})") from None
    except (TypeError, RuntimeError) as error:  # a tensor of bfloat16, or on another device
        way = "linattn.torch" if type(x).__module__.startswith("torch") else "an array of it"
        kind = type(x).__name__
        raise TypeError(
            f"{function}: {name} is a {kind} that NumPy cannot read ({error}); use {way}"
        ) from None


def _takes_gufuncs(x: Any) -> bool:
    """Whether x is an array of a library that takes over NumPy's calls.

    Tables (pandas, xarray) take ufuncs over as well, but know no gufunc.
    """
    return (
        hasattr(x, "__array_ufunc__")
        and hasattr(x, "__array_function__")
        and isinstance(getattr(x, "dtype", None), np.dtype)
    )


def inputs(
    function: str, name: str, x: Any, lead: Shape, core: tuple[int, ...], dtype: np.dtype
) -> None:
    """The state of a convolution: an array (..., *core) whose other axes broadcast to ``lead``."""
    if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{function}: {name} is a {type(x).__name__}; expected a NumPy array")
    if x.dtype != dtype:
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected {dtype}")
    inner = x.ndim - len(core)
    if inner < 0 or x.shape[inner:] != core or not _broadcasts_to(x.shape[:inner], lead):
        raise ValueError(f"{function}: {name} has shape {x.shape}; expected {(*lead, *core)}")


def broadcast(function: str, name: str, x: Any, shape: Shape) -> Any:
    """``x``, which must broadcast to the shape of the result."""
    if not _broadcasts_to(x.shape, shape):
        raise ValueError(f"{function}: {name} has shape {x.shape}; expected {shape}, as the result")
    return x


def in_place(function: str, state: tuple[Any, ...], batch: Shape, axes: int = 2) -> None:
    """A state that can be written to: nothing of it broadcast or read-only.

    The last ``axes`` of s are its own.
    """
    cores = axes, axes - 1, axes - 1
    for field, array, core in zip(("s", "z", "log_scale"), state, cores, strict=True):
        if array is not None:
            updated(function, f"state.{field}", array, batch, core)


def updated(function: str, name: str, array: np.ndarray, batch: Shape, core: int) -> None:
    """An array that can be updated, with all the leading axes."""
    lead = array.shape[: array.ndim - core]
    if lead != batch:
        raise ValueError(
            f"{function}: {name} has shape {array.shape}; expected leading axes "
            f"{batch} to be updated in place"
        )
    _written(function, name, array)


def _written(function: str, name: str, array: np.ndarray) -> None:
    """An array to write into: writeable, each element in a place of its own."""
    if not array.flags.writeable:
        raise ValueError(f"{function}: {name} is read-only; expected a writeable array")
    if not array.flags.c_contiguous and overlaps_itself(array):
        raise ValueError(
            f"{function}: {name} repeats its memory (shape {array.shape}, strides "
            f"{array.strides}); expected elements that do not overlap"
        )


def cotangent(function: str, g: Any, expected: Shape) -> Any:
    """``grad_out``, which must broadcast to the shape of the output."""
    g = operand(function, "grad_out", g)
    if g.shape != expected:
        if g.shape[-2:] == expected[-2:] and _broadcasts_to(g.shape, expected):
            return g
        raise ValueError(
            f"{function}: grad_out has shape {g.shape}; expected {expected}, as the output"
        )
    return g


def positive(function: str, name: str, x: Any) -> int:
    """``x`` as an integer of at least 1."""
    try:
        value = operator.index(x)
    except TypeError:
        raise TypeError(f"{function}: {name} is {x!r}; expected an integer") from None
    if value < 1:
        raise ValueError(f"{function}: {name} is {value}; expected at least 1")
    return value


def flag(function: str, name: str, x: Any) -> bool:
    """``x`` as a bool, which it has to be already."""
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{function}: {name} is {x!r}; expected True or False")
    return bool(x)


def real(function: str, name: str, x: Any) -> float:
    """``x`` as a float, which may be infinite or NaN."""
    try:
        if not isinstance(x, (int, float)) and (
            isinstance(x, (str, bytes, bytearray)) or np.asarray(x).dtype.kind in "cSUMm"
        ):
            raise TypeError
        return float(x)
    except (TypeError, ValueError):
        raise TypeError(f"{function}: {name} is {x!r}; expected a real number") from None
    except OverflowError:  # its digits may be too many to show
        raise ValueError(
            f"{function}: {name} is too large for a float; expected a finite number"
        ) from None


def number(function: str, name: str, x: Any, *operands: Any) -> float:
    """``x`` as a float, finite in what the operands, if any, are computed in."""
    if type(x) is not float:
        x = real(function, name, x)
    if not math.isfinite(x):
        raise ValueError(f"{function}: {name} is {x}; expected a finite number")
    if abs(x) > _LARGEST and operands:
        dtype = state_dtype(*operands)
        if dtype == np.float32:
            raise ValueError(
                f"{function}: {name} is {x}; expected a number that is finite in {dtype}, in "
                "which the operands are computed"
            )
    return x


def numbers(
    function: str, operands: tuple[Any, ...], scale: Any, eps: Any, normalize: bool
) -> tuple[Any, ...]:
    """``scale`` and, for a normaliser, ``eps``."""
    plain = not any([type(x) is not np.ndarray for x in operands])
    if plain and is_plain_number(scale) and is_plain_number(eps):
        return (scale, eps) if normalize else (scale,)
    scale = number(function, "scale", scale, *operands)
    eps = number(function, "eps", eps, *operands)
    return _weak_numbers((scale, eps) if normalize else (scale,), operands)


def flags(
    function: str, names: Sequence[str], values: Mapping[str, Any], operands: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Options that are True or False, as the numbers 1 and 0 that kernels take."""
    checked = tuple(float(flag(function, name, values[name])) for name in names)
    return _weak_numbers(checked, operands)


def _weak_numbers(values: tuple[float, ...], operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers that change the dtype of no call."""
    if all([type(x) is np.ndarray for x in operands]):
        return values
    # Array libraries make float64 arrays of Python floats, and all would follow.
    cast = state_dtype(*operands).type
    with np.errstate(all="ignore"):
        return tuple(cast(x) for x in values)


def is_plain_number(x: Any) -> bool:
    """Whether x is a float that is finite in any dtype."""
    return type(x) is float and -_LARGEST <= x <= _LARGEST


def lookup(
    function: str, table: Mapping[Key, Any], variant: str, feature_map: Any, normalize: Any
) -> Key:
    """The key of a map in a table by (variant, map, normalize)."""
    try:
        known = (variant, feature_map, normalize) in table
    except TypeError:
        known = False
    if known:
        return variant, feature_map, bool(normalize)
    if not isinstance(feature_map, str) or all(feature_map != name for _, name, _ in table):
        raise unknown_map(function, feature_map)
    return variant, feature_map, flag(function, "normalize", normalize)


def unknown_map(function: str, feature_map: Any, more: str = "") -> Exception:
    """The error for what is no feature map, where one may be more than a name or an object."""
    from .feature_maps import NAMES  # which checks its parameters here

    error = ValueError if isinstance(feature_map, str) else TypeError
    return error(
        f"{function}: feature_map is {feature_map!r}; expected one of {', '.join(NAMES)}, or an "
        f"object of linattn.feature_maps{more}"
    )


def out(function: str, x: Any, expected: Shape, *operands: Any, name: str = "out") -> Any:
    """An array to write into: of the right shape and dtype, and writeable."""
    if type(x) is np.ma.MaskedArray or not isinstance(x, np.ndarray):
        raise TypeError(f"{function}: {name} is a {type(x).__name__}; expected a NumPy array")
    dtype = result_dtype(*operands)
    if x.dtype != dtype:
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected {dtype}")
    if x.shape != expected:
        raise ValueError(f"{function}: {name} has shape {x.shape}; expected {expected}")
    _written(function, name, x)
    return x


def integers(function: str, name: str, x: Any) -> Array:
    """``x`` as an array of integers, which it has to be already."""
    refuse_masked(function, name, x)
    x = np.asarray(x)
    if x.dtype.kind not in "iu":
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected integers")
    if x.dtype.itemsize == 8 and x.dtype.kind == "u":  # too large ones would be negative
        x = np.minimum(x, np.iinfo(np.intp).max)
    return x.astype(np.intp, copy=False)


def key_lengths(function: str, x: Any, limit: int, batch: Shape) -> Array:
    """``key_lengths``: integers from 0 to the number of keys, broadcasting to the batch."""
    x = integers(function, "key_lengths", x)
    if not _broadcasts_to(x.shape, batch):
        raise ValueError(
            f"{function}: key_lengths has shape {x.shape}; expected one that broadcasts to "
            f"the leading axes {batch}"
        )
    if x.size and np.maximum.reduce(x.view(np.uintp), None) > limit:  # negative: large there
        raise ValueError(
            f"{function}: key_lengths has values from {x.min()} to {x.max()}; "
            f"expected 0 to {limit}, the number of keys"
        )
    return x


def cu_seqlens(function: str, x: Any, n: int) -> Array:
    """``cu_seqlens``: (r + 1,) integers from 0 to n that never decrease."""
    x = integers(function, "cu_seqlens", x)
    if x.ndim != 1 or len(x) < 1:
        raise ValueError(f"{function}: cu_seqlens has shape {x.shape}; expected (r + 1,)")
    if x[0] != 0:
        raise ValueError(f"{function}: cu_seqlens begins with {x[0]}; expected 0")
    if x[-1] != n:
        raise ValueError(f"{function}: cu_seqlens ends with {x[-1]}; expected n = {n}")
    if (x[1:] < x[:-1]).any():
        i = int(np.argmax(x[1:] < x[:-1]))
        raise ValueError(
            f"{function}: cu_seqlens decreases from {x[i]} to {x[i + 1]} at position {i + 1}; "
            "expected no decrease"
        )
    return x


def state(
    function: str,
    name: str,
    x: Any,
    lead: Shape,
    core: Shape,
    dtype: DType,
    normalize: bool,
    *,
    scaled: bool = False,
    any_scale: bool = False,
) -> tuple[Array, Array | None, Array | None]:
    """s (..., *core), z and log_scale (..., *core[:-1]), leading axes broadcasting to ``lead``.

    Only where ``scaled`` may there be a log_scale, of numbers below inf unless ``any_scale``.
    """
    try:
        if isinstance(x, np.ndarray):
            raise TypeError
        s, z, *rest = x
        (log_scale,) = rest or (None,)
    except (TypeError, ValueError):
        raise TypeError(
            f"{function}: {name} is a {type(x).__name__}; expected a linattn.State(s, z)"
        ) from None
    if log_scale is not None and not scaled:
        raise ValueError(f"{function}: {name}.log_scale is given; expected None for this map")
    if normalize and z is None:
        raise ValueError(f"{function}: {name}.z is None; expected an array, as normalize is True")
    if not normalize and z is not None:
        raise ValueError(f"{function}: {name}.z is given; expected None, as normalize is False")
    for field, array, shape in (
        ("s", s, core),
        ("z", z, core[:-1]),
        ("log_scale", log_scale, core[:-1]),
    ):
        if array is None and field != "s":
            continue
        if type(array) is np.ndarray and array.dtype == dtype and array.shape == (*lead, *shape):
            continue
        if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                f"{function}: {name}.{field} is a {type(array).__name__}; expected a NumPy array"
            )
        if array.dtype != dtype:
            raise TypeError(f"{function}: {name}.{field} has dtype {array.dtype}; expected {dtype}")
        inner = len(shape)
        if array.shape[array.ndim - inner :] != shape or not _broadcasts_to(
            array.shape[: array.ndim - inner], lead
        ):
            raise ValueError(
                f"{function}: {name}.{field} has shape {array.shape}; expected {(*lead, *shape)}"
            )
    if log_scale is not None and not any_scale and not (log_scale < np.inf).all():
        raise ValueError(
            f"{function}: {name}.log_scale holds NaN or inf; expected finite numbers, or -inf "
            "where there was no key"
        )
    return s, z, log_scale


def _broadcasts_to(shape: Shape, target: Shape) -> bool:
    if shape == target:
        return True
    extra = len(target) - len(shape)
    return extra >= 0 and all(a in (1, b) for a, b in zip(shape, target[extra:], strict=True))
