"""``block``: all tokens of a block read the state after the last one of them.

Kernels have a variant that takes the number of tokens of a block (token_blocks.h).  States do not
depend on it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core.layout import Operand
    from .._types import Array

#: Of the names of variants.
SUFFIX = "_block"


def checked(
    rows: Sequence[Operand], function: str, operands: Sequence[Any], block: Any
) -> int | None:
    """``block``, or None if each token is a block of its own.

    No operand may say what a token reads besides the state.
    """
    block = checks.integer(function, "block", block)
    if block == 1:
        return None
    for row, x in zip(rows, operands, strict=True):
        if x is not None and not row.has_tokens:
            raise ValueError(
                f"{function}: block is {block} and {row.name} is given; expected block=None, as "
                f"tokens read before they write with {row.name}"
            )
    return min(block, sys.maxsize)


def suffix(block: int | None) -> str:
    """Of a gufunc's variant."""
    return "" if block is None else SUFFIX


def index(block: int | None) -> tuple[Array, ...]:
    """The operands of a gufunc that tell of blocks."""
    return () if block is None else (np.array(block, np.intp),)
