"""Gradients of operands that were broadcast: sums over the repeats."""

from __future__ import annotations

from typing import Any

import numpy as np


def sum_all(grads: tuple, operands: tuple) -> tuple:
    """Each gradient in its operand's shape: summed over the repeats."""
    return tuple(_sum_to(g, x.shape) for g, x in zip(grads, operands, strict=True))


def _sum_to(grad: Any, shape: tuple) -> Any:
    if grad.shape == shape:
        return grad
    wide = np.float32 if grad.dtype.itemsize == 2 else None
    axes = _repeats(grad.shape, shape)
    total = grad.sum(axis=axes, keepdims=True, dtype=wide).reshape(shape)
    return total.astype(grad.dtype, copy=False)


def _repeats(wide: tuple, shape: tuple) -> tuple[int, ...]:
    """The axes of ``wide`` along which an array of ``shape`` was repeated."""
    extra = len(wide) - len(shape)
    return (
        *range(extra),
        *(i + extra for i, n in enumerate(shape) if n == 1 and wide[i + extra] != 1),
    )
