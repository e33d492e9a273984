"""Causal and non-causal linear attention, and the recurrent step."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _check, _mapped, _segments, _state
from ._gufuncs import CAUSAL, CAUSAL_STATE, NONCAUSAL, NONCAUSAL_KEYS, STEP, scalars
from ._linattn import call_plain
from ._state import State
from .feature_maps import FeatureMap


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
    if _mapped.outside(feature_map):
        return _mapped.call(
            causal, feature_map, q, k, v,
            normalize=normalize, eps=eps, scale=scale, key_lengths=key_lengths,
            cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state, out=out,
        )  # fmt: skip
    gufunc = _check.lookup("causal", CAUSAL, feature_map, normalize)
    q, k, v, shape = _check.qkv("causal", q, k, v, same_length=True)
    numbers = scalars("causal", (q, k, v), scale, eps, normalize)
    if out is not None:
        _check.out("causal", out, shape, q, k, v)
    single = key_lengths is None and cu_seqlens is None
    segmented = single and _segments.worthwhile(shape, q, k, v)
    if single and initial_state is None and not return_state and not segmented:
        return gufunc(q, k, v, *numbers, out=out)

    batch, (n, m), d = shape[:-2], shape[-2:], q.shape[-1]
    packing = _state.sequences("causal", n, batch, cu_seqlens, key_lengths)
    dtype = _check.state_dtype(q, k, v)
    start = _state.operands(
        "causal", "initial_state", initial_state, packing, batch, (d, m), dtype, normalize
    )
    key = feature_map, normalize
    if segmented:
        result = _check.result_dtype(q, k, v)
        o, *end = _segments.causal(key, q, k, v, numbers, start, result, shape, out)
    else:
        o, *end = CAUSAL_STATE[key](
            q, k, v, *numbers, *packing.indices, *start, out=(out, *(None for _ in start))
        )
    return (o, _state.result(packing, *end)) if return_state else o


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
    if _mapped.outside(feature_map):
        return _mapped.call(
            noncausal, feature_map, q, k, v,
            normalize=normalize, eps=eps, scale=scale, key_lengths=key_lengths, out=out,
        )  # fmt: skip
    gufunc = _check.lookup("noncausal", NONCAUSAL, feature_map, normalize)
    q, k, v, shape = _check.qkv("noncausal", q, k, v, same_length=False)
    numbers = scalars("noncausal", (q, k, v), scale, eps, normalize)
    if out is not None:
        _check.out("noncausal", out, shape, q, k, v)
    if key_lengths is None:
        return gufunc(q, k, v, *numbers, out=out)
    keys = _check.key_lengths("noncausal", key_lengths, k.shape[-2], shape[:-2])
    return NONCAUSAL_KEYS[feature_map, normalize](q, k, v, *numbers, keys, out=out)


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
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'l2norm', 'dpfp'} or FeatureMap
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
    if _mapped.outside(feature_map):
        return _mapped.call(
            step, feature_map, q, k, v, state=state,
            normalize=normalize, eps=eps, scale=scale, in_place=in_place,
        )  # fmt: skip
    gufunc = _check.lookup("step", STEP, feature_map, normalize)
    if in_place and _check.is_state(state, normalize):
        s, z, _ = state
        if normalize:
            result = call_plain(gufunc, q, k, v, scale, eps, None, s, z)
        else:
            result = call_plain(gufunc, q, k, v, scale, None, s)
        if result is not NotImplemented:
            return result[0], state
    q, k, v, batch = _check.token("step", q, k, v)
    numbers = scalars("step", (q, k, v), scale, eps, normalize)
    core, dtype = (q.shape[-1], v.shape[-1]), _check.state_dtype(q, k, v)
    s, z, _ = fields = _check.state("step", "state", state, batch, core, dtype, normalize)
    if in_place:
        _check.in_place("step", fields, batch)
    else:
        s = np.array(np.broadcast_to(s, (*batch, *core)))
        z = np.array(np.broadcast_to(z, (*batch, core[0]))) if normalize else None
        state = State(s, z)
    o = gufunc(q, k, v, *numbers, out=(None, s, z) if normalize else (None, s))[0]
    return o, state
