"""Logarithms of sums of exponentials: forward, gradients and one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._call.recurrence import Recurrence
from .._docs.templates import filled, filled_like
from .._states.state_arrays import State

if TYPE_CHECKING:
    from .._types import Array, ArrayLike

LOG_SUM = Recurrence("log_sum", decay=lambda named, there, xp: xp.zeros(named["x"].shape[-1:]))


@filled
def log_sum(
    x: ArrayLike,
    *,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Array | tuple[Array, State]:
    """``log sum_{j <= i} exp(x_j)``

    Parameters
    ----------
    x : array_like, shape (..., n, m)
        The logarithms.

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state
    """
    return LOG_SUM.forward(
        (x,), cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state
    )


@filled_like(log_sum)
def log_sum_backward(
    x: ArrayLike,
    grad_out: ArrayLike,
    *,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    grad_state: State | None = None,
) -> tuple[Any, ...]:
    """Gradients of `log_sum`.

    Returns
    -------
    dx : ndarray, shape (..., n, m)
    $gradient_of_state
    """
    return LOG_SUM.backward(
        (x,), grad_out, cu_seqlens=cu_seqlens, initial_state=initial_state, grad_state=grad_state
    )


@filled_like(log_sum)
def log_sum_step(x: ArrayLike, state: State, *, in_place: bool = False) -> tuple[Array, State]:
    """One token of `log_sum`.

    Returns
    -------
    $after_token
    """
    return LOG_SUM.step((x,), state, in_place=in_place)
