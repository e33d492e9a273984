"""Causal and non-causal linear attention and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _check
from ._linattn import ufuncs as _ufuncs

_MAPS = ("identity", "relu", "elu", "softplus", "exp")


def _table(operator: str) -> dict[tuple[str, bool], np.ufunc]:
    return {
        (name, normalize): _ufuncs[f"{operator}_{name}{'' if normalize else '_sum'}"]
        for name in _MAPS
        for normalize in (True, False)
    }


_CAUSAL = _table("causal")
_NONCAUSAL = _table("noncausal")
_CAUSAL_BACKWARD = _table("causal_backward")
_NONCAUSAL_BACKWARD = _table("noncausal_backward")


def causal(
    q: Any,
    k: Any,
    v: Any,
    *,
    feature_map: str = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    out: np.ndarray | None = None,
) -> Any:
    """Causal linear attention.

    ``s_i = s_{i-1} + phi(k_i) v_i^T``, ``z_i = z_{i-1} + phi(k_i)``,
    ``o_i = scale phi(q_i)^T s_i / (scale phi(q_i).z_i + eps)``; without ``normalize``,
    ``o_i = scale phi(q_i)^T s_i``.  Nothing at position i changes an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    q : array_like, shape (..., n, d)
        Queries, float32 or float64 (other real dtypes are cast by NumPy's rules).
    k : array_like, shape (..., n, d)
        Keys.
    v : array_like, shape (..., n, m)
        Values.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp'}, default 'elu'
        The map phi, applied to q and k; ``'elu'`` is ``elu(x) + 1``.
    normalize : bool, default True
        Divide by the sum of the weights.
    eps : float, default 1e-6
        Added once, to the whole denominator; unused where ``normalize`` is False.
    scale : float, default 1.0
        Multiplies phi(q), in the denominator as well.
    out : ndarray, shape (..., n, m), optional
        Where to put the result; of the result's dtype.  It may overlap an operand.

    Returns
    -------
    ndarray, shape (..., n, m)

    Raises
    ------
    TypeError
        If an operand is complex, masked, or not numbers; if ``eps`` or ``scale`` is not a
        number, or ``out`` has another dtype.
    ValueError
        If shapes do not match, ``feature_map`` is unknown, or ``eps`` or ``scale`` is not
        finite, or ``out`` has another shape.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    4 n d m floating-point operations a head; scratch of d m numbers a thread.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 9-12.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q = k = v = np.ones((3, 2), np.float32)
    >>> linattn.causal(q, k, v, eps=0.0)
    array([[1., 1.],
           [1., 1.],
           [1., 1.]], dtype=float32)
    """
    return _forward(
        "causal", _CAUSAL, True, q, k, v, feature_map, normalize, eps, scale, out
    )


def noncausal(
    q: Any,
    k: Any,
    v: Any,
    *,
    feature_map: str = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    out: np.ndarray | None = None,
) -> Any:
    """Linear attention of every query to every key.

    ``S = sum_j phi(k_j) v_j^T``, ``z = sum_j phi(k_j)``,
    ``o_i = scale phi(q_i)^T S / (scale phi(q_i).z + eps)``; without ``normalize``,
    ``o_i = scale phi(q_i)^T S``.  Keys and queries may differ in number.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    q : array_like, shape (..., n, d)
        Queries, float32 or float64 (other real dtypes are cast by NumPy's rules).
    k : array_like, shape (..., s, d)
        Keys.
    v : array_like, shape (..., s, m)
        Values.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp'}, default 'elu'
        The map phi, applied to q and k; ``'elu'`` is ``elu(x) + 1``.
    normalize : bool, default True
        Divide by the sum of the weights.
    eps : float, default 1e-6
        Added once, to the whole denominator; unused where ``normalize`` is False.
    scale : float, default 1.0
        Multiplies phi(q), in the denominator as well.
    out : ndarray, shape (..., n, m), optional
        Where to put the result; of the result's dtype.  It may overlap an operand.

    Returns
    -------
    ndarray, shape (..., n, m)

    Raises
    ------
    TypeError
        If an operand is complex, masked, or not numbers; if ``eps`` or ``scale`` is not a
        number, or ``out`` has another dtype.
    ValueError
        If shapes do not match, ``feature_map`` is unknown, or ``eps`` or ``scale`` is not
        finite, or ``out`` has another shape.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    2 (n + s) d m floating-point operations a head; scratch of d m numbers a thread.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 5-6.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q = k = v = np.ones((3, 2), np.float32)
    >>> linattn.noncausal(q, k, v, eps=0.0)
    array([[1., 1.],
           [1., 1.],
           [1., 1.]], dtype=float32)
    """
    return _forward(
        "noncausal", _NONCAUSAL, False, q, k, v, feature_map, normalize, eps, scale, out
    )


def causal_backward(
    q: Any,
    k: Any,
    v: Any,
    grad_out: Any,
    *,
    feature_map: str = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
) -> tuple[Any, Any, Any]:
    """Gradients of `causal`.

    Exact for the equation of `causal`, the denominator and ``eps`` included.  The
    forward result is not needed.

    Parameters
    ----------
    q : array_like, shape (..., n, d)
        Queries, float32 or float64 (other real dtypes are cast by NumPy's rules).
    k : array_like, shape (..., n, d)
        Keys.
    v : array_like, shape (..., n, m)
        Values.
    grad_out : array_like, shape (..., n, m)
        The gradient of a scalar with respect to the output of `causal`; it may be
        an expanded (zero-stride) view.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp'}, default 'elu'
        The map phi, applied to q and k; ``'elu'`` is ``elu(x) + 1``.
    normalize : bool, default True
        Divide by the sum of the weights.
    eps : float, default 1e-6
        Added once, to the whole denominator; unused where ``normalize`` is False.
    scale : float, default 1.0
        Multiplies phi(q), in the denominator as well.

    Returns
    -------
    dq, dk, dv : ndarray
        Gradients, in the shapes of q, k and v; those of a broadcast operand are summed
        over its repeats.

    Raises
    ------
    TypeError
        If an operand is complex, masked, or not numbers; if ``eps`` or ``scale`` is not a
        number.
    ValueError
        If shapes do not match, ``feature_map`` is unknown, or ``eps`` or ``scale`` is not
        finite.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    About 10 n d m floating-point operations a head.  Memory beyond the arrays: 2 d m
    numbers a thread and two numbers a token.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q = k = v = np.ones((3, 2))
    >>> dq, dk, dv = linattn.causal_backward(q, k, v, np.ones((3, 2)), eps=0.0)
    >>> dv.sum(axis=0)
    array([3., 3.])
    """
    return _backward(
        "causal_backward",
        _CAUSAL_BACKWARD,
        True,
        q,
        k,
        v,
        grad_out,
        feature_map,
        normalize,
        eps,
        scale,
    )


def noncausal_backward(
    q: Any,
    k: Any,
    v: Any,
    grad_out: Any,
    *,
    feature_map: str = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
) -> tuple[Any, Any, Any]:
    """Gradients of `noncausal`.

    Exact for the equation of `noncausal`, the denominator and ``eps`` included.  The
    forward result is not needed.

    Parameters
    ----------
    q : array_like, shape (..., n, d)
        Queries, float32 or float64 (other real dtypes are cast by NumPy's rules).
    k : array_like, shape (..., s, d)
        Keys.
    v : array_like, shape (..., s, m)
        Values.
    grad_out : array_like, shape (..., n, m)
        The gradient of a scalar with respect to the output of `noncausal`; it may be
        an expanded (zero-stride) view.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp'}, default 'elu'
        The map phi, applied to q and k; ``'elu'`` is ``elu(x) + 1``.
    normalize : bool, default True
        Divide by the sum of the weights.
    eps : float, default 1e-6
        Added once, to the whole denominator; unused where ``normalize`` is False.
    scale : float, default 1.0
        Multiplies phi(q), in the denominator as well.

    Returns
    -------
    dq, dk, dv : ndarray
        Gradients, in the shapes of q, k and v; those of a broadcast operand are summed
        over its repeats.

    Raises
    ------
    TypeError
        If an operand is complex, masked, or not numbers; if ``eps`` or ``scale`` is not a
        number.
    ValueError
        If shapes do not match, ``feature_map`` is unknown, or ``eps`` or ``scale`` is not
        finite.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    About 5 (n + s) d m floating-point operations a head.  Memory beyond the arrays:
    4 d m numbers a thread.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q = k = v = np.ones((3, 2))
    >>> dq, dk, dv = linattn.noncausal_backward(q, k, v, np.ones((3, 2)), eps=0.0)
    >>> dv.sum(axis=0)
    array([3., 3.])
    """
    return _backward(
        "noncausal_backward",
        _NONCAUSAL_BACKWARD,
        False,
        q,
        k,
        v,
        grad_out,
        feature_map,
        normalize,
        eps,
        scale,
    )


def _forward(function, table, same_length, q, k, v, feature_map, normalize, eps, scale, out):
    gufunc = _check.lookup(function, table, feature_map, normalize)
    q, k, v, shape = _check.qkv(function, q, k, v, same_length=same_length)
    scale = _check.number(function, "scale", scale)
    eps = _check.number(function, "eps", eps)
    if out is not None:
        _check.out(function, out, shape, q, k, v)
    if normalize:
        return gufunc(q, k, v, scale, eps, out=out)
    return gufunc(q, k, v, scale, out=out)


def _backward(function, table, same_length, q, k, v, grad_out, feature_map, normalize, eps, scale):
    gufunc = _check.lookup(function, table, feature_map, normalize)
    q, k, v, shape = _check.qkv(function, q, k, v, same_length=same_length)
    grad_out = _check.cotangent(function, grad_out, shape)
    scale = _check.number(function, "scale", scale)
    eps = _check.number(function, "eps", eps)
    scalars = (scale, eps) if normalize else (scale,)
    grads = gufunc(q, k, v, grad_out, *scalars)
    return tuple(_sum_to(g, x.shape) for g, x in zip(grads, (q, k, v), strict=True))


def _sum_to(grad: Any, shape: tuple) -> Any:
    """The gradient of an operand that was broadcast: summed over the repeats."""
    if grad.shape == shape:
        return grad
    extra = grad.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        i + extra for i, n in enumerate(shape) if n == 1 and grad.shape[i + extra] != 1
    )
    return grad.sum(axis=axes, keepdims=True).reshape(shape)
