"""The dtype of a call's results and the dtype of its computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .._types import DType

#: The dtypes in which kernels compute, and those of complex numbers, which some take.
FAST = (np.dtype(np.float32), np.dtype(np.float64))
COMPLEX = (np.dtype(np.complex64), np.dtype(np.complex128))


def result_dtype(*operands: Any) -> DType:
    """The first of float16, bfloat16, float32 and float64 that every operand casts to.

    It is float64 if all operands are integers, as in NumPy for integers and a Python float; of
    complex operands, which most recurrences refuse, complex64 or complex128.
    """
    first = operands[0].dtype
    alike = all(x.dtype == first for x in operands[1:])
    if alike and (first in FAST or first.kind == "c" or first.name == "bfloat16"):
        return first
    dtypes = {x.dtype for x in operands}
    if all(dtype.kind in "biu" for dtype in dtypes):
        return np.dtype(np.float64)
    # NumPy does not define bfloat16, so it is recognised by name.
    brain = (dtype for dtype in dtypes if dtype.name == "bfloat16")
    for candidate in (np.float16, *brain, np.float32, np.complex64, np.float64):
        if all(np.can_cast(dtype, candidate) for dtype in dtypes):
            return np.dtype(candidate)
    return COMPLEX[1] if any(dtype.kind == "c" for dtype in dtypes) else FAST[1]


def is_weak(x: Any, numbers: tuple[type, ...] = (int, float)) -> bool:
    """Whether x is a number of Python's, which does not affect the dtype of a call, as in NumPy."""
    return isinstance(x, numbers) and not isinstance(x, np.generic)


def state_dtype(*operands: Any) -> DType:
    """The dtype of the computation and of states: float32 for 16-bit operands."""
    return work_dtype(result_dtype(*operands))


def work_dtype(dtype: DType) -> DType:
    """The dtype in which arrays of ``dtype`` are computed: float32 for 16-bit arrays."""
    return FAST[0] if dtype.itemsize == 2 else dtype


def takes_half(dtype: DType, computed: DType) -> bool:
    """Whether states of a ``dtype`` of 16 bits may take part in a computation in ``computed``."""
    half = dtype == np.float16 or dtype.name == "bfloat16"
    return half and computed == FAST[0]


def real_dtype(dtype: DType) -> DType:
    """The dtype of real numbers of that precision: float32 for complex64."""
    found: DType = dtype.type(0).real.dtype if dtype.kind == "c" else dtype
    return found


def gradient_dtype(like: DType, dtype: DType) -> DType:
    """The dtype of an operand's gradient in a call of ``dtype``: real, if the operand is."""
    if dtype.kind != "c" or like.kind == "c":
        return dtype
    return like if like.kind == "f" else real_dtype(dtype)
