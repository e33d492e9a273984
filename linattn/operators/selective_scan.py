"""Mamba's selective state space model over tokens."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

SELECTIVE_SCAN = Recurrence("selective_scan", transition="elementwise", public={"gate": "z"})
function = Functions(SELECTIVE_SCAN)


@function
def selective_scan() -> None:
    """The selective state space model of Mamba.

    ``h_i[m, r] = exp(dt_i[m] A[m, r]) h_{i-1}[m, r] + dt_i[m] B_i[r] x_i[m]``,
    ``y_i[m] = sum_r C_i[r] h_i[m, r] + D[m] x_i[m]``, and with a gate z times ``silu(z_i[m])``.
    dt stands for ``dt + dt_bias``, or for its softplus.  Nothing at position i changes an output
    before i.  Tokens past ``key_lengths`` leave the state as it is; their outputs, ``D x`` and the
    gate included, are computed like all others.

    Leading axes are broadcast by NumPy's rules.  Groups of channels that share B and C are a
    leading axis.

    Parameters
    ----------
    x : array_like, shape (..., n, m)
        Inputs, n tokens of m channels, float16, bfloat16, float32 or float64 (other real dtypes
        are cast by {library}'s rules).  16-bit numbers are computed in float32 and rounded once.
    dt : array_like, shape (..., n, m)
        Time steps.  They may be negative; the state then grows where A is negative.
    A : array_like, shape (..., m, r)
        Rates of each channel's state, of width r, usually negative; positive ones let it grow.
        A, D and dt_bias are converted to the dtype of the computation, float32 for 16-bit
        operands, and do not affect the result's dtype.
    B, C : array_like, shape (..., n, r)
        What is written to the states, and what is read of them.
    D : array_like, shape (..., m), optional
        Weight of x in the output.
    z : array_like, shape (..., n, m), optional
        Gate: its silu multiplies the output.
    dt_bias : array_like, shape (..., m), optional
        Added to dt, before the softplus.
    softplus : bool, default False
        Whether the softplus of dt and its bias is the time step.
    initial_state : State, optional
        The state before the first token, ``s`` (..., m, r) and ``z`` None; default: zeros.  With
        ``cu_seqlens``, one per sequence: there is an axis of sequences before m.

    Returns
    -------
    y : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    n m r exponentials and 6 n m r floating-point operations.  Scratch per thread: A and a state,
    and blocks of a few tokens; nothing of n m r numbers is ever held.  Results are right as long
    as the state is finite.

    References
    ----------
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
    algorithm 2 and eq. 4

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x, dt = np.array([[3.0], [0.0]]), np.ones((2, 1))
    >>> linattn.selective_scan(x, dt, np.log([[0.5]]), dt, dt)
    array([[3. ],
           [1.5]])
    """


@function
def selective_scan_backward() -> None:
    """Gradients of `selective_scan`.

    Exact for the equations of `selective_scan`.  The forward result is not needed.

    Returns
    -------
    dx, ddt, dA, dB, dC : ndarray
        Gradients, in the shapes of the operands; those of a broadcast operand are summed over
        its repeats.  dA, and those of D and dt_bias, have the dtype that is computed in: float32
        for 16-bit tokens.
    dD, dz, ddt_bias : ndarray
        In this order, of those of D, z and dt_bias that are given.
    $gradient_of_state

    Notes
    -----
    2 n m r exponentials and 24 n m r floating-point operations.  Memory beyond the arrays, for each
    thread: a state of m r numbers for every 24 tokens, but at most 4 sqrt(n) states, and blocks of
    24 tokens, or of sqrt(n) / 4 if that is more.

    References
    ----------
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
    section 3.3.2 (recomputation)

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x, dt = np.array([[3.0], [0.0]]), np.ones((2, 1))
    >>> g = np.array([[0.0], [1.0]])
    >>> dx, *_ = linattn.selective_scan_backward(x, dt, np.log([[0.5]]), dt, dt, g)
    >>> dx
    array([[0.5],
           [1. ]])
    """


@function
def selective_scan_step() -> None:
    """One token of `selective_scan`.

    Parameters
    ----------
    x, dt : array_like, shape (..., m)
        The token's inputs and time steps.
    A : array_like, shape (..., m, r)
        Rates of each channel's state, of width r.
    B, C : array_like, shape (..., r)
        What is written to the states, and what is read of them.
    state : State
        The state so far, ``s`` (..., m, r), of the result's dtype, or float32 where that has
        16 bits, and ``z`` None.
    $half_state
    z : array_like, shape (..., m), optional
        Gate: its silu multiplies the output.

    Returns
    -------
    y : ndarray, shape (..., m)
    state : State
        The state after the token.

    Notes
    -----
    m r exponentials and 6 m r floating-point operations; the state is read and written once.

    References
    ----------
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023, eq. 2

    Examples
    --------
    >>> import numpy as np, linattn
    >>> one, state = np.ones(1), linattn.State(np.full((1, 1), 8.0))
    >>> y, state = linattn.selective_scan_step(one, one, np.log([[0.5]]), one, one, state)
    >>> y
    array([5.])
    """
