"""A memory with diagonal plus low-rank transitions: forward, gradients, and one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from ._docs import filled
from ._operator import Recurrence
from ._state import State

if TYPE_CHECKING:
    from typing import Unpack

    from ._types import Array, ArrayLike, SequenceOptions

DPLR = Recurrence("dplr")


@overload
def dplr(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, a: ArrayLike, b: ArrayLike, g: ArrayLike, *,
    return_state: Literal[False] = ..., **options: Unpack[SequenceOptions],
) -> Array: ...  # fmt: skip
@overload
def dplr(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, a: ArrayLike, b: ArrayLike, g: ArrayLike, *,
    return_state: Literal[True], **options: Unpack[SequenceOptions],
) -> tuple[Array, State]: ...  # fmt: skip
@overload
def dplr(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, a: ArrayLike, b: ArrayLike, g: ArrayLike, *,
    return_state: bool, **options: Unpack[SequenceOptions],
) -> Array | tuple[Array, State]: ...  # fmt: skip
@filled
def dplr(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    g: ArrayLike,
    *,
    scale: float = 1.0,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    return_state: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, State]:
    """A memory whose transition is diagonal plus low rank: the generalised delta rule of RWKV-7.

    ``s_i = exp(g_i) s_{i-1} + b_i (s_{i-1}^T a_i)^T + k_i v_i^T``, ``o_i = scale s_i^T q_i``.
    a reads the memory as it is before the token's decay, and b is where that is written to:
    ``a = -kappa``, ``b = kappa * rate`` for a normalised removal key kappa.  Nothing at position
    i changes an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    $q
    $k
    $v
    a : array_like, shape (..., n, d)
        What each token reads with before it writes.
    b : array_like, shape (..., n, d)
        Where it writes what it read.  Where a = -kappa, b = rate kappa with kappa of norm 1,
        rate in [0, 1] and g not positive, the memory stays bounded; otherwise it can grow
        without limit, to inf and NaN from there on.
    $g
    $scale
    $token_lengths
    $cu_seqlens
    $initial_memory
    $packed_memory
    $return_state
    $out

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_memory

    Raises
    ------
    $raises

    Notes
    -----
    About 8 n d m floating-point operations a head, a triangular solve for every 16 or 32
    tokens among them, and an exponential a gate; scratch of d m numbers a thread.  A gate of -inf
    keeps nothing but what a reads and b writes, which is inf or NaN where the memory is; positive
    gates are right as long as exp(g) and the memory are finite at every token; one that is NaN
    makes all NaN from there on.

    A chunk of tokens ends early before a reset and where gates together pass e^20 (float64:
    e^150); with a gate a key channel also where they pass e^-60 (float64: e^-450), so that long
    runs of very strong gates cost up to 10 times as much.  With a gate a key channel the range of
    k, q, a and b is that of k and q in `gated`.

    References
    ----------
    Peng et al., "RWKV-7 'Goose' with Expressive Dynamic State Evolution", 2025, eq. 15-17

    Examples
    --------
    The second token removes what the first one wrote, and writes it to the other key.

    >>> import numpy as np, linattn
    >>> q = a = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> k, v, b = np.eye(2), np.array([[5.0], [0.0]]), np.array([[0.0, 0.0], [-1.0, 1.0]])
    >>> o, state = linattn.dplr(q, k, v, a, b, np.zeros(2), return_state=True)
    >>> state.s
    array([[0.],
           [5.]])
    """
    return DPLR.forward(
        (q, k, v, a, b, g), feature_map="identity", scale=scale, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state, out=out,
    )  # fmt: skip


@filled
def dplr_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    g: ArrayLike,
    grad_out: ArrayLike,
    *,
    scale: float = 1.0,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:
    """Gradients of `dplr`.

    Exact for the equation of `dplr`.  The forward result is not needed.

    Parameters
    ----------
    $q
    $k
    $v
    a, b : array_like, shape (..., n, d)
        What each token reads with, and where it writes what it read.
    $g
    $grad_out
    $scale
    $token_lengths
    $cu_seqlens
    $initial_memory
    $packed_memory
    $grad_state

    Returns
    -------
    dq, dk, dv, da, db, dg : ndarray
        Gradients, in the shapes of q, k, v, a, b and g; those of a broadcast operand are
        summed over its repeats.  dg is float32 where the others have 16 bits.
    $gradient_of_state

    Raises
    ------
    $raises

    Notes
    -----
    About 28 n d m floating-point operations a head.  Memory beyond the arrays: at most
    2.5 sqrt(n) + 3 states of d m numbers a thread, of which a fourth is touched where chunks are
    whole, and n bytes; with 16-bit operands n m float32 numbers more.
    dg is summed from products of what lies before a token's decay and after it, as exact as the
    other gradients.

    References
    ----------
    Peng et al., "RWKV-7 'Goose' with Expressive Dynamic State Evolution", 2025, eq. 15-17

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x, none = np.ones((2, 1)), np.zeros((2, 1))
    >>> dq, dk, dv, da, db, dg = linattn.dplr_backward(x, x, x, none, none, np.zeros(2), x)
    >>> dg
    array([0., 1.])
    """
    return DPLR.backward(
        (q, k, v, a, b, g), grad_out, feature_map="identity", scale=scale,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        grad_state=grad_state,
    )  # fmt: skip


@filled
def dplr_step(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    g: ArrayLike,
    state: State,
    *,
    scale: float = 1.0,
    in_place: bool = False,
) -> tuple[Array, State]:
    """One token of `dplr`: write to the memory, then read it.

    ``s <- exp(g) s + b (s^T a)^T + k v^T``, ``o = scale s^T q``

    Parameters
    ----------
    $token
    a, b : array_like, shape (..., d)
        What the token reads with, and where it writes what it read.
    $token_g
    $memory
    $scale
    $in_place

    Returns
    -------
    o : ndarray, shape (..., m)
    state : State
        The state after the token.

    Raises
    ------
    $raises

    Notes
    -----
    9 d m floating-point operations a head; the state is read and written once.

    References
    ----------
    Peng et al., "RWKV-7 'Goose' with Expressive Dynamic State Evolution", 2025, eq. 15-17

    Examples
    --------
    >>> import numpy as np, linattn
    >>> k, none = np.array([1.0, 0.0]), np.zeros(2)
    >>> state = linattn.State(np.array([[8.0], [0.0]]))
    >>> o, state = linattn.dplr_step(k, k, np.array([1.0]), none, none, np.log(0.5), state)
    >>> o
    array([5.])
    """
    return DPLR.step(
        (q, k, v, a, b, g), state, feature_map="identity", scale=scale, in_place=in_place
    )
