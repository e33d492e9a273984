"""Gradients of operands that were broadcast, and of keys that do not exist."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._types import Array, Shape


def sum_all(grads: tuple[Any, ...], operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each gradient in its operand's shape: summed over the repeats."""
    return tuple(_sum_to(g, x.shape) for g, x in zip(grads, operands, strict=True))


def sum_wide(grad: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``grad`` in an operand's shape; where there is something to sum, pairwise in float64."""
    if grad.shape == shape:
        return grad
    axes = _repeats(grad.shape, shape)
    parts = np.moveaxis(grad, axes, range(len(axes)))
    parts = parts.reshape(math.prod(parts.shape[: len(axes)]), *parts.shape[len(axes) :])
    if len(parts) == 0:
        return np.zeros(shape, np.float64)
    while len(parts) > 1:
        half = len(parts) // 2
        sums = np.add(parts[:half], parts[half : 2 * half], dtype=np.float64)
        parts = np.concatenate((sums, parts[2 * half :]))
    return parts.reshape(shape)


def clear_padding(dk: Array, key_lengths: Any) -> None:
    """Sets the rows of dk to 0 that belong to no key, whatever a map made of what they held.

    A row of keys that heads of different lengths share exists where it does for one of them.
    """
    if key_lengths is None:
        return
    lengths, lead = np.asarray(key_lengths), dk.shape[:-2]
    lengths = lengths.reshape((1,) * (len(lead) - lengths.ndim) + lengths.shape)
    longest = lengths.max(_repeats(lengths.shape, lead), keepdims=True, initial=0)
    longest = longest.reshape(longest.shape[lengths.ndim - len(lead) :])
    padding = np.arange(dk.shape[-2]) >= longest[..., None]
    dk[np.broadcast_to(padding, dk.shape[:-1])] = 0


def _sum_to(grad: Any, shape: Shape) -> Any:
    if grad.shape == shape:
        return grad
    if type(grad) is np.ndarray:  # NumPy sums in the order of memory, which is that of operands
        grad = np.ascontiguousarray(grad)
    wide = np.float32 if grad.dtype.itemsize == 2 else None
    axes = _repeats(grad.shape, shape)
    total = grad.sum(axis=axes, keepdims=True, dtype=wide).reshape(shape)
    return total.astype(grad.dtype, copy=False)


def _repeats(wide: Shape, shape: Shape) -> tuple[int, ...]:
    """The axes of ``wide`` along which an array of ``shape`` was repeated."""
    extra = len(wide) - len(shape)
    return (
        *range(extra),
        *(i + extra for i, n in enumerate(shape) if n == 1 and wide[i + extra] != 1),
    )
