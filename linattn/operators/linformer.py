"""Linformer: softmax attention to keys and values projected along the sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks, gradient_sums
from .._core.dtypes import result_dtype, work_dtype
from .._core.gufuncs import internal_ufuncs, quiet, run
from .._core.layout import ALL_KEYS, Layout, Operand
from .._core.products import product, transposed_product
from .._core.settings import one_isa
from .._docs.templates import filled, filled_like

if TYPE_CHECKING:
    from .._types import Array, ArrayLike

LAYOUT = Layout([*ALL_KEYS.operands, Operand("E", "sr"), Operand("F", "sr")])


@quiet
@one_isa()
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

    ``k' = E^T k``, ``v' = F^T v``, ``o = softmax(scale q k'^T) v'``.  It is not causal: a projected
    key mixes all positions.  E and F may be the same.  Leading axes broadcast, so heads can share a
    projection, and all query heads can share one head of keys.

    Parameters
    ----------
    $softmax_q
    $all_keys
    $all_values
    E, F : array_like, shape (..., s, r)
        Projections of keys and of values.
    $softmax_scale

    Returns
    -------
    ndarray, shape (..., n, m)

    Notes
    -----
    2 (s + n) r (d + m) floating-point operations and r (d + m) numbers of memory per head.
    Scores may have any size, as in `softmax_attention`.

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
        checks.out("linformer", out, shape, np.empty(0, dtype))
    keys, values = transposed_product(E, k), transposed_product(F, v)
    (o,) = run(internal_ufuncs["softmax"], (q, keys, values, scale, 0.0), (out,))
    return o.astype(dtype, copy=False)


@quiet
@one_isa()
@filled_like(linformer)
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

    Returns
    -------
    dq, dk, dv, dE, dF : ndarray
        Gradients, in the shapes of the operands.  Those of a broadcast operand are summed over
        the axes it was broadcast along.  If E and F are one array, its gradient is ``dE + dF``.

    Notes
    -----
    About 2 (3 s + 4 n) r (d + m) floating-point operations per head.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x, E = np.ones((6, 2)), np.full((6, 3), 1 / 6)
    >>> [g.shape for g in linattn.linformer_backward(x, x, x, E, E, x)]
    [(6, 2), (6, 2), (6, 2), (6, 3), (6, 3)]
    """
    name = "linformer_backward"
    grad_out = checks.operand(name, "grad_out", grad_out)
    q, k, v, E, F, scale, shape, dtype = _operands(name, q, k, v, E, F, scale, grad_out)
    grad_out = checks.cotangent(name, grad_out, shape)
    keys, values = transposed_product(E, k), transposed_product(F, v)
    inputs = q, keys, values, grad_out, scale, 0.0
    dq, dkeys, dvalues = run(internal_ufuncs["softmax_backward"], inputs)
    dkeys, dvalues = gradient_sums.sum_all((dkeys, dvalues), (keys, values))
    pairs = (E, dkeys), (F, dvalues), (k, dkeys.mT), (v, dvalues.mT)
    grads = dq, *(product(x, y) for x, y in pairs)
    return gradient_sums.sum_all(grads, (q, k, v, E, F), (dtype,) * 5)


def _operands(
    name: str, q: Any, k: Any, v: Any, E: Any, F: Any, scale: Any, *others: Any
) -> tuple[Any, ...]:
    """The operands in one dtype, the scale, and the shape and dtype of the output.

    ``others`` also determine the dtype.
    """
    call = LAYOUT.read(name, (q, k, v, E, F))
    dtype = result_dtype(*call.arrays, *others)
    work = work_dtype(dtype)
    q, k, v, E, F = (np.asarray(x, work) for x in call.arrays)
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    return q, k, v, E, F, checks.number(name, "scale", scale, q), call.shape, dtype
