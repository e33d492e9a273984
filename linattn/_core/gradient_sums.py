"""Sums of gradients over broadcast axes, and zeros for keys that do not exist.

The gradient of an operand that heads share is the sum of the heads' gradients.  These are float32
for 16-bit operands.  They are summed pairwise in float64, and the sum is rounded once; to 16 bits
it goes by way of float32, so that it is the rounded gradient of the same operands in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .gufuncs import quiet

if TYPE_CHECKING:
    from .._types import Array, DType, Shape


BLOCK = 2**16  #: numbers summed at a time, so that they and their sums fit a cache


def sum_all(
    grads: Sequence[Any], operands: Sequence[Any], dtypes: Sequence[DType] | None = None
) -> tuple[Any, ...]:
    """Each gradient summed to its operand's shape, in ``dtypes`` or else the operands' dtypes."""
    if dtypes is not None:
        return sum_to(grads, [x.shape for x in operands], dtypes)
    return tuple([
        g if g.shape == x.shape and g.dtype == x.dtype else summed(g, x.shape, x.dtype)
        for g, x in zip(grads, operands, strict=True)
    ])  # fmt: skip


def sum_to(
    grads: Sequence[Any], shapes: Sequence[Shape], dtypes: Sequence[DType]
) -> tuple[Any, ...]:
    """Each gradient in that shape, summed over the repeats, and in that dtype."""
    return tuple([
        g if g.shape == shape and g.dtype == dtype else summed(g, shape, dtype)
        for g, shape, dtype in zip(grads, shapes, dtypes, strict=True)
    ])  # fmt: skip


@quiet
def summed(grad: Any, shape: Shape, dtype: DType) -> Any:
    """``grad`` summed over the axes along which ``shape`` was broadcast, and rounded to ``dtype``.

    Before rounding, the error is at most ``2**-53 log2(count)`` times the sum of absolute values.
    """
    if grad.dtype.kind == "c" and dtype.kind != "c":
        grad = grad.real  # the gradient of a real operand
    wide = np.result_type(grad.dtype, np.float64)
    through = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    axes = repeats(grad.shape, shape)
    if not axes or type(grad) is not np.ndarray:  # a dask array, for example
        total = grad.sum(axis=axes, dtype=wide) if axes else grad
        return total.reshape(shape).astype(through, copy=False).astype(dtype, copy=False)
    sizes = [1 if i in axes else size for i, size in enumerate(grad.shape)]
    out = np.empty(sizes, dtype)
    longest = sizes.index(max(sizes))
    step = max(1, sizes[longest] * BLOCK // max(grad.size, 1))
    for begin in range(0, sizes[longest], step):
        part = slice(begin, begin + step) if longest not in axes else slice(None)
        block = (*(slice(None),) * longest, part)
        x = grad[block]
        for axis in axes:
            x = _total(x, axis, wide)
        out[block] = x.astype(through, copy=False)
    return out.reshape(shape)


def over_axis(x: Array, axis: int) -> Array:
    """``x.sum(axis)``, computed in float64 and rounded to the dtype of x."""
    if x.shape[axis] == 1:
        return x.squeeze(axis)
    axis %= x.ndim
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return summed(x, shape, x.dtype).squeeze(axis)


def clear_padding(dk: Array, key_lengths: Any) -> None:
    """Set the rows of dk that belong to no key to 0, whatever a map made of their contents.

    A row of keys that heads of different lengths share exists if it does for one of the heads.
    """
    if key_lengths is None:
        return
    lengths, lead = np.asarray(key_lengths), dk.shape[:-2]
    lengths = lengths.reshape((1,) * (len(lead) - lengths.ndim) + lengths.shape)
    longest = lengths.max(repeats(lengths.shape, lead), keepdims=True, initial=0)
    longest = longest.reshape(longest.shape[lengths.ndim - len(lead) :])
    padding = np.arange(dk.shape[-2]) >= longest[..., None]
    dk[np.broadcast_to(padding, dk.shape[:-1])] = 0


def _total(x: np.ndarray, axis: int, dtype: DType) -> np.ndarray:
    """The pairwise sum along an axis, which stays; its order depends only on the axis's length."""
    before, n = (slice(None),) * axis, x.shape[axis]
    if n == 0:
        return np.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), dtype)
    half = (n + 1) // 2
    sums = x[(*before, slice(half))].astype(dtype)
    sums[(*before, slice(n - half))] += x[(*before, slice(half, None))]
    while half > 1:
        n, half = half, (half + 1) // 2
        sums[(*before, slice(n - half))] += sums[(*before, slice(half, n))]
    return sums[(*before, slice(1))]


def repeats(wide: Shape, shape: Shape) -> tuple[int, ...]:
    """The axes of ``wide`` along which an array of ``shape`` was broadcast."""
    extra = len(wide) - len(shape)
    return (
        *range(extra),
        *(i + extra for i, n in enumerate(shape) if n == 1 and wide[i + extra] != 1),
    )
