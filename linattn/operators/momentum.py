"""The delta rule with momentum: forward, gradients and one token at a time."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

MOMENTUM_DELTA = Recurrence("momentum_delta")
function = Functions(MOMENTUM_DELTA)


@function
def momentum_delta() -> None:
    """The delta rule with momentum: errors drive a momentum, which drives the memory.

    ``z_i = exp(mu_i) z_{i-1} - eta_i k_i (v_i - s_{i-1}^T p_i)^T``,
    ``s_i = exp(g_i) s_{i-1} - beta_i z_i``, ``o_i = scale s_i^T q_i``: gradient descent with
    momentum and weight decay on the error of what the memory answers to p.  Without momentum
    (``mu=-inf``) it is a delta rule with strength beta eta, whose p reads the memory before its
    decay.  A token at position i never affects an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    p : array_like, shape (..., n, d)
        The key that each token reads at before it writes, often k itself, or exp(g) k.
    g : array_like, shape (..., n)
        Natural logarithm of each token's decay of the memory.  It is converted to the dtype of
        the computation (float32 for 16-bit tokens) and does not affect the result's dtype.
    mu : array_like, shape (..., n)
        Natural logarithm of the decay of the momentum; converted as ``g`` is.
    beta : array_like, shape (..., n)
        How strongly the momentum moves the memory.
    eta : array_like, shape (..., n)
        How strongly each error adds to the momentum.  If k = p has norm 1, g and mu are not
        positive, and ``0 <= beta eta <= 1``, the memory stays bounded.  Otherwise it can grow
        without limit, until results are inf and NaN.
    initial_state : State, optional
        The memory ``s`` and its momentum ``z`` before the first token, both (..., d, m), or
        (..., r, d, m) with ``cu_seqlens``; default: zeros.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    12 n d m floating-point operations per head, token by token, and two exponentials per token;
    scratch of 2 d m numbers per thread.  A sequence that is cut anywhere and resumed, and one that
    is computed by steps, has the same bits as the whole.  The state is rounded at every token, so
    that errors add up, slowly, over thousands of tokens that nothing erases.  A gate of -inf keeps
    only what the token itself writes, which is inf or NaN if what p reads is.

    References
    ----------
    "Momentum DeltaNet", arXiv:2605.05838, 2026, as flash-linear-attention's
    ``momentum_delta_rule`` computes it

    Examples
    --------
    The second token has no error, but the momentum moves the memory on.

    >>> import numpy as np, linattn
    >>> x, v, none = np.ones((3, 1)), np.array([[4.0], [4.0], [8.0]]), np.zeros(3)
    >>> linattn.momentum_delta(x, x, v, x, none, np.full(3, np.log(0.5)), none + 1, none + 1)
    array([[4.],
           [6.],
           [9.]])
    """


@function
def momentum_delta_backward() -> None:
    """Gradients of `momentum_delta`.

    They are exact for the equation of `momentum_delta` and do not need the forward result.

    Returns
    -------
    dq, dk, dv, dp, dg, dmu, dbeta, deta : ndarray
        Gradients, in the shapes of the operands.  Those of a broadcast operand are summed over
        the axes it was broadcast along.  dg and dmu are float32 if the others have 16 bits.
    $gradient_of_state

    Notes
    -----
    About 44 n d m floating-point operations per head.  Memory beyond the arrays: sqrt(n) states of
    2 d m numbers per thread, as many parts of them of 32 d numbers at most, and sqrt(n) rows of
    all operands.

    dg and dmu are sums of products of what decays and its gradient, not differences of long sums.
    They are as accurate as the other gradients, and exactly 0 if either factor is 0.

    Examples
    --------
    The gradient of g depends only on what was in the memory when it decayed.

    >>> import numpy as np, linattn
    >>> x, one, none = np.ones((2, 1)), np.ones(2), np.zeros(2)
    >>> grads = linattn.momentum_delta_backward(x, x, 4 * x, 0 * x, none, none, one, one, x)
    >>> grads[4]
    array([0., 4.])
    """


@function
def momentum_delta_step() -> None:
    """One token of `momentum_delta`: write to the momentum, add it to the memory, then read that.

    ``z <- exp(mu) z - eta k (v - s^T p)^T``, ``s <- exp(g) s - beta z``, ``o = scale s^T q``

    Parameters
    ----------
    $token
    p : array_like, shape (..., d)
        The key that the token reads at before it writes.
    g, mu : array_like, shape (...)
        Natural logarithms of the token's decays of the memory and of the momentum.
    beta, eta : array_like, shape (...)
        How strongly the momentum moves the memory, and the error the momentum.
    state : State
        The memory ``s`` and its momentum ``z`` so far, both (..., d, m), of the result's dtype, or
        float32 where that has 16 bits.
    $half_state

    Returns
    -------
    $after_token

    Notes
    -----
    12 d m floating-point operations per head; the state is read and written once.  The bits are
    those of `momentum_delta`.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> k, state = np.ones(1), linattn.State(np.array([[4.0]]), np.array([[-4.0]]))
    >>> o, state = linattn.momentum_delta_step(k, k, [4.0], k, 0.0, np.log(0.5), 1.0, 1.0, state)
    >>> o, state.s, state.z
    (array([6.]), array([[6.]]), array([[-2.]]))
    """
