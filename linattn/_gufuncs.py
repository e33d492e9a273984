"""The gufuncs, by name, and how they are called."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._linattn import add_bfloat16, call_plain, row_ufuncs, ufuncs

__all__ = ["row_ufuncs", "run", "ufuncs"]


def run(
    gufunc: np.ufunc, inputs: tuple[Any, ...], outputs: tuple[Any, ...] = ()
) -> tuple[Any, ...]:
    """The gufunc's outputs, into those given that are not None; by way of NumPy where it must."""
    outputs = outputs or (None,) * gufunc.nout
    result = call_plain(gufunc, *inputs, *outputs)
    if result is NotImplemented:
        result = gufunc(*inputs, out=outputs)
    return result if isinstance(result, tuple) else (result,)


try:
    import ml_dtypes
except ImportError:
    pass  # all else works without bfloat16
else:
    add_bfloat16(np.dtype(ml_dtypes.bfloat16))
