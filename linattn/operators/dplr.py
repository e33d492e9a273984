"""A memory with diagonal plus low-rank transitions: forward, gradients, one token at a time."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

DPLR = Recurrence("dplr")
function = Functions(DPLR)


@function
def dplr() -> None:
    """A memory whose transition is diagonal plus low rank: the generalised delta rule of RWKV-7.

    ``s_i = exp(g_i) s_{i-1} + b_i (s_{i-1}^T a_i)^T + k_i v_i^T``, ``o_i = scale s_i^T q_i``.
    a reads the memory before the token's decay, and b writes back what was read.  In RWKV-7,
    ``a = -kappa`` and ``b = kappa * rate`` for a normalised removal key kappa.  A token at position
    i never affects an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    a : array_like, shape (..., n, d)
        The key that each token reads at before it writes.
    b : array_like, shape (..., n, d)
        The key that what was read is written to.  If a = -kappa and b = rate kappa with kappa of
        norm 1, rate in [0, 1] and g not positive, the memory stays bounded.  Otherwise it can
        grow without limit, until results are inf and NaN.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    About 8 n d m floating-point operations per head, including a triangular solve per 16 or 32
    tokens, and an exponential per gate; scratch of d m numbers per thread.  A gate of -inf keeps
    only what a reads and b writes, which is inf or NaN if the memory is.  Positive gates are valid
    while exp(g) and the memory are finite at every token.  A NaN gate makes everything after it
    NaN.

    A chunk of tokens ends early before a reset and where the decays' product passes e^20 (float64:
    e^150).  With a gate per key channel it also ends where it falls below e^-60 (float64:
    e^-450), so long runs of very strong gates cost up to 10 times as much.  With a gate per key
    channel, k, q, a and b have the same range as k and q in `gated`.

    References
    ----------
    Peng et al., "RWKV-7 'Goose' with Expressive Dynamic State Evolution", 2025, eq. 15-17

    Examples
    --------
    The second token removes what the first one wrote, and writes it to the other key.

    >>> import numpy as np, linattn
    >>> q = a = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> k, v, b = np.eye(2), np.array([[5.0], [0.0]]), np.array([[0.0, 0.0], [-1.0, 1.0]])
    >>> o, state = linattn.dplr(q, k, v, a, b, np.zeros(2), return_state=True)
    >>> state.s
    array([[0.],
           [5.]])
    """


@function
def dplr_backward() -> None:
    """Gradients of `dplr`.

    They are exact for the equation of `dplr` and do not need the forward result.

    Returns
    -------
    dq, dk, dv, da, db, dg : ndarray
        Gradients, in the shapes of q, k, v, a, b and g.  Those of a broadcast operand are summed
        over the axes it was broadcast along.  dg is float32 if the others have 16 bits.
    $gradient_of_state

    Notes
    -----
    About 28 n d m floating-point operations per head.  Memory beyond the arrays: n bytes, and at
    most 4.5 sqrt(n) + 5 states of d m numbers per thread, a quarter of which is touched while
    chunks are whole.  16-bit operands need n m float32 numbers more.

    dg is a sum of products of the memory before a token's decay and its gradient after the decay,
    and as accurate as the other gradients.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x, none = np.ones((2, 1)), np.zeros((2, 1))
    >>> dq, dk, dv, da, db, dg = linattn.dplr_backward(x, x, x, none, none, np.zeros(2), x)
    >>> dg
    array([0., 1.])
    """


@function
def dplr_step() -> None:
    """One token of `dplr`: write to the memory, then read it.

    ``s <- exp(g) s + b (s^T a)^T + k v^T``, ``o = scale s^T q``

    Parameters
    ----------
    $token
    a, b : array_like, shape (..., d)
        The key that the token reads at, and the key that what was read is written to.
    $token_g

    Returns
    -------
    $after_token

    Notes
    -----
    9 d m floating-point operations per head; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> k, none = np.array([1.0, 0.0]), np.zeros(2)
    >>> state = linattn.State(np.array([[8.0], [0.0]]))
    >>> o, state = linattn.dplr_step(k, k, np.array([1.0]), none, none, np.log(0.5), state)
    >>> o
    array([5.])
    """
