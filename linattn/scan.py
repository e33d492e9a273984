"""Scans over tokens: linear recurrences of numbers, and Mamba's selective state space model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from . import _complex_scan
from ._docs import filled, filled_like
from ._operator import Recurrence
from ._state import State

if TYPE_CHECKING:
    from typing import Unpack

    from ._types import Array, ArrayLike, Bool, LinearScanOptions, SelectiveScanOptions

LINEAR_SCAN = Recurrence("linear_scan", transition="elementwise")
SELECTIVE_SCAN = Recurrence("selective_scan", transition="elementwise", public={"gate": "z"})


@overload
def linear_scan(
    a: ArrayLike, x: ArrayLike, *, return_state: Literal[False] = ...,
    **options: Unpack[LinearScanOptions],
) -> Array: ...  # fmt: skip
@overload
def linear_scan(
    a: ArrayLike, x: ArrayLike, *, return_state: Literal[True],
    **options: Unpack[LinearScanOptions],
) -> tuple[Array, State]: ...  # fmt: skip
@overload
def linear_scan(
    a: ArrayLike, x: ArrayLike, *, return_state: bool, **options: Unpack[LinearScanOptions]
) -> Array | tuple[Array, State]: ...
@filled
def linear_scan(
    a: ArrayLike,
    x: ArrayLike,
    *,
    log: Bool = False,
    reverse: Bool = False,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    return_state: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, State]:
    """First-order linear recurrence over tokens, each number by itself.

    ``h_i = a_i h_{i-1} + x_i``, or ``h_i = exp(a_i) h_{i-1} + x_i`` with ``log``: exponential
    averages with changing weights, first-order filters, and the recurrences of RG-LRU, HGRN,
    minGRU and diagonal state space models.  Nothing at position i changes an output before i,
    or after i with ``reverse``.

    Parameters
    ----------
    $factors
    $a_x
    $logarithms
    $reverse
    $cu_seqlens
    $initial_row
    $return_state
    $out

    Returns
    -------
    h : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    One multiplication and one addition a number, and an exponential with ``log``: the time is
    that of reading a and x and writing h.  Scratch: blocks of a few tokens a thread, and a row.
    Factors above 1 in magnitude are right as long as h is finite.  Once h is NaN it stays NaN,
    whatever the factors.

    Complex operands are computed in complex64 or complex128, at their time per float; rows that
    are not contiguous are copied.

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
    if _complex_scan.is_complex(a, x):
        return _complex_scan.forward(
            a, x, log=log, reverse=reverse, cu_seqlens=cu_seqlens, initial_state=initial_state,
            return_state=return_state, out=out,
        )  # fmt: skip
    return LINEAR_SCAN.forward(
        (a, x), log=log, reverse=reverse, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state, out=out,
    )  # fmt: skip


@filled_like(linear_scan)
def linear_scan_backward(
    a: ArrayLike,
    x: ArrayLike,
    grad_out: ArrayLike,
    *,
    log: Bool = False,
    reverse: Bool = False,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:
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
    5 floating-point operations a number, and two exponentials with ``log``.  Memory beyond the
    arrays: about 2 sqrt(n) rows of a panel of channels a thread.

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
    if _complex_scan.is_complex(a, x):
        return _complex_scan.backward(
            a, x, grad_out, log=log, reverse=reverse, cu_seqlens=cu_seqlens,
            initial_state=initial_state, grad_state=grad_state,
        )  # fmt: skip
    return LINEAR_SCAN.backward(
        (a, x), grad_out, log=log, reverse=reverse, cu_seqlens=cu_seqlens,
        initial_state=initial_state, grad_state=grad_state,
    )  # fmt: skip


@filled
def linear_scan_step(
    a: ArrayLike, x: ArrayLike, state: State, *, log: Bool = False, in_place: bool = False
) -> tuple[Array, State]:
    """One token of `linear_scan`.

    ``h <- a h + x``, or ``h <- exp(a) h + x`` with ``log``.

    Parameters
    ----------
    $token_a_x
    $row
    $logarithms
    $in_place

    Returns
    -------
    h : ndarray, shape (..., m)
    state : State
        The state after the token: h as well, in the dtype that is computed in.

    Notes
    -----
    2 floating-point operations a number, and an exponential with ``log``.

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
    if _complex_scan.is_complex(a, x):
        return _complex_scan.step(a, x, state, log=log, in_place=in_place)
    return LINEAR_SCAN.step((a, x), state, log=log, in_place=in_place)


@overload
def selective_scan(
    x: ArrayLike, dt: ArrayLike, A: ArrayLike, B: ArrayLike, C: ArrayLike, *,
    return_state: Literal[False] = ..., **options: Unpack[SelectiveScanOptions],
) -> Array: ...  # fmt: skip
@overload
def selective_scan(
    x: ArrayLike, dt: ArrayLike, A: ArrayLike, B: ArrayLike, C: ArrayLike, *,
    return_state: Literal[True], **options: Unpack[SelectiveScanOptions],
) -> tuple[Array, State]: ...  # fmt: skip
@overload
def selective_scan(
    x: ArrayLike, dt: ArrayLike, A: ArrayLike, B: ArrayLike, C: ArrayLike, *,
    return_state: bool, **options: Unpack[SelectiveScanOptions],
) -> Array | tuple[Array, State]: ...  # fmt: skip
@filled
def selective_scan(
    x: ArrayLike,
    dt: ArrayLike,
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    *,
    D: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    softplus: Bool = False,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    return_state: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, State]:
    """The selective state space model of Mamba.

    ``h_i[m, r] = exp(dt_i[m] A[m, r]) h_{i-1}[m, r] + dt_i[m] B_i[r] x_i[m]``,
    ``y_i[m] = sum_r C_i[r] h_i[m, r] + D[m] x_i[m]``, and with a gate z times ``silu(z_i[m])``.
    dt stands for ``dt + dt_bias``, or for its softplus.  Nothing at position i changes an output
    before i.

    Leading axes are broadcast by NumPy's rules.  Groups of channels that share B and C are a
    leading axis.

    Parameters
    ----------
    $selective
    $skip
    $gate
    $dt_bias
    $key_lengths
    $cu_seqlens
    $initial_channels
    $return_state
    $out

    Returns
    -------
    y : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    n m r exponentials and 6 n m r floating-point operations.  Scratch a thread: A and a state,
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
    return SELECTIVE_SCAN.forward(
        (x, dt, A, B, C, D, z, dt_bias), softplus=softplus, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state, out=out,
    )  # fmt: skip


@filled_like(selective_scan)
def selective_scan_backward(
    x: ArrayLike,
    dt: ArrayLike,
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    grad_out: ArrayLike,
    *,
    D: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    softplus: Bool = False,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:
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
    2 n m r exponentials and 24 n m r floating-point operations.  Memory beyond the arrays: about
    sqrt(n) states of m r numbers a thread, and blocks of sqrt(n) tokens.

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
    return SELECTIVE_SCAN.backward(
        (x, dt, A, B, C, D, z, dt_bias), grad_out, softplus=softplus, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, grad_state=grad_state,
    )  # fmt: skip


@filled
def selective_scan_step(
    x: ArrayLike,
    dt: ArrayLike,
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    state: State,
    *,
    D: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    softplus: Bool = False,
    in_place: bool = False,
) -> tuple[Array, State]:
    """One token of `selective_scan`.

    Parameters
    ----------
    $token_selective
    $channels
    $skip
    $token_z
    $dt_bias
    $in_place

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
    return SELECTIVE_SCAN.step(
        (x, dt, A, B, C, D, z, dt_bias), state, softplus=softplus, in_place=in_place
    )
