"""Causal and non-causal linear attention, their gradients, and the recurrent step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from ._docs import filled
from ._operator import Recurrence
from ._state import State

if TYPE_CHECKING:
    from typing import Unpack

    from ._types import Array, ArrayLike, Bool, CausalOptions, Map

CAUSAL, NONCAUSAL = Recurrence("causal", transition="identity"), Recurrence("noncausal")


@overload
def causal(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *,
    return_state: Literal[False] = ..., **options: Unpack[CausalOptions],
) -> Array: ...  # fmt: skip
@overload
def causal(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *,
    return_state: Literal[True], **options: Unpack[CausalOptions],
) -> tuple[Array, State]: ...  # fmt: skip
@overload
def causal(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *,
    return_state: bool, **options: Unpack[CausalOptions],
) -> Array | tuple[Array, State]: ...  # fmt: skip
@filled
def causal(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    feature_map: Map = "elu",
    normalize: Bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    return_state: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, State]:
    """Causal linear attention.

    ``s_i = s_{i-1} + phi(k_i) v_i^T``, ``z_i = z_{i-1} + phi(k_i)``,
    ``o_i = scale phi(q_i)^T s_i / (scale phi(q_i).z_i + eps)``; without ``normalize``,
    ``o_i = scale phi(q_i)^T s_i``.  Nothing at position i changes an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    $q
    $k
    $v
    $feature_map
    $normalizer
    $key_lengths
    $cu_seqlens
    $initial_state
    $packed_state
    $return_state
    $out

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Raises
    ------
    $raises

    Notes
    -----
    4 n d m floating-point operations a head; scratch of d m numbers a thread.

    The normaliser is as good as the weights' sum.  With ``'exp'`` a weight is e^(q + k):
    beyond the range (q + k near 88 in float32, 709 in float64) results are NaN; subtract
    from q and from k their largest entries, which cancel in the quotient.
    $rescaling
    With ``'elu'`` inputs far below 0 have weights near e^(q + k): where these sum to less than
    ``eps`` the result shrinks towards 0 (all inputs -14, d = 64: 4e-5 of it is left); normalise
    the inputs, or lower ``eps``, down to 0 above -40.  With ``'identity'`` the sum may change its
    sign and pass near 0, where results have no bound: use it with features that are not negative,
    or with ``normalize=False``.

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


@filled
def causal_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    grad_out: ArrayLike,
    *,
    feature_map: Map = "elu",
    normalize: Bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:
    """Gradients of `causal`.

    Exact for the equation of `causal`, the denominator and ``eps`` included.  The
    forward result is not needed.

    Parameters
    ----------
    $q
    $k
    $v
    $grad_out
    $feature_map
    $normalizer
    $key_lengths
    $cu_seqlens
    $initial_state
    $packed_state
    $grad_state

    Returns
    -------
    $gradients
    $gradient_of_state

    Raises
    ------
    $raises

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


@filled
def noncausal(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    feature_map: Map = "elu",
    normalize: Bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Linear attention of every query to every key.

    ``S = sum_j phi(k_j) v_j^T``, ``z = sum_j phi(k_j)``,
    ``o_i = scale phi(q_i)^T S / (scale phi(q_i).z + eps)``; without ``normalize``,
    ``o_i = scale phi(q_i)^T S``.  Keys and queries may differ in number.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    $q
    $all_keys
    $all_values
    $feature_map
    $normalizer
    $key_lengths
    $out

    Returns
    -------
    ndarray, shape (..., n, m)

    Raises
    ------
    $raises

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


@filled
def noncausal_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    grad_out: ArrayLike,
    *,
    feature_map: Map = "elu",
    normalize: Bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: ArrayLike | None = None,
) -> tuple[Any, ...]:
    """Gradients of `noncausal`.

    Exact for the equation of `noncausal`, the denominator and ``eps`` included.  The
    forward result is not needed.

    Parameters
    ----------
    $q
    $all_keys
    $all_values
    $grad_out
    $feature_map
    $normalizer
    $key_lengths

    Returns
    -------
    $gradients

    Raises
    ------
    $raises

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


@filled
def step(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    state: State,
    *,
    feature_map: Map = "elu",
    normalize: Bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    in_place: bool = False,
) -> tuple[Array, State]:
    """One token of `causal`: write to the state, then read it.

    ``s <- s + phi(k) v^T``, ``z <- z + phi(k)``,
    ``o = scale phi(q)^T s / (scale phi(q).z + eps)``

    Parameters
    ----------
    $token
    state : State
        The state so far, ``s`` (..., d, m) and ``z`` (..., d), of the result's dtype, or
        float32 where that has 16 bits.
    $feature_map
    $normalizer
    $in_place

    Returns
    -------
    o : ndarray, shape (..., m)
    state : State
        The state after the token.

    Raises
    ------
    $raises

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
