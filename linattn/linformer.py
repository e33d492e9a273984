"""Linformer: softmax attention to keys and values projected along the sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _check, _gradients
from ._config import one_isa
from ._docs import filled
from ._dtypes import work_dtype
from ._gufuncs import internal_ufuncs, quiet, run
from ._layout import ALL_KEYS
from ._products import product, transposed_product

if TYPE_CHECKING:
    from ._types import Array, ArrayLike


@quiet
@filled
def linformer(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    E: ArrayLike,
    F: ArrayLike,
    *,
    scale: float | None = None,
    out: Array | None = None,
) -> Array:
    """Softmax attention to r projected keys and values, O(n r).

    ``k' = E^T k``, ``v' = F^T v``, ``o = softmax(scale q k'^T) v'``.  Not causal: a projected
    key mixes all positions.  E and F may be the same; leading axes broadcast, so that heads
    may share a projection, and one head of keys serve all.

    Parameters
    ----------
    $softmax_q
    $all_keys
    $all_values
    E, F : array_like, shape (..., s, r)
        Projections of keys and of values.
    $softmax_scale
    $out

    Returns
    -------
    ndarray, shape (..., n, m)

    Raises
    ------
    $raises

    Notes
    -----
    2 (s + n) r (d + m) floating-point operations a head; r (d + m) numbers of memory besides.
    Scores may be of any size, as in `softmax_attention`.

    References
    ----------
    Wang et al., "Linformer: self-attention with linear complexity", 2020, eq. 7

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.arange(12.0).reshape(6, 2)
    >>> E = np.repeat(np.eye(2), 3, axis=0) / 3  # means of three tokens
    >>> linattn.linformer(x, x, x, E, E).shape
    (6, 2)
    """
    q, k, v, E, F, scale, shape, dtype = _operands("linformer", q, k, v, E, F, scale)
    if out is not None:
        _check.out("linformer", out, shape, np.empty(0, dtype))
    with one_isa():
        keys, values = transposed_product(E, k), transposed_product(F, v)
        (o,) = run(internal_ufuncs["softmax"], (q, keys, values, scale, 0.0), (out,))
    return o.astype(dtype, copy=False)


@quiet
@filled
def linformer_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    E: ArrayLike,
    F: ArrayLike,
    grad_out: ArrayLike,
    *,
    scale: float | None = None,
) -> tuple[Array, ...]:
    """Gradients of `linformer`.

    Parameters
    ----------
    $softmax_q
    $all_keys
    $all_values
    E, F : array_like, shape (..., s, r)
        Projections of keys and of values.
    $grad_out
    $softmax_scale

    Returns
    -------
    dq, dk, dv, dE, dF : ndarray
        Gradients, in the shapes of the operands; those of a broadcast operand are summed over
        its repeats.  Where E and F are one array, its gradient is ``dE + dF``.

    Raises
    ------
    $raises

    Notes
    -----
    About 2 (3 s + 4 n) r (d + m) floating-point operations a head.

    References
    ----------
    Wang et al., "Linformer: self-attention with linear complexity", 2020, eq. 7

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x, E = np.ones((6, 2)), np.full((6, 3), 1 / 6)
    >>> [g.shape for g in linattn.linformer_backward(x, x, x, E, E, x)]
    [(6, 2), (6, 2), (6, 2), (6, 3), (6, 3)]
    """
    name = "linformer_backward"
    grad_out = _check.operand(name, "grad_out", grad_out)
    q, k, v, E, F, scale, shape, dtype = _operands(name, q, k, v, E, F, scale, grad_out)
    grad_out = _check.cotangent(name, grad_out, shape)
    with one_isa():
        keys, values = transposed_product(E, k), transposed_product(F, v)
        inputs = q, keys, values, grad_out, scale, 0.0
        dq, dkeys, dvalues = run(internal_ufuncs["softmax_backward"], inputs)
    dkeys, dvalues = _gradients.sum_all((dkeys, dvalues), (keys, values))
    pairs = (E, dkeys), (F, dvalues), (k, dkeys.mT), (v, dvalues.mT)
    grads = dq, *(product(x, y) for x, y in pairs)
    return _gradients.sum_all(grads, (q, k, v, E, F), (dtype,) * 5)


def _operands(
    name: str, q: Any, k: Any, v: Any, E: Any, F: Any, scale: Any, *others: Any
) -> tuple[Any, ...]:
    """The operands in one dtype, the scale, and the shape and dtype of the output.

    Others have a say in the dtype.
    """
    call = ALL_KEYS.read(name, (q, k, v))
    q, k, v = call.arrays
    E, F = _check.operand(name, "E", E), _check.operand(name, "F", F)
    s = k.shape[-2]
    for letter, x in (("E", E), ("F", F)):
        if x.shape[-2] != s:
            raise ValueError(
                f"{name}: {letter} has shape {x.shape}; expected (..., {s}, r), "
                f"as many rows as k of shape {k.shape}"
            )
    if E.shape[-1] != F.shape[-1]:
        raise ValueError(
            f"{name}: F has shape {F.shape}; expected (..., {s}, {E.shape[-1]}), as E has "
            f"shape {E.shape}"
        )
    try:
        batch = np.broadcast_shapes(call.batch, E.shape[:-2], F.shape[:-2])
    except ValueError:
        raise ValueError(
            f"{name}: the leading axes of E {E.shape} and F {F.shape} do not broadcast with "
            f"{call.batch}; expected equal lengths, or 1, axis by axis"
        ) from None
    dtype = _check.result_dtype(q, k, v, E, F, *others)
    work = work_dtype(dtype)
    q, k, v, E, F = (np.asarray(x, work) for x in (q, k, v, E, F))
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    return q, k, v, E, F, _check.number(name, "scale", scale, q), (*batch, *call.shape[-2:]), dtype
