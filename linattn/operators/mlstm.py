"""mLSTM, the matrix memory of xLSTM: forward, gradients, and one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._call.recurrence import Recurrence
from .functions import Functions


def _decay(named: Mapping[str, Any], there: Any, xp: Any) -> Any:
    """The sum of log sigma(f)."""
    f = named["f"] if there is None else xp.where(there, named["f"], xp.inf)
    return -xp.logaddexp(xp.zeros_like(f), -f).sum(-1)


MLSTM = Recurrence("mlstm", decay=_decay, first=0.0, root_scale=True)
function = Functions(MLSTM, scale=None, normalize=True, eps=0.0)


@function
def mlstm() -> None:
    """The matrix memory of xLSTM: exponential input gates, sigmoid forget gates.

    ``s_t = sigma(f_t) s_{t-1} + e^i_t k_t v_t^T``, ``z_t = sigma(f_t) z_{t-1} + e^i_t k_t``,
    ``o_t = scale s_t^T q_t / max(|scale z_t.q_t|, 1)``.  The memory is held relative to a running
    maximum of earlier gates, ``m_t = max(log sigma(f_t) + m_{t-1}, i_t)``, so that gates of any
    size are right.  Nothing at position t changes an output before t.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    i, f : array_like, shape (..., n)
        Input and forget gates before their functions, exp and sigma.  They are converted to what
        is computed in, float32 for 16-bit tokens, and do not affect the result's dtype.
    scale : float, optional
        Multiplies q; 1 / sqrt(d) by default.
    normalize : bool, default True
        Divide by the larger of ``|scale z.q|`` and 1.
    eps : float, default 0.0
        Added to the denominator times e^-m, as the published code does, which has 1e-6; unused
        where ``normalize`` is False.
    initial_state : State, optional
        The memory before the first token times e^-log_scale: ``s`` (..., d, m) and ``z``
        (..., d), or None without the normaliser, and ``log_scale`` (...), one per head;
        with ``cu_seqlens`` (..., r, d, m), (..., r, d) and (..., r); default: zeros.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    About the time of `gated` with one gate per token: 4 n d m floating-point operations per head.
    Scratch of 2 d m numbers per thread, and three numbers per token.  An input gate of -inf writes
    nothing, whatever the key and the value are; a forget gate of -inf resets the memory, even where
    it holds inf or NaN.

    References
    ----------
    Beck et al., "xLSTM: Extended Long Short-Term Memory", NeurIPS 2024, eq. 19-27, and eq. 15-17
    for the running maximum

    Examples
    --------
    Without forgetting the output is the mean of the values, weighted by e^i.

    >>> import numpy as np, linattn
    >>> x, v = np.ones((3, 1)), np.array([[2.0], [4.0], [9.0]])
    >>> linattn.mlstm(x, x, v, np.zeros(3), np.full(3, np.inf))
    array([[2.],
           [3.],
           [5.]])
    """


@function
def mlstm_backward() -> None:
    """Gradients of `mlstm`.

    Exact for the equation of `mlstm`, the larger of the two denominators and ``eps`` included.
    The forward result is not needed.

    Returns
    -------
    dq, dk, dv, di, df : ndarray
        Gradients, in the shapes of q, k, v, i and f; those of a broadcast operand are summed
        over its repeats.  di and df have the dtype that is computed in: float32 for 16-bit
        tokens.
    $gradient_of_state

    Notes
    -----
    About the time of `gated_backward`, with m + 1 value channels, and its memory.

    Examples
    --------
    Each value has the same weight in a mean.

    >>> import numpy as np, linattn
    >>> x, v, c = np.ones((2, 1)), np.array([[2.0], [4.0]]), np.array([[0.0], [1.0]])
    >>> gates = np.zeros(2), np.full(2, np.inf)
    >>> dq, dk, dv, di, df = linattn.mlstm_backward(x, x, v, *gates, c)
    >>> dv
    array([[0.5],
           [0.5]])
    """


@function
def mlstm_step() -> None:
    """One token of `mlstm`: let the memory decay, write to it, then read it.

    Parameters
    ----------
    $token
    i, f : array_like, shape (...)
        Its input and forget gates.
    state : State
        The memory so far: ``s`` (..., d, m), ``z`` (..., d), or None without the normaliser, and
        ``log_scale`` (...), of the result's dtype, or float32 where that has 16 bits.

    Returns
    -------
    o : ndarray, shape (..., m)
    state : State
        The state after the token.

    Notes
    -----
    4 d m floating-point operations per head; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.array([[6.0]]), np.array([2.0]), np.array(0.0))
    >>> o, state = linattn.mlstm_step([1.0], [1.0], [9.0], 0.0, np.inf, state)
    >>> o, state.s
    (array([5.]), array([[15.]]))
    """
