"""Causal and non-causal linear attention, their gradients, and the recurrent step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._operator import Recurrence
from ._state import State
from .feature_maps import FeatureMap

CAUSAL = Recurrence("causal", step="step", normalizer=True, sums="state")
NONCAUSAL = Recurrence("noncausal", normalizer=True, cross=True)


def causal(
    q: Any,
    k: Any,
    v: Any,
    *,
    feature_map: str | FeatureMap = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
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
        Queries, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        NumPy's rules).  16-bit numbers are computed in float32 and rounded once.
    k : array_like, shape (..., n, d)
        Keys.
    v : array_like, shape (..., n, m)
        Values.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'dpfp'} or FeatureMap
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
    return_state : bool, default False
        Return the state behind the last token as well.
    out : ndarray, shape (..., n, m), optional
        Where to put the result; of the result's dtype.  It may overlap an operand.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    state : State
        Only with ``return_state``.  A sequence cut anywhere continues from it.

    Raises
    ------
    TypeError
        If an operand is complex, masked, or not numbers; if ``eps`` or ``scale`` is not a
        number, or ``out`` or a state has another dtype.
    ValueError
        If shapes do not match, ``feature_map`` is unknown, or ``eps`` or ``scale`` is not
        finite, or lengths, ``out`` or a state do not fit.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    4 n d m floating-point operations a head; scratch of d m numbers a thread.

    The normaliser is as good as the weights' sum.  With ``'exp'`` a weight is e^(q + k):
    beyond the range (q + k near 88 in float32, 709 in float64) results are NaN; subtract
    from q and from k their largest entries, which cancel in the quotient, or take
    `feature_maps.PositiveRandomFeatures`, which rescale.  With ``'elu'`` inputs far below 0
    have weights near e^(q + k): where these sum to less than ``eps`` the result shrinks
    towards 0 (all inputs -14, d = 64: 4e-5 of it is left); normalise the inputs, or lower
    ``eps``, down to 0 above -40.  With ``'identity'`` the sum may change its sign and pass
    near 0, where results have no bound: use it with features that are not negative, or with
    ``normalize=False``.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 9-12

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q = k = v = np.ones((3, 2), np.float32)
    >>> linattn.causal(q, k, v, eps=0.0)
    array([[1., 1.],
           [1., 1.],
           [1., 1.]], dtype=float32)
    """
    return CAUSAL.forward(
        (q, k, v), feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state, out=out,
    )  # fmt: skip


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
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'dpfp'} or FeatureMap
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
    return CAUSAL.backward(
        (q, k, v), grad_out, feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        grad_state=grad_state,
    )  # fmt: skip


def noncausal(
    q: Any,
    k: Any,
    v: Any,
    *,
    feature_map: str | FeatureMap = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: Any = None,
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
        Queries, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        NumPy's rules).  16-bit numbers are computed in float32 and rounded once.
    k : array_like, shape (..., s, d)
        Keys.
    v : array_like, shape (..., s, m)
        Values.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'dpfp'} or FeatureMap
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
        finite, or lengths or ``out`` do not fit.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    2 (n + s) d m floating-point operations a head; scratch of d m numbers a thread.

    On inputs that are very large or far below 0 see the notes of `causal`.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 5-6

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q, k = np.ones((1, 2)), np.ones((4, 2))
    >>> linattn.noncausal(q, k, np.arange(8.0).reshape(4, 2), eps=0.0)
    array([[3., 4.]])
    """
    return NONCAUSAL.forward(
        (q, k, v), feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        key_lengths=key_lengths, out=out,
    )  # fmt: skip


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
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'dpfp'} or FeatureMap
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
    return NONCAUSAL.backward(
        (q, k, v), grad_out, feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        key_lengths=key_lengths,
    )  # fmt: skip


def step(
    q: Any,
    k: Any,
    v: Any,
    state: State,
    *,
    feature_map: str | FeatureMap = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    in_place: bool = False,
) -> tuple[Any, State]:
    """One token of `causal`: write to the state, then read it.

    ``s <- s + phi(k) v^T``, ``z <- z + phi(k)``,
    ``o = scale phi(q)^T s / (scale phi(q).z + eps)``

    Parameters
    ----------
    q, k : array_like, shape (..., d)
        The token's query and key.
    v : array_like, shape (..., m)
        Its value.
    state : State
        The state so far, ``s`` (..., d, m) and ``z`` (..., d), of the result's dtype, or
        float32 where that has 16 bits.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'dpfp'} or FeatureMap
        The map phi, applied to q and k; ``'elu'``, the default, is ``elu(x) + 1``; an
        object of `linattn.feature_maps` is applied in arrays of its own.
    normalize : bool, default True
        Divide by the sum of the weights.
    eps : float, default 1e-6
        Added once, to the whole denominator; unused where ``normalize`` is False.
    scale : float, default 1.0
        Multiplies phi(q), in the denominator as well.
    in_place : bool, default False
        Write the new state into the arrays of ``state``, which must then be writeable
        and have all the leading axes, and return them.

    Returns
    -------
    o : ndarray, shape (..., m)
    state : State
        The state behind the token.

    Raises
    ------
    TypeError
        If an operand is not real numbers, or ``state`` of another dtype.
    ValueError
        If shapes do not match, or ``z`` is missing or superfluous.
    MemoryError
        If there is no room for the result.

    Notes
    -----
    4 d m floating-point operations a head; the state is read and written once.

    On inputs that are very large or far below 0 see the notes of `causal`.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 16-20

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.zeros((2, 2)), np.zeros(2))
    >>> o, state = linattn.step(np.ones(2), np.ones(2), np.array([3.0, 4.0]), state, eps=0.0)
    >>> o
    array([3., 4.])
    """
    return CAUSAL.step(
        (q, k, v), state, feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        in_place=in_place,
    )  # fmt: skip
