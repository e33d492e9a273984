"""A memory that fades, read before it is written: forward, gradients and one token at a time."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

FADE = Recurrence("fade")
function = Functions(FADE)


@function
def fade() -> None:
    """A memory that fades, and is read before it is written.

    ``o_i = scale s_{i-1}^T q_i``, ``s_i = c_i s_{i-1} + k_i v_i^T``, ``c = 1 / (1 + rate^2)``.

    Parameters
    ----------
    rate : array_like, shape (..., n) or (..., n, d)
        How fast the memory fades.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    4 n d m floating-point operations per head; scratch of d m numbers per thread.

    References
    ----------
    None: an example.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.ones((3, 1))
    >>> linattn.fade(x, x, x, np.ones(3))
    array([[0. ],
           [1. ],
           [1.5]])
    """


@function
def fade_backward() -> None:
    """Gradients of `fade`.

    Returns
    -------
    dq, dk, dv, drate : ndarray
        Gradients, in the shapes of the operands.
    $gradient_of_state

    Notes
    -----
    12 n d m floating-point operations per head; scratch of n d m numbers per thread.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.ones((2, 1))
    >>> dq, dk, dv, drate = linattn.fade_backward(x, x, x, np.ones(2), x)
    >>> dv
    array([[1.],
           [0.]])
    """


@function
def fade_step() -> None:
    """One token of `fade`: read the memory, let it fade, and write to it.

    Parameters
    ----------
    $token
    rate : array_like, shape (...) or (..., d)
        How fast the memory fades.

    Returns
    -------
    $after_token

    Notes
    -----
    4 d m floating-point operations per head.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> k, state = np.ones(1), linattn.State(np.full((1, 1), 8.0))
    >>> o, state = linattn.fade_step(k, k, k, 1.0, state)
    >>> o, state.s
    (array([8.]), array([[5.]]))
    """
