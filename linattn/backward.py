"""Gradients of causal and non-causal linear attention."""

from __future__ import annotations

from typing import Any

from . import _check, _gradients, _mapped, _state
from ._gufuncs import (
    CAUSAL_BACKWARD,
    CAUSAL_STATE_BACKWARD,
    NONCAUSAL_BACKWARD,
    NONCAUSAL_KEYS_BACKWARD,
    scalars,
)
from ._state import State
from .feature_maps import FeatureMap


def causal_backward(
    q: Any,
    k: Any,
    v: Any,
    grad_out: Any,
    *,
    feature_map: str | FeatureMap = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:
    """Gradients of `causal`.

    Exact for the equation of `causal`, the denominator and ``eps`` included.  The
    forward result is not needed.

    Parameters
    ----------
    q : array_like, shape (..., n, d)
        Queries, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        NumPy's rules).  16-bit numbers are computed in float32 and rounded once.
    k : array_like, shape (..., n, d)
        Keys.
    v : array_like, shape (..., n, m)
        Values.
    grad_out : array_like, shape (..., n, m)
        The gradient of a scalar with respect to the output of `causal`; it may be
        an expanded (zero-stride) view.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'l2norm', 'dpfp'} or FeatureMap
        The map phi, applied to q and k; ``'elu'``, the default, is ``elu(x) + 1``; an
        object of `linattn.feature_maps` is applied in arrays of its own.
    normalize : bool, default True
        Divide by the sum of the weights.
    eps : float, default 1e-6
        Added once, to the whole denominator; unused where ``normalize`` is False.
    scale : float, default 1.0
        Multiplies phi(q), in the denominator as well.
    key_lengths : array_like of int, broadcasting to the leading axes, optional
        Keys and values at and past it do not exist; every query is computed, and where
        there is no key at all the output is 0.
    cu_seqlens : array_like of int, shape (r + 1,), optional
        r sequences packed along n, sequence i from ``cu_seqlens[i]`` to
        ``cu_seqlens[i + 1]``, each with a state of its own; they may be empty.
    initial_state : State, optional
        The state before the first token, ``s`` (..., d, m) and ``z`` (..., d), or
        (..., r, d, m) and (..., r, d) with ``cu_seqlens``; zeros by default.
    grad_state : State, optional
        The gradient with respect to the final state.

    Returns
    -------
    dq, dk, dv : ndarray
        Gradients, in the shapes of q, k and v; those of a broadcast operand are summed
        over its repeats.
    state : State
        The gradient of the initial state, in its shape; only where ``initial_state`` or
        ``grad_state`` is given.

    Raises
    ------
    TypeError
        If an operand is complex, masked, or not numbers; if ``eps`` or ``scale`` is not a
        number, or a state has another dtype.
    ValueError
        If shapes do not match, ``feature_map`` is unknown, or ``eps`` or ``scale`` is not
        finite, or lengths or a state do not fit.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    About 10 n d m floating-point operations a head.  Memory beyond the arrays: 2 d m
    numbers a thread and two numbers a token of each head under way.

    On inputs that are very large or far below 0 see the notes of `causal`.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 13-15

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q = k = v = np.ones((3, 2))
    >>> dq, dk, dv = linattn.causal_backward(q, k, v, np.ones((3, 2)), eps=0.0)
    >>> dv.sum(axis=0)
    array([3., 3.])
    """
    if _mapped.outside(feature_map):
        return _mapped.call(
            causal_backward, feature_map, q, k, v, grad_out=grad_out,
            normalize=normalize, eps=eps, scale=scale, key_lengths=key_lengths,
            cu_seqlens=cu_seqlens, initial_state=initial_state, grad_state=grad_state,
        )  # fmt: skip
    name = "causal_backward"
    gufunc = _check.lookup(name, CAUSAL_BACKWARD, feature_map, normalize)
    q, k, v, shape = _check.qkv(name, q, k, v, same_length=True)
    grad_out = _check.cotangent(name, grad_out, shape)
    numbers = scalars(name, (q, k, v, grad_out), scale, eps, normalize)
    with_state = initial_state is not None or grad_state is not None
    if key_lengths is None and cu_seqlens is None and not with_state:
        return _gradients.sum_all(gufunc(q, k, v, grad_out, *numbers), (q, k, v))

    batch, (n, m), d = shape[:-2], shape[-2:], q.shape[-1]
    packing = _state.sequences(name, n, batch, cu_seqlens, key_lengths)
    dtype = _check.state_dtype(q, k, v, grad_out)
    start, last = (
        _state.operands(name, field, state, packing, batch, (d, m), dtype, normalize)
        for field, state in (("initial_state", initial_state), ("grad_state", grad_state))
    )
    grads = CAUSAL_STATE_BACKWARD[feature_map, normalize](
        q, k, v, grad_out, *numbers, *packing.indices, *start, *last
    )
    first, rest = _gradients.sum_all(grads[:3], (q, k, v)), grads[3:]
    if not with_state:
        return first
    if initial_state is not None:
        rest = _gradients.sum_all(rest, start)
    return *first, _state.result(packing, *rest)


def noncausal_backward(
    q: Any,
    k: Any,
    v: Any,
    grad_out: Any,
    *,
    feature_map: str | FeatureMap = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: Any = None,
) -> tuple[Any, ...]:
    """Gradients of `noncausal`.

    Exact for the equation of `noncausal`, the denominator and ``eps`` included.  The
    forward result is not needed.

    Parameters
    ----------
    q : array_like, shape (..., n, d)
        Queries, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        NumPy's rules).  16-bit numbers are computed in float32 and rounded once.
    k : array_like, shape (..., s, d)
        Keys.
    v : array_like, shape (..., s, m)
        Values.
    grad_out : array_like, shape (..., n, m)
        The gradient of a scalar with respect to the output of `noncausal`; it may be
        an expanded (zero-stride) view.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'l2norm', 'dpfp'} or FeatureMap
        The map phi, applied to q and k; ``'elu'``, the default, is ``elu(x) + 1``; an
        object of `linattn.feature_maps` is applied in arrays of its own.
    normalize : bool, default True
        Divide by the sum of the weights.
    eps : float, default 1e-6
        Added once, to the whole denominator; unused where ``normalize`` is False.
    scale : float, default 1.0
        Multiplies phi(q), in the denominator as well.
    key_lengths : array_like of int, broadcasting to the leading axes, optional
        Keys and values at and past it do not exist; every query is computed, and where
        there is no key at all the output is 0.

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
        finite, or lengths do not fit.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    About (6 n + 4 s) d m floating-point operations a head.  Memory beyond the arrays:
    2 d m numbers a thread.

    On inputs that are very large or far below 0 see the notes of `causal`.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 5-6

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q = k = v = np.ones((3, 2))
    >>> dq, dk, dv = linattn.noncausal_backward(q, k, v, np.ones((3, 2)), eps=0.0)
    >>> dv.sum(axis=0)
    array([3., 3.])
    """
    if _mapped.outside(feature_map):
        return _mapped.call(
            noncausal_backward, feature_map, q, k, v, grad_out=grad_out,
            normalize=normalize, eps=eps, scale=scale, key_lengths=key_lengths,
        )  # fmt: skip
    name = "noncausal_backward"
    gufunc = _check.lookup(name, NONCAUSAL_BACKWARD, feature_map, normalize)
    q, k, v, shape = _check.qkv(name, q, k, v, same_length=False)
    grad_out = _check.cotangent(name, grad_out, shape)
    numbers = scalars(name, (q, k, v, grad_out), scale, eps, normalize)
    if key_lengths is None:
        return _gradients.sum_all(gufunc(q, k, v, grad_out, *numbers), (q, k, v))
    keys = _check.key_lengths(name, key_lengths, k.shape[-2], shape[:-2])
    keyed = NONCAUSAL_KEYS_BACKWARD[feature_map, normalize]
    return _gradients.sum_all(keyed(q, k, v, grad_out, *numbers, keys), (q, k, v))
