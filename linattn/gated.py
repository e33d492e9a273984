"""Gated linear attention, whose memory decays: forward, gradients, and one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._operator import Extra, Recurrence
from ._state import State
from .feature_maps import FeatureMap

GATE = Extra("g", "n", "d", "_key_channels", wide=True)
GATED = Recurrence(
    "gated", extras=(GATE, Extra("bonus", "d", suffix="_bonus", optional=True, wide=True))
)


def gated(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    *,
    scale: float = 1.0,
    feature_map: str | FeatureMap = "identity",
    bonus: Any = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
    out: np.ndarray | None = None,
) -> Any:
    """Causal linear attention whose memory decays before each write.

    ``s_i = exp(g_i) s_{i-1} + phi(k_i) v_i^T``, ``o_i = scale s_i^T phi(q_i)``: Mamba-2, RetNet
    and lightning attention with one gate a token, gated linear attention with one a key channel
    (a row of s).  With a ``bonus`` u it reads before it writes, as RWKV-6 does:
    ``o_i = scale (s_{i-1} + (u * phi(k_i)) v_i^T)^T phi(q_i)``.  Nothing at position i changes
    an output before i.

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
    g : array_like, shape (..., n) or (..., n, d)
        Natural logarithm of the decay of each token, or of each of its key channels: 0
        forgets nothing, -inf all; it may be positive, where the memory then grows.  The
        number of axes decides: with fewer axes than the longest of q, k and v it is (..., n);
        otherwise (..., n, d), where a last axis of length 1 serves all channels.  It is
        converted to what is computed in, float32 for 16-bit tokens, and has no say in the
        result's dtype.
    scale : float, default 1.0
        Multiplies the output.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'dpfp'} or FeatureMap
        The map phi, applied to q and k, ``'identity'`` by default; ``'elu'`` is
        ``elu(x) + 1``; an object of `linattn.feature_maps` is applied in arrays of its own,
        and d then is the number of features for ``g``, ``bonus`` and states.
    bonus : array_like, shape (..., d), optional
        Weight u of each key channel for a token's own key; with it queries read before their
        token's decay and write.  Converted as ``g`` is.
    key_lengths : array_like of int, broadcasting to the leading axes, optional
        Keys, values and gates at and past it do not exist; every query is computed.
    cu_seqlens : array_like of int, shape (r + 1,), optional
        r sequences packed along n, sequence i from ``cu_seqlens[i]`` to
        ``cu_seqlens[i + 1]``, each with a state of its own; they may be empty.
    initial_state : State, optional
        The memory before the first token, ``s`` (..., d, m), or (..., r, d, m) with
        ``cu_seqlens``, and ``z`` None; zeros by default.
    return_state : bool, default False
        Return the memory after the last token as well.
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
    About 4 n d m floating-point operations a head, and half a dozen exponentials a token, or
    2.5 a key channel; scratch of 2 d m numbers a thread.  A decay is never the quotient of two
    exponentials: a gate of -inf, or of -1e30, resets the memory to exactly 0, and long runs of
    strong gates are as exact as weak ones.  A gate that is NaN makes all NaN from there on.

    References
    ----------
    Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training", ICML
    2024, eq. 3; Dao and Gu, "Transformers are SSMs", ICML 2024, eq. 1; Peng et al., "Eagle and
    Finch: RWKV with Matrix-Valued States and Dynamic Recurrence", COLM 2024 (the bonus)

    Examples
    --------
    Half of the memory is gone at each token.

    >>> import numpy as np, linattn
    >>> x = np.ones((3, 1))
    >>> linattn.gated(x, x, x, np.full(3, np.log(0.5)))
    array([[1.  ],
           [1.5 ],
           [1.75]])
    """
    return GATED.forward(
        (q, k, v, g, bonus), feature_map=feature_map, scale=scale, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state, out=out,
    )  # fmt: skip


def gated_backward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    grad_out: Any,
    *,
    scale: float = 1.0,
    feature_map: str | FeatureMap = "identity",
    bonus: Any = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:
    """Gradients of `gated`.

    Exact for the equation of `gated`.  The forward result is not needed.

    Parameters
    ----------
    q : array_like, shape (..., n, d)
        Queries, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        NumPy's rules).  16-bit numbers are computed in float32 and rounded once.
    k : array_like, shape (..., n, d)
        Keys.
    v : array_like, shape (..., n, m)
        Values.
    g : array_like, shape (..., n) or (..., n, d)
        Natural logarithm of the decay of each token, or of each of its key channels: 0
        forgets nothing, -inf all; it may be positive, where the memory then grows.  The
        number of axes decides: with fewer axes than the longest of q, k and v it is (..., n);
        otherwise (..., n, d), where a last axis of length 1 serves all channels.  It is
        converted to what is computed in, float32 for 16-bit tokens, and has no say in the
        result's dtype.
    grad_out : array_like, shape (..., n, m)
        The gradient of a scalar with respect to the output of `gated`; it may be an
        expanded (zero-stride) view.
    scale : float, default 1.0
        Multiplies the output.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'dpfp'} or FeatureMap
        The map phi, applied to q and k, ``'identity'`` by default; ``'elu'`` is
        ``elu(x) + 1``; an object of `linattn.feature_maps` is applied in arrays of its own,
        and d then is the number of features for ``g``, ``bonus`` and states.
    bonus : array_like, shape (..., d), optional
        Weight u of each key channel for a token's own key; with it queries read before their
        token's decay and write.  Converted as ``g`` is.
    key_lengths : array_like of int, broadcasting to the leading axes, optional
        Keys, values and gates at and past it do not exist; every query is computed.
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
    dq, dk, dv, dg : ndarray
        Gradients, in the shapes of q, k, v and g; those of a broadcast operand are summed over
        its repeats.  dg, and dbonus, have the dtype that is computed in: float32 for 16-bit
        tokens.
    dbonus : ndarray
        Only where ``bonus`` is given.
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
    About 12 n d m floating-point operations a head.  Memory beyond the arrays: about
    2 sqrt(n / 16) + 4 states of d m numbers a thread (n / 32 where d > 64, n / 64 where
    d > 192), and never the states of all tokens.

    The error of dg is, as that of the other gradients, in proportion to the sum of the
    magnitudes of its terms, which are the pairs of tokens on either side of a gate: they are
    added up as they stand, not as the difference of two longer sums.

    References
    ----------
    Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training", ICML
    2024, eq. 3; Dao and Gu, "Transformers are SSMs", ICML 2024, eq. 1; Peng et al., "Eagle and
    Finch: RWKV with Matrix-Valued States and Dynamic Recurrence", COLM 2024 (the bonus)

    Examples
    --------
    The gate of the second token decides how much of the first value is seen.

    >>> import numpy as np, linattn
    >>> x, v = np.ones((2, 1)), np.array([[5.0], [7.0]])
    >>> c = np.array([[0.0], [1.0]])
    >>> dq, dk, dv, dg = linattn.gated_backward(x, x, v, np.log([1.0, 0.5]), c)
    >>> dv
    array([[0.5],
           [1. ]])
    >>> dg
    array([0. , 2.5])
    """
    return GATED.backward(
        (q, k, v, g, bonus), grad_out, feature_map=feature_map, scale=scale,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        grad_state=grad_state,
    )  # fmt: skip


def gated_step(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    state: State,
    *,
    scale: float = 1.0,
    feature_map: str | FeatureMap = "identity",
    bonus: Any = None,
    in_place: bool = False,
) -> tuple[Any, State]:
    """One token of `gated`: let the memory decay, write to it, then read it.

    ``s <- exp(g) s + phi(k) v^T``, ``o = scale s^T phi(q)``; with a ``bonus`` it reads first.

    Parameters
    ----------
    q : array_like, shape (..., d)
        The token's query.
    k : array_like, shape (..., d)
        Its key.
    v : array_like, shape (..., m)
        Its value.
    g : array_like, shape (...) or (..., d)
        Natural logarithm of the decay, one number or one a key channel.  The number of axes
        decides: with fewer axes than the longest of q, k and v it is (...); otherwise
        (..., d), where a last axis of length 1 serves all channels.
    state : State
        The memory so far, ``s`` (..., d, m), of the result's dtype, or float32 where that
        has 16 bits, and ``z`` None.
    scale : float, default 1.0
        Multiplies the output.
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'dpfp'} or FeatureMap
        The map phi, applied to q and k, ``'identity'`` by default; ``'elu'`` is
        ``elu(x) + 1``; an object of `linattn.feature_maps` is applied in arrays of its own,
        and d then is the number of features for ``g``, ``bonus`` and states.
    bonus : array_like, shape (..., d), optional
        Weight u of each key channel for a token's own key; with it queries read before their
        token's decay and write.  Converted as ``g`` is.
    in_place : bool, default False
        Write the new state into the array of ``state``, which must then be writeable and
        have all the leading axes, and return it.

    Returns
    -------
    o : ndarray, shape (..., m)
    state : State
        The state after the token.

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
    4 d m floating-point operations a head; the state is read and written once.

    References
    ----------
    Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training", ICML
    2024, eq. 3; Dao and Gu, "Transformers are SSMs", ICML 2024, eq. 1; Peng et al., "Eagle and
    Finch: RWKV with Matrix-Valued States and Dynamic Recurrence", COLM 2024 (the bonus)

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.full((2, 1), 8.0))
    >>> k = np.array([1.0, 0.0])
    >>> o, state = linattn.gated_step(k, k, np.array([4.0]), np.log(0.5), state)
    >>> state.s
    array([[8.],
           [4.]])
    """
    return GATED.step(
        (q, k, v, g, bonus), state, feature_map=feature_map, scale=scale, in_place=in_place
    )
