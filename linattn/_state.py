"""The recurrent state, and the operands that describe sequences to the gufuncs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _check

if TYPE_CHECKING:
    from ._types import ArrayLike, DType, Shape


class State(NamedTuple):
    """The state of a linear attention layer after some tokens.

    Parameters
    ----------
    s : ndarray, shape (..., f, m)
        ``sum_j phi(k_j) v_j^T``; (..., r, f, m) for r packed sequences.
    z : ndarray, shape (..., f), or None
        ``sum_j phi(k_j)``; None without a normaliser.
    log_scale : ndarray, shape as z, or None
        Only for maps that rescale as they go: the logarithm of the largest feature of any key so
        far.  For these maps None means plain sums.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.ones((3, 2))
    >>> o, state = linattn.causal(x, x, x, return_state=True)
    >>> state.z
    array([6., 6.])
    """

    s: Any  # an array, or a tensor in linattn.torch
    z: Any = None  # the same, or None: it depends on the call's options
    log_scale: Any = None


class Sequences(NamedTuple):
    """Where sequences begin and end along n, (r,), and the number of keys of each, (..., r).

    Ellipsis stands for all of n.
    """

    begin: Any
    end: Any
    keys: Any
    packed: bool
    r: int

    @property
    def indices(self) -> tuple[Any, Any, Any]:
        """The operands begin, end and keys."""
        return self[:3]


def sequences(
    function: str, n: int, batch: Shape, cu_seqlens: ArrayLike | None, key_lengths: ArrayLike | None
) -> Sequences:
    """Read ``cu_seqlens`` and ``key_lengths``; without them there is one sequence."""
    keys: Any = ...
    begin: Any = ...
    end: Any = ...
    r = 1
    if cu_seqlens is not None:
        bounds = _check.cu_seqlens(function, cu_seqlens, n)
        begin, end, r = bounds[:-1], bounds[1:], len(bounds) - 1
    if key_lengths is not None:
        lengths = _check.key_lengths(function, key_lengths, n, batch)
        keys = lengths[..., None]
        if cu_seqlens is not None:
            keys = np.clip(keys - begin, 0, end - begin)
    return Sequences(begin, end, keys, cu_seqlens is not None, r)


def operands(
    function: str,
    name: str,
    state: Any,
    packing: Sequences,
    batch: Shape,
    core: Shape,
    dtype: DType,
    normalize: bool,
) -> tuple[Any, ...]:
    """The arrays of a state as gufuncs take them, with an axis r before the state's own."""
    inner = (packing.r, *core) if packing.packed else core
    s, z, _ = _check.state(function, name, state, batch, inner, dtype, normalize)
    if not packing.packed:
        axes = (slice(None),) * len(core)
        s, z = s[(..., None, *axes)], None if z is None else z[(..., None, *axes[1:])]
    return (s,) if z is None else (s, z)


def result(
    packing: Sequences, s: Any, z: Any = None, log_scale: Any = None, *, axes: int = 2
) -> State:
    """A `State` of a gufunc's outputs, without the axis r unless sequences are packed.

    s has ``axes`` axes of its own.
    """
    if packing.packed:
        return State(s, z, log_scale)
    z = None if z is None else z.squeeze(-axes)
    return State(s.squeeze(-axes - 1), z, None if log_scale is None else log_scale.squeeze(-axes))


def copy(state: Any) -> State:
    """A state with copies of its plain arrays."""
    return State(*(np.array(x) if type(x) is np.ndarray else x for x in state))
