"""Causal and non-causal linear attention, their gradients, and the recurrent step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._call.recurrence import Recurrence
from .._docs.templates import filled, filled_like
from .._states.state_arrays import State

if TYPE_CHECKING:
    from .._types import Array, ArrayLike, Bool, Map

CAUSAL, NONCAUSAL = Recurrence("causal", transition="identity"), Recurrence("noncausal")


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
    state_indices: ArrayLike | None = None,
    return_state: bool = False,
    state_at: ArrayLike | None = None,
    out: Array | None = None,
) -> Array | tuple[Array, State]:
    """Causal linear attention.

    ``s_i = s_{i-1} + phi(k_i) v_i^T``, ``z_i = z_{i-1} + phi(k_i)``,
    ``o_i = scale phi(q_i)^T s_i / (scale phi(q_i).z_i + eps)``; without ``normalize``,
    ``o_i = scale phi(q_i)^T s_i``.  A token at position i never affects an output before i.

    Leading axes are broadcast by NumPy's rules.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    4 n d m floating-point operations per head; scratch of d m numbers per thread.

    The quotient is only as accurate as the sum of the weights.  With ``'exp'`` a weight is
    e^(q + k).  Beyond the range of the dtype (q + k near 88 in float32, 709 in float64)
    results are NaN; subtract the largest entry from q and from k, which cancels in the quotient.
    $rescaling
    With ``'elu'``, inputs far below 0 have weights near e^(q + k).  If these sum to less than
    ``eps``, the result shrinks towards 0 (to 4e-5 of its value if all inputs are -14 and d = 64).
    Normalise the inputs, or lower ``eps``, down to 0 for inputs above -40.  With ``'identity'``
    the sum can change sign and pass near 0, where results are unbounded: use it with
    non-negative features or with ``normalize=False``.

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
        state_indices=state_indices, state_at=state_at,
    )  # fmt: skip


@filled_like(causal)
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
    state_indices: ArrayLike | None = None,
    grad_state: State | None = None,
    state_at: ArrayLike | None = None,
) -> tuple[Any, ...]:
    """Gradients of `causal`.

    They are exact for the equation of `causal`, including the denominator and ``eps``, and do
    not need the forward result.

    Returns
    -------
    $gradients
    $gradient_of_state

    Notes
    -----
    About 10 n d m floating-point operations per head.  Memory beyond the arrays: 2 d m
    numbers per thread, and two numbers per token of each head in progress.

    For very large inputs and inputs far below 0, see the notes of `causal`.

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
        state_indices=state_indices, state_at=state_at,
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
    ``o_i = scale phi(q_i)^T S``.  The numbers of queries and keys may differ.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    $all_keys
    $all_values

    Returns
    -------
    ndarray, shape (..., n, m)

    Notes
    -----
    2 (n + s) d m floating-point operations per head; scratch of d m numbers per thread.

    For very large inputs and inputs far below 0, see the notes of `causal`.

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


@filled_like(noncausal)
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

    They are exact for the equation of `noncausal`, including the denominator and ``eps``, and
    do not need the forward result.

    Returns
    -------
    $gradients

    Notes
    -----
    About (6 n + 4 s) d m floating-point operations per head.  Memory beyond the arrays:
    2 d m numbers per thread.

    For very large inputs and inputs far below 0, see the notes of `causal`.

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


@filled_like(causal)
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
    state_indices: ArrayLike | None = None,
) -> tuple[Array, State]:
    """One token of `causal`: write to the state, then read it.

    ``s <- s + phi(k) v^T``, ``z <- z + phi(k)``,
    ``o = scale phi(q)^T s / (scale phi(q).z + eps)``

    Parameters
    ----------
    $token

    Returns
    -------
    $after_token

    Notes
    -----
    4 d m floating-point operations per head; the state is read and written once.

    For very large inputs and inputs far below 0, see the notes of `causal`.

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
        in_place=in_place, state_indices=state_indices,
    )  # fmt: skip
