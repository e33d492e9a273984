"""Calls with dask arrays, which go to `linattn.dask`."""

from __future__ import annotations

from typing import Any

from numpy import ndarray


def is_lazy(operands: tuple[Any, ...]) -> bool:
    """Whether one is a dask array."""
    others = [x for x in operands if type(x) is not ndarray]
    return bool(others) and any(type(x).__module__.startswith("dask.") for x in others)


def in_blocks(method: str, name: str, *operands: Any, **options: Any) -> Any:
    """The lazy result of a recurrence; ``method`` is "forward" or "backward"."""
    from . import dask
    from ._block_scan import BLOCKS

    return getattr(dask, method)(BLOCKS[name], *operands, **options)


def refuse_token(function: str, operands: tuple[Any, ...]) -> None:
    """Raises an error if a step is given dask arrays."""
    if is_lazy(operands):
        raise TypeError(
            f"{function}: an operand is a dask array; expected NumPy arrays, as one token has "
            "nothing to cut: call compute() first"
        )
