"""RWKV-4's attention without queries: forward, gradients, and one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._call.recurrence import Recurrence
from .functions import Functions


def _decay(named: Mapping[str, Any], there: Any, xp: Any) -> Any:
    """-w for each token."""
    count = named["k"].shape[-2] if there is None else there.sum(-1)[..., None]
    return -named["w"] * count


WKV = Recurrence("wkv", decay=_decay)
function = Functions(WKV)


@function
def wkv() -> None:
    """RWKV-4's attention: a weighted mean of the values so far, each channel by itself.

    ``num_t = e^-w num_{t-1} + e^k_t v_t``, ``den_t = e^-w den_{t-1} + e^k_t``,
    ``o_t = (num_{t-1} + e^(u + k_t) v_t) / (den_{t-1} + e^(u + k_t))``.  All exponentials are taken
    relative to the largest so far, so that keys of any size are right.  Nothing at position t
    changes an output before t.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    k : array_like, shape (..., n, m)
        Keys, float16, bfloat16, float32 or float64 (other real dtypes are cast by {library}'s
        rules): logarithms of weights; -inf writes nothing.  16-bit numbers are computed in
        float32 and rounded once.
    v : array_like, shape (..., n, m)
        Values.
    w : array_like, shape (..., m)
        Decay of each channel: a token multiplies its memory by e^-w.  It is converted to what is
        computed in, float32 for 16-bit tokens, and does not affect the result's dtype.
    u : array_like, shape (..., m)
        Added to a token's own key as it is read; converted as ``w`` is.
    initial_state : State, optional
        The state before the first token: ``s`` (num) and ``z`` (den), both times e^-log_scale,
        and ``log_scale``, each (..., m), or (..., r, m) with ``cu_seqlens``; default: nothing
        seen, 0, 0 and -inf.

    Returns
    -------
    o : ndarray, shape (..., n, m)
        0 where there is no key yet.
    $final_state

    Notes
    -----
    Two exponentials and a division per element; scratch of about 16,000 numbers per thread.

    References
    ----------
    Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", EMNLP 2023, eq. 16 and its
    recursion in appendix D

    Examples
    --------
    The mean of the values so far, where nothing decays and all keys are alike.

    >>> import numpy as np, linattn
    >>> v = np.array([[2.0], [4.0], [9.0]])
    >>> linattn.wkv(np.zeros((3, 1)), v, np.zeros(1), np.zeros(1))
    array([[2.],
           [3.],
           [5.]])
    """


@function
def wkv_backward() -> None:
    """Gradients of `wkv`.

    Exact for the equation of `wkv`.  The forward result is not needed.

    Returns
    -------
    dk, dv, dw, du : ndarray
        Gradients, in the shapes of k, v, w and u; those of a broadcast operand are summed over
        its repeats.  dw and du have the dtype that is computed in: float32 for 16-bit tokens.
    $gradient_of_state

    Notes
    -----
    Three to four times the time of `wkv`.  Scratch of about 1,700 sqrt(n) numbers per thread.

    Examples
    --------
    Each value has the same weight in a mean.

    >>> import numpy as np, linattn
    >>> v, c = np.array([[2.0], [4.0]]), np.array([[0.0], [1.0]])
    >>> dk, dv, dw, du = linattn.wkv_backward(np.zeros((2, 1)), v, np.zeros(1), np.zeros(1), c)
    >>> dv
    array([[0.5],
           [0.5]])
    """


@function
def wkv_step() -> None:
    """One token of `wkv`: read it, then let the memory decay and write to it.

    Parameters
    ----------
    k, v : array_like, shape (..., m)
        The token's key and value.
    state : State
        The state before it: ``s``, ``z`` and ``log_scale`` (..., m), of the result's dtype, or
        float32 where that has 16 bits.

    Returns
    -------
    o : ndarray, shape (..., m)
    state : State
        The state after the token.

    Notes
    -----
    Two exponentials and a division per element; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.array([6.0]), np.array([2.0]), np.zeros(1))  # 2 values, mean 3
    >>> o, state = linattn.wkv_step([0.0], [9.0], [0.0], [0.0], state)
    >>> o, state.s, state.z
    (array([5.]), array([15.]), array([3.]))
    """
