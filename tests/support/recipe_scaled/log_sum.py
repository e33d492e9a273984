"""Logarithms of sums of exponentials: forward, gradients and one token at a time."""

from __future__ import annotations

from .._call.recurrence import Recurrence
from .functions import Functions

LOG_SUM = Recurrence("log_sum", decay=lambda named, there, xp: xp.zeros(named["x"].shape[-1:]))
function = Functions(LOG_SUM)


@function
def log_sum() -> None:
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


@function
def log_sum_backward() -> None:
    """Gradients of `log_sum`.

    Returns
    -------
    dx : ndarray, shape (..., n, m)
    $gradient_of_state
    """


@function
def log_sum_step() -> None:
    """One token of `log_sum`.

    Returns
    -------
    $after_token
    """
