"""Exact softmax attention, the baseline for linear attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .._core import checks, gradient_sums
from .._core.dtypes import result_dtype
from .._core.gufuncs import internal_ufuncs, quiet, run
from .._core.layout import ALL_KEYS, SAME_TOKENS
from .._core.lazy import in_one_chunk
from .._docs.templates import filled, filled_like

if TYPE_CHECKING:
    from .._types import Array, ArrayLike, Bool


@quiet
@filled
def softmax_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: Bool = False,
    scale: float | None = None,
    out: Array | None = None,
) -> Array:
    """Exact softmax attention, computed by blocks.

    ``o_i = sum_j p_ij v_j``, ``p_i = softmax(scale q_i.k_j)`` over all keys, or over keys
    j <= i if ``causal``.  Then a token at position i never affects an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    $softmax_q
    k : array_like, shape (..., s, d)
        Keys; s = n if causal.
    $all_values
    causal : bool, default False
        Whether each token sees only itself and earlier tokens.
    $softmax_scale

    Returns
    -------
    ndarray, shape (..., n, m)
        Zeros if there is no key.

    Notes
    -----
    2 n s (d + m) floating-point operations per head, half of that if causal.  Scratch of a few
    blocks of rows per thread, for any n and s.

    Scores may have any size.  One that overflows counts as the largest finite number of its sign,
    so all such scores tie.

    References
    ----------
    Vaswani et al., "Attention is all you need", NeurIPS 2017, eq. 1;
    Dao et al., "FlashAttention", NeurIPS 2022, algorithm 1

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.eye(2)
    >>> linattn.softmax_attention(x, x, x, causal=True, scale=np.log(3))
    array([[1.  , 0.  ],
           [0.25, 0.75]])
    """
    q, k, v, shape, numbers = _operands("softmax_attention", q, k, v, causal, scale)
    if out is not None:
        checks.out("softmax_attention", out, shape, q, k, v)
    (o,) = run(internal_ufuncs["softmax"], (q, k, v, *numbers), (out,))
    return o.astype(result_dtype(q, k, v), copy=False)


@quiet
@filled_like(softmax_attention)
def softmax_attention_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    grad_out: ArrayLike,
    *,
    causal: Bool = False,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients of `softmax_attention`.

    Returns
    -------
    $gradients

    Notes
    -----
    The forward pass is repeated: 2 n s (4 d + 3 m) floating-point operations per head, half of that
    if causal.  Scratch of n (d + 3) numbers per thread.

    References
    ----------
    Dao et al., "FlashAttention", NeurIPS 2022, algorithm 4

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.eye(2)
    >>> dq, dk, dv = linattn.softmax_attention_backward(x, x, x, np.ones((2, 2)), causal=True)
    >>> dv.sum(axis=0)
    array([2., 2.])
    """
    name = "softmax_attention_backward"
    q, k, v, shape, numbers = _operands(name, q, k, v, causal, scale)
    grad_out = checks.cotangent(name, in_one_chunk(name, "grad_out", grad_out, 2), shape)
    dtype = result_dtype(q, k, v, grad_out)
    inputs = q, k, v, grad_out, *numbers
    grads = run(internal_ufuncs["softmax_backward"], inputs, dtype=dtype)
    return gradient_sums.sum_all(grads, (q, k, v), (dtype,) * 3)


def _operands(name: str, q: Any, k: Any, v: Any, causal: Any, scale: Any) -> tuple[Any, ...]:
    """q, k, v as arrays, the output's shape, and (scale, causal) as the kernels take them."""
    causal = checks.flag(name, "causal", causal)
    call = (SAME_TOKENS if causal else ALL_KEYS).read_for_gufunc(name, (q, k, v))
    q, k, v = call.arrays
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    return q, k, v, call.shape, (checks.number(name, "scale", scale, q, k, v), float(causal))
