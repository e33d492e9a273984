"""Calls with dask arrays, which go to `linattn.dask`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from numpy import ndarray


def is_lazy(operands: Sequence[Any]) -> bool:
    """Whether one is a dask array."""
    others = [x for x in operands if x is not None and type(x) is not ndarray]
    return bool(others) and any(type(x).__module__.startswith("dask.") for x in others)


def in_blocks(method: str, r: object, *operands: Any, **options: Any) -> Any:
    """The lazy result of a recurrence; ``method`` is "forward" or "backward".

    `linattn.dask` needs dask, so that it is imported by the first call that needs it.
    """
    dask = importlib.import_module("linattn.dask")
    return getattr(dask, method)(r, *operands, **options)


def in_one_chunk(function: str, name: str, x: Any, own: int) -> Any:
    """A dask array in one chunk along its ``own`` last axes; anything else as it is.

    It has no empty blocks: dask's apply_gufunc fails where an axis has nothing else.
    """
    if not is_lazy((x,)):
        return x
    refuse_unknown(function, name, x)
    x = x.rechunk(tuple(tuple(filter(None, sizes)) or (0,) for sizes in x.chunks))
    for axis in range(-min(own, x.ndim), 0):
        if x.numblocks[axis] > 1:
            raise ValueError(
                f"{function}: {name} is in chunks of {x.chunks[axis]} along axis {axis}; expected "
                f"one chunk: {name}.rechunk({{{axis}: -1}})"
            )
    return x


def refuse_unknown(function: str, name: str, x: Any) -> None:
    """Raises an error if dask does not know the sizes of an array's chunks."""
    if any(size != size for size in x.shape):  # NaN
        raise ValueError(
            f"{function}: {name} has shape {x.shape}, of unknown chunk sizes; expected known "
            "ones: call its compute_chunk_sizes() first"
        )


def refuse_token(function: str, operands: Sequence[Any]) -> None:
    """Raises an error if a step is given dask arrays."""
    refuse(function, operands, why=", as one token has nothing to cut")


def refuse(function: str, operands: Sequence[Any], given: str = "", why: str = "") -> None:
    """Raises an error for dask arrays, if something is given or for another reason."""
    if is_lazy(operands):
        raise TypeError(
            f"{function}: {given}an operand is a dask array; expected NumPy arrays{why}: call "
            "compute() first"
        )
