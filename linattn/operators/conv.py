"""The short causal convolution of gated models: forward, gradients and one token at a time."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

#: Its state has the inputs of one token less than a filter.
CONVOLUTION = Recurrence(
    "causal_conv1d", transition=None, public={"silu": "activation"}, one_array=True,
    one_less={"d": "f"}, written={"m": "c", "f": "w"},
)  # fmt: skip
function = Functions(CONVOLUTION, "bias")


@function
def causal_conv1d() -> None:
    """Causal convolution of each channel with its own short filter.

    ``o_t = bias + sum_{j=0}^{w-1} weight[:, w-1-j] x_{t-j}``, then the activation: the last
    weight multiplies the current token.  Inputs before the first token are 0, or those of
    ``initial_state``.  A token at position t never affects an output before t.

    Parameters
    ----------
    x : array_like, shape (..., n, c)
        Tokens, float16, bfloat16, float32 or float64.  Other real dtypes are cast by {library}'s
        rules.  16-bit operands are computed in float32 and rounded once.
    weight : array_like, shape (c, w)
        The filter of each channel, w >= 1.  Leading axes, if any, broadcast with those of x.
    bias : array_like, shape (c,), optional
        Added to each channel.
    activation : {None, 'silu'}, default None
        ``silu(p) = p / (1 + exp(-p))`` of the sum.
    initial_state : ndarray, shape (..., c, w - 1), optional
        The inputs before the first token, oldest first, or (..., r, c, w - 1) with
        ``cu_seqlens``, of the result's dtype, or float32 if that has 16 bits.  Zeros by default.
    $half_state
    return_state : bool, default False
        Also return the last w - 1 inputs.
    out : ndarray, shape (..., n, c), optional
        Where to write the result; of the result's dtype.  It may overlap an operand.

    Returns
    -------
    o : ndarray, shape (..., n, c)
    state : ndarray, shape (..., c, w - 1)
        Only with ``return_state``; (..., r, c, w - 1) with ``cu_seqlens``, of the dtype of
        ``initial_state``.  You can cut a sequence anywhere and continue from it.

    Notes
    -----
    2 w n c floating-point operations, and about 25 per number for silu; one pass over memory.
    Results of 16 MiB or more bypass the processor's cache.

    References
    ----------
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
    section 3.4

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.array([[1.0], [2.0], [4.0], [8.0]])
    >>> o, state = linattn.causal_conv1d(x, [[0.5, 1.0]], return_state=True)
    >>> o.ravel(), state
    (array([ 1. ,  2.5,  5. , 10. ]), array([[8.]]))
    """


@function
def causal_conv1d_backward() -> None:
    """Gradients of `causal_conv1d`.

    They are exact for its equation and do not need the forward result.

    Parameters
    ----------
    grad_out : array_like, shape (..., n, c)
        The gradient of a scalar with respect to the output.  It may be an expanded
        (zero-stride) view.
    grad_state : ndarray, shape (..., c, w - 1), optional
        The gradient with respect to the final state, or (..., r, c, w - 1).

    Returns
    -------
    dx, dweight : ndarray
        Gradients, in the shapes of x and weight.  Those of a broadcast operand are summed over
        the axes it was broadcast along.
    dbias : ndarray
        Only if ``bias`` is given.
    dstate : ndarray
        The gradient of the initial state, in its shape.  Only if ``initial_state`` or
        ``grad_state`` is given.

    Notes
    -----
    6 w n c floating-point operations, and about 30 per number for silu.  Sums over tokens are
    compensated; sums over heads and sequences are in float64.  Memory beyond the arrays: w c
    numbers per head and sequence.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.array([[1.0], [2.0], [4.0], [8.0]])
    >>> dx, dweight = linattn.causal_conv1d_backward(x, [[0.5, 1.0]], np.ones((4, 1)))
    >>> dx.ravel(), dweight
    (array([1.5, 1.5, 1.5, 1. ]), array([[ 7., 15.]]))
    """


@function
def causal_conv1d_step() -> None:
    """One token of `causal_conv1d`.

    ``o = bias + sum_{k < w-1} weight[:, k] state[:, k] + weight[:, w-1] x``, then the
    activation.  The token becomes the last input of the state; the first one is dropped.

    Parameters
    ----------
    x : array_like, shape (..., c)
        The token.
    state : ndarray, shape (..., c, w - 1)
        The inputs before it, oldest first, of the result's dtype, or float32 if that has
        16 bits.
    $half_state
    in_place : bool, default False
        Write the new state to ``state`` and return it.  It must be writeable and have all
        leading axes.

    Returns
    -------
    o : ndarray, shape (..., c)
    state : ndarray, shape (..., c, w - 1)
        The state after the token.

    Notes
    -----
    2 w c floating-point operations; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = np.array([[4.0]])
    >>> o, state = linattn.causal_conv1d_step(np.array([8.0]), [[0.5, 1.0]], state)
    >>> o, state
    (array([10.]), array([[8.]]))
    """
