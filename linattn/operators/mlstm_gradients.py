"""Gradients of `mlstm`: what is left to do around the kernel.

The gradient of the equation does not depend on the running maximum m, which is a constant
therefore: log sigma(f_t) has that of `gated`'s gate, and i_t that of the logarithm of what
multiplies a token's key.  What depends on m is ``eps``, beside a denominator times e^-m, and the
final state.  Their gradients follow the larger of log sigma(f_t) + m_{t-1} and i_t, token by
token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.gufuncs import internal_ufuncs, run
from .._states.state_arrays import State
from .linear_scan import linear_scan
from .mlstm_gates import Gates, Numbers, both

if TYPE_CHECKING:
    from .._core.layout import Call
    from .._states.state_arrays import Sequences
    from .._types import Array, DType, Shape


def gradients(
    arrays: tuple[Array, ...],
    call: Call,
    numbers: Numbers,
    packing: Sequences,
    start: tuple[Any, ...],
    last: tuple[Any, ...],
    dtype: DType,
    *,
    with_state: bool,
) -> tuple[Any, ...]:
    """dq, dk, dv, di, df with all leading axes, and (ds, dz, dlog_scale) with an axis r.

    ``arrays`` are q, k, v, i, f and the cotangent, ``last`` the gradient of the final state.
    """
    q, k, v, i, f, grad_out = arrays
    wide = i.dtype
    gates = Gates.of(i, f, packing, start[-1], wide)
    shape = packing.r, call.fit.sizes["d"], call.fit.sizes["m"] + (numbers.normalize != 0)
    first, after = (_joined(x, shape, wide) for x in (start, last))
    inputs = q, k, v, *gates[:3], grad_out, *numbers, *packing.indices, first, after
    wanted = *(None,) * 6, None if with_state else ...
    dq, dk, dv, da, di, dm, ds = run(internal_ufuncs["mlstm_state_backward"], inputs, wanted, dtype)
    exist = _exist(packing, da.shape)
    da = np.where(exist, da, 0)
    dlog_scale = (ds * first).sum((-1, -2)) if with_state else None
    if with_state or numbers.eps != 0:
        top = np.zeros((*dq.shape[:-2], packing.r), wide)
        if last[-1] is not ...:
            top = last[-1] - _final_part(arrays, gates, numbers, packing, start, last)
        to_i, to_f, to_first = _through_maximum(dm, top, gates, packing, da.shape)
        di, da = di + to_i, da + to_f
        dlog_scale = dlog_scale + to_first if with_state else None
    df = da * _one_minus_sigmoid(np.where(exist, f, 0).astype(wide, copy=False))
    fields = () if not with_state else (ds[..., :-1], ds[..., -1]) if numbers.normalize else (ds,)
    return dq, dk, dv, di, df, (*fields, dlog_scale)


def _final_part(
    arrays: tuple[Array, ...],
    gates: Gates,
    numbers: Numbers,
    packing: Sequences,
    start: tuple[Any, ...],
    last: tuple[Any, ...],
) -> Array:
    """The products of the final s and z with their gradients, summed: that of -m."""
    inputs = *arrays[:3], *gates[:3], *numbers, *packing.indices, *both(start[:-1])
    _, s, z = run(internal_ufuncs["mlstm_state"], inputs)
    part = (last[0] * s).sum((-1, -2))
    return part + (last[1] * z).sum(-1) if numbers.normalize else part


def _joined(state: tuple[Any, ...], shape: Shape, dtype: DType) -> Array:
    """s and z as one array (..., r, d, m + 1)."""
    s, *z, _ = state
    if s is ...:
        return np.broadcast_to(np.zeros((), dtype), shape)
    if not z:
        return s
    lead = np.broadcast_shapes(s.shape[:-1], z[0].shape)
    x = np.empty((*lead, s.shape[-1] + 1), s.dtype)
    x[..., :-1], x[..., -1] = s, z[0]
    return x


def _exist(packing: Sequences, shape: tuple[int, ...]) -> Any:
    """Which tokens have a key."""
    begin, _, keys, packed, _ = packing
    if keys is ...:
        return True
    position = np.arange(shape[-1])
    if not packed:
        return position < keys
    i = np.searchsorted(begin, position, side="right") - 1  # of sequences that are not empty
    return position - begin[i] < keys[..., i]


def _through_maximum(
    dm: Array, top: Array, gates: Gates, packing: Sequences, shape: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """What of the gradients of m, and of m after the last token, goes to i, to log sigma(f), and
    to the first m: r_t = dm_t + r_{t+1} where token t + 1 has kept m."""
    n = shape[-1]
    bounds = np.array([*packing.begin, n] if packing.packed else [0, n], np.intp)
    kept = np.broadcast_to((gates.g > -np.inf) & (gates.g >= np.log(gates.write)), shape)
    rates = np.ones(shape, top.dtype)
    rates[..., :-1] = kept[..., 1:]
    ends = bounds[1:]
    rates[..., ends[ends > 0] - 1] = 1
    x = np.broadcast_to(dm, shape)[..., None]
    last = State(top[..., None])
    h, after = linear_scan(
        rates[..., None], x, reverse=True, cu_seqlens=bounds, initial_state=last, return_state=True
    )
    r = h[..., 0]
    begins = np.minimum(bounds[:-1], max(n - 1, 0))
    first = after.s[..., 0]
    if n > 0:
        emptied = np.equal(bounds[:-1], bounds[1:])
        first = np.where(emptied | kept[..., begins], first, 0)
    to_f = np.where(kept & _exist(packing, shape), r, 0)
    return np.where(kept, 0, r), to_f, first


def _one_minus_sigmoid(f: Array) -> Array:
    """1 - sigma(f) = sigma(-f)"""
    return run(internal_ufuncs["sigmoid"], (-f,))[0]
