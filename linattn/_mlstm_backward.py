"""Gradients of `mlstm`, by those of `gated` with one more value channel, of ones, for z.

The gradient of the equation does not depend on the running maximum m, which is a constant
therefore: log sigma(f_t) has that of `gated`'s gate, and i_t that of the logarithm of what
multiplies a token's values.  What depends on m is ``eps``, beside a denominator times e^-m, and
the final state.  Their gradients follow the larger of log sigma(f_t) + m_{t-1} and i_t, token by
token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._gufuncs import internal_ufuncs, run, ufuncs
from ._state import State
from .linear_scan import linear_scan

if TYPE_CHECKING:
    from ._layout import Call
    from ._state import Sequences
    from ._types import Array
    from .mlstm import _Numbers


def gradients(
    arrays: list[Array],
    call: Call,
    numbers: _Numbers,
    packing: Sequences,
    start: tuple[Any, ...],
    last: tuple[Any, ...],
    *,
    exact: bool,
) -> tuple[Any, ...]:
    """dq, dk, dv, di, df with all leading axes, and (ds, dz, dlog_scale) with an axis r.

    ``exact`` where a gradient of the final state is given, ``last``.
    """
    from .mlstm import _Gates

    q, k, v, i, f, grad_out = arrays
    gates = _Gates.of(i, f, packing, start[-1], q.dtype)
    values = _values(v, gates.write, numbers.normalize != 0)
    first, after = _joined(start), _joined(last)
    operands, indices = (q, k, values, gates.g), packing.indices
    inputs = *operands, numbers.scale, *indices, first
    o, end = run(ufuncs["gated_state_identity"], inputs, (None, None))
    dvalues, dm = _cotangents(o, grad_out, np.exp(-gates.top), numbers)
    back = *operands, dvalues, numbers.scale, *indices, first, after
    dq, dk, dvalues, dg, ds = run(ufuncs["gated_state_backward_identity"], back)
    dv = dvalues[..., : v.shape[-1]] * gates.write[..., None]
    written = (dvalues * values).sum(-1)
    di = np.where(gates.write == 0, 0, written)  # of values past the last key too
    exist = _exist(packing, dg.shape)
    da = np.where(exist, dg, 0)
    dlog_scale = np.zeros(end.shape[:-2], q.dtype) if first is ... else (ds * first).sum((-1, -2))
    if exact or numbers.eps != 0:
        top = np.zeros(end.shape[:-2], q.dtype)
        if after is not ...:
            top = last[-1] - (after * end).sum((-1, -2))
        to_i, to_f, to_first = _through_maximum(dm, top, gates.g, packing, dg.shape)
        di, da, dlog_scale = di + to_i, da + to_f, dlog_scale + to_first
    df = da * _one_minus_sigmoid(np.where(exist, f, 0).astype(f.dtype, copy=False))
    if numbers.normalize:
        return dq, dk, dv, di, df, (ds[..., :-1], ds[..., -1], dlog_scale)
    return dq, dk, dv, di, df, (ds, dlog_scale)


def _values(v: Array, write: Array, normalize: bool) -> Array:
    """write [v, 1], or write v."""
    m = v.shape[-1]
    lead = np.broadcast_shapes(v.shape[:-1], write.shape)
    x = np.empty((*lead, m + normalize), v.dtype)
    np.multiply(v, write[..., None], out=x[..., :m])
    if normalize:
        x[..., m] = write
    return x


def _joined(state: tuple[Any, ...]) -> Any:
    """s and z as the state of `gated`, (..., r, d, m + 1)."""
    s, *z, _ = state
    if s is ... or not z:
        return s
    lead = np.broadcast_shapes(s.shape[:-1], z[0].shape)
    x = np.empty((*lead, s.shape[-1] + 1), s.dtype)
    x[..., :-1], x[..., -1] = s, z[0]
    return x


def _cotangents(o: Array, grad_out: Array, floor: Array, numbers: _Numbers) -> tuple[Array, Array]:
    """The gradient of what `gated` gives, and that of m through eps."""
    if not numbers.normalize:
        return grad_out / floor[..., None], np.zeros(o.shape[:-1], o.dtype)
    seen = o[..., -1]
    size = np.abs(seen)
    den = np.maximum(size, floor) + numbers.eps
    den = np.maximum(den, np.finfo(o.dtype).tiny)  # as in the kernel
    x = np.empty_like(o)
    np.divide(grad_out, den[..., None], out=x[..., :-1])
    slope = -(x[..., :-1] * o[..., :-1]).sum(-1) / den
    x[..., -1] = np.where(size < floor, 0, np.sign(seen) * slope)
    return x, np.where(np.isfinite(den), numbers.eps * slope, 0)


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
    dm: Array, top: Array, g: Array, packing: Sequences, shape: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """What of the gradients of m, and of m after the last token, goes to i, to log sigma(f), and
    to the first m: r_t = dm_t + r_{t+1} where token t + 1 has kept m."""
    n, bounds = shape[-1], (0, shape[-1])
    if packing.packed:
        bounds = (*packing.begin, n)
    kept = np.broadcast_to(g == 0, shape)
    rates = np.ones(shape, top.dtype)
    rates[..., :-1] = kept[..., 1:]
    ends = np.asarray(bounds[1:])
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
