"""Every shape and dtype message of the package.

A check returns what the gufunc is to be called with, or raises a `ValueError` or
`TypeError` that names the function, the argument, what it was and what was expected.
Nothing has been written by then.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_FAST = (np.dtype(np.float32), np.dtype(np.float64))


def operand(function: str, name: str, x: Any) -> Any:
    """``x`` as an array of real numbers with at least two axes."""
    if type(x) is not np.ndarray:
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(
                f"{function}: {name} is a masked array, whose mask would be ignored; "
                "expected a plain array (fill it first, or use key_lengths)"
            )
        if isinstance(x, np.ndarray) or not hasattr(x, "__array_ufunc__"):
            x = np.asarray(x)  # subclasses, lists, tensors; dask and its like stay
    if x.dtype not in _FAST and not (x.dtype.kind in "biuf" and x.dtype.itemsize <= 8):
        raise TypeError(
            f"{function}: {name} has dtype {x.dtype}; expected float32, float64, "
            "or a real dtype that casts to them"
        )
    if x.ndim < 2:
        raise ValueError(
            f"{function}: {name} has shape {x.shape}; expected at least two axes, (..., n, d)"
        )
    return x


def qkv(function: str, q: Any, k: Any, v: Any, *, same_length: bool) -> tuple[Any, Any, Any, tuple]:
    """The three operands, and the shape of the output they give."""
    q, k, v = operand(function, "q", q), operand(function, "k", k), operand(function, "v", v)
    n, d = q.shape[-2:]
    s = k.shape[-2]
    if k.shape[-1] != d:
        raise ValueError(
            f"{function}: k has shape {k.shape}; expected (..., {s}, {d}), "
            f"as q has shape {q.shape}"
        )
    if same_length and s != n:
        raise ValueError(
            f"{function}: k has shape {k.shape}; expected (..., {n}, {d}), "
            f"as many rows as q of shape {q.shape}"
        )
    if v.shape[-2] != s:
        raise ValueError(
            f"{function}: v has shape {v.shape}; expected (..., {s}, {v.shape[-1]}), "
            f"as many rows as k of shape {k.shape}"
        )
    batch = q.shape[:-2]
    if k.shape[:-2] != batch or v.shape[:-2] != batch:
        try:
            batch = np.broadcast_shapes(batch, k.shape[:-2], v.shape[:-2])
        except ValueError:
            raise ValueError(
                f"{function}: the leading axes of q {q.shape}, k {k.shape} and v {v.shape} "
                "do not broadcast; expected equal lengths, or 1, axis by axis"
            ) from None
    return q, k, v, (*batch, n, v.shape[-1])


def cotangent(function: str, g: Any, expected: tuple) -> Any:
    """``grad_out``, which must broadcast to the shape of the output."""
    g = operand(function, "grad_out", g)
    if g.shape != expected:
        if g.shape[-2:] == expected[-2:] and g.ndim <= len(expected):
            extra = len(expected) - g.ndim
            if all(a in (1, b) for a, b in zip(g.shape, expected[extra:], strict=True)):
                return g
        raise ValueError(
            f"{function}: grad_out has shape {g.shape}; expected {expected}, the shape of the output"
        )
    return g


def number(function: str, name: str, x: Any) -> float:
    """``x`` as a finite float."""
    if type(x) is not float:
        if isinstance(x, (str, bytes)) or isinstance(x, complex):
            raise TypeError(f"{function}: {name} is {x!r}; expected a real number")
        try:
            value = float(x)
        except (TypeError, ValueError):
            raise TypeError(f"{function}: {name} is {x!r}; expected a real number") from None
        x = value
    if not math.isfinite(x):
        raise ValueError(f"{function}: {name} is {x}; expected a finite number")
    return x


def lookup(function: str, table: dict, feature_map: Any, normalize: Any) -> np.ufunc:
    """The gufunc of a map, from a table by (map, normalize)."""
    try:
        return table[feature_map, normalize]
    except (KeyError, TypeError):
        pass
    known = sorted({name for name, _ in table})
    if not isinstance(feature_map, str):
        raise TypeError(
            f"{function}: feature_map is {feature_map!r}; expected one of {', '.join(known)}"
        )
    if feature_map not in known:
        raise ValueError(
            f"{function}: feature_map is {feature_map!r}; expected one of {', '.join(known)}"
        )
    if not isinstance(normalize, (bool, np.bool_)):
        raise TypeError(f"{function}: normalize is {normalize!r}; expected True or False")
    return table[feature_map, bool(normalize)]


def out(function: str, x: Any, expected: tuple, *operands: Any, name: str = "out") -> Any:
    """An array to write into: of the right shape and dtype, and writeable."""
    if type(x) is np.ma.MaskedArray or not isinstance(x, np.ndarray):
        raise TypeError(f"{function}: {name} is a {type(x).__name__}; expected a NumPy array")
    dtype = result_dtype(*operands)
    if x.dtype != dtype:
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected {dtype}")
    if x.shape != expected:
        raise ValueError(f"{function}: {name} has shape {x.shape}; expected {expected}")
    if not x.flags.writeable:
        raise ValueError(f"{function}: {name} is read-only; expected a writeable array")
    return x


def result_dtype(*operands: Any) -> np.dtype:
    """float32 where every operand casts to it safely, else float64."""
    single = all(np.can_cast(x.dtype, np.float32) for x in operands)
    return np.dtype(np.float32 if single else np.float64)
