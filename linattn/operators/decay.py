"""Logarithms of decays as gated models compute them from their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks, gradient_sums
from .._core.checks import wrong_shape
from .._core.dtypes import is_weak, result_dtype, state_dtype
from .._core.gufuncs import internal_ufuncs, quiet
from .._docs.templates import filled, filled_like

if TYPE_CHECKING:
    from .._types import Array, ArrayLike


@quiet
@filled
def log_decay(
    x: ArrayLike, A_log: ArrayLike, dt_bias: ArrayLike, *, lower_bound: float | None = None
) -> Array:
    """The logarithm of a decay, which is the gate g of gated models.

    ``-exp(A_log) softplus(x + dt_bias)``, or, with a lower bound,
    ``lower_bound sigmoid(exp(A_log) (x + dt_bias))``.

    Parameters
    ----------
    x : array_like, shape (...)
        The model's projection of a token, float16, bfloat16, float32 or float64.  Other real
        dtypes are cast by {library}'s rules.  16-bit operands are computed in float32 and rounded
        once.
    A_log : array_like, broadcasting with x
        The logarithm of the rate, usually one number per head.
    dt_bias : array_like, broadcasting with x
        Added to x.
    lower_bound : float, optional
        The minimum of the second form, a negative number such as -5.

    Returns
    -------
    ndarray
        Of the shape that the operands broadcast to.

    Raises
    ------
    TypeError
        If an operand is {refused}, or ``lower_bound`` is not a number.
    ValueError
        If shapes do not broadcast, or ``lower_bound`` is not finite.

    Notes
    -----
    One pass over memory.  softplus and sigmoid are accurate to 2 units in the last place.

    References
    ----------
    Yang, Kautz and Hatamizadeh, "Gated Delta Networks", ICLR 2025; Kimi Team, "Kimi Linear",
    2025 (the lower bound)

    Examples
    --------
    >>> import numpy as np, linattn
    >>> np.exp(linattn.log_decay(np.array([-20.0, 0.0, 20.0]), 0.0, 0.0)).round(3)
    array([1. , 0.5, 0. ])
    >>> linattn.log_decay(np.array([-20.0, 0.0, 20.0]), 0.0, 0.0, lower_bound=-5).round(3)
    array([-0. , -2.5, -5. ])
    """
    operands, _ = _operands("log_decay", x, A_log, dt_bias)
    if lower_bound is None:
        return internal_ufuncs["log_decay"](*operands)
    dtype = result_dtype(*operands)
    bound = _bound("log_decay", lower_bound, operands)
    return internal_ufuncs["bounded_log_decay"](*operands, bound).astype(dtype, copy=False)


@quiet
@filled_like(log_decay)
def log_decay_backward(
    x: ArrayLike, A_log: ArrayLike, dt_bias: ArrayLike, grad: ArrayLike, *,
    lower_bound: float | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Gradients of `log_decay`.

    Parameters
    ----------
    grad : array_like
        The gradient of a scalar with respect to the result, in its shape or broadcasting to it.

    Returns
    -------
    dx, dA_log, ddt_bias : ndarray
        In the shapes of the operands.  Those of a broadcast operand are summed over the axes it
        was broadcast along.

    Notes
    -----
    One pass over memory.  Sums over broadcast axes are pairwise, in float64.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.zeros((3, 2))
    >>> dx, dA_log, ddt_bias = linattn.log_decay_backward(x, np.zeros(2), np.zeros(2), x + 1)
    >>> dx[0], ddt_bias, dA_log.round(3)
    (array([-0.5, -0.5]), array([-1.5, -1.5]), array([-2.079, -2.079]))
    """
    name = "log_decay_backward"
    operands, shape = _operands(name, x, A_log, dt_bias)
    grad = checks.broadcast(name, "grad", checks.operand(name, "grad", grad, 0), shape)
    dtype, wide = (f(*operands, grad) for f in (result_dtype, state_dtype))
    arrays = [np.asarray(y, wide) for y in operands]  # sums need more than 16 bits
    if lower_bound is None:
        task = "log_decay_backward"
    else:
        task = "bounded_log_decay_backward"
        arrays.append(_bound(name, lower_bound, operands))
    dz, dA = internal_ufuncs[task](*arrays, np.asarray(grad, wide))
    grads = zip((dz, dA, dz), operands, strict=True)
    dx, dA_log, ddt_bias = (gradient_sums.summed(y, to.shape, dtype) for y, to in grads)
    return dx, dA_log, ddt_bias


def _operands(
    name: str, x: Any, A_log: Any, dt_bias: Any
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The operands as arrays, Python's numbers in the dtype of x, and the result's shape."""
    x = checks.operand(name, "x", x, 0)
    dtype = result_dtype(x)
    arrays = {
        key: checks.operand(name, key, np.asarray(y, dtype) if is_weak(y) else y, 0)
        for key, y in (("A_log", A_log), ("dt_bias", dt_bias))
    }
    shape = x.shape
    for key, y in arrays.items():
        try:
            shape = np.broadcast_shapes(shape, y.shape)
        except ValueError:
            raise wrong_shape(name, key, y, f"one that broadcasts with {shape}") from None
    return (x, *arrays.values()), shape


def _bound(name: str, lower_bound: Any, operands: tuple[Any, ...]) -> np.ndarray:
    value = checks.number(name, "lower_bound", lower_bound, *operands)
    return np.asarray(value, state_dtype(*operands))
