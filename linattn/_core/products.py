"""Matrix products that a KeyboardInterrupt can stop: NumPy runs a single call to its end."""

from __future__ import annotations

from typing import Any

import numpy as np

from .gufuncs import ufuncs

PART = 2**26  #: multiply-adds per call of NumPy's product: tens of milliseconds on a slow core


def product(x: Any, y: Any) -> np.ndarray:
    """``x @ y`` in parts.  How a head is split depends only on its own size.

    Both operands are brought into one layout, on which the last bits of NumPy's product depend.
    """
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    out = np.empty((*batch, x.shape[-2], y.shape[-1]), np.result_type(x, y))
    y = np.ascontiguousarray(y)
    x, y = (np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (x, y))
    _multiply(x, y, out)
    return out


def transposed_product(x: Any, y: Any) -> np.ndarray:
    """``x.mT @ y``, a sum over tokens, computed by a kernel."""
    return ufuncs["state_identity_sum"](x, y)


def _multiply(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    long = [axis for axis, length in enumerate(out.shape[:-1]) if length > 1]
    if out.size * x.shape[-1] <= PART or not long:
        np.matmul(np.ascontiguousarray(x), y, out=out)
        return
    axis, rows = long[0], out.ndim - 2  # heads first, and rows of one head only
    half = out.shape[axis] // 2
    for part in (slice(half), slice(half, None)):
        at = (*(slice(None),) * axis, part)
        _multiply(x[at], y if axis == rows else y[at], out[at])
