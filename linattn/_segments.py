"""One long sequence as several heads: parallel work where heads are few.

The states behind all segments but the last are summed first, in parallel; running sums of
them start the segments, which then are heads like any others.  That costs about a third
more arithmetic, so only few heads and long sequences are cut.  Shapes alone decide, never
the number of threads, so that this does not change the result.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ._gufuncs import run

if TYPE_CHECKING:
    from ._types import Array, Shape

SEGMENTS = 8
LONG = 2**17  # tokens
FEW = 2  # heads


def may_cut(q: Any) -> bool:
    """Whether a call with such queries needs a closer look."""
    return type(q) is not np.ndarray or q.ndim < 2 or q.shape[-2] >= LONG


def worthwhile(shape: Shape, *operands: Any) -> bool:
    """Whether to cut a call with output (..., n, m) into segments."""
    return (
        shape[-2] >= LONG
        and math.prod(shape[:-2]) <= FEW
        and all(type(x) is np.ndarray for x in operands)
        and len({x.dtype for x in operands}) == 1  # or sums might be narrower than the result
    )


def causal(
    states: np.ufunc,
    sums: np.ufunc,
    inputs: tuple[Any, ...],
    start: tuple[Any, ...],
    shape: Shape,
    dtype: np.dtype[Any],
    out: Array | None,
) -> tuple[Any, ...]:
    """As the gufunc ``states`` of one sequence: ``(o, s[, z])``, states (..., 1, d, m).

    ``sums`` gives the state of a sequence that starts from zeros.
    """
    q, k, v, *numbers = inputs
    n = shape[-2]
    length = n // SEGMENTS
    whole = length * SEGMENTS
    apart = out is not None and not any(np.may_share_memory(out, x) for x in (q, k, v))
    o = out if apart else np.empty(shape, dtype)
    cut_k, cut_v = _cut(k, length), _cut(v, length)
    first = run(sums, (cut_k[..., :-1, :, :], cut_v[..., :-1, :, :]))
    starts = tuple(
        _running(x[..., 0, :, :], s, 2) if i == 0 else _running(x[..., 0, :], s, 1)
        for i, (x, s) in enumerate(zip(start, first, strict=True))
    )
    cut = _cut(q, length), cut_k, cut_v, *numbers
    end = _run(states, cut, starts, _cut(o, length))
    last = tuple(x[..., -1, :, :, :] if i == 0 else x[..., -1, :, :] for i, x in enumerate(end))
    if whole < n:
        q, k, v, tail = (x[..., whole:, :] for x in (q, k, v, o))
        starts = (last[0][..., 0, :, :], *(z[..., 0, :] for z in last[1:]))
        last = _run(states, (q, k, v, *numbers), starts, tail)
    if out is not None and not apart:
        out[...] = o
        o = out
    return (o, *last)


def _cut(x: Array, length: int) -> Array:
    """A view (..., SEGMENTS, length, columns) of the first tokens of x."""
    return x[..., : length * SEGMENTS, :].reshape(*x.shape[:-2], SEGMENTS, length, x.shape[-1])


def _running(start: Array, sums: Array, core: int) -> Array:
    """The states before each segment, from those before the first and sums of the others."""
    axis = -core - 1
    lead = np.broadcast_shapes(start.shape[:-core], sums.shape[:axis])
    start = np.broadcast_to(start, (*lead, *start.shape[-core:]))
    sums = np.broadcast_to(sums, (*lead, *sums.shape[axis:]))
    return np.cumsum(np.concatenate((np.expand_dims(start, axis), sums), axis), axis)


def _run(
    states: np.ufunc, inputs: tuple[Any, ...], starts: tuple[Any, ...], o: Array
) -> tuple[Any, ...]:
    n = o.shape[-2]
    indices = (np.zeros(1, np.intp), np.full(1, n, np.intp), np.full(1, n, np.intp))
    starts = (starts[0][..., None, :, :], *(z[..., None, :] for z in starts[1:]))
    _, *end = run(states, (*inputs, *indices, *starts), (o, *(None for _ in starts)))
    return tuple(end)
