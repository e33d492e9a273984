"""One long sequence as several heads: parallel work where heads are few.

The states behind all segments but the last are summed first, in parallel; running sums of
them start the segments, which then are heads like any others.  That costs about a third
more arithmetic, so only few heads and long sequences are cut.  Shapes alone decide, never
the number of threads, so that this does not change the result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._gufuncs import CAUSAL_STATE, STATE

SEGMENTS = 8
LONG = 2**17  # tokens
FEW = 2  # heads


def worthwhile(shape: tuple, *operands: Any) -> bool:
    """Whether to cut a call with output (..., n, m) into segments."""
    return (
        shape[-2] >= LONG
        and math.prod(shape[:-2]) <= FEW
        and all(type(x) is np.ndarray for x in operands)
        and len({x.dtype for x in operands}) == 1  # or sums might be narrower than the result
    )


def causal(key: tuple, q, k, v, numbers: tuple, start: tuple, dtype: np.dtype, shape: tuple, out):
    """As the ``causal_state`` gufunc of one sequence: ``(o, s[, z])``, states (..., 1, d, m)."""
    n = shape[-2]
    length = n // SEGMENTS
    whole = length * SEGMENTS
    apart = out is not None and not any(np.may_share_memory(out, x) for x in (q, k, v))
    o = out if apart else np.empty(shape, dtype)
    cut_k, cut_v = _cut(k, length), _cut(v, length)
    sums = STATE[key](cut_k[..., :-1, :, :], cut_v[..., :-1, :, :])
    sums = sums if isinstance(sums, tuple) else (sums,)
    starts = tuple(
        _running(x[..., 0, :, :], s, 2) if i == 0 else _running(x[..., 0, :], s, 1)
        for i, (x, s) in enumerate(zip(start, sums, strict=True))
    )
    end = _run(key, _cut(q, length), cut_k, cut_v, numbers, starts, _cut(o, length))
    last = tuple(x[..., -1, :, :, :] if i == 0 else x[..., -1, :, :] for i, x in enumerate(end))
    if whole < n:
        q, k, v, tail = (x[..., whole:, :] for x in (q, k, v, o))
        starts = (last[0][..., 0, :, :], *(z[..., 0, :] for z in last[1:]))
        last = _run(key, q, k, v, numbers, starts, tail)
    if out is not None and not apart:
        out[...] = o
        o = out
    return (o, *last)


def _cut(x: np.ndarray, length: int) -> np.ndarray:
    """A view (..., SEGMENTS, length, columns) of the first tokens of x."""
    return x[..., : length * SEGMENTS, :].reshape(*x.shape[:-2], SEGMENTS, length, x.shape[-1])


def _running(start: np.ndarray, sums: np.ndarray, core: int) -> np.ndarray:
    """The states before each segment, from those before the first and sums of the others."""
    axis = -core - 1
    lead = np.broadcast_shapes(start.shape[:-core], sums.shape[:axis])
    start = np.broadcast_to(start, (*lead, *start.shape[-core:]))
    sums = np.broadcast_to(sums, (*lead, *sums.shape[axis:]))
    return np.cumsum(np.concatenate((np.expand_dims(start, axis), sums), axis), axis)


def _run(key, q, k, v, numbers, starts, o) -> tuple:
    n = q.shape[-2]
    indices = (np.zeros(1, np.intp), np.full(1, n, np.intp), np.full(1, n, np.intp))
    starts = (starts[0][..., None, :, :], *(z[..., None, :] for z in starts[1:]))
    _, *end = CAUSAL_STATE[key](
        q, k, v, *numbers, *indices, *starts, out=(o, *(None for _ in starts))
    )
    return tuple(end)
