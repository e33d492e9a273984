"""The recurrent state, and the operands that describe sequences to the gufuncs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import _check


class State(NamedTuple):
    """The state of a linear attention layer after some tokens.

    Parameters
    ----------
    s : ndarray, shape (..., f, m)
        ``sum_j phi(k_j) v_j^T``; (..., r, f, m) for r packed sequences.
    z : ndarray, shape (..., f), or None
        ``sum_j phi(k_j)``; None where there is no normaliser.
    log_scale : ndarray, shape as z, or None
        Only for maps that rescale as they go, and the logarithm of the largest feature of a
        key so far; there None stands for plain sums.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.ones((3, 2))
    >>> o, state = linattn.causal(x, x, x, return_state=True)
    >>> state.z
    array([6., 6.])
    """

    s: Any
    z: Any = None
    log_scale: Any = None


class Sequences(NamedTuple):
    """Where sequences begin and end along n, (r,), and how many keys each has, (..., r)."""

    begin: np.ndarray
    end: np.ndarray
    keys: np.ndarray
    packed: bool

    @property
    def indices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The operands begin, end and keys."""
        return self[:3]


def sequences(function: str, n: int, batch: tuple, cu_seqlens: Any, key_lengths: Any) -> Sequences:
    """Read ``cu_seqlens`` and ``key_lengths``; one sequence where there is none."""
    if cu_seqlens is None:
        begin, end = np.zeros(1, np.intp), np.full(1, n, np.intp)
    else:
        bounds = _check.cu_seqlens(function, cu_seqlens, n)
        begin, end = bounds[:-1], bounds[1:]
    keys = end - begin
    if key_lengths is not None:
        lengths = _check.key_lengths(function, key_lengths, n, batch)
        keys = np.clip(lengths[..., None] - begin, 0, keys)
    return Sequences(begin, end, keys, cu_seqlens is not None)


def operands(
    function: str,
    name: str,
    state: Any,
    packing: Sequences,
    batch: tuple,
    core: tuple[int, int],
    dtype: np.dtype,
    normalize: bool,
) -> tuple:
    """The arrays of a state as the gufuncs take them, (..., r, f, m); zeros for None."""
    f, m = core
    lead = (len(packing.begin),)
    if state is None:
        s, z = np.zeros((f, m), dtype), np.zeros(f, dtype)
        return (
            np.broadcast_to(s, (*lead, f, m)),
            *((np.broadcast_to(z, (*lead, f)),) if normalize else ()),
        )
    if packing.packed:
        core = (*lead, f, m)
    s, z, _ = _check.state(function, name, state, batch, core, dtype, normalize)
    if not packing.packed:
        s = s[..., None, :, :]
        z = z[..., None, :] if normalize else None
    return (s, z) if normalize else (s,)


def result(
    packing: Sequences,
    s: np.ndarray,
    z: np.ndarray | None = None,
    log_scale: np.ndarray | None = None,
) -> State:
    """A `State` of what a gufunc returned, without the axis r where nothing is packed."""
    if packing.packed:
        return State(s, z, log_scale)
    return State(s[..., 0, :, :], *(None if x is None else x[..., 0, :] for x in (z, log_scale)))
