"""The delta rule on a memory that decays: forward, gradients, and one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from ._docs import filled
from ._operator import Recurrence
from ._state import State

if TYPE_CHECKING:
    from typing import Unpack

    from ._types import Array, ArrayLike, GatedDeltaOptions, Map

GATED_DELTA = Recurrence("gated_delta")


@overload
def gated_delta(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, g: ArrayLike, beta: ArrayLike, *,
    return_state: Literal[False] = ..., **options: Unpack[GatedDeltaOptions],
) -> Array: ...  # fmt: skip
@overload
def gated_delta(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, g: ArrayLike, beta: ArrayLike, *,
    return_state: Literal[True], **options: Unpack[GatedDeltaOptions],
) -> tuple[Array, State]: ...  # fmt: skip
@overload
def gated_delta(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, g: ArrayLike, beta: ArrayLike, *,
    return_state: bool, **options: Unpack[GatedDeltaOptions],
) -> Array | tuple[Array, State]: ...  # fmt: skip
@filled
def gated_delta(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    *,
    scale: float = 1.0,
    feature_map: Map = "identity",
    erase: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    return_state: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, State]:
    """The delta rule on a memory that decays before each write.

    ``R_i = exp(g_i) s_{i-1}``, ``s_i = R_i + phi(k_i) (beta_i * (v_i - R_i^T e_i))^T``,
    ``o_i = scale s_i^T phi(q_i)``: with ``e_i = phi(k_i)`` the gated delta rule of Qwen3-Next
    (a gate a token) and Kimi Linear (a gate a key channel).  Another erase key takes from the
    memory what it reads there, in the place of phi(k_i): Comba's is a multiple of the key, and
    ``erase=b * k`` erases by channels.  Nothing at position i changes an output before i.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    $q
    k : array_like, shape (..., n, d)
        Keys.  Where phi(k) has norm 1, beta lies in [0, 2] and g is not positive, the memory
        stays bounded; longer keys can make it grow without limit, to inf and NaN from there on.
    $v
    $g
    $beta
    $scale
    $feature_map
    erase : array_like, shape (..., n, d), optional
        What each token reads before it writes, as it is given: no map is applied.
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
    About 6 n d m floating-point operations a head, a triangular solve for every 16 or 32
    tokens among them, and an exponential a gate; scratch of d m numbers a thread.  A gate of -inf
    resets the memory to exactly 0, even where it holds inf or NaN; positive ones are right as long
    as exp(g) and the memory are finite at every token; one that is NaN makes all NaN from there on.

    A chunk of tokens ends early before a reset and where gates together pass e^20 (float64:
    e^150); with a gate a key channel also where they pass e^-60 (float64: e^-450), so that long
    runs of very strong gates cost up to 10 times as much.  With a gate a key channel the range of
    keys and queries is that of `gated`.

    References
    ----------
    Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR
    2025, eq. 10; Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025,
    eq. 1 (a gate a key channel)

    Examples
    --------
    The second token forgets half of what the first one wrote, and writes to another key.

    >>> import numpy as np, linattn
    >>> q, k = np.array([[1.0, 0.0], [1.0, 0.0]]), np.eye(2)
    >>> linattn.gated_delta(q, k, np.array([[5.0], [7.0]]), np.log([1.0, 0.5]), np.ones(2))
    array([[5. ],
           [2.5]])
    """
    return GATED_DELTA.forward(
        (q, k, v, g, beta, erase), feature_map=feature_map, scale=scale, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state, out=out,
    )  # fmt: skip


@filled
def gated_delta_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    grad_out: ArrayLike,
    *,
    scale: float = 1.0,
    feature_map: Map = "identity",
    erase: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:
    """Gradients of `gated_delta`.

    Exact for the equation of `gated_delta`.  The forward result is not needed.

    Parameters
    ----------
    $q
    $k
    $v
    $g
    $beta
    $grad_out
    $scale
    $feature_map
    erase : array_like, shape (..., n, d), optional
        What each token reads before it writes.
    $token_lengths
    $cu_seqlens
    $initial_memory
    $packed_memory
    $grad_state

    Returns
    -------
    dq, dk, dv, dg, dbeta : ndarray
        Gradients, in the shapes of q, k, v, g and beta; those of a broadcast operand are
        summed over its repeats.  dg is float32 where the others have 16 bits.
    derase : ndarray
        Only with ``erase``.
    $gradient_of_state

    Raises
    ------
    $raises

    Notes
    -----
    About 20 n d m floating-point operations a head.  Memory beyond the arrays: at most
    2.5 sqrt(n) + 3 states of d m numbers a thread, of which a fourth is touched where chunks are
    whole, and n bytes; with 16-bit operands n m float32 numbers more.
    dg is summed from products of what lies before a token's decay and after it, without a
    difference of long sums: it is as exact as the other gradients, and 0 where the memory before
    a token or all that later tokens make of it is 0.

    References
    ----------
    Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR
    2025, eq. 10

    Examples
    --------
    Only what was in the memory when it decayed has a say in g's gradient.

    >>> import numpy as np, linattn
    >>> q, k = np.array([[1.0, 0.0], [1.0, 0.0]]), np.eye(2)
    >>> v, one = np.array([[5.0], [7.0]]), np.ones((2, 1))
    >>> grads = linattn.gated_delta_backward(q, k, v, np.log([1.0, 0.5]), np.ones(2), one)
    >>> grads[3]
    array([0. , 2.5])
    """
    return GATED_DELTA.backward(
        (q, k, v, g, beta, erase), grad_out, feature_map=feature_map, scale=scale,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        grad_state=grad_state,
    )  # fmt: skip


@filled
def gated_delta_step(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    state: State,
    *,
    scale: float = 1.0,
    feature_map: Map = "identity",
    erase: ArrayLike | None = None,
    in_place: bool = False,
) -> tuple[Array, State]:
    """One token of `gated_delta`: forget, write to the memory, then read it.

    ``R = exp(g) s``, ``s <- R + phi(k) (beta * (v - R^T e))^T``, ``o = scale s^T phi(q)``

    Parameters
    ----------
    $token
    $token_g
    $token_beta
    $memory
    $scale
    $feature_map
    erase : array_like, shape (..., d), optional
        What the token reads before it writes; phi(k) by default.
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
    7 d m floating-point operations a head; the state is read and written once.

    References
    ----------
    Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR
    2025, eq. 10

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.array([[8.0], [0.0]]))
    >>> k = np.array([0.0, 1.0])
    >>> o, state = linattn.gated_delta_step(k, k, np.array([4.0]), np.log(0.5), 1.0, state)
    >>> state.s
    array([[4.],
           [4.]])
    """
    return GATED_DELTA.step(
        (q, k, v, g, beta, erase), state, feature_map=feature_map, scale=scale, in_place=in_place
    )
