"""Causal and non-causal linear attention, their gradients, and the recurrent step."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

CAUSAL, NONCAUSAL = (
    Recurrence("causal", transition="identity"),
    Recurrence("noncausal"),
)
causal_function = Functions(CAUSAL, feature_map="elu", normalize=True, eps=1e-6)
noncausal_function = Functions(NONCAUSAL, feature_map="elu", normalize=True, eps=1e-6)


@causal_function
def causal() -> None:
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
    4 n d m floating-point operations per head; scratch of up to 4 d m numbers per thread.

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


@causal_function
def causal_backward() -> None:
    """Gradients of `causal`.

    They are exact for the equation of `causal`, including the denominator and ``eps``, and do
    not need the forward result.

    Returns
    -------
    $gradients
    $gradient_of_state

    Notes
    -----
    About 10 n d m floating-point operations per head.  Memory beyond the arrays: 3 d m
    numbers, and three numbers per token, of each head in progress: one per thread, or up to
    eight if their rows alternate in memory.

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


@noncausal_function
def noncausal() -> None:
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


@noncausal_function
def noncausal_backward() -> None:
    """Gradients of `noncausal`.

    They are exact for the equation of `noncausal`, including the denominator and ``eps``, and
    do not need the forward result.

    Returns
    -------
    $gradients

    Notes
    -----
    About (6 n + 4 s) d m floating-point operations per head.  Memory beyond the arrays:
    2 d m numbers of each head in progress, as of `causal_backward`.

    For very large inputs and inputs far below 0, see the notes of `causal`.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q = k = v = np.ones((3, 2))
    >>> dq, dk, dv = linattn.noncausal_backward(q, k, v, np.ones((3, 2)), eps=0.0)
    >>> dv.sum(axis=0)
    array([3., 3.])
    """


@causal_function
def step() -> None:
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
