"""Exact softmax attention: the baseline that linear attention is compared with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from . import _check, _gradients
from ._docs import filled
from ._gufuncs import internal_ufuncs, quiet, run
from ._layout import ALL_KEYS, SAME_TOKENS

if TYPE_CHECKING:
    from ._types import Array, ArrayLike, Bool


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
    """Softmax attention, exact, by blocks.

    ``o_i = sum_j p_ij v_j``, ``p_i = softmax(scale q_i.k_j)`` over all keys, or over keys
    j <= i where ``causal``.  Nothing at position i then changes an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    $softmax_q
    k : array_like, shape (..., s, d)
        Keys; s = n where causal.
    $all_values
    causal : bool, default False
        Whether a token sees itself and earlier ones alone.
    $softmax_scale
    $out

    Returns
    -------
    ndarray, shape (..., n, m)
        Zeros where there is no key.

    Raises
    ------
    $raises

    Notes
    -----
    2 n s (d + m) floating-point operations a head, half of it where causal; scratch of a few
    blocks of rows a thread, whatever n and s.

    Scores of any size: one too large for its dtype counts as the largest number, or its
    negative, so that such scores tie.

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
        _check.out("softmax_attention", out, shape, q, k, v)
    (o,) = run(internal_ufuncs["softmax"], (q, k, v, *numbers), (out,))
    return o.astype(_check.result_dtype(q, k, v), copy=False)


@quiet
@filled
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

    Parameters
    ----------
    $softmax_q
    k : array_like, shape (..., s, d)
        Keys; s = n where causal.
    $all_values
    $grad_out
    causal : bool, default False
        As forwards.
    scale : float, optional
        As forwards.

    Returns
    -------
    $gradients

    Raises
    ------
    $raises

    Notes
    -----
    The forward pass is repeated: 2 n s (4 d + 3 m) floating-point operations a head, half of it
    where causal; scratch of n (d + 3) numbers a thread.

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
    grad_out = _check.cotangent(name, grad_out, shape)
    dtype = _check.result_dtype(q, k, v, grad_out)
    inputs = q, k, v, grad_out, *numbers
    grads = run(internal_ufuncs["softmax_backward"], inputs, dtype=dtype)
    return _gradients.sum_all(grads, (q, k, v), (dtype,) * 3)


def _operands(name: str, q: Any, k: Any, v: Any, causal: Any, scale: Any) -> tuple[Any, ...]:
    """q, k, v as arrays, the output's shape, and (scale, causal) as the kernels take them."""
    causal = _check.flag(name, "causal", causal)
    call = (SAME_TOKENS if causal else ALL_KEYS).read(name, (q, k, v))
    q, k, v = call.arrays
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    return q, k, v, call.shape, (_check.number(name, "scale", scale, q, k, v), float(causal))
