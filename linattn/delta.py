"""Fast weights with the delta rule: forward, gradients, and one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _check, _gradients, _mapped, _state
from ._gufuncs import (
    DELTA,
    DELTA_BACKWARD,
    DELTA_STATE,
    DELTA_STATE_BACKWARD,
    DELTA_STEP,
    scalars,
)
from ._linattn import call_plain
from ._state import State
from .feature_maps import FeatureMap


def delta(
    q: Any,
    k: Any,
    v: Any,
    beta: Any,
    *,
    scale: float = 1.0,
    feature_map: str | FeatureMap = "identity",
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
    out: np.ndarray | None = None,
) -> Any:
    """Fast weights with the delta rule.

    ``s_i = s_{i-1} + phi(k_i) (beta_i * (v_i - s_{i-1}^T phi(k_i)))^T``,
    ``o_i = scale s_i^T phi(q_i)``.  A write first reads what the memory holds at the key
    and moves it towards the value; there is no further normaliser.  Nothing at position
    i changes an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    q : array_like, shape (..., n, d)
        Queries, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        NumPy's rules).  16-bit numbers are computed in float32 and rounded once.
    k : array_like, shape (..., n, d)
        Keys.  Where phi(k) has norm 1 and beta lies in [0, 2] the memory stays bounded;
        longer keys can make it grow without limit, to inf and NaN from there on.
    v : array_like, shape (..., n, m)
        Values.
    beta : array_like, shape (..., n) or (..., n, m)
        Write strength of each token, or of each of its value channels.  The number of
        axes decides: with fewer axes than the longest of q, k and v it is (..., n);
        otherwise (..., n, m), where a last axis of length 1 serves all channels.
    scale : float, default 1.0
        Multiplies the output.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'l2norm', 'dpfp'} or FeatureMap
        The map phi, applied to q and k, ``'identity'`` by default; ``'elu'`` is
        ``elu(x) + 1``; an object of `linattn.feature_maps` is applied in arrays of its own.
    key_lengths : array_like of int, broadcasting to the leading axes, optional
        Keys, values and strengths at and past it do not exist; every query is computed.
    cu_seqlens : array_like of int, shape (r + 1,), optional
        r sequences packed along n, sequence i from ``cu_seqlens[i]`` to
        ``cu_seqlens[i + 1]``, each with a state of its own; they may be empty.
    initial_state : State, optional
        The memory before the first token, ``s`` (..., d, m), or (..., r, d, m) with
        ``cu_seqlens``, and ``z`` None; zeros by default.
    return_state : bool, default False
        Return the memory behind the last token as well.
    out : ndarray, shape (..., n, m), optional
        Where to put the result; of the result's dtype.  It may overlap an operand.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    state : State
        Only with ``return_state``; its ``z`` is None.  A sequence cut anywhere continues
        from it.

    Raises
    ------
    TypeError
        If an operand is complex, masked, or not numbers; if ``scale`` is not a number, or
        ``out`` or a state has another dtype.
    ValueError
        If shapes do not match, ``feature_map`` is unknown, or ``scale`` is not finite, or
        lengths, ``out`` or a state do not fit.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    About 6 n d m floating-point operations a head, a triangular solve for every 16 or 32
    tokens among them; scratch of d m numbers a thread.

    References
    ----------
    Schlag, Irie and Schmidhuber, "Linear Transformers Are Secretly Fast Weight
    Programmers", ICML 2021, eq. 24-25

    Examples
    --------
    The second write to a key replaces the first one.

    >>> import numpy as np, linattn
    >>> k = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> linattn.delta(k, k, np.array([[5.0], [7.0]]), np.ones(2))
    array([[5.],
           [7.]])
    """
    if _mapped.outside(feature_map):
        return _mapped.call(
            delta, feature_map, q, k, v, beta=beta,
            scale=scale, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
            initial_state=initial_state, return_state=return_state, out=out,
        )  # fmt: skip
    q, k, v, shape = _check.qkv("delta", q, k, v, same_length=True)
    beta, per_channel, shape = _check.strength("delta", beta, (q, k, v), shape, 2)
    gufunc = _check.lookup("delta", DELTA, feature_map, per_channel)
    numbers = scalars("delta", (q, k, v, beta), scale, 0.0, False)
    if out is not None:
        _check.out("delta", out, shape, q, k, v, beta)
    if key_lengths is None and cu_seqlens is None and initial_state is None and not return_state:
        return gufunc(q, k, v, beta, *numbers, out=out)

    batch, (n, m), d = shape[:-2], shape[-2:], q.shape[-1]
    packing = _state.sequences("delta", n, batch, cu_seqlens, key_lengths)
    dtype = _check.state_dtype(q, k, v, beta)
    start = _state.operands(
        "delta", "initial_state", initial_state, packing, batch, (d, m), dtype, False
    )
    o, s = DELTA_STATE[feature_map, per_channel](
        q, k, v, beta, *numbers, *packing.indices, *start, out=(out, None)
    )
    return (o, _state.result(packing, s)) if return_state else o


def delta_backward(
    q: Any,
    k: Any,
    v: Any,
    beta: Any,
    grad_out: Any,
    *,
    scale: float = 1.0,
    feature_map: str | FeatureMap = "identity",
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:
    """Gradients of `delta`.

    Exact for the equation of `delta`.  The forward result is not needed.

    Parameters
    ----------
    q : array_like, shape (..., n, d)
        Queries, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        NumPy's rules).  16-bit numbers are computed in float32 and rounded once.
    k : array_like, shape (..., n, d)
        Keys.
    v : array_like, shape (..., n, m)
        Values.
    beta : array_like, shape (..., n) or (..., n, m)
        Write strength of each token, or of each of its value channels.  The number of
        axes decides: with fewer axes than the longest of q, k and v it is (..., n);
        otherwise (..., n, m), where a last axis of length 1 serves all channels.
    grad_out : array_like, shape (..., n, m)
        The gradient of a scalar with respect to the output of `delta`; it may be an
        expanded (zero-stride) view.
    scale : float, default 1.0
        Multiplies the output.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'l2norm', 'dpfp'} or FeatureMap
        The map phi, applied to q and k, ``'identity'`` by default; ``'elu'`` is
        ``elu(x) + 1``; an object of `linattn.feature_maps` is applied in arrays of its own.
    key_lengths : array_like of int, broadcasting to the leading axes, optional
        Keys, values and strengths at and past it do not exist; every query is computed.
    cu_seqlens : array_like of int, shape (r + 1,), optional
        r sequences packed along n, sequence i from ``cu_seqlens[i]`` to
        ``cu_seqlens[i + 1]``, each with a state of its own; they may be empty.
    initial_state : State, optional
        The memory before the first token, ``s`` (..., d, m), or (..., r, d, m) with
        ``cu_seqlens``, and ``z`` None; zeros by default.
    grad_state : State, optional
        The gradient with respect to the final state.

    Returns
    -------
    dq, dk, dv, dbeta : ndarray
        Gradients, in the shapes of q, k, v and beta; those of a broadcast operand are
        summed over its repeats.
    state : State
        The gradient of the initial state, in its shape; only where ``initial_state`` or
        ``grad_state`` is given.

    Raises
    ------
    TypeError
        If an operand is complex, masked, or not numbers; if ``scale`` is not a number, or
        a state has another dtype.
    ValueError
        If shapes do not match, ``feature_map`` is unknown, or ``scale`` is not finite, or
        lengths or a state do not fit.
    MemoryError
        If there is no room for the result or the scratch.

    Notes
    -----
    About 18 n d m floating-point operations a head.  Memory beyond the arrays: about
    2 sqrt(n / 16) + 3 states of d m numbers a thread (n / 32 where d > 128), 4 MiB for
    n = 262,144 and d = m = 64 in float32, and never the states of all tokens; with
    16-bit operands n m float32 numbers more.

    References
    ----------
    Schlag, Irie and Schmidhuber, "Linear Transformers Are Secretly Fast Weight
    Programmers", ICML 2021, eq. 24-25

    Examples
    --------
    What was written first is gone when the second write has replaced it.

    >>> import numpy as np, linattn
    >>> k, v = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[5.0], [7.0]])
    >>> g = np.array([[0.0], [1.0]])
    >>> dq, dk, dv, dbeta = linattn.delta_backward(k, k, v, np.ones(2), g)
    >>> dv
    array([[0.],
           [1.]])
    >>> dbeta
    array([0., 2.])
    """
    if _mapped.outside(feature_map):
        return _mapped.call(
            delta_backward, feature_map, q, k, v, beta=beta, grad_out=grad_out,
            scale=scale, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
            initial_state=initial_state, grad_state=grad_state,
        )  # fmt: skip
    name, given = "delta_backward", np.shape(beta)
    q, k, v, shape = _check.qkv(name, q, k, v, same_length=True)
    beta, per_channel, shape = _check.strength(name, beta, (q, k, v), shape, 2)
    grad_out = _check.cotangent(name, grad_out, shape)
    gufunc = _check.lookup(name, DELTA_BACKWARD, feature_map, per_channel)
    operands = q, k, v, beta
    numbers = scalars(name, (*operands, grad_out), scale, 0.0, False)
    with_state = initial_state is not None or grad_state is not None
    if key_lengths is None and cu_seqlens is None and not with_state:
        *grads, dbeta = _gradients.sum_all(gufunc(*operands, grad_out, *numbers), operands)
        return *grads, dbeta.reshape(given)

    batch, (n, m), d = shape[:-2], shape[-2:], q.shape[-1]
    packing = _state.sequences(name, n, batch, cu_seqlens, key_lengths)
    dtype = _check.state_dtype(*operands, grad_out)
    start, last = (
        _state.operands(name, field, state, packing, batch, (d, m), dtype, False)
        for field, state in (("initial_state", initial_state), ("grad_state", grad_state))
    )
    *grads, ds = DELTA_STATE_BACKWARD[feature_map, per_channel](
        *operands, grad_out, *numbers, *packing.indices, *start, *last
    )
    *grads, dbeta = _gradients.sum_all(tuple(grads), operands)
    if not with_state:
        return *grads, dbeta.reshape(given)
    if initial_state is not None:
        (ds,) = _gradients.sum_all((ds,), start)
    return *grads, dbeta.reshape(given), _state.result(packing, ds)


def delta_step(
    q: Any,
    k: Any,
    v: Any,
    beta: Any,
    state: State,
    *,
    scale: float = 1.0,
    feature_map: str | FeatureMap = "identity",
    in_place: bool = False,
) -> tuple[Any, State]:
    """One token of `delta`: write to the memory, then read it.

    ``s <- s + phi(k) (beta * (v - s^T phi(k)))^T``, ``o = scale s^T phi(q)``

    Parameters
    ----------
    q, k : array_like, shape (..., d)
        The token's query and key.
    v : array_like, shape (..., m)
        Its value.
    beta : array_like, shape (...) or (..., m)
        Its write strength, or one of each value channel.  The number of axes decides:
        with fewer axes than the longest of q, k and v it is (...); otherwise (..., m),
        where a last axis of length 1 serves all channels.
    state : State
        The memory so far, ``s`` (..., d, m), of the result's dtype, or float32 where that
        has 16 bits, and ``z`` None.
    scale : float, default 1.0
        Multiplies the output.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'l2norm', 'dpfp'} or FeatureMap
        The map phi, applied to q and k, ``'identity'`` by default; ``'elu'`` is
        ``elu(x) + 1``; an object of `linattn.feature_maps` is applied in arrays of its own.
    in_place : bool, default False
        Write the new state into the array of ``state``, which must then be writeable and
        have all the leading axes, and return it.

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
        If shapes do not match, or ``state`` has a ``z``.
    MemoryError
        If there is no room for the result.

    Notes
    -----
    6 d m floating-point operations a head; the state is read and written once.

    References
    ----------
    Schlag, Irie and Schmidhuber, "Linear Transformers Are Secretly Fast Weight
    Programmers", ICML 2021, eq. 24-25

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.zeros((2, 1)))
    >>> k = np.array([1.0, 0.0])
    >>> o, state = linattn.delta_step(k, k, np.array([4.0]), 0.5, state)
    >>> o
    array([2.])
    """
    if _mapped.outside(feature_map):
        return _mapped.call(
            delta_step, feature_map, q, k, v, beta=beta, state=state, scale=scale, in_place=in_place
        )
    name = "delta_step"
    if in_place and type(beta) is np.ndarray and _check.is_state(state, False):
        gufunc = _check.lookup(name, DELTA_STEP, feature_map, beta.ndim >= np.ndim(q))
        result = call_plain(gufunc, q, k, v, beta, scale, None, state[0])
        if result is not NotImplemented:
            return result[0], state
    q, k, v, batch = _check.token(name, q, k, v)
    m = v.shape[-1]
    beta, per_channel, shape = _check.strength(name, beta, (q, k, v), (*batch, m), 1)
    gufunc = _check.lookup(name, DELTA_STEP, feature_map, per_channel)
    numbers = scalars(name, (q, k, v, beta), scale, 0.0, False)
    batch, core = shape[:-1], (q.shape[-1], m)
    dtype = _check.state_dtype(q, k, v, beta)
    s, *_ = fields = _check.state(name, "state", state, batch, core, dtype, False)
    if in_place:
        _check.in_place(name, fields, batch)
    else:
        s = np.array(np.broadcast_to(s, (*batch, *core)))
        state = State(s)
    return gufunc(q, k, v, beta, *numbers, out=(None, s))[0], state
