"""The delta rule on a memory that decays: forward, gradients and one token at a time."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

GATED_DELTA = Recurrence("gated_delta")
function = Functions(GATED_DELTA)


@function
def gated_delta() -> None:
    """The delta rule on a memory that decays before each write.

    ``R_i = exp(g_i) s_{i-1}``, ``s_i = R_i + phi(k_i) (beta_i * (v_i - R_i^T e_i))^T``,
    ``o_i = scale s_i^T phi(q_i)``.  With ``e_i = phi(k_i)`` this is the gated delta rule of
    Qwen3-Next (a gate per token) and Kimi Linear (a gate per key channel).  An erase key replaces
    phi(k_i) where the memory is read: in Comba it is a multiple of the key, and ``erase=b * k``
    erases by channels.  A token at position i never affects an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    k : array_like, shape (..., n, d)
        Keys.  If phi(k) has norm 1, beta is in [0, 2] and g is not positive, the memory stays
        bounded.  Longer keys can make it grow without limit, until results are inf and NaN.
    erase : array_like, shape (..., n, d), optional
        The key e that each token reads at before it writes; phi(k) by default.  No map is applied.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    About 6 n d m floating-point operations per head, including a triangular solve per 16 or 32
    tokens, and an exponential per gate; scratch of d m numbers per thread.  A gate of -inf resets
    the memory to exactly 0, even if it holds inf or NaN.  Positive gates are valid while exp(g)
    and the memory are finite at every token.  A NaN gate makes everything after it NaN.

    A chunk of tokens ends early before a reset and where the decays' product passes e^20 (float64:
    e^150).  With a gate per key channel it also ends where it falls below e^-60 (float64:
    e^-450), so long runs of very strong gates cost up to 10 times as much.  With a gate per key
    channel, keys and queries have the same range as in `gated`.

    References
    ----------
    Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR
    2025, eq. 10; Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025,
    eq. 1 (a gate per key channel)

    Examples
    --------
    The second token forgets half of what the first one wrote, and writes to another key.

    >>> import numpy as np, linattn
    >>> q, k = np.array([[1.0, 0.0], [1.0, 0.0]]), np.eye(2)
    >>> linattn.gated_delta(q, k, np.array([[5.0], [7.0]]), np.log([1.0, 0.5]), np.ones(2))
    array([[5. ],
           [2.5]])
    """


@function
def gated_delta_backward() -> None:
    """Gradients of `gated_delta`.

    They are exact for the equation of `gated_delta` and do not need the forward result.

    Returns
    -------
    dq, dk, dv, dg, dbeta : ndarray
        Gradients, in the shapes of q, k, v, g and beta.  Those of a broadcast operand are summed
        over the axes it was broadcast along.  dg is float32 if the others have 16 bits.
    derase : ndarray
        Only if ``erase`` is given.
    $gradient_of_state

    Notes
    -----
    About 20 n d m floating-point operations per head.  Memory beyond the arrays: n bytes, and at
    most 4.5 sqrt(n) + 5 states of d m numbers per thread, a quarter of which is touched while
    chunks are whole.  16-bit operands need n m float32 numbers more.

    dg is a sum of products of the memory before a token's decay and its gradient after the decay,
    not a difference of long sums.  It is as accurate as the other gradients, and exactly 0 if
    either factor is 0.

    Examples
    --------
    The gradient of g depends only on what was in the memory when it decayed.

    >>> import numpy as np, linattn
    >>> q, k = np.array([[1.0, 0.0], [1.0, 0.0]]), np.eye(2)
    >>> v, one = np.array([[5.0], [7.0]]), np.ones((2, 1))
    >>> grads = linattn.gated_delta_backward(q, k, v, np.log([1.0, 0.5]), np.ones(2), one)
    >>> grads[3]
    array([0. , 2.5])
    """


@function
def gated_delta_step() -> None:
    """One token of `gated_delta`: let the memory decay, write to it, then read it.

    ``R = exp(g) s``, ``s <- R + phi(k) (beta * (v - R^T e))^T``, ``o = scale s^T phi(q)``

    Parameters
    ----------
    $token
    $token_g
    $token_beta
    erase : array_like, shape (..., d), optional
        The key e that the token reads at before it writes; phi(k) by default.

    Returns
    -------
    $after_token

    Notes
    -----
    7 d m floating-point operations per head; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.array([[8.0], [0.0]]))
    >>> k = np.array([0.0, 1.0])
    >>> o, state = linattn.gated_delta_step(k, k, np.array([4.0]), np.log(0.5), 1.0, state)
    >>> state.s
    array([[4.],
           [4.]])
    """
