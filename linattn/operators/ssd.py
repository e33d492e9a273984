"""Mamba-2's scan, gated attention with strengths and a skip: forward, gradients and one token."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

SSD = Recurrence("ssd", transition="decay")
function = Functions(SSD)


@function
def ssd() -> None:
    """Gated linear attention with a strength for each write, and a skip: the scan of Mamba-2.

    ``s_i = exp(g_i) s_{i-1} + strength_i k_i v_i^T``, ``o_i = scale s_i^T q_i + D * v_i``.  In
    Mamba-2's letters q is C, k is B, v is x, strength is dt and g is dt A, with one rate A per
    head.  A token at position i never affects an output before i.

    Leading axes are broadcast by NumPy's rules.  B and C of a group of heads have an axis of 1 in
    place of heads.

    Parameters
    ----------
    g : array_like, shape (..., n)
        Natural logarithm of each token's decay of the memory.  It is converted to the dtype of
        the computation (float32 for 16-bit tokens) and does not affect the result's dtype.
    strength : array_like, shape (..., n)
        How strongly each token is written; converted as ``g`` is.
    D : array_like, shape (..., m), optional
        Weight of each value channel of a token in its own output; converted as ``g`` is.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    About 4 n d m floating-point operations per head, and about six exponentials per token;
    scratch of 2 d m numbers per thread.  Without D this is `gated` of the values
    ``strength[..., None] * v``, but these take no memory and are not rounded to 16 bits.

    A token past ``key_lengths`` has no value: D times it is 0, too.  Resets and strong gates are
    as in `gated`.

    References
    ----------
    Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
    Structured State Space Duality", ICML 2024, eq. 1

    Examples
    --------
    Half of the memory is lost at each token, and the last one is only let through.

    >>> import numpy as np, linattn
    >>> x, g = np.ones((3, 1)), np.full(3, np.log(0.5))
    >>> linattn.ssd(x, x, x, g, np.array([1.0, 1.0, 0.0]), D=np.array([10.0]))
    array([[11.  ],
           [11.5 ],
           [10.75]])
    """


@function
def ssd_backward() -> None:
    """Gradients of `ssd`.

    They are exact for the equation of `ssd` and do not need the forward result.

    Returns
    -------
    dq, dk, dv, dg, dstrength : ndarray
        Gradients, in the shapes of the operands.  Those of a broadcast operand are summed over
        the axes it was broadcast along.  dg, dstrength and dD have the dtype of the computation,
        float32 for 16-bit operands.
    dD : ndarray
        Only if ``D`` is given.
    $gradient_of_state

    Notes
    -----
    About 12 n d m floating-point operations per head.  Memory beyond the arrays is that of
    `gated_backward`, and the accuracy of dg as well.

    Examples
    --------
    The strength of the first token has the gradient of what it wrote.

    >>> import numpy as np, linattn
    >>> x, v = np.ones((2, 1)), np.array([[5.0], [7.0]])
    >>> c = np.array([[0.0], [1.0]])
    >>> grads = linattn.ssd_backward(x, x, v, np.log([1.0, 0.5]), np.ones(2), c)
    >>> grads[4]
    array([2.5, 7. ])
    """


@function
def ssd_step() -> None:
    """One token of `ssd`: let the memory decay, write to it, read it, and let the token through.

    ``s <- exp(g) s + strength k v^T``, ``o = scale s^T q + D * v``

    Parameters
    ----------
    $token
    g : array_like, shape (...)
        Natural logarithm of the token's decay of the memory.
    strength : array_like, shape (...)
        How strongly the token is written.
    D : array_like, shape (..., m), optional
        Weight of each value channel in the token's own output.

    Returns
    -------
    $after_token

    Notes
    -----
    4 d m floating-point operations per head; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> k, state = np.ones(1), linattn.State(np.full((1, 1), 8.0))
    >>> o, state = linattn.ssd_step(k, k, [4.0], np.log(0.5), 2.0, state, D=[1.0])
    >>> o, state.s
    (array([16.]), array([[12.]]))
    """
