"""Gated linear attention, whose memory decays: forward, gradients and one token at a time."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

GATED = Recurrence("gated", transition="decay")
function = Functions(GATED)


@function
def gated() -> None:
    """Causal linear attention whose memory decays before each write.

    ``s_i = exp(g_i) s_{i-1} + phi(k_i) v_i^T``, ``o_i = scale s_i^T phi(q_i)``.  This is RetNet and
    lightning attention with one gate per token, and gated linear attention with one gate per key
    channel (a row of s).  With a ``bonus`` u each token reads before it writes, as in RWKV-6:
    ``o_i = scale (s_{i-1} + (u * phi(k_i)) v_i^T)^T phi(q_i)``.  `ssd` is Mamba-2.  A token at
    position i never affects an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    bonus : array_like, shape (..., d), optional
        Weight u of each key channel for a token's own key.  With a bonus, queries read the
        memory before their own token decays it and writes to it.  It is converted as ``g`` is.
    $block
        Not with a ``bonus``.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    About 4 n d m floating-point operations per head, and about six exponentials per token, or
    one per key channel; scratch of 2 d m numbers per thread.

    A gate of -inf, or of -1e30, resets the memory to exactly 0, even if it holds inf or NaN.
    Long runs of strong gates are as accurate as weak ones.  Positive gates are valid while exp(g)
    and the memory are finite at every token; gradients also need finite products of the memory
    and its gradient.  A NaN gate makes everything after it NaN.

    Chunks of 16 to 64 tokens end early before a reset and where the product of decays passes e^20
    (float64: e^150).  With a gate per key channel they also end where it falls below e^-60
    (float64: e^-450), so long runs of very strong gates cost several times as much.  With a gate
    per key channel, phi(q) and phi(k), and in gradients their products with the memory and the
    cotangents, should be 0 or between 2^-68 and 2^68 in magnitude (float64: 2^588).  Outside this
    range digits are lost or results overflow.  A gate per token has no such limit.

    References
    ----------
    Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training", ICML
    2024, eq. 3; Peng et al., "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic
    Recurrence", COLM 2024 (the bonus)

    Examples
    --------
    Half of the memory is lost at each token.

    >>> import numpy as np, linattn
    >>> x = np.ones((3, 1))
    >>> linattn.gated(x, x, x, np.full(3, np.log(0.5)))
    array([[1.  ],
           [1.5 ],
           [1.75]])
    """


@function
def gated_backward() -> None:
    """Gradients of `gated`.

    They are exact for the equation of `gated` and do not need the forward result.

    Returns
    -------
    dq, dk, dv, dg : ndarray
        Gradients, in the shapes of q, k, v and g.  Those of a broadcast operand are summed over
        the axes it was broadcast along.  dg and dbonus have the dtype of the computation, float32
        for 16-bit operands.
    dbonus : ndarray
        Only if ``bonus`` is given.
    $gradient_of_state

    Notes
    -----
    About 12 n d m floating-point operations per head.  Memory beyond the arrays: n bytes, and
    about 3 sqrt(n / 32) + 4 states of d m numbers per thread (n / 64 if d > 192).  If resets and
    growing gates end chunks early, it is at most 3 sqrt(n) + 4 states, or 4.5 sqrt(n) + 4 with a
    gate per key channel; this is reserved, but not touched while chunks are whole.

    The error of dg, like that of the other gradients, is proportional to the sum of the magnitudes
    of its terms, which are the pairs of tokens on either side of a gate.  The terms are added
    directly, not computed as the difference of two longer sums.

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


@function
def gated_step() -> None:
    """One token of `gated`: let the memory decay, write to it, then read it.

    ``s <- exp(g) s + phi(k) v^T``, ``o = scale s^T phi(q)``.  With a ``bonus`` it reads first.

    Parameters
    ----------
    $token
    $token_g

    Returns
    -------
    $after_token

    Notes
    -----
    4 d m floating-point operations per head; the state is read and written once.

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
