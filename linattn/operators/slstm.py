"""sLSTM, the scalar memory of xLSTM: forward, gradients, and one token at a time."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .._states.state_arrays import SLSTMState
from .functions import Functions

SLSTM = Recurrence(
    "slstm", transition=None, public={"bias": "b"}, holder=SLSTMState, fixed={"g": 4},
    written={"h": "heads"},
)  # fmt: skip
function = Functions(SLSTM)


@function
def slstm() -> None:
    """The scalar memory of xLSTM: exponential input gates, and outputs that feed the next gates.

    ``(i, f, z, o) = x_t + R h_{t-1} + b``, ``m_t = max(log sigma(f) + m_{t-1}, i)``,
    ``c_t = f' c_{t-1} + i' tanh(z)``, ``n_t = f' n_{t-1} + i'``, ``h_t = sigma(o) c_t / n_t`` with
    ``i' = e^(i - m_t)`` and ``f' = e^(log sigma(f) + m_{t-1} - m_t)``.  Heads do not interact:
    ``(R h)[g, head, i] = sum_j R[g, head, i, j] h[head, j]``.  Nothing at position t changes an
    output before t.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    x : array_like, shape (..., n, 4, heads, d)
        What the tokens add to the gates, in the order i, f, z, o: input gate, forget gate, cell
        input and output gate, before their functions exp, sigma, tanh and sigma.
    R : array_like, shape (..., 4, heads, d, d)
        Recurrent weights of each gate and head: rows are gates, columns outputs before the token.
    b : array_like, shape (..., 4, heads, d)
        Biases of the gates.
    initial_state : SLSTMState, optional
        The state before the first token: ``h``, ``c``, ``n`` and ``m``, each (..., heads, d); with
        ``cu_seqlens`` (..., r, heads, d); default: zeros.
    out : ndarray, shape (..., n, heads, d), optional
        Where to write the result; of the result's dtype.  It may overlap an operand.

    Returns
    -------
    h : ndarray, shape (..., n, heads, d)
    $final_state

    Notes
    -----
    8 d^2 floating-point operations per token and head, and four exponentials per element.  A token
    waits for the output of the one before, so that tokens are computed one after another; sequences
    that share R and b are computed together, so that R is read once for all of them.  Scratch of
    4 d^2 numbers per thread.  Where n is 0 nothing has been written: c and m have no effect there,
    and the first token sets m to i.  An input gate of -inf writes nothing.

    References
    ----------
    Beck et al., "xLSTM: Extended Long Short-Term Memory", NeurIPS 2024, eq. 8-18

    Examples
    --------
    Without forgetting, and with open output gates, the output is the mean of tanh(z), weighted by
    e^i.

    >>> import numpy as np, linattn
    >>> x = np.zeros((3, 4, 1, 1))  # tokens, gates, heads, width
    >>> x[:, 1] = x[:, 3] = np.inf
    >>> x[:, 2, 0, 0] = np.arctanh([0.2, 0.4, 0.6])
    >>> R, b = np.zeros((4, 1, 1, 1)), np.zeros((4, 1, 1))
    >>> linattn.slstm(x, R, b)[:, 0, 0].round(6)
    array([0.2, 0.3, 0.4])
    """


@function
def slstm_backward() -> None:
    """Gradients of `slstm`.

    Exact for the equations of `slstm`, through R h, and through m where the last state has a
    gradient; the outputs do not depend on m.  The forward result is not needed.

    Parameters
    ----------
    grad_out : array_like, shape (..., n, heads, d)
        The gradient of a scalar with respect to the output.  It may be an expanded
        (zero-stride) view.

    Returns
    -------
    dx, dR, db : ndarray
        Gradients, in the shapes of x, R and b; those of a broadcast operand are summed over its
        repeats.
    $gradient_of_state

    Notes
    -----
    Four times the operations of `slstm`.  Scratch of 12 d^2 numbers per thread, and, for each of up
    to 16 sequences computed together, n d numbers, the gates of 64 tokens, and dR.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x, c = np.zeros((2, 4, 1, 1)), np.ones((2, 1, 1))
    >>> R, b = np.zeros((4, 1, 1, 1)), np.zeros((4, 1, 1))
    >>> dx, dR, db = linattn.slstm_backward(x, R, b, c)
    >>> db[2, 0]  # of the cell inputs
    array([1.])
    """


@function
def slstm_step() -> None:
    """One token of `slstm`.

    Parameters
    ----------
    x : array_like, shape (..., 4, heads, d)
        What the token adds to the gates.
    state : SLSTMState
        The state so far: ``h``, ``c``, ``n`` and ``m``, each (..., heads, d), of the result's
        dtype, or float32 where that has 16 bits.

    Returns
    -------
    h : ndarray, shape (..., heads, d)
    state : SLSTMState
        The state after the token, whose ``h`` is the output.

    Notes
    -----
    8 d^2 floating-point operations per head; R is read once for the sequences that share it.  Its
    products are summed in another order than those of `slstm`.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x, R, b = np.zeros((4, 1, 2)), np.zeros((4, 1, 2, 2)), np.zeros((4, 1, 2))
    >>> state = linattn.initial_state(x, R, b, operator="slstm_step")
    >>> h, state = linattn.slstm_step(x, R, b, state)
    >>> state.n
    array([[1., 1.]])
    """
