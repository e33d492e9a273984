"""Fast weights with the delta rule: forward, gradients and one token at a time."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

DELTA = Recurrence("delta")
function = Functions(DELTA)


@function
def delta() -> None:
    """Fast weights with the delta rule.

    ``s_i = s_{i-1} + phi(k_i) (beta_i * (v_i - s_{i-1}^T phi(k_i)))^T``,
    ``o_i = scale s_i^T phi(q_i)``.  Each write reads the value stored at the key and moves it
    towards the new value.  There is no normaliser.  A token at position i never affects an
    output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    k : array_like, shape (..., n, d)
        Keys.  If phi(k) has norm 1 and beta is in [0, 2], the memory stays bounded.  Longer
        keys can make it grow without limit, until results are inf and NaN.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    About 6 n d m floating-point operations per head, including a triangular solve per 16 or 32
    tokens; scratch of d m numbers per thread.

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


@function
def delta_backward() -> None:
    """Gradients of `delta`.

    They are exact for the equation of `delta` and do not need the forward result.

    Returns
    -------
    dq, dk, dv, dbeta : ndarray
        Gradients, in the shapes of q, k, v and beta.  Those of a broadcast operand are summed
        over the axes it was broadcast along.
    $gradient_of_state

    Notes
    -----
    About 18 n d m floating-point operations per head.  Memory beyond the arrays: about
    3 sqrt(n / 16) + 5 states of d m numbers per thread (n / 32 if d > 128), which is 6 MiB for
    n = 262,144 and d = m = 64 in float32, or up to three times as much if threads share a head;
    never the states of all tokens.  16-bit operands need n m float32 numbers more.

    Examples
    --------
    The second write replaces the first value, so its gradient is 0.

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


@function
def delta_step() -> None:
    """One token of `delta`: write to the memory, then read it.

    ``s <- s + phi(k) (beta * (v - s^T phi(k)))^T``, ``o = scale s^T phi(q)``

    Parameters
    ----------
    $token
    $token_beta

    Returns
    -------
    $after_token

    Notes
    -----
    6 d m floating-point operations per head; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.zeros((2, 1)))
    >>> k = np.array([1.0, 0.0])
    >>> o, state = linattn.delta_step(k, k, np.array([4.0]), 0.5, state)
    >>> o
    array([2.])
    """
