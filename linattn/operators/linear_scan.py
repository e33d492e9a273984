"""First-order linear recurrences of numbers over tokens."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

LINEAR_SCAN = Recurrence("linear_scan", transition="elementwise")
function = Functions(LINEAR_SCAN)


@function
def linear_scan() -> None:
    """First-order linear recurrence over tokens, each number by itself.

    ``h_i = a_i h_{i-1} + x_i``, or ``h_i = exp(a_i) h_{i-1} + x_i`` with ``log``: exponential
    averages with changing weights, first-order filters, and the recurrences of RG-LRU, HGRN,
    minGRU and diagonal state space models.  Nothing at position i changes an output before i,
    or after i with ``reverse``.

    Parameters
    ----------
    a : array_like, broadcasting with x to (..., n, m)
        Factors, float16, bfloat16, float32, float64, complex64 or complex128 (other dtypes are
        cast by {library}'s rules).  16-bit numbers are computed in float32 and rounded once.  All
        axes broadcast: (m,) is a factor per channel, (..., n, 1) one per token.
    x : array_like, broadcasting with a to (..., n, m)
        What is added, n tokens of m channels.
    log : bool, default False
        Whether ``a`` holds natural logarithms of the factors: 0 keeps all, -inf nothing.
    reverse : bool, default False
        Scan from the last token (of each sequence) to the first: the initial state is before
        the last token, and the final one after the first.
    initial_state : State, optional
        h before the first token, ``s`` (..., m) and ``z`` None; default: zeros.  With
        ``cu_seqlens``, one per sequence: there is an axis of sequences before m.

    Returns
    -------
    h : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    One multiplication and one addition per element, and an exponential with ``log``: the time is
    that of reading a and x and writing h.  Scratch: blocks of a few tokens per thread, and a row.
    Factors above 1 in magnitude are right as long as h is finite.  Once h is NaN it stays NaN,
    whatever the factors.

    Complex operands are computed in complex64 or complex128, at their time per float.

    References
    ----------
    Smith, Warrington and Linderman, "Simplified State Space Layers for Sequence Modeling", ICLR
    2023, eq. 2 (diagonal); De et al., "Griffin: Mixing Gated Linear Recurrences with Local
    Attention for Efficient Language Models", 2024, eq. 4

    Examples
    --------
    An exponential average.

    >>> import numpy as np, linattn
    >>> x = np.array([[8.0], [0.0], [0.0], [4.0]])
    >>> linattn.linear_scan(0.5, 0.5 * x)
    array([[4. ],
           [2. ],
           [1. ],
           [2.5]])
    """


@function
def linear_scan_backward() -> None:
    """Gradients of `linear_scan`.

    Exact for the equation of `linear_scan`.  The forward result is not needed.

    Returns
    -------
    da, dx : ndarray
        Gradients, in the shapes of a and x; those of a broadcast operand are summed over its
        repeats.  With ``log`` da is the gradient of the logarithms.
    $gradient_of_state

    Notes
    -----
    5 floating-point operations per element, and two exponentials with ``log``.  Memory beyond the
    arrays: about 2 sqrt(n) rows of a panel of channels per thread.

    References
    ----------
    The derivative of `linear_scan`: with ``r_i = g_i + a_{i+1} r_{i+1}``, ``dx_i = r_i`` and
    ``da_i = r_i h_{i-1}``; Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over
    Sequence Length", ICLR 2018, section 2.2

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.array([[8.0], [0.0]])
    >>> da, dx = linattn.linear_scan_backward(np.full((2, 1), 0.5), x, np.array([[0.0], [1.0]]))
    >>> da
    array([[0.],
           [8.]])
    >>> dx
    array([[0.5],
           [1. ]])
    """


@function
def linear_scan_step() -> None:
    """One token of `linear_scan`.

    ``h <- a h + x``, or ``h <- exp(a) h + x`` with ``log``.

    Parameters
    ----------
    a, x : array_like, broadcasting to (..., m)
        The token's factors and what is added.
    state : State
        h before the token, ``s`` (..., m), of the result's dtype, or float32 where that has
        16 bits, and ``z`` None.

    Returns
    -------
    h : ndarray, shape (..., m)
    state : State
        The state after the token: h as well, in the dtype that is computed in.

    Notes
    -----
    2 floating-point operations per element, and an exponential with ``log``.

    References
    ----------
    Smith, Warrington and Linderman, "Simplified State Space Layers for Sequence Modeling", ICLR
    2023, eq. 2 (diagonal)

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.array([8.0]))
    >>> h, state = linattn.linear_scan_step(0.5, np.array([1.0]), state)
    >>> h
    array([5.])
    """
