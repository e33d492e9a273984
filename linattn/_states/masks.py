"""Masks of padded batches, converted to key_lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .._core import checks

if TYPE_CHECKING:
    from .._types import Array, ArrayLike


def lengths_from_mask(mask: ArrayLike) -> Array:
    """The ``key_lengths`` of a mask of padded batches.

    Parameters
    ----------
    mask : array_like of bool, shape (..., n)
        True where there is a token.  Each row must be a prefix: True for the first tokens and
        False for all tokens after them.

    Returns
    -------
    ndarray of int, shape (...)
        The number of tokens of each row: ``key_lengths`` for the operators that take them.

    Raises
    ------
    TypeError
        If ``mask`` does not hold booleans.
    ValueError
        If it has no axis, or a row is not a prefix.

    Notes
    -----
    One pass over the mask.  Masks with padding on the left or holes have no lengths: move the
    tokens to the front, or pack them and pass ``cu_seqlens``.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> linattn.lengths_from_mask([[True, True, False], [True, True, True]])
    array([2, 3])
    >>> x = np.ones((2, 3, 4))
    >>> mask = np.array([[True, True, False], [True, True, True]])
    >>> o = linattn.causal(x, x, x, key_lengths=linattn.lengths_from_mask(mask))
    """
    name = "lengths_from_mask"
    checks.refuse_masked(name, "mask", mask)
    there: Array = checks.array(name, "mask", mask)
    if there.dtype != bool and not checks.holds_only(mask, bool):
        raise TypeError(
            f"{name}: mask has dtype {there.dtype}; expected bool, True where there is a token "
            "(for ones and zeros pass mask != 0; for 0 and -inf, as added to scores, mask == 0)"
        )
    there = there.astype(bool, copy=False)
    if there.ndim < 1:
        raise ValueError(f"{name}: mask has shape {there.shape}; expected (..., n)")
    wrong = there[..., 1:] & ~there[..., :-1]  # True after False
    rows = wrong.any(-1)
    if rows.any():
        row = tuple(int(i) for i in np.argwhere(rows)[0])
        late = 1 + int(np.argmax(wrong[row]))
        where = f"mask[{', '.join(map(str, row))}]" if row else "mask"
        raise ValueError(
            f"{name}: {where} is not a prefix: False at token {int(np.argmin(there[row]))} and "
            f"True at token {late}; expected True for the first tokens and False for all after "
            "them (move padding to the end, or pack the tokens and pass cu_seqlens)"
        )
    return there.sum(-1, dtype=np.intp)
