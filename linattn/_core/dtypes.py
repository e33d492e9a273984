"""The dtype of a call's results and the dtype of its computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .._types import DType

#: The dtypes in which kernels compute.
FAST = (np.dtype(np.float32), np.dtype(np.float64))


def result_dtype(*operands: Any) -> DType:
    """The first of float16, bfloat16, float32 and float64 that every operand casts to.

    It is float64 if all operands are integers, as in NumPy for integers and a Python float.
    Complex operands, which the recurrences of real numbers refuse, are all of one dtype here.
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
    for candidate in (np.float16, *brain, np.float32):
        if all(np.can_cast(dtype, candidate) for dtype in dtypes):
            return np.dtype(candidate)
    return np.dtype(np.float64)


def is_weak(x: Any) -> bool:
    """Whether x is a number of Python's, which has no say in the dtype of a call, as in NumPy."""
    return isinstance(x, (int, float)) and not isinstance(x, np.generic)


def state_dtype(*operands: Any) -> DType:
    """The dtype of the computation and of states: float32 for 16-bit operands."""
    return work_dtype(result_dtype(*operands))


def work_dtype(dtype: DType) -> DType:
    """The dtype in which arrays of ``dtype`` are computed: float32 for 16-bit arrays."""
    return FAST[0] if dtype.itemsize == 2 else dtype
